"""Mask letters of structure where the confidence of the prediction (pLDDT) is low.

As in `get_struc_seq` of SaProt's `utils/foldseek_util.py`: the letter is `#` where pLDDT is below
70. The pLDDT of a residue is the mean of the B-factors of its atoms; by default, it is used only if
the file of the structure contains the word AlphaFold.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from featuremill.inputs import NamedColumns, rows
from featuremill.kit.errors import UserError
from featuremill.kit.reasons import Kind
from featuremill.kit.text import clipped
from featuremill.workloads.encoder import foldseek
from featuremill.workloads.encoder.options import StructureOptions

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
        stem, suffix, chain = foldseek.named(name)
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


def of_column(path: Path, options: StructureOptions, id_column: str) -> dict[str, str]:
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
