"""Records into distinct ones, and these into shards; what a run will take, beforehand; retry."""
