"""Computes one shard on one lease: the job, its supervisor, the worker that may die, pipeline,
batches."""
