"""Kingdom and genus of an organism, from the NCBI taxonomy as Debian's `emboss-data` holds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DUMP = Path("/usr/share/EMBOSS/data/TAXONOMY")
KINGDOMS = {2: "Bacteria", 2157: "Archaea", 2759: "Eukaryota", 10239: "Viruses"}
GUESTS = ("phage", "virus")  # `Escherichia coli phage X` is no Escherichia coli


class Taxon(NamedTuple):
    """Where an organism stands."""

    kingdom: str
    genus: int
    """NCBI's number of the genus; of the species where that has none, as with many viruses."""


def _rows(path: Path, num_columns: int) -> Iterator[list[str]]:
    with path.open() as file:
        for line in file:
            yield line.split("\t|\t", num_columns)[:num_columns]


def _shorter_and_shorter(name: str) -> Iterator[str]:
    """Yield a name, then what is left without its last words (strains), down to two words."""
    words = name.split()
    for num_words in range(len(words), 1, -1):
        dropped = " ".join(words[num_words:]).lower()
        if not any(guest in dropped for guest in GUESTS):
            yield " ".join(words[:num_words])


def taxa(names: set[str], folder: Path = DUMP) -> dict[str, Taxon]:
    """Return {name: taxon} of those `names` that belong to one node below a kingdom."""
    wanted = {shorter for name in names for shorter in _shorter_and_shorter(name)}
    nodes: dict[str, set[int]] = {}
    for number, name in _rows(folder / "names.dmp", 2):
        if name in wanted:
            nodes.setdefault(name, set()).add(int(number))
    parents, ranks = {}, {}
    for number, parent, rank in _rows(folder / "nodes.dmp", 3):
        parents[int(number)], ranks[int(number)] = int(parent), rank
    found = {}
    for name in names:
        known = next((nodes[s] for s in _shorter_and_shorter(name) if s in nodes), set())
        taxon = _taxon(*known, parents, ranks) if len(known) == 1 else None
        if taxon:
            found[name] = taxon
    return found


def _taxon(number: int, parents: dict[int, int], ranks: dict[int, str]) -> Taxon | None:
    genus = node = number
    while node not in KINGDOMS:
        if ranks[node] in ("species", "genus"):  # a genus stands above its species
            genus = node
        if node == parents[node]:
            return None
        node = parents[node]
    return Taxon(KINGDOMS[node], genus)
