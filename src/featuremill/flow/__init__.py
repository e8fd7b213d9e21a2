"""Everything that uses Snakemake: what the rules call while they are read, and what a run needs."""
