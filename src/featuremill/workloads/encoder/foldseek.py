"""Read the output of `foldseek structureto3didescriptor`, a table without header, a line per chain.

The columns are separated by tabs: the name (file name, `_`, chain; an optional title), the
residues, their 3Di letters, and numbers: ten descriptors or three coordinates per residue
(Foldseek's `src/strucclustutils/structureto3didescriptor.cpp`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from featuremill.inputs import source
from featuremill.kit.ids import accession

OF_FILE = re.compile(r"(.+?)(\.(?:pdb|ent|cif|mmcif|bcif|fcz)(?:\.gz)?)(?:_(.+))?")
BARE = re.compile(r"(.+)()_(\w{1,4})")
NUMBERS_A_RESIDUE = (3, 10)
LEAST_RESIDUES = 9
"""Smallest number of residues of a line without numbers; column names are shorter or unequal."""


class Chain(NamedTuple):
    """A line of the file."""

    name: str
    residues: bytes
    letters: str
    line: int


class Named(NamedTuple):
    """The parts of a name that Foldseek writes."""

    stem: str
    suffix: str
    """The suffix of the structure's file name; "" if the name has none."""
    chain: str
    """The letters after the last `_`; without a suffix, these may not be a chain."""


def named(name: str) -> Named:
    """Return the parts of a name."""
    match = OF_FILE.fullmatch(name) or BARE.fullmatch(name)
    return Named(*(part or "" for part in match.groups())) if match else Named(name, "", "")


def takes(path: Path) -> bool:
    """Return whether the first line of the file at `path` is that of a descriptor."""
    if path.suffix in (".parquet", ".pq"):
        return False
    try:
        with source.open_text(path, errors="surrogateescape") as text:
            fields = text.readline().rstrip("\n").split("\t")
    except OSError:
        return False
    if len(fields) < 3 or not fields[1] or len(fields[1]) != len(fields[2]):
        return False
    if not all(field.isascii() and field.isalpha() and field.isupper() for field in fields[1:3]):
        return False
    length, num_numbers = len(fields[1]), fields[3].count(",") + 1 if len(fields) > 3 else 0
    is_whole = num_numbers in (length * each for each in NUMBERS_A_RESIDUE)
    return is_whole or length >= LEAST_RESIDUES


def read(path: Path) -> Iterator[Chain]:
    """Yield the chains of a descriptor."""
    with source.open_text(path, errors="surrogateescape") as text:
        for number, line in enumerate(text, 1):
            if not line.strip():
                continue
            name, residues, letters, *_ = (*line.rstrip("\n").split("\t"), "", "")
            first = (*name.split(None, 1), "")[0]
            yield Chain(first, residues.encode("utf-8", "replace"), letters, number)


def also_called(names: Iterable[str]) -> dict[str, str]:
    """Return for other names that records may use the one of `names`: without the file suffix,
    without the only chain of a file, or the accession of an AlphaFold file. Ambiguous names are
    left out."""
    each = {name: named(name) for name in names}
    num_chains = Counter(parts.stem for parts in each.values())
    meant: dict[str, set[str]] = {}
    for name, (stem, _, chain) in each.items():
        called = {f"{stem}_{chain}"} if chain else set[str]()
        if num_chains[stem] == 1:
            called |= {stem, accession(stem)}
        for other in called:
            meant.setdefault(other, set()).add(name)
    return {other: min(own) for other, own in meant.items() if len(own) == 1 and other not in each}
