"""Read the logistic regression of contacts on attention: a weight for each head of each layer, and
a bias.

ESM's authors fitted it on 20 proteins of known structure (Rao et al. 2021,
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
"""The last part of fair-esm's and Hugging Face's keys before `weight` and `bias`."""
PREFIX = "contacts."
"""The prefix of the tensors in a converted file."""


class Regression(NamedTuple):
    """The weights (layers, heads) and the bias (), in fp32."""

    weights_NH: Tensor
    bias: Tensor


def of_tensors(tensors: Mapping[str, Tensor], sizes: Sizes, where: str) -> Regression | None:
    """Return the regression among the `tensors` of a network; None if there is none.

    Raises:
        UserError: the regression is of another network; `where` is the path of the file.
    """
    parts = [
        tensor
        for part in PARTS
        for key, tensor in tensors.items()
        if isinstance(key, str) and key.endswith(f"{SUFFIX}{part}")
    ]
    return _checked(parts, sizes.num_layers, sizes.num_heads, where) if parts else None


def _checked(parts: list[Tensor], num_layers: int, num_heads: int, where: str) -> Regression:
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
    """Return the regression in a separate file, for a network of this size.

    Raises:
        UserError: the file has no regression, or that of another network.
    """
    tensors = _tensors(path)
    keys = [key for part in PARTS for key in tensors if key.endswith(f"regression.{part}")]
    if len(keys) != len(PARTS):
        raise UserError(
            f"{path}: it has no {SUFFIX}weight and bias; give fair-esm's "
            "<name>-contact-regression.pt, or the same as .safetensors."
        )
    return _checked([tensors[key] for key in keys], num_layers, num_heads, str(path))


def _tensors(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors in the file `path`, whose code is never run."""
    raw: Any
    try:
        if path.suffix == ".safetensors":
            raw = load_file(path)
        else:
            raw = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise any exception
        reason = clipped(str(error).partition("\n")[0])
        raise UserError(
            f"{path}: this regression cannot be read ({reason}); fetch it again."
        ) from None
    tensors = raw.get("model", raw) if isinstance(raw, dict) else {}
    items = tensors.items() if isinstance(tensors, dict) else ()
    return {key: value for key, value in items if isinstance(value, Tensor)}


def added(checkpoint: Checkpoint, regression: Regression) -> Checkpoint:
    """Return the checkpoint with the regression, which conversion then writes as well."""
    added = {f"{PREFIX}{part}": tensor for part, tensor in zip(PARTS, regression, strict=True)}
    entries = [
        Entry(name, (), tuple(tensor.shape), keeps_type=True) for name, tensor in added.items()
    ]
    return checkpoint._replace(
        added={**checkpoint.added, **added}, entries=[*checkpoint.entries, *entries]
    )


def of_weights(path: Path) -> Regression:
    with safe_open(path, framework="pt") as file:
        return Regression(*(file.get_tensor(f"{PREFIX}{part}") for part in PARTS))
