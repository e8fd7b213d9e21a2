"""Open a checkpoint file of any network, check its tensors, and convert it to our file of weights.

No code of a file is run: of a pickle, only tensors, containers and the `argparse.Namespace` of
fair-esm's settings are built. The names of tensors in checkpoints are in `layout`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from featuremill.kit.errors import UserError
from featuremill.kit.text import Progress, listed
from featuremill.workload.hugging_face import NO_WEIGHTS, POINTER, checkpoint_files, wrapped
from featuremill.workloads.esm2.architecture import Sizes
from featuremill.workloads.esm2.folder import Kind, facts_of
from featuremill.workloads.esm2.layout import EMBEDDING, Entry

__all__ = [
    "Checkpoint",
    "check_tensors",
    "num_layers",
    "number",
    "open_checkpoint",
    "refusal",
    "refuse_other_sizes",
    "width_of",
    "write",
]
log = logging.getLogger("featuremill.weights")
FACTS = {
    "encoder_layers": "num_layers",
    "encoder_embed_dim": "embed_dim",
    "encoder_attention_heads": "attention_heads",
    "num_hidden_layers": "num_layers",
    "hidden_size": "embed_dim",
    "num_attention_heads": "attention_heads",
    "n_layers": "num_layers",
    "d_model": "embed_dim",
    "n_heads": "attention_heads",
    "intermediate_size": "feed_forward",
}
"""Names of an architecture's numbers in fair-esm, Hugging Face and ESM C's folders."""
OF_A_TRAINER = (
    "it is a checkpoint of a trainer (such as Lightning); save what is in its state_dict alone, "
    "with the network's own names of tensors, without a prefix such as 'model.'"
)
NUMBER_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
"""The dtypes of a checkpoint, and their names in the safetensors format."""


class Opened(NamedTuple):
    """The tensors of a file by name, and the settings stored with them."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    is_elder: bool = False
    """Whether this is an ESM from before ESM-2, by its outermost keys."""


def open_checkpoint(path: Path, kind: Kind) -> Opened:
    """Return the content of `path`, memory-mapped if possible, and its folder's settings."""
    opened = _folder(path, kind) if path.is_dir() else _file(path, kind)
    if not opened.tensors or not all(
        isinstance(key, str) and isinstance(tensor, Tensor)
        for key, tensor in opened.tensors.items()
    ):
        raise refusal(path, "it holds no dictionary of tensors", kind)
    if problem := wrapped(list(opened.tensors)):
        raise refusal(path, problem, kind)
    facts = facts_of(path, kind) | opened.facts
    return opened._replace(facts={FACTS.get(key, key): value for key, value in facts.items()})


def _folder(path: Path, kind: Kind) -> Opened:
    """Return the joint content of the files of a checkpoint in a Hugging Face folder."""
    parts = [_file(file, kind) for file in checkpoint_files(path)]
    tensors = {key: tensor for part in parts for key, tensor in part.tensors.items()}
    if len(tensors) < sum(len(part.tensors) for part in parts):
        raise refusal(path, "two of its files have the same tensor", kind)
    return parts[0]._replace(tensors=tensors)


def _file(path: Path, kind: Kind) -> Opened:
    return _safetensors(path, kind) if path.suffix == ".safetensors" else _pickle(path, kind)


def refusal(path: Path, reason: str, kind: Kind) -> UserError:
    """Return the error that `path` cannot be used for this `reason`."""
    return UserError(
        f"{path}: this is not a usable {kind.title} checkpoint: {reason}; give {kind.give}."
    )


def _safetensors(path: Path, kind: Kind) -> Opened:
    try:
        with safe_open(path, framework="pt") as file:
            facts = dict(file.metadata() or {})
        return Opened(load_file(path), facts)
    except (SafetensorError, OSError) as error:
        raise refusal(path, _reason(path, error), kind) from None


def _pickle(path: Path, kind: Kind) -> Opened:
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            raw = torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
    except Exception as error:  # other files may raise any exception
        raise refusal(path, _reason(path, error), kind) from None
    if not isinstance(raw, dict):
        return Opened({}, {})
    if isinstance(raw.get("state_dict"), dict):
        raise refusal(path, OF_A_TRAINER, kind)
    tensors = raw.get("model", raw)
    cfg = raw.get("cfg")
    settings = cfg.get("model") if isinstance(cfg, dict) else None
    settings = raw.get("args", settings)
    facts = dict(vars(settings)) if isinstance(settings, argparse.Namespace) else {}
    return Opened(tensors if isinstance(tensors, dict) else {}, facts, "args" in raw)


def _reason(path: Path, error: Exception) -> str:
    try:
        with path.open("rb") as file:
            start = file.read(512).lstrip()
    except OSError as unreadable:
        return f"{unreadable.strerror}"
    if not start:
        return "it is empty"
    if start.startswith(POINTER):
        return NO_WEIGHTS
    if start.startswith(b"<"):
        return "it is a web page"
    if start.startswith(b"PK") and not zipfile.is_zipfile(path):
        return "it is cut short; delete it and fetch it again"
    first_line = str(error).partition("\n")[0].partition(". ")[0]
    return f"it cannot be read safely ({type(error).__name__}: {first_line[:120]})"


