"""Which file the map is kept in, and of how many records it is."""

FILE = "map.parquet"
MOST_RECORDS = 50_000
"""Of more, t-SNE takes a sample."""
PERPLEXITY = 30.0
