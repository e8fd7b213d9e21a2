"""The two public collections of proteins that training and evaluation draw from, both Debian's.

* `metastudent-data`: Swiss-Prot 2014_01, as far as it has GO terms; accessions and sequences.
* `mmseqs2-examples`: 20,000 entries of UniProt 2014, mostly TrEMBL; headers name the organism.
"""

from __future__ import annotations

import gzip
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SWISS_PROT = Path("/usr/share/metastudent-data/dataset_201401")
EXAMPLES = Path("/usr/share/doc/mmseqs2/example-data/DB.fasta.gz")
ONTOLOGIES = ("BPO", "CCO", "MFO")  # one database each; a protein is in one, two or all three
RESIDUES = frozenset("ABCDEFGHIKLMNOPQRSTUVWXYZ")  # what the alphabet of ESM-2 knows


class Example(NamedTuple):
    """An entry of `mmseqs2-examples`."""

    accession: str
    organism: str
    is_fragment: bool


def read_database(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (accession, sequence) for each entry of a BLAST protein database."""
    command = ["blastdbcmd", "-db", str(path), "-entry", "all", "-outfmt", "%t\t%s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            title, sequence = line.rstrip("\n").split("\t")
            # A title is the accession, then the protein's GO terms: `B0RED7|GO:0006200,...`
            yield title.split("|")[0], sequence.upper()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def swiss_prot(folder: Path) -> dict[str, str]:
    """Return {sequence: accession}: the union of the databases, each sequence once."""
    accession_of: dict[str, str] = {}
    for ontology in ONTOLOGIES:
        for accession, sequence in read_database(folder / ontology / "goasp.fasta"):
            # The smallest accession wins, so that the order of reading does not matter.
            accession_of[sequence] = min(accession, accession_of.get(sequence, accession))
    return {s: accession for s, accession in accession_of.items() if RESIDUES.issuperset(s)}


def examples(path: Path) -> dict[str, Example]:
    """Return {sequence: entry}; of equal sequences the entry with the smallest accession."""
    found: dict[str, Example] = {}
    with gzip.open(path, "rt") as file:
        text = file.read()
    for record in text.removeprefix(">").split("\n>"):
        header, _, body = record.partition("\n")
        sequence = "".join(body.split()).upper()
        # `tr|W0FSK4|W0FSK4_9FLAV Genome polyprotein (Fragment) OS=Dengue virus 3 PE=4 SV=1 ...`
        organism = header.partition(" OS=")[2]
        for key in (" GN=", " PE=", " SV=", " Split="):
            organism = organism.partition(key)[0]
        entry = Example(header.split("|")[1], organism.strip(), "(Fragment" in header)
        if RESIDUES.issuperset(sequence):
            found[sequence] = min(entry, found.get(sequence, entry))
    return found
