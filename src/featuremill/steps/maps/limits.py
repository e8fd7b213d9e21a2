"""Which file the map is kept in, and of how many records it is."""

FILE = "map.parquet"
MOST_RECORDS = 50_000
"""The records of a map, at most; of more records, t-SNE takes a sample."""
PERPLEXITY = 30.0
