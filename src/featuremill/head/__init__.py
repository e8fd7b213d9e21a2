"""Classifiers on the features of finished runs: trained, taken over from elsewhere, applied."""
