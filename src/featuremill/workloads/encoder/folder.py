"""Reading an encoder's folder: its config, and the tensors of its checkpoint. Runs nothing of it.

Knows file formats and no architecture.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featuremill.base.errors import UserError
from featuremill.base.text import one_line

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
"""What Hugging Face calls a checkpoint: one file, or the index of several."""
INDEX = ".index.json"


def config_of(folder: Path) -> dict[str, Any]:
    """Return the config of the encoder in `folder`.

    Raises:
        UserError: there is none, or it is not what Hugging Face writes.
    """
    if folder.is_file():
        raise UserError(
            f"options.model: {folder}: this is a file; give the folder that holds it, with its "
            f"{CONFIG} and its vocabulary."
        )
    config = json_of(folder / CONFIG)
    if not isinstance(config.get("model_type"), str):
        raise UserError(f"{folder / CONFIG}: it names no model_type; take the one of the model.")
    return config


def json_of(path: Path, whose: str = "an encoder's") -> dict[str, Any]:
    """Return the JSON object in `path`, a file of a folder as Hugging Face has it; `whose` is said
    where it is missing.

    Raises:
        UserError: there is none.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{path}: there is no such file, and {whose} folder has one; give the folder as "
            "Hugging Face has it."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: it cannot be read ({one_line(str(error))}).") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: this is no JSON object; download it again.")
    return found


def checkpoint_files(folder: Path) -> list[Path]:
    """Return the files that hold the checkpoint in `folder`: safetensors, else pickles.

    Raises:
        UserError: there is none, or its index names what is not there.
    """
    for name in (*SAFETENSORS, *PICKLES):
        path = folder / name
        if not path.is_file():
            continue
        if not name.endswith(INDEX):
            return [path]
        parts = json_of(path).get("weight_map")
        if not isinstance(parts, dict) or not parts:
            raise UserError(f"{path}: it maps no weights to files; download it again.")
        files = [folder / Path(str(part)).name for part in sorted(set(map(str, parts.values())))]
        if missing := [file.name for file in files if not file.is_file()]:
            raise UserError(f"{path}: it names {missing[0]}, which is not there; download it too.")
        return files
    raise UserError(
        f"{folder}: there are no weights in this folder; it needs {SAFETENSORS[0]}, "
        f"{PICKLES[0]}, or one of their indexes with its parts."
    )


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of the checkpoint in `folder` by their names there, memory-mapped where
    the format allows it. Of a pickle nothing but tensors and containers is built."""
    tensors: dict[str, Tensor] = {}
    for path in checkpoint_files(folder):
        found = _opened(path)
        if twice := tensors.keys() & found.keys():
            raise UserError(f"{path}: it has {min(twice)}, as another part does; download both.")
        tensors |= found
    return tensors


def _opened(path: Path) -> dict[str, Tensor]:
    import torch
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        raw = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # bytes that are no checkpoint can end in any exception there is
        reason = one_line(str(error)).partition(". ")[0][:120]
        raise UserError(
            f"{path}: this checkpoint cannot be read safely ({type(error).__name__}: {reason}); "
            "fetch it again, or save it as safetensors."
        ) from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: this is no state dict; save it as safetensors.")
    raw = raw.get("state_dict", raw)
    return {str(name): tensor for name, tensor in raw.items() if isinstance(tensor, torch.Tensor)}
