"""The command `featuremill search`: find the nearest records of finished results."""
