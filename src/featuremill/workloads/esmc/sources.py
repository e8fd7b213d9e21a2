"""Where an ESM C comes from: a path, or Hugging Face's cache. Nothing is downloaded here.

No torch here.
"""

from __future__ import annotations

import logging
from pathlib import Path

from featuremill.base.errors import UserError
from featuremill.inputs.source import check
from featuremill.workload import Checkpoint, Converted, refuse_without_packages
from featuremill.workload.hugging_face import cached, checkpoint_files, how_to_get, place_of
from featuremill.workload.weights import cache_folder
from featuremill.workloads.esm2.sources import looks_like_path, nearest, stem_of
from featuremill.workloads.esmc.folder import facts_of
from featuremill.workloads.esmc.options import Options

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


def refuse_missing(model: str) -> None:
    """Raise UserError where `model` is not here, or is a folder of another network."""
    path = _place(model)
    if path.is_dir():
        checkpoint_files(path)
        facts_of(path)
    elif not path.is_file():
        _refuse_missing(model, path)


def _refuse_missing(model: str, path: Path) -> None:
    if not is_path(model):
        if (cache_folder() / LAYOUT / f"{model}.json").exists():
            return  # it has been converted
        raise UserError(
            f"{model}: its weights are not on this machine; type hf download {NAMES[model]} here, "
            f"or on a machine with a network: hf download {NAMES[model]} --local-dir {model}, and "
            "set model: to that folder."
        )
    if remedy := how_to_get(model):
        raise UserError(f"{model}: there is no such file or folder; {remedy}.")
    check(path)


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


def convert(source: Checkpoint, path: Path) -> Converted:
    """Write the weights of `source` to `path`."""
    refuse_without_packages(Options)
    if not source.path.exists():
        refuse_missing(source.name)
    from featuremill.workloads.esm2 import conversion
    from featuremill.workloads.esmc import checkpoint

    _log.info("converting %s", source.path)
    found = checkpoint.read(source.path)
    sha256 = conversion.write(found, path)
    name = f"esmc_t{found.sizes.num_layers}_w{found.sizes.width}-{sha256[:8]}"
    return Converted(name, sha256, found.metadata())
