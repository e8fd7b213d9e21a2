"""Find the checkpoints of ESM-2, ESM-1b and ESM-1v, and convert them with their regression.

Converted weights have a folder of their own, separate from those of the workloads esm2 and scores.
fair-esm has a regression in a file beside the `.pt`, Hugging Face among the other tensors. For
ESM-1v, none was published; the one in its folders was never fitted.
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
from featuremill.workloads.esm2.sources import NUMBERS as NUMBERS
from featuremill.workloads.esm2.sources import SUGGESTED as SUGGESTED
from featuremill.workloads.scores.kin import ESM_1, ESM_1B_NAME

if TYPE_CHECKING:
    from featuremill.workloads.contacts.regression import Regression

LAYOUT = "esm2-contacts-1"
"""The layout of the weights of all networks; the name is that of the first kind."""
NAMES = (*of_esm2.bundled_names(), *of_esm2.PUBLISHED, *ESM_1.published)
FILE_SUFFIX = "-contact-regression.pt"
"""What follows the name of the network in the name of fair-esm's file."""
URL = "https://dl.fbaipublicfiles.com/fair-esm/regression/{file}"
"""The address from which fair-esm's `esm.pretrained` downloads it."""
HAS_REGRESSION = "contact_regression"
"""The metadata key for whether the weights have a regression, "yes" or "no"."""
log = logging.getLogger("featuremill.weights")


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
    from featuremill.workloads.contacts import regression

    reader = _reader_of(source.name if source.kind == "published" else str(source.path))
    opened = reader.read(source)
    pairs_weights = None
    if opened.sizes.architecture is not ESM_1V:
        pairs_weights = regression.of_tensors(opened.tensors, opened.sizes, str(source.path))
        if pairs_weights is None and source.kind == "published":
            pairs_weights = _downloaded(source, opened.sizes.num_layers, opened.sizes.num_heads)
    if pairs_weights is not None:
        opened = regression.added(opened, pairs_weights)
    converted: Converted = reader.write(source, opened, path)
    metadata = converted.metadata | {HAS_REGRESSION: "yes" if pairs_weights else "no"}
    return converted._replace(metadata=metadata)


def _downloaded(source: Checkpoint, num_layers: int, num_heads: int) -> Regression:
    """Return the published regression; download it first to fair-esm's cache if it is not there.
    The weights themselves may be in Hugging Face's cache."""
    from featuremill.workloads.contacts import regression

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
    return regression.read(path, num_layers, num_heads)
