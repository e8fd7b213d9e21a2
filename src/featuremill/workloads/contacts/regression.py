"""The regression: contacts of attention, by a number for each head of each layer, and a bias.

It was fitted by ESM's authors on 20 proteins of known structure (Rao et al. 2021,
doi:10.1101/2020.12.15.422761). It belongs to one network.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from featuremill.kit.errors import UserError
from featuremill.kit.text import clipped
from featuremill.workloads.esm2.layout import Entry

if TYPE_CHECKING:
    from featuremill.workloads.esm2.architecture import Sizes
    from featuremill.workloads.esm2.conversion import Checkpoint

PARTS = ("weight", "bias")
SUFFIX = "contact_head.regression."
"""How the keys of fair-esm and of Hugging Face end, before weight and bias."""
PREFIX = "contacts."


class Regression(NamedTuple):
    """In fp32; of shape (layers, heads) and ()."""

    weights_NH: Tensor
    bias: Tensor


def of_tensors(tensors: Mapping[str, Tensor], sizes: Sizes, where: str) -> Regression | None:
    """Return the regression among the `tensors` of a network of `sizes`; None where there is none.

    Raises:
        UserError: it is not of that network; `where` is the file's path.
    """
    parts = [
        tensor
        for part in PARTS
        for key, tensor in tensors.items()
        if isinstance(key, str) and key.endswith(f"{SUFFIX}{part}")
    ]
    return _of(parts, sizes.num_layers, sizes.num_heads, where) if parts else None


def _of(parts: list[Tensor], num_layers: int, num_heads: int, where: str) -> Regression:
    numbers = [tensor.numel() for tensor in parts]
    if numbers != [num_layers * num_heads, 1]:
        has = " and ".join(f"{number:,}" for number in numbers)
        raise UserError(
            f"{where}: its regression has {has} numbers, and this network needs "
            f"{num_layers * num_heads:,} ({num_layers} layers × {num_heads} heads) and 1; give the "
            "regression of this network."
        )
    weight, bias = (tensor.detach().float() for tensor in parts)
    if not all(torch.isfinite(tensor).all() for tensor in (weight, bias)):
        raise UserError(f"{where}: a number of its regression is not finite; fetch it again.")
    return Regression(weight.reshape(num_layers, num_heads), bias.reshape(()))


def read(path: Path, num_layers: int, num_heads: int) -> Regression:
    """Return the regression in a file of its own, for a network of that size.

    Raises:
        UserError: the file has none, or that of another network.
    """
    tensors = _tensors(path)
    keys = [key for part in PARTS for key in tensors if key.endswith(f"regression.{part}")]
    if len(keys) != len(PARTS):
        raise UserError(
            f"{path}: it has no {SUFFIX}weight and bias; give fair-esm's "
            "<name>-contact-regression.pt, or the same as .safetensors."
        )
    return _of([tensors[key] for key in keys], num_layers, num_heads, str(path))


def _tensors(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors in `path`. Nothing in it is executed."""
    raw: Any
    try:
        if path.suffix == ".safetensors":
            raw = load_file(path)
        else:
            raw = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # bytes that are no pickle can raise any exception
        reason = clipped(str(error).partition("\n")[0])
        raise UserError(
            f"{path}: this regression cannot be read ({reason}); fetch it again."
        ) from None
    tensors = raw.get("model", raw) if isinstance(raw, dict) else {}
    items = tensors.items() if isinstance(tensors, dict) else ()
    return {key: value for key, value in items if isinstance(value, Tensor)}


def added(checkpoint: Checkpoint, regression: Regression) -> Checkpoint:
    """Return a checkpoint whose converted file also has the regression."""
    tensors = dict(zip(PARTS, regression, strict=True))
    entries = [
        Entry(f"{PREFIX}{part}", (), tuple(tensor.shape), keeps_type=True)
        for part, tensor in tensors.items()
    ]
    added = {f"{PREFIX}{part}": tensor for part, tensor in tensors.items()}
    return checkpoint._replace(
        added={**checkpoint.added, **added}, entries=[*checkpoint.entries, *entries]
    )


def of_weights(path: Path) -> Regression:
    """Return the regression in a converted file."""
    with safe_open(path, framework="pt") as file:
        return Regression(*(file.get_tensor(f"{PREFIX}{part}") for part in PARTS))
