"""Find the checkpoint of an ESM C at a path or in Hugging Face's cache, and convert it.

Downloads nothing and does not import torch.
"""

from __future__ import annotations

import contextlib
import json
import logging
import zipfile
from pathlib import Path

from featuremill.kit.errors import UserError
from featuremill.kit.files import refuse_unreadable
from featuremill.workload import Checkpoint, Converted, refuse_without_packages
from featuremill.workload.hugging_face import (
    CONFIG,
    cached,
    checkpoint_files,
    how_to_download,
    how_to_get,
    place_of,
)
from featuremill.workload.weights import converted
from featuremill.workloads import esm2
from featuremill.workloads.esm2.folder import ESM_C, facts_of
from featuremill.workloads.esm2.sources import looks_like_path, stem_of, unknown

__all__ = ["NAMES", "header", "refuse_missing", "takes"]
_log = logging.getLogger("featuremill.weights")

NUMBERS = ("num_layers", "embed_dim", "attention_heads", "feed_forward")
LAYOUT = "esmc-1"
NAMES = {
    "esmc_300m": "biohub/ESMC-300M",
    "esmc_600m": "biohub/ESMC-600M",
    "esmc_6b": "biohub/ESMC-6B",
}
"""The published models, with their names on Hugging Face."""
SUGGESTED = ("esmc_600m", "esmc_300m", "esmc_6b")
QUERY_NORMS = (b"q_norm.weight", b"q_ln.weight")
"""Parts of tensor names of every ESM C; an ESM-2 has neither."""
LONGEST_HEADER = 2**25
"""The largest number of bytes of a file that are searched for tensor names."""


def takes(model: str) -> bool:
    """Return whether `model` is the name or the path of an ESM C; reads no weights."""
    if model in NAMES:
        return True
    path = _path_of(model)
    with contextlib.suppress(OSError, ValueError, AttributeError, zipfile.BadZipFile):
        if path.is_dir():
            config = json.loads((path / CONFIG).read_text("utf-8"))
            return bool(config.get("model_type") == "esmc")
        names = header(path)
        return any(name in names for name in QUERY_NORMS)
    return False


def header(path: Path) -> bytes:
    """Return the part of a file of weights that has the names of its tensors."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as whole:
            (pickle,) = (name for name in whole.namelist() if name.endswith("data.pkl"))
            return whole.read(pickle)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return file.read(min(length, LONGEST_HEADER))


def is_path(model: str) -> bool:
    return model not in NAMES or Path(model).exists()


def name_of(model: str) -> str:
    if model in NAMES:
        return model
    if looks_like_path(model):
        return stem_of(model)
    raise unknown(model, list(NAMES))


def refuse_missing(model: str, layout: str = LAYOUT) -> None:
    """Raise UserError if `model` is missing and was never converted to `layout`, or is a folder of
    another network."""
    path = _path_of(model)
    if path.is_dir():
        checkpoint_files(path)
        facts_of(path, ESM_C)
    elif not path.is_file() and (is_path(model) or not converted(model, layout)):
        _refuse_missing(model, path)


def _refuse_missing(model: str, path: Path) -> None:
    if not is_path(model):
        advice = how_to_download(NAMES[model], model)
        raise UserError(f"{model}: its weights are not on this machine; {advice}.")
    if remedy := how_to_get(model):
        raise UserError(f"{model}: there is no such file or folder; {remedy}.")
    refuse_unreadable(path)


def locate(model: str) -> Checkpoint:
    """Return the checkpoint of `model`, which may be missing if it is a published one."""
    name, path = name_of(model), _path_of(model)
    if not is_path(model):
        return Checkpoint("published", name, NAMES[model], path)
    refuse_missing(model)
    return Checkpoint("local", name, str(path.resolve()), path)


def _path_of(model: str) -> Path:
    """Return the file or folder of `model`, which may be missing; for a folder of the package esm,
    the file of weights in it."""
    path = place_of(model) if is_path(model) else cached(NAMES[model]) or Path(NAMES[model])
    files = sorted(path.glob("data/weights/*.pth"))
    return files[0] if len(files) == 1 else path


def convert(source: Checkpoint, path: Path, has_head: bool = False) -> Converted:
    refuse_without_packages(esm2.Options)
    if not source.path.exists():
        _refuse_missing(source.name, source.path)
    from featuremill.workloads.esm2 import conversion
    from featuremill.workloads.esmc import checkpoint

    _log.info("converting %s", source.path)
    read_checkpoint = checkpoint.read(source.path, has_head)
    sha256 = conversion.write(read_checkpoint, path)
    name = f"esmc_t{read_checkpoint.sizes.num_layers}_w{read_checkpoint.sizes.width}-{sha256[:8]}"
    return Converted(name, sha256, read_checkpoint.metadata())
