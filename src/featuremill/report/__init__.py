"""`featuremill report`: a self-contained HTML page about a run."""
