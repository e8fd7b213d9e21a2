"""`featuremill status` and `top`: progress, speed, failures and time left of a run."""