class Checkpoint(NamedTuple):
    """A checkpoint of a network."""

    tensors: Mapping[str, Tensor]
    """The tensors by the source's names, without the prefix of the whole model."""
    added: Mapping[str, Tensor]
    """Tensors of our file that the source lacks, by our names for them."""
    entries: Sequence[Entry]
    sizes: Sizes
    license: str
    is_half: bool = False
    """Whether fp16 represents each number exactly: the larger ESM-2 were trained in fp16, which
    fair-esm stores in fp16 and Hugging Face in fp32."""

    def parts(self, entry: Entry) -> list[Tensor]:
        """Return the tensors that are stacked as `entry`."""
        return [self.tensors[key] for key in entry.keys] or [self.added[entry.name]]

    def tensor(self, entry: Entry) -> Tensor:
        """Return the tensor of `entry`."""
        parts = self.parts(entry)
        stacked = torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
        return stacked.to(self.dtype(entry))

    def dtype(self, entry: Entry) -> torch.dtype:
        """Return the dtype of `entry` that represents all of its parts exactly."""
        if self.is_half and not entry.keeps_type:
            return torch.float16
        first, *others = self.parts(entry)
        dtype = first.dtype
        for part in others:
            dtype = torch.promote_types(dtype, part.dtype)
        return dtype

    def fits_half(self) -> bool:
        """Return whether fp16 represents each number exactly."""
        for part in (part for entry in self.entries for part in self.parts(entry)):
            if part.dtype not in (torch.float16, torch.float32):
                return False
            if part.dtype == torch.float32 and not torch.equal(part.half().float(), part):
                return False
        return True

    def metadata(self) -> dict[str, str]:
        """Return the metadata of the file: sizes and other facts about the network, as text."""
        (embedding,) = (entry for entry in self.entries if entry.name == EMBEDDING)
        known = self.sizes.metadata()
        known["dtype"] = str(self.dtype(embedding)).removeprefix("torch.")
        return known | ({"license": self.license} if self.license else {})


def number(facts: Mapping[str, Any], name: str, otherwise: int) -> int:
    """Return the count in the setting `name`, or `otherwise`; the settings may be edited."""
    value = facts.get(name)
    text = str(otherwise if value is None or str(value) == "0" else value)
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise ValueError(f"its settings have {name} {text[:40]!r}, which is no count")
    return int(text)


def num_layers(tensors: Collection[str], before: str) -> int:
    """Return the number of layers with tensors whose names start with `before` and a number."""
    count = 0
    while any(key.startswith(f"{before}{count}.") for key in tensors):
        count += 1
    return count


def width_of(tensors: Mapping[str, Tensor], embedding: str) -> int:
    """Return the width of the embedding."""
    if embedding not in tensors:
        raise ValueError(f"it has no tensor {embedding}")
    if tensors[embedding].dim() != 2:
        raise ValueError(f"its tensor {embedding} is no table")
    return tensors[embedding].shape[-1]


def refuse_other_sizes(actual: Mapping[str, int], facts: Mapping[str, Any]) -> None:
    """Raise ValueError if the settings differ from the sizes of the tensors."""
    for fact, value in actual.items():
        if number(facts, fact, value) != value:
            raise ValueError(f"its tensors have {fact} {value}, its settings have {facts[fact]}")


def check_tensors(
    checkpoint: Checkpoint,
    of_encoder: tuple[str, ...],
    idle: tuple[str, ...],
    common: Collection[str],
) -> None:
    """Raise ValueError if a tensor is missing, has another shape or type, or is not expected.

    Names of the encoder's tensors start with `of_encoder`, those of unused tensors with `idle`.
    Parts in `common` are ignored without a message.
    """
    used = set[str]()
    for entry in checkpoint.entries:
        used.update(entry.keys)
        missing = [key for key in entry.keys if key not in checkpoint.tensors]
        if missing:
            raise ValueError(f"it has no tensor {missing[0]}")
        shape = (entry.shape[0] // max(1, len(entry.keys)), *entry.shape[1:])
        for key in entry.keys:
            if checkpoint.tensors[key].shape != shape:
                has = tuple(checkpoint.tensors[key].shape)
                raise ValueError(f"its tensor {key} has the shape {has} and not {shape}")
        if checkpoint.dtype(entry) not in NUMBER_TYPES:
            raise ValueError(f"its numbers are {checkpoint.dtype(entry)}")
    heads = set[str]()
    for key in checkpoint.tensors:
        is_known = key in used or key.endswith("inv_freq") or key.startswith(idle)
        if key.startswith(of_encoder) and not is_known:
            title = checkpoint.sizes.architecture.title
            raise ValueError(f"its tensor {key} is no part of an {title}")
        if not is_known:
            heads.add(key.partition(".")[0])
    if others := sorted(heads - set(common)):
        log.info("%s left out: features are those of the encoder below", listed(others))


def write(checkpoint: Checkpoint, path: Path) -> str:
    """Write `checkpoint` to `path` as safetensors, tensor by tensor; return the file's sha256.

    The bytes depend on the values only. The safetensors library is not used: it needs all tensors
    in memory (30 GB for the largest model) and does not guarantee the order of its header.
    """
    header: dict[str, Any] = {}
    end = 0
    for entry in checkpoint.entries:
        dtype = checkpoint.dtype(entry)
        start, end = end, end + dtype.itemsize * torch.Size(entry.shape).numel()
        header[entry.name] = {
            "dtype": NUMBER_TYPES[dtype],
            "shape": list(entry.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    shown = Progress(log, "converting", "MB")
    with path.open("wb") as file:
        for chunk in _chunks(checkpoint, len(text).to_bytes(8, "little") + text):
            file.write(chunk)
            digest.update(chunk)
            shown.at(file.tell() // 10**6, end // 10**6)
    return digest.hexdigest()


def _chunks(checkpoint: Checkpoint, header: bytes) -> Iterator[Any]:
    yield header
    for entry in checkpoint.entries:
        yield checkpoint.tensor(entry).reshape(-1).view(torch.uint8).numpy()
