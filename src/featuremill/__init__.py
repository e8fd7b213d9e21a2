"""featuremill: records in, model features out, on every GPU you have."""

__version__ = "0.1.0"
