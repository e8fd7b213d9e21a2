"""What every package may use: errors, words, sizes and durations, log and progress, this
process."""

__version__ = "0.1.0"
