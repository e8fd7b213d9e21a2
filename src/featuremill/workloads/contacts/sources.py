"""Checkpoints of the workload esm2, converted with their regression for contacts.

These are other files than that workload's, in a folder of their own, so nothing changes for its
runs. fair-esm keeps a regression in a file of its own beside the `.pt`, Hugging Face with the rest.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from featuremill.kit.errors import UserError
from featuremill.workload import Checkpoint, Converted
from featuremill.workloads.esm2 import sources as of_esm2
from featuremill.workloads.esm2.sources import (
    NUMBERS,
    SUGGESTED,
    bundled_names,
    is_path,
    locate,
    refuse_missing,
)

if TYPE_CHECKING:
    from featuremill.workloads.contacts.regression import Regression

__all__ = [
    "LAYOUT",
    "NUMBERS",
    "SUGGESTED",
    "beside",
    "bundled_names",
    "convert",
    "is_path",
    "locate",
    "name_of",
    "refuse_missing",
]
LAYOUT = "esm2-contacts-1"
URL = "https://dl.fbaipublicfiles.com/fair-esm/regression/{name}-contact-regression.pt"
"""The address that fair-esm's own `esm.pretrained` uses."""
HAS_REGRESSION = "contact_regression"
"""A key of the metadata: "yes" or "no"."""
log = logging.getLogger("featuremill.weights")


def beside(model: str) -> Path | None:
    """Return the regression that lies beside the `.pt` that `model` is, as fair-esm has it."""
    path = Path(model).expanduser()
    found = _beside(path)
    return found if path.suffix == ".pt" and found.is_file() else None


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.stem}-contact-regression.pt")


def name_of(model: str) -> str:
    """Return the name under which `weights/<name>.json` stands for `model`: not that of esm2."""
    return f"{of_esm2.name_of(model)}-contacts"


def convert(source: Checkpoint, path: Path) -> Converted:
    """Write the weights of `source` to `path`, with the regression that it has or that is published
    with it."""
    from featuremill.workloads.contacts import regression

    opened = of_esm2.read(source)
    found = regression.of_tensors(opened.tensors, opened.sizes, str(source.path))
    if found is None and source.kind == "published":
        found = _downloaded(source, opened.sizes.num_layers, opened.sizes.num_heads)
    if found is not None:
        opened = regression.added(opened, found)
    made = of_esm2.write(source, opened, path)
    metadata = made.metadata | {HAS_REGRESSION: "yes" if found else "no"}
    return made._replace(metadata=metadata)


def _downloaded(source: Checkpoint, num_layers: int, num_heads: int) -> Regression:
    """Return the published regression, downloaded to where fair-esm would find it."""
    import torch

    from featuremill.workloads.contacts import regression

    path = _beside(source.path)
    if not path.exists():
        url = URL.format(name=source.name)
        log.info("downloading %s → %s", url, path)
        try:
            torch.hub.download_url_to_file(url, str(path), progress=False)
        except OSError as error:  # urllib's errors are among them
            reason = getattr(error, "reason", error)
            raise UserError(
                f"{url}: the regression cannot be downloaded here ({reason}); fetch it on another "
                f"machine and put it into {path.parent}."
            ) from None
    return regression.read(path, num_layers, num_heads)
