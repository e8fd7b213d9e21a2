"""Find the kind of a model, and convert its checkpoint with the language-model head. The
checkpoints of ESM-1b, ESM-1v and SaProt are read here, others by the workloads esm2 and esmc.

Converted weights have a folder of their own, separate from those of the workloads esm2 and esmc.
An ensemble has one file, in which a number and a dot precede the tensor names of each network.
Does not import torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.workload import Checkpoint, Converted, Weights
from featuremill.workload.hugging_face import CONFIG, is_name, place_of
from featuremill.workloads import esm2, esmc
from featuremill.workloads.esm2 import folder as kinds
from featuremill.workloads.esm2 import sources as of_esm2
from featuremill.workloads.esm2.architecture import ESM_1B, ESM_1V, Architecture, Sizes
from featuremill.workloads.esm2.folder import Kind
from featuremill.workloads.esm2.sources import NUMBERS as NUMBERS
from featuremill.workloads.esm2.sources import SUGGESTED as SUGGESTED
from featuremill.workloads.esm2.tokens import NUM_SPECIAL
from featuremill.workloads.esmc import sources as of_esmc
from featuremill.workloads.esmc.sources import header

if TYPE_CHECKING:
    from featuremill.workloads.esm2.conversion import Checkpoint as Opened

__all__ = ["ESM_1", "ESM_1B_NAME", "NUMBERS", "SUGGESTED", "refuse_beyond_positions"]

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
LAYOUT = "esm2-lm_head-1"
"""The layout of the weights of all networks; the name is that of the first kind."""
BETWEEN = " + "
NUM_NETWORKS = "networks"
"""The metadata key of the number of networks in an ensemble."""
NAMES = (*of_esm2.bundled_names(), *of_esm2.PUBLISHED, *of_esmc.NAMES, *ESM_1.published)
ALL = (NAMES, "those of ESM-2 and ESM C (docs/scores.md)")
"""All names, and a description of those other than ESM-1 for messages."""
BLOCK = 2**24


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


def members(model: str) -> list[str]:
    """Return the models of an ensemble, or [model]."""
    return model.split(BETWEEN)


def reader_of(model: str) -> Any:
    """Return the module or `Kin` that reads the checkpoint of a model; ESM-2's for unknown ones.
    The networks of an ensemble are of one kind."""
    model = members(model)[0]
    for kin in (ESM_1, SAPROT):
        if kin.takes(model):
            return kin
    if not of_esm2.is_path(model):
        return of_esm2
    if of_esm2.looks_like_path(model):
        return of_esmc if of_esmc.takes(model) else of_esm2
    near = of_esm2.nearest(model, NAMES)
    return of_esmc if near in of_esmc.NAMES else of_esm2


def is_path(model: str) -> bool:
    """Return whether `model` is the path of a checkpoint and not the name of a known model. False
    for an ensemble, for which `name_of` changes with the files."""
    return BETWEEN not in model and bool(reader_of(model).is_path(model))


def name_of(model: str) -> str:
    """Return the `<name>` of `weights/<name>.json` for `model`; it differs from that of esm2.

    The name of an ensemble has a digest of its members, and of the sizes and times of their files.
    """
    each = members(model)
    for member in each:
        ESM_1.refuse_nearly_named(member, *ALL)
    names = [str(reader_of(member).name_of(member)) for member in each]
    if len(each) == 1:
        return f"{names[0]}-lm_head"
    stamps = [(member, *_stamps(member)) for member in each]
    digest = hashlib.sha256(json.dumps(stamps).encode()).hexdigest()
    return f"{names[0]}-and-{len(each) - 1}-more-{digest[:8]}-lm_head"


def _stamps(model: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and time of each file of a member; nothing for names."""
    if not reader_of(model).is_path(model):
        return
    path = place_of(model)
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    for file in files:
        if file.is_file():
            stat = file.stat()
            yield file.name, stat.st_size, stat.st_mtime_ns


def refuse_missing(model: str) -> None:
    for member in members(model):
        if reader_of(member) is of_esmc:
            of_esmc.refuse_missing(member, LAYOUT)
        else:
            reader_of(member).refuse_missing(member)


