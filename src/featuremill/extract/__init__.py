"""`featuremill extract`: compute one shard on one lease, by a supervisor and a worker process."""
