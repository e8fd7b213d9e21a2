"""The names of the files of a translation, and the versions of its methods."""

__all__ = ["FRAGMENTS", "NUCLEOTIDES", "PROTEINS", "SUMMARY", "UNTRANSLATED"]
PROTEINS, NUCLEOTIDES = "proteins.faa.gz", "nucleotides.fna.gz"
FRAGMENTS, UNTRANSLATED = "fragments.parquet", "untranslated.tsv"
SUMMARY = "translate.json"
KINDS = {"proteins": PROTEINS, "nucleotides": NUCLEOTIDES}
SHEETS = {kind: f"{kind}.samples.parquet" for kind in KINDS}
"""The sheets of fragments of samples, whose translations are in `sample=<name>/`."""
OF_SAMPLE = "sample="
"""The prefix of the folder of a sample."""
FILES = (PROTEINS, NUCLEOTIDES, FRAGMENTS, UNTRANSLATED)
METHODS = {"orfs": 2, "genes": 2}
"""The versions of methods, by default 1; increased if the fragments of equal inputs change."""
LOCK = ".translate.lock"
"""The lock of the folder; it also marks the folder after a kill."""
