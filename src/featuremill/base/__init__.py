"""Shared by every package: errors, words, sizes and durations, log, progress, this process."""

__version__ = "0.1.0"
