"""The command `featuremill doctor`: check whether a machine or a Slurm cluster is ready."""
