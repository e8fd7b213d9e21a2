"""What is sampled while a shard is computed, and how often."""
