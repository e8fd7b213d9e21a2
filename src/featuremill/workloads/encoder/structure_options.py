"""Options of networks that read 3Di letters of structure with the residues, such as SaProt."""

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
    """For SaProt: FASTA or a table with Foldseek's 3Di letters and the ids of the inputs, or the
    output of `foldseek structureto3didescriptor`, with the names of structure files or the
    accessions in them. A record without a structure has `#` for each residue, and a note. Inputs in
    which residues and 3Di letters alternate (`MdKpTv`) need no structures."""
    structure_column: str = ""
    """With `structures`: the table's column of letters. If not given, it is found by its name."""
    plddt_folder: OptionFolder | None = None
    """With `structures`: a folder of structure files (`.pdb`, `.cif`, also with `.gz`), whose
    B-factors are pLDDT. Letters of residues with pLDDT below `plddt_threshold` become `#`, as by
    SaProt's authors."""
    plddt_column: str = ""
    """With `structures`: instead of a folder, the table's column with the pLDDT of each residue,
    separated by spaces or commas."""
    plddt_mask: Literal["alphafold", "always", "never"] = "alphafold"
    """With pLDDT: whether it is applied. `alphafold`, like `auto` of SaProt's authors, applies it
    to files that name AlphaFold, as other B-factors are not pLDDT, and to columns."""
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
