"""Options of networks that read letters of structure beside residues, such as SaProt."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from featuremill.workload import OptionFile, OptionFolder, WorkloadOptions

__all__ = ["OF_TABLES", "StructureOptions"]
OF_TABLES = frozenset({"structure_column", "plddt_column", "plddt_mask", "plddt_threshold"})
"""Options that are not part of the recipe: they change the letters of records, and so payloads."""


class StructureOptions(WorkloadOptions):
    """Options for letters of structure: their source, and where they are masked."""

    structures: OptionFile | None = None
    """For SaProt: FASTA or a table of 3Di letters (Foldseek's), under the ids of the inputs, or
    what `foldseek structureto3didescriptor` writes, under the names of the files of structures or
    the accessions in them. A record without one gets `#` for each residue, and a note. Inputs of
    residues and 3Di letters in turns (`MdKpTv`) need none."""
    structure_column: str = ""
    """With `structures`: the column of a table that holds the letters. If not given, it is found as
    `sequence_column` is."""
    plddt_folder: OptionFolder | None = None
    """With `structures`: a folder of the structures' files (`.pdb`, `.cif`, also with `.gz`), whose
    B-factors are pLDDT. Where it is below `plddt_threshold`, the letter is `#`, as SaProt's authors
    have it."""
    plddt_column: str = ""
    """With `structures`: in place of a folder, the column of that table which holds the pLDDT of
    each residue, with spaces or commas between."""
    plddt_mask: Literal["alphafold", "always", "never"] = "alphafold"
    """With pLDDT: whether it counts. `alphafold`, as `auto` of SaProt's authors: where AlphaFold is
    named in the structure's file, as B-factors of other structures are no pLDDT; of a column
    always."""
    plddt_threshold: float = Field(default=70.0, ge=0, le=100)
    """With pLDDT: letters of residues below it become `#`."""

    @model_validator(mode="after")
    def _of_plddt(self) -> Self:
        """Refuse options that have no effect or contradict each other."""
        for name in ("structure_column", "plddt_folder", "plddt_column"):
            self._refuse_idle(name, self.structures is None, "no structures")
        has_plddt = bool(self.plddt_folder or self.plddt_column)
        for name in ("plddt_mask", "plddt_threshold"):
            self._refuse_idle(name, not has_plddt, "no plddt_folder and no plddt_column")
        if self.plddt_folder and self.plddt_column:
            raise ValueError("give plddt_folder or plddt_column, not both")
        return self
