"""Scores of fragments → one verdict a contig."""