def locate(model: str) -> Checkpoint:
    checkpoints: list[Checkpoint] = [reader_of(member).locate(member) for member in members(model)]
    first, *others = checkpoints
    if not others:
        return first
    kind = first.kind if {each.kind for each in checkpoints} == {"published"} else "local"
    for each in checkpoints:
        if kind == "local" and each.kind == "published" and not each.path.exists():
            raise UserError(
                f"{each.name}: it is not on this machine, and stands beside files; type "
                f"featuremill weights {each.name} --workload scores --output {each.name}.json "
                "first."
            )
    paths = tuple(each.path for each in others)
    return Checkpoint(kind, name_of(model), model, first.path, paths)


def convert(source: Checkpoint, path: Path) -> Converted:
    if not source.others:
        model = source.name if source.kind == "published" else str(source.path)
        converted: Converted = reader_of(model).convert(source, path, has_head=True)
        return converted
    networks, parts = list[Converted](), list[Path]()
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".ensemble-") as folder:
        for number, member in enumerate(members(source.location)):
            parts.append(Path(folder, f"{number}.safetensors"))
            networks.append(reader_of(member).convert(locate(member), parts[-1], has_head=True))
        _refuse_unlike(networks)
        _refuse_twice(networks)
        sha256 = _join(parts, path)
    names = [each.name for each in networks]
    return Converted(BETWEEN.join(names), sha256, _metadata([each.metadata for each in networks]))


def weights_ahead(model: str) -> Weights:
    networks = list[Weights]()
    for member in members(model):
        reader = reader_of(member)
        if reader is of_esmc:
            networks.append(esmc.weights_ahead(esmc.Options(model=member), LAYOUT))
        elif reader is of_esm2:
            networks.append(esm2.weights_ahead(esm2.Options(model=member)))
        else:
            networks.append(reader.weights_ahead(member))
    if len(networks) == 1:
        return networks[0]
    _refuse_unlike(networks)
    metadata = _metadata([each.metadata for each in networks])
    return Weights(BETWEEN.join(each.name for each in networks), Path(), "", metadata)


def _metadata(each: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return the metadata of an ensemble: that of its first network, the dtype and all licences."""
    metadata = each[0] | {NUM_NETWORKS: str(len(each))}
    if len({facts["dtype"] for facts in each}) > 1:
        metadata["dtype"] = "float32"
    licenses = sorted({facts["license"] for facts in each if facts.get("license")})
    return metadata | ({"license": ", ".join(licenses)} if licenses else {})


def _refuse_unlike(networks: Sequence[Any]) -> None:
    """Raise UserError if the metadata of networks differ, except dtype and license."""
    first, *others = networks
    for other in others:
        for fact, value in first.metadata.items():
            theirs = other.metadata.get(fact)
            if fact not in ("dtype", "license") and theirs != value:
                raise UserError(
                    f"options.model: {first.name} has {fact} {value}, and {other.name} {theirs}; "
                    "the mean of scores is of networks of one kind and size, so score these two in "
                    "runs of their own."
                )


def _refuse_twice(converted: Sequence[Converted]) -> None:
    known: dict[str, str] = {}
    for each in converted:
        if each.sha256 in known:
            names = " and ".join(dict.fromkeys((known[each.sha256], each.name)))
            raise UserError(
                f"options.model: the same network stands twice among the models ({names}); drop "
                "one."
            )
        known[each.sha256] = each.name


def _join(parts: Sequence[Path], path: Path) -> str:
    """Concatenate the safetensors files `parts` into `path`, with the number of the file and a dot
    before each tensor name. Return the sha256. The tensors are not loaded into memory."""
    whole: dict[str, Any] = {}
    starts, end = list[int](), 0
    for number, part in enumerate(parts):
        with part.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            entries = json.loads(file.read(length))
        starts.append(8 + length)
        for name, entry in entries.items():
            offsets = [end + offset for offset in entry["data_offsets"]]
            whole[f"{number}.{name}"] = entry | {"data_offsets": offsets}
        end += part.stat().st_size - starts[-1]
    text = json.dumps(whole, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for part, start in zip(parts, starts, strict=True):
            with part.open("rb") as other:
                other.seek(start)
                shutil.copyfileobj(other, file, BLOCK)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
