"""Checking results from elsewhere: `featuremill verify`."""
