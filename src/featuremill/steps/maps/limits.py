"""Which file the map is kept in, and of how many records it is."""

FILE = "map.parquet"
MOST_RECORDS = 50_000
"""Of more, t-SNE takes a sample."""
MOST_SHOWN = 10_000
"""On a report."""
PERPLEXITY = 30.0
