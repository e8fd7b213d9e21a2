"""What the files of a translation are called."""

__all__ = ["FRAGMENTS", "NUCLEOTIDES", "PROTEINS", "SUMMARY", "UNTRANSLATED"]
PROTEINS, NUCLEOTIDES = "proteins.faa.gz", "nucleotides.fna.gz"
FRAGMENTS, UNTRANSLATED = "fragments.parquet", "untranslated.tsv"
SUMMARY = "translate.json"
KINDS = {"proteins": PROTEINS, "nucleotides": NUCLEOTIDES}
SHEETS = {kind: f"{kind}.samples.parquet" for kind in KINDS}
"""Of a translation of samples: sheets of the files of fragments, by what these are. Each sample is
a translation of its own, in a folder `sample=<name>`."""
OF_SAMPLE = "sample="
"""How the name of such a folder begins."""
FILES = (PROTEINS, NUCLEOTIDES, FRAGMENTS, UNTRANSLATED)
METHODS = {"orfs": 2, "genes": 2}
"""The version of a way to cut, 1 if none is here: raised when equal contigs and options give other
fragments."""
LOCK = ".translate.lock"
"""Is there while a process works in the folder, and after a kill: so the folder is ours."""
