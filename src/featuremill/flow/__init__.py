"""All code that uses Snakemake: functions for the rules, and the preparation of runs."""
