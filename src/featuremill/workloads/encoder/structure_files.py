"""Read the files of structures: Foldseek's descriptor, and the confidence (pLDDT) in PDB and mmCIF.

The output of `foldseek structureto3didescriptor` is a table without header, a line per chain. The
columns are separated by tabs: the name (file name, `_`, chain; an optional title), the residues,
their 3Di letters, and numbers: ten descriptors or three coordinates per residue (Foldseek's
`src/strucclustutils/structureto3didescriptor.cpp`).

Letters are masked where the confidence of the prediction is low, as in `get_struc_seq` of SaProt's
`utils/foldseek_util.py`: the letter is `#` where pLDDT is below 70. The pLDDT of a residue is the
mean of the B-factors of its atoms; by default, it is used only if the file of the structure
contains the word AlphaFold.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.inputs import NamedColumns, rows, source
from featuremill.kit.errors import UserError
from featuremill.kit.ids import accession
from featuremill.kit.reasons import Kind
from featuremill.kit.text import clipped
from featuremill.workloads.encoder.options import StructureOptions

OF_FILE = re.compile(r"(.+?)(\.(?:pdb|ent|cif|mmcif|bcif|fcz)(?:\.gz)?)(?:_(.+))?")
BARE = re.compile(r"(.+)()_(\w{1,4})")
NUMBERS_A_RESIDUE = (3, 10)
LEAST_RESIDUES = 9
"""Smallest number of residues of a line without numbers; column names are shorter or unequal."""
Numbers = npt.NDArray[np.float64]
SUFFIXES = (".pdb", ".cif", ".ent", ".mmcif")
OF_PDB = (".pdb", ".ent")
ALPHAFOLD = "alphafold"
BETWEEN = re.compile(r"[\s,;]+")
NO_PLDDT = Kind(
    "plddt",
    ("its pLDDT cannot be used",),
    "Give a pLDDT for each residue of the structure, or set plddt_mask: never under options.",
)


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


def is_descriptor(path: Path) -> bool:
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


def chains(path: Path) -> Iterator[Chain]:
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


class Plddt:
    """The pLDDT of structures, from their files or from a column."""

    def __init__(self, options: StructureOptions, of_id: Mapping[str, str]) -> None:
        """`of_id`: the cell with the pLDDT of each structure, if they are in a column."""
        self._options, self._of_id = options, of_id
        self._files: dict[str, Path] = {}
        if options.plddt_folder:
            for path in sorted(Path(options.plddt_folder).iterdir()):
                self._files[path.name.removesuffix(".gz")] = path

    def masked(self, name: str, letters: bytes) -> tuple[bytes, str]:
        """Return the letters of the structure `name` with `#` where pLDDT is low, and the reason if
        its pLDDT cannot be used, else ""."""
        if self._options.plddt_mask == "never":
            return letters, ""
        plddt = self._of_column(name) if self._options.plddt_column else self._of_file(name)
        if plddt is None:
            return letters, ""
        if isinstance(plddt, str):
            return b"", NO_PLDDT.reason(plddt)
        if len(plddt) != len(letters):
            detail = f"{len(plddt):,} numbers for {len(letters):,} letters of structure"
            return b"", NO_PLDDT.reason(detail)
        if not np.isfinite(plddt).all():
            return b"", NO_PLDDT.reason("some of its numbers are missing or infinite")
        if plddt.max() <= 1 < self._options.plddt_threshold:
            return b"", NO_PLDDT.reason("its numbers are up to 1, not up to 100")
        letters_L = np.frombuffer(letters, np.uint8).copy()
        letters_L[plddt < self._options.plddt_threshold] = ord("#")
        return letters_L.tobytes(), ""

    def _of_column(self, name: str) -> Numbers | str:
        text = self._of_id.get(name, "")
        try:
            numbers = [float(part) for part in BETWEEN.split(text.strip("[] \n")) if part]
        except ValueError:
            return f"{clipped(text)!r} are no numbers"
        return np.array(numbers)

    def _of_file(self, name: str) -> Numbers | str | None:
        """Return the pLDDT of a chain; None if it is not used, a reason if it is missing."""
        stem, suffix, chain = named(name)
        tried = [f"{stem}{suffix.removesuffix('.gz')}"] if suffix else []
        if not suffix:
            tried += [f"{name}{each}" for each in SUFFIXES]
            tried += [f"{stem}{each}" for each in SUFFIXES]
        file = next((each for each in tried if each in self._files), None)
        if file is None:
            return f"there is no {tried[0]} in {self._options.plddt_folder}"
        chain = "" if not suffix and file.startswith(f"{name}.") else chain
        path = self._files[file]
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as opened:
            text = opened.read().decode("utf-8", "replace")
        if self._options.plddt_mask == "alphafold" and ALPHAFOLD not in text.lower():
            return None
        return b_factors(text, is_pdb=file.endswith(OF_PDB), chain=chain, name=path.name)


def b_factors(text: str, is_pdb: bool, chain: str, name: str) -> Numbers | str:
    """Return the mean B-factor of each residue of a chain in the first model of a file, including
    ligands and water, as SaProt's authors do; a text with the reason if there is no such chain.
    `chain` may be "" if the file has only one."""
    from Bio.PDB import MMCIFParser, PDBParser

    parser: Any = PDBParser(QUIET=True) if is_pdb else MMCIFParser(QUIET=True)
    try:
        chains = {each.id: each for each in next(iter(parser.get_structure("", StringIO(text))))}
    except Exception as error:  # the parser may raise any exception for other files
        return f"{name} cannot be read ({type(error).__name__})"
    if not chain and len(chains) == 1:
        chain = next(iter(chains))
    if chain not in chains:
        return f"{name} has the chains {', '.join(chains)}, and not {chain or 'one alone'}"
    means = [np.mean([atom.get_bfactor() for atom in residue]) for residue in chains[chain]]
    return np.array(means, np.float64)


def plddt_of_column(path: Path, options: StructureOptions, id_column: str) -> dict[str, str]:
    """Return the cells of the pLDDT column in a table of structures, by id.

    Raises:
        UserError: if the table has no such column, or two rows of an id differ in it.
    """
    text_of: dict[str, str] = {}
    wanted = NamedColumns(id_column=id_column, names=(options.plddt_column,))
    for record in rows([path], wanted):
        if record.reason:
            raise UserError(f"{path}:{record.line}: this row has no id ({record.reason}); fix it.")
        value = json.loads(record.payload)[options.plddt_column]
        text = value if isinstance(value, str) else json.dumps(value or "")
        if text_of.setdefault(record.id, text) != text:
            raise UserError(
                f"{path}:{record.line}: {clipped(record.id)!r} has two pLDDT; drop one row."
            )
    return text_of
