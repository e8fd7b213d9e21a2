"""The checkpoints of ESM-1b, ESM-1v and SaProt: find, download and convert them.

Does not import torch.
"""

from __future__ import annotations

import contextlib
import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.workload import Checkpoint, Converted, Weights
from featuremill.workload.hugging_face import (
    CONFIG,
    is_name,
    place_of,
)
from featuremill.workloads.esm2 import folder as kinds
from featuremill.workloads.esm2 import sources as of_esm2
from featuremill.workloads.esm2.architecture import ESM_1B, ESM_1V, Architecture, Sizes
from featuremill.workloads.esm2.folder import Kind
from featuremill.workloads.esm2.tokens import NUM_SPECIAL
from featuremill.workloads.esmc.sources import header

if TYPE_CHECKING:
    from featuremill.workloads.esm2.conversion import Checkpoint as Opened

__all__ = ["ESM_1", "ESM_1B_NAME", "refuse_beyond_positions"]
ESM_1B_NAME = "esm1b_t33_650M_UR50S"
ESM_1_NAMES = (ESM_1B_NAME, *(f"esm1v_t33_650M_UR90S_{seed}" for seed in range(1, 6)))
"""The names of the published models in fair-esm, and after `facebook/` on Hugging Face."""
SHAPE_OF_ESM_1 = (33, 20, 1280, 5120)
"""Layers, heads, width and feed-forward width of the published models."""
POSITIONS_OF_FAIR_ESM = b"embed_positions.weight"
"""Part of a tensor name of ESM-1b and ESM-1v that ESM-2 lacks."""
FIRST_POSITION = 2
"""The row of the first token in a table of positions."""


class Kin(NamedTuple):
    """A kind of network; implements `featuremill.workload.Checkpoints`."""

    kind: Kind
    published: tuple[str, ...]
    stem: str
    """A pattern of the architecture's name, with which names of unpublished weights begin."""

    def takes(self, model: str) -> bool:
        """Return whether `model` is the name or the path of such a network; reads no weights."""
        if self._known(model):
            return True
        path, is_saprot = place_of(model), self.kind is kinds.SAPROT
        if not path.exists():
            if re.fullmatch(rf"{self.stem}_t\d+_w\d+-[0-9a-f]{{8}}", model):
                return True
            return is_saprot and "saprot" in model.lower() and is_name(model)
        with contextlib.suppress(OSError, ValueError, AttributeError, zipfile.BadZipFile):
            folder = path if path.is_dir() else path.parent
            if (folder / CONFIG).is_file():
                config = json.loads((folder / CONFIG).read_text("utf-8"))
                if config.get("model_type") == "esm":
                    has_tokens = config.get("vocab_size") == self.kind.most_tokens
                    position = config.get("position_embedding_type", "absolute")
                    return has_tokens and (is_saprot or position == "absolute")
            return path.is_file() and not is_saprot and POSITIONS_OF_FAIR_ESM in header(path)
        return False

    def _known(self, model: str) -> str:
        name = model.removeprefix(of_esm2.OWNER)
        return name if name in self.published and not Path(model).exists() else ""

    def is_path(self, model: str) -> bool:
        return not self._known(model)

    def name_of(self, model: str) -> str:
        return self._known(model) or of_esm2.stem_of(model)

    def refuse_nearly_named(self, model: str, names: Sequence[str], others: str) -> None:
        """Raise UserError for an unknown name that is nearest to a published model of this kind.
        `names` are all names, and `others` describes the other models in the message."""
        if not of_esm2.is_path(model) or of_esm2.looks_like_path(model) or self.takes(model):
            return
        typed = model.lower().replace("-", "")  # papers write ESM-1b
        short = [name for name in self.published if re.fullmatch(self.stem, typed)]
        near = next((name for name in short if name.startswith(typed)), "")
        near = near or of_esm2.nearest(typed, names)
        if near in self.published:
            raise UserError(
                f"there is no model {model!r}; did you mean {near!r}? There are "
                f"{', '.join(self.published)}, {others}, or give the path of a checkpoint, or of a "
                "folder from Hugging Face."
            )

    def refuse_missing(self, model: str) -> None:
        if not self._known(model):
            of_esm2.refuse_missing(model, self.kind)

    def locate(self, model: str) -> Checkpoint:
        if name := self._known(model):
            return of_esm2.published(name)
        self.refuse_missing(model)
        path = place_of(model)
        return Checkpoint("local", self.name_of(model), str(path.resolve()), path)

    def convert(self, source: Checkpoint, path: Path, has_head: bool = True) -> Converted:
        return self.write(source, self.read(source, has_head), path)

    def read(self, source: Checkpoint, has_head: bool = False) -> Opened:
        return of_esm2.read(source, has_head, self.kind)

    def write(self, source: Checkpoint, opened: Opened, path: Path) -> Converted:
        return of_esm2.write(source, opened, path, self.published)

    def weights_ahead(self, model: str, has_head: bool = True) -> Weights:
        if name := self._known(model):
            architecture = ESM_1B if name == ESM_1B_NAME else ESM_1V
            sizes = Sizes(architecture, *SHAPE_OF_ESM_1)
            return Weights(name, Path(), "", sizes.metadata() | {"dtype": "float32"})
        try:
            from featuremill.workloads.esm2 import checkpoint
        except ImportError as error:
            raise UserError(
                f"{model}: looking into it needs {error.name}; pip install 'featuremill[esm2]'."
            ) from None
        facts = checkpoint.read(self.locate(model).path, has_head, self.kind)
        return Weights(self.name_of(model), Path(), "", facts.metadata())


ESM_1 = Kin(kinds.ESM_1, ESM_1_NAMES, "esm1[bv]")
SAPROT = Kin(kinds.SAPROT, (), "saprot")


def refuse_beyond_positions(
    architecture: Architecture, is_whole: bool, max_residues: int | None, instead: str
) -> None:
    """Raise UserError if the network has fewer positions than the options need: for whole proteins,
    or for `max_residues`. `instead` names the values of `long` that work."""
    most = architecture.num_positions - FIRST_POSITION - NUM_SPECIAL
    if not architecture.num_positions:
        return
    if is_whole:
        raise UserError(
            f"options.long: an {architecture.title} has positions for {most:,} residues only; set "
            f"long: {instead}."
        )
    if max_residues and max_residues > most:
        raise UserError(
            f"options.max_residues: an {architecture.title} has positions for {most:,} residues "
            "only; give at most that."
        )
