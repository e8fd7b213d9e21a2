"""Read flat files (GenBank, EMBL, UniProt, PIR) by Biopython: entries, or the proteins they code.

For proteins, each CDS with a /translation is a record, with the id /protein_id, else /locus_tag;
features without a translation (pseudogenes) are skipped. An entry that is a protein is a record.
For nucleotides, each entry is a record. The line of a record is its number in the file.
"""

from __future__ import annotations

import io
import itertools
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from Bio import SeqIO
from Bio.SeqRecord import SeqRecord

from featuremill.base.errors import UserError
from featuremill.inputs import source
from featuremill.inputs.fasta import as_unicode
from featuremill.inputs.kinds import Sequences, whole
from featuremill.workload import Record

PIR = re.compile(r">(P1|F1|DL|DC|RL|RC|N1|N3|XX);")
"""The beginning of a header of NBRF/PIR; the next line is a title, and * ends the sequence."""
MAX_ENTRY_BYTES = 10 * source.MAX_RECORD_BYTES
"""Largest size of an entry; that of the human chromosome 1 has about 400 MB."""


def read(path: Path, kind: Sequences) -> Iterator[Record]:
    """Yield the records of a GenBank, GenPept, EMBL, UniProt or PIR file."""
    taken = kind.of_entry or _proteins
    format = format_of(path)
    number = 0
    with source.open_text(path, "surrogateescape", MAX_ENTRY_BYTES) as text:
        meter = source.meter_of(text)
        for entry in _entries(path, text, format):
            meter.num_open = 0
            for raw_id, raw_description, letters in taken(entry):
                number += 1
                id, note = as_unicode(raw_id)
                description, other_note = as_unicode(raw_description)
                yield kind.make(id, description, letters, str(path), number, note or other_note)
    if not number:
        raise UserError(
            f"{path}: no CDS in this file has a /translation; give its proteins as FASTA."
        )


def format_of(path: Path) -> str:
    """Return Biopython's name of the format, by first lines or suffix; "" if unknown."""
    with source.open_text(path, "surrogateescape", MAX_ENTRY_BYTES) as text:
        lines = (line for line in text if line.strip())
        first = next(lines, "")
        if first.startswith("ID   "):
            return "swiss" if first.rstrip().endswith(" AA.") else "embl"
        if PIR.match(first):
            entry = list(itertools.takewhile(lambda line: line[0] != ">", lines))
            return "pir" if entry and entry[-1].rstrip().endswith("*") else ""
        if ".embl" in path.name.lower():
            return "embl"
        is_named = any(suffix in path.name.lower() for suffix in (".gb", ".gp", ".genbank"))
        return "genbank" if first.startswith("LOCUS  ") or is_named else ""


def _entries(path: Path, text: io.TextIOWrapper, format: str) -> Iterator[SeqRecord]:
    """Yield the entries of the file, without Biopython's warnings about its form."""
    entries = SeqIO.parse(text, format)
    for number in itertools.count(1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                entry = next(entries, None)
            except source.DamagedError:
                raise
            except Exception as error:  # a parser may raise any exception
                problem = " ".join(str(error).split()) or type(error).__name__
                problem = problem.encode("ascii", "backslashreplace").decode()
                remedy = "fix it or download it again"
                if "LOCUS line layout" in problem:
                    remedy = (
                        "if it is of Prokka, whose names of contigs can run into their length, "
                        "give its .faa, or run Prokka with --centre X --compliant"
                    )
                raise UserError(
                    f"{path}: entry {number} cannot be read as {format} ({problem}); {remedy}."
                ) from None
        if any("Premature end" in str(warning.message) for warning in caught):
            raise UserError(
                f"{path}: entry {number} is cut short, as no // ends it; download it again."
            )
        if entry is None:
            break
        yield entry
    if number == 1:
        raise UserError(f"{path}: there is no {format} entry in this file; check what it holds.")


def _proteins(entry: SeqRecord) -> Iterator[tuple[str, str, str]]:
    """Yield id, description and letters of each protein in `entry`."""
    if str(entry.annotations.get("molecule_type")).lower() == "protein":
        yield from whole(entry)
        return
    organism = entry.annotations.get("organism", "")
    for feature in entry.features:
        if feature.type == "CDS" and "translation" in feature.qualifiers:
            qualifiers = {key: values[0] for key, values in feature.qualifiers.items() if values}
            description = qualifiers.get("product", "") + (f" [{organism}]" if organism else "")
            id = qualifiers.get("protein_id") or qualifiers.get("locus_tag") or ""
            yield id, description.strip(), qualifiers.get("translation", "")
