"""One shard on one lease: its job, the supervisor, the worker that may die, pipeline, batches."""
