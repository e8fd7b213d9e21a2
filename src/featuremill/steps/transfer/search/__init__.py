"""The records of finished results that are nearest to others: a command of the step `transfer`."""
