"""What the files of a translation are called."""

PROTEINS, NUCLEOTIDES = "proteins.faa.gz", "nucleotides.fna.gz"
FRAGMENTS, UNTRANSLATED = "fragments.parquet", "untranslated.tsv"
SUMMARY = "translate.json"
FILES = (PROTEINS, NUCLEOTIDES, FRAGMENTS, UNTRANSLATED)
LOCK = ".translate.lock"
"""Is there while a process works in the folder, and after a kill: so the folder is ours."""
