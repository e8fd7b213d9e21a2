"""Where an ESM C comes from: a path, or Hugging Face's cache. Nothing is downloaded here.

No torch here.
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
    how_to_get,
    place_of,
)
from featuremill.workload.weights import converted
from featuremill.workloads.esm2.folder import ESM_C, facts_of
from featuremill.workloads.esm2.sources import looks_like_path, nearest, stem_of
from featuremill.workloads.esmc.options import Options

__all__ = ["NAMES", "header", "refuse_missing", "takes"]
_log = logging.getLogger("featuremill.weights")

NUMBERS = ("num_layers", "embed_dim", "attention_heads", "feed_forward")
LAYOUT = "esmc-1"
NAMES = {
    "esmc_300m": "biohub/ESMC-300M",
    "esmc_600m": "biohub/ESMC-600M",
    "esmc_6b": "biohub/ESMC-6B",
}
"""The published models, and what each is called on Hugging Face."""
SUGGESTED = ("esmc_600m", "esmc_300m", "esmc_6b")
QUERY_NORMS = (b"q_norm.weight", b"q_ln.weight")
"""In the names of tensors of an ESM C in every layout, and in none of an ESM-2."""
LONGEST_HEADER = 2**25
"""Bytes of a file in which names of tensors are looked for."""


def takes(model: str) -> bool:
    """Tell whether `model` is the name of an ESM C, or files of one; reads no weights."""
    path = _place(model)
    if model in NAMES:
        return True
    with contextlib.suppress(OSError, ValueError, AttributeError, zipfile.BadZipFile):
        if path.is_dir():
            config = json.loads((path / CONFIG).read_text("utf-8"))
            return bool(config.get("model_type") == "esmc")
        names = header(path)
        return any(name in names for name in QUERY_NORMS)
    return False


def header(path: Path) -> bytes:
    """Return the part of a file of weights that names its tensors."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as whole:
            (pickle,) = (name for name in whole.namelist() if name.endswith("data.pkl"))
            return whole.read(pickle)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return file.read(min(length, LONGEST_HEADER))


def is_path(model: str) -> bool:
    """Tell whether `model` is the path of a checkpoint and not the name of a known model."""
    return model not in NAMES or Path(model).exists()


def name_of(model: str) -> str:
    """Return the name under which `weights/<name>.json` stands for `model`; opens no file."""
    if model in NAMES:
        return model
    if looks_like_path(model):
        return stem_of(model)
    near = nearest(model, list(NAMES))
    hint = f"did you mean {near!r}? There" if near else "there"
    raise UserError(
        f"there is no model {model!r}; {hint} are {', '.join(NAMES)}, or give the path of a "
        "checkpoint, or of a folder from Hugging Face."
    )


def refuse_missing(model: str, layout: str = LAYOUT) -> None:
    """Raise UserError where `model` is not here, nor what it was converted to in `layout`, or is a
    folder of another network."""
    path = _place(model)
    if path.is_dir():
        checkpoint_files(path)
        facts_of(path, ESM_C)
    elif not path.is_file() and (is_path(model) or not converted(model, layout)):
        _refuse_missing(model, path)


def _refuse_missing(model: str, path: Path) -> None:
    if not is_path(model):
        raise UserError(
            f"{model}: its weights are not on this machine; type hf download {NAMES[model]} here, "
            f"or on a machine with a network: hf download {NAMES[model]} --local-dir {model}, and "
            "set model: to that folder."
        )
    if remedy := how_to_get(model):
        raise UserError(f"{model}: there is no such file or folder; {remedy}.")
    refuse_unreadable(path)


def locate(model: str) -> Checkpoint:
    """Return where the checkpoint of `model` is or is to come from."""
    name, path = name_of(model), _place(model)
    if not is_path(model):
        return Checkpoint("published", name, NAMES[model], path)
    refuse_missing(model)
    return Checkpoint("local", name, str(path.resolve()), path)


def _place(model: str) -> Path:
    """Return the file or folder of `model`, there or not. A folder of the package esm holds one
    file of weights, further below."""
    path = place_of(model) if is_path(model) else cached(NAMES[model]) or Path(NAMES[model])
    files = sorted(path.glob("data/weights/*.pth"))
    return files[0] if len(files) == 1 else path


def convert(source: Checkpoint, path: Path, has_head: bool = False) -> Converted:
    """Write the weights of `source` to `path`, with the language-model head or without."""
    refuse_without_packages(Options)
    if not source.path.exists():
        _refuse_missing(source.name, source.path)
    from featuremill.workloads.esm2 import conversion
    from featuremill.workloads.esmc import checkpoint

    _log.info("converting %s", source.path)
    read_checkpoint = checkpoint.read(source.path, has_head)
    sha256 = conversion.write(read_checkpoint, path)
    name = f"esmc_t{read_checkpoint.sizes.num_layers}_w{read_checkpoint.sizes.width}-{sha256[:8]}"
    return Converted(name, sha256, read_checkpoint.metadata())
