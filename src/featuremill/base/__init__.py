"""What every room may use: errors, words, sizes and durations, log and progress, this process."""
