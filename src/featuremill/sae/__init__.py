"""Sparse autoencoders on the features of finished runs: trained, applied, looked at."""
