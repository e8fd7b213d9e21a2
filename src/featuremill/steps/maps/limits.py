"""The file name and limits of the map."""

FILE = "map.parquet"
MOST_RECORDS = 50_000
"""The largest number of evenly spaced records in a map."""
PERPLEXITY = 30.0
