"""Speed, measured honestly: featuremill beside its peers, in one run. See bench/README.md."""
