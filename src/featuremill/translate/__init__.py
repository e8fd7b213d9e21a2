"""Contigs or reads become fragments: proteins, and the nucleotides that each is read from."""
