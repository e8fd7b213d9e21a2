"""Checkpoints of ESM-2, ESM-1b and ESM-1v, converted with their regression for contacts.

These are other files than those of esm2 and scores, in a folder of their own, so nothing changes
for their runs. fair-esm keeps a regression in a file of its own beside the `.pt`, Hugging Face with
the rest. None was published for ESM-1v: what its folders have there was never fitted.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featuremill.kit.errors import UserError
from featuremill.workload import Checkpoint, Converted, Weights
from featuremill.workload.hugging_face import download
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import sources as of_esm2
from featuremill.workloads.esm2.architecture import ESM_1V
from featuremill.workloads.esm2.sources import NUMBERS, SUGGESTED
from featuremill.workloads.scores.kin import ESM_1, ESM_1B_NAME

if TYPE_CHECKING:
    from featuremill.workloads.contacts.regression import Regression

__all__ = [
    "LAYOUT",
    "NUMBERS",
    "SUGGESTED",
    "beside",
    "convert",
    "has_none",
    "is_path",
    "locate",
    "name_of",
    "refuse_missing",
]
LAYOUT = "esm2-contacts-1"
"""The layout of the weights of all networks, named after the first of them."""
NAMES = (*of_esm2.bundled_names(), *of_esm2.PUBLISHED, *ESM_1.published)
URL = "https://dl.fbaipublicfiles.com/fair-esm/regression/{name}-contact-regression.pt"
"""The address that fair-esm's own `esm.pretrained` uses."""
HAS_REGRESSION = "contact_regression"
"""A key of the metadata: "yes" or "no"."""
log = logging.getLogger("featuremill.weights")


def beside(model: str) -> Path | None:
    """Return the regression beside the `.pt` file `model`, named as fair-esm names it."""
    path = Path(model).expanduser()
    path_beside = _beside(path)
    return path_beside if path.suffix == ".pt" and path_beside.is_file() else None


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.stem}-contact-regression.pt")


def has_none(model: str) -> bool:
    """Tell whether `model` is the name of a network for which no regression was published."""
    if not ESM_1.is_path(model):
        return ESM_1.name_of(model) != ESM_1B_NAME
    return model in of_esm2.bundled_names()


def is_esm_1(model: str) -> bool:
    """Tell whether `model` is an ESM-1b or ESM-1v, by its name or its files."""
    return ESM_1.takes(model)


def _sources(model: str) -> Any:
    """Return what knows about the checkpoint of `model`."""
    return ESM_1 if is_esm_1(model) else of_esm2


def is_path(model: str) -> bool:
    """Tell whether `model` is the path of a checkpoint and not the name of a known model."""
    return bool(_sources(model).is_path(model))


def name_of(model: str) -> str:
    """Return the name under which `weights/<name>.json` stands for `model`: not that of esm2."""
    ESM_1.refuse_nearly_named(model, NAMES, "those of ESM-2 (docs/contacts.md)")
    return f"{_sources(model).name_of(model)}-contacts"


def refuse_missing(model: str) -> None:
    """Raise UserError where `model` is not here, or is a folder of another network."""
    _sources(model).refuse_missing(model)


def locate(model: str) -> Checkpoint:
    """Return the place of the checkpoint of `model`, also before its download."""
    checkpoint: Checkpoint = _sources(model).locate(model)
    return checkpoint


def weights_ahead(model: str) -> Weights:
    """Return what is known of `model` before it is converted."""
    if is_esm_1(model):
        return ESM_1.weights_ahead(model, has_head=False)
    return esm2.weights_ahead(esm2.Options(model=model))


def convert(source: Checkpoint, path: Path) -> Converted:
    """Write the weights of `source` to `path`, with the regression that it has or that is published
    with it."""
    from featuremill.workloads.contacts import regression

    its = _sources(source.name if source.kind == "published" else str(source.path))
    opened = its.read(source)
    pairs_weights = None
    if opened.sizes.architecture is not ESM_1V:
        pairs_weights = regression.of_tensors(opened.tensors, opened.sizes, str(source.path))
        if pairs_weights is None and source.kind == "published":
            pairs_weights = _downloaded(source, opened.sizes.num_layers, opened.sizes.num_heads)
    if pairs_weights is not None:
        opened = regression.added(opened, pairs_weights)
    converted: Converted = its.write(source, opened, path)
    metadata = converted.metadata | {HAS_REGRESSION: "yes" if pairs_weights else "no"}
    return converted._replace(metadata=metadata)


def _downloaded(source: Checkpoint, num_layers: int, num_heads: int) -> Regression:
    """Return the published regression, downloaded to where fair-esm would find it, also where the
    weights are in Hugging Face's cache."""
    from featuremill.workloads.contacts import regression

    path = of_esm2.hub_folder() / _beside(Path(source.name)).name
    if not path.exists():
        url = URL.format(name=source.name)
        log.info("downloading %s → %s", url, path)
        try:
            download(url, path)
        except OSError as error:  # urllib's errors are among them
            reason = getattr(error, "reason", error)
            raise UserError(
                f"{url}: the regression cannot be downloaded here ({reason}); fetch it on another "
                f"machine and put it into {path.parent}."
            ) from None
    return regression.read(path, num_layers, num_heads)
