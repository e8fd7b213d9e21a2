"""All that knows Snakemake: what the workflow's rules call while it is read, and around a run."""
