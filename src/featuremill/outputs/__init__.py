"""Built-in result files, which hold what any workload computes: a small writer a format."""
