"""Find the checkpoints of ESM-2, ESM-1b and ESM-1v, and convert them with their regression.

The logistic regression of contacts on attention has a weight for each head of each layer, and a
bias. ESM's authors fitted it on 20 proteins of known structure (Rao et al. 2021,
doi:10.1101/2020.12.15.422761). It belongs to one network.

Converted weights have a folder of their own, separate from those of the workloads esm2 and scores.
fair-esm has a regression in a file beside the `.pt`, Hugging Face among the other tensors. For
ESM-1v, none was published; the one in its folders was never fitted. Does not import torch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.kit.text import clipped
from featuremill.workload import Checkpoint, Converted, Weights
from featuremill.workload.hugging_face import download
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import sources as of_esm2
from featuremill.workloads.esm2.architecture import ESM_1V
from featuremill.workloads.esm2.layout import Entry
from featuremill.workloads.esm2.sources import NUMBERS as NUMBERS
from featuremill.workloads.esm2.sources import SUGGESTED as SUGGESTED
from featuremill.workloads.scores.sources import ESM_1, ESM_1B_NAME

if TYPE_CHECKING:
    from torch import Tensor

    from featuremill.workloads.esm2.architecture import Sizes

LAYOUT = "esm2-contacts-1"
"""The layout of the weights of all networks; the name is that of the first kind."""
NAMES = (*of_esm2.bundled_names(), *of_esm2.PUBLISHED, *ESM_1.published)
FILE_SUFFIX = "-contact-regression.pt"
"""What follows the name of the network in the name of fair-esm's file."""
URL = "https://dl.fbaipublicfiles.com/fair-esm/regression/{file}"
"""The address from which fair-esm's `esm.pretrained` downloads it."""
PARTS = ("weight", "bias")
SUFFIX = "contact_head.regression."
"""The last part of fair-esm's and Hugging Face's keys before `weight` and `bias`."""
PREFIX = "contacts."
"""The prefix of the tensors in a converted file."""
HAS_REGRESSION = "contact_regression"
"""The metadata key for whether the weights have a regression, "yes" or "no"."""
log = logging.getLogger("featuremill.weights")


class Regression(NamedTuple):
    """The weights (layers, heads) and the bias (), in fp32."""

    weights_NH: Tensor
    bias: Tensor


def beside(model: str) -> Path | None:
    """Return the path of the regression beside the `.pt` file `model`, if it is there."""
    path = Path(model).expanduser()
    regression = path.with_name(f"{path.stem}{FILE_SUFFIX}")
    return regression if path.suffix == ".pt" and regression.is_file() else None


def has_none(model: str) -> bool:
    """Return whether `model` is the name of a network without a published regression."""
    if not ESM_1.is_path(model):
        return ESM_1.name_of(model) != ESM_1B_NAME
    return model in of_esm2.bundled_names()


def _reader_of(model: str) -> Any:
    return ESM_1 if ESM_1.takes(model) else of_esm2


def is_path(model: str) -> bool:
    return bool(_reader_of(model).is_path(model))


def name_of(model: str) -> str:
    """Return the `<name>` of `weights/<name>.json` for `model`; it differs from that of esm2."""
    ESM_1.refuse_nearly_named(model, NAMES, "those of ESM-2 (docs/contacts.md)")
    return f"{_reader_of(model).name_of(model)}-contacts"


def refuse_missing(model: str) -> None:
    _reader_of(model).refuse_missing(model)


def locate(model: str) -> Checkpoint:
    checkpoint: Checkpoint = _reader_of(model).locate(model)
    return checkpoint


def weights_ahead(model: str) -> Weights:
    if ESM_1.takes(model):
        return ESM_1.weights_ahead(model, has_head=False)
    return esm2.weights_ahead(esm2.Options(model=model))


def convert(source: Checkpoint, path: Path) -> Converted:
    """Write the weights of `source` to `path`, with their regression if there is one."""
    reader = _reader_of(source.name if source.kind == "published" else str(source.path))
    opened = reader.read(source)
    pairs_weights = None
    if opened.sizes.architecture is not ESM_1V:
        pairs_weights = _of_tensors(opened.tensors, opened.sizes, str(source.path))
        if pairs_weights is None and source.kind == "published":
            pairs_weights = _downloaded(source, opened.sizes.num_layers, opened.sizes.num_heads)
    if pairs_weights is not None:
        added = {f"{PREFIX}{part}": x for part, x in zip(PARTS, pairs_weights, strict=True)}
        entries = [Entry(name, (), tuple(x.shape), keeps_type=True) for name, x in added.items()]
        opened = opened._replace(
            added={**opened.added, **added}, entries=[*opened.entries, *entries]
        )
    converted: Converted = reader.write(source, opened, path)
    metadata = converted.metadata | {HAS_REGRESSION: "yes" if pairs_weights else "no"}
    return converted._replace(metadata=metadata)


def _downloaded(source: Checkpoint, num_layers: int, num_heads: int) -> Regression:
    """Return the published regression; download it first to fair-esm's cache if it is not there.
    The weights themselves may be in Hugging Face's cache."""
    path = of_esm2.hub_folder() / f"{source.name}{FILE_SUFFIX}"
    if not path.exists():
        url = URL.format(file=path.name)
        log.info("downloading %s → %s", url, path)
        try:
            download(url, path)
        except OSError as error:  # urllib's errors are among them
            reason = getattr(error, "reason", error)
            raise UserError(
                f"{url}: the regression cannot be downloaded here ({reason}); fetch it on another "
                f"machine and put it into {path.parent}."
            ) from None
    return read_regression(path, num_layers, num_heads)


def _of_tensors(tensors: Mapping[str, Tensor], sizes: Sizes, where: str) -> Regression | None:
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
    if not all(tensor.isfinite().all() for tensor in (weight, bias)):
        raise UserError(f"{where}: a number of its regression is not finite; fetch it again.")
    return Regression(weight.reshape(num_layers, num_heads), bias.reshape(()))


def read_regression(path: Path, num_layers: int, num_heads: int) -> Regression:
    """Return the regression in a separate file, for a network of this size.

    Raises:
        UserError: the file has no regression, or that of another network.
    """
    import torch
    from safetensors.torch import load_file

    raw: Any
    try:
        if path.suffix == ".safetensors":
            raw = load_file(path)
        else:
            raw = torch.load(path, map_location="cpu", weights_only=True)  # runs no code in it
    except Exception as error:  # a damaged pickle can raise any exception
        reason = clipped(str(error).partition("\n")[0])
        raise UserError(
            f"{path}: this regression cannot be read ({reason}); fetch it again."
        ) from None
    content = raw.get("model", raw) if isinstance(raw, dict) else {}
    items = content.items() if isinstance(content, dict) else ()
    tensors = {key: value for key, value in items if isinstance(value, torch.Tensor)}
    keys = [key for part in PARTS for key in tensors if key.endswith(f"regression.{part}")]
    if len(keys) != len(PARTS):
        raise UserError(
            f"{path}: it has no {SUFFIX}weight and bias; give fair-esm's "
            "<name>-contact-regression.pt, or the same as .safetensors."
        )
    return _checked([tensors[key] for key in keys], num_layers, num_heads, str(path))


def regression_of(path: Path) -> Regression:
    """Return the regression in converted weights."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return Regression(*(file.get_tensor(f"{PREFIX}{part}") for part in PARTS))
