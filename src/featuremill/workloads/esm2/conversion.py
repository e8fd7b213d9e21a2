"""Convert a checkpoint to our file of weights: check its tensors, stack and write them.

The names of tensors in checkpoints are in `layout` and `readers`.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from featuremill.kit.text import Progress, listed
from featuremill.workloads.esm2.architecture import Sizes
from featuremill.workloads.esm2.layout import EMBEDDING, Entry

__all__ = [
    "Checkpoint",
    "check_tensors",
    "num_layers",
    "number",
    "refuse_other_sizes",
    "width_of",
    "write",
]
log = logging.getLogger("featuremill.weights")
NUMBER_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
"""The dtypes of a checkpoint, and their names in the safetensors format."""


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
