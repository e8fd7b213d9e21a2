"""Read the config and the tensors of an encoder's folder; runs no code of it."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featuremill.kit.errors import UserError
from featuremill.kit.text import one_line
from featuremill.workload.hugging_face import (
    CONFIG,
    NO_WEIGHTS,
    checkpoint_files,
    is_pointer,
    json_of,
    refuse_adapter,
    wrapped,
)

if TYPE_CHECKING:
    from torch import Tensor


def config_of(folder: Path) -> dict[str, Any]:
    """Return the config of the encoder in `folder`.

    Raises:
        UserError: if there is none, or it lacks the keys that Hugging Face writes.
    """
    if folder.is_file():
        raise UserError(
            f"options.model: {folder}: this is a file; give the folder that holds it, with its "
            f"{CONFIG} and its vocabulary."
        )
    if not (folder / CONFIG).is_file():
        refuse_adapter(folder)
    config = json_of(folder / CONFIG)
    if not isinstance(config.get("model_type"), str):
        raise UserError(f"{folder / CONFIG}: it names no model_type; take the one of the model.")
    return config


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of the checkpoint in `folder` by name, memory-mapped if the format allows
    it. A pickle is read with `weights_only=True`."""
    tensors: dict[str, Tensor] = {}
    for path in checkpoint_files(folder):
        own = _opened(path)
        if twice := tensors.keys() & own.keys():
            raise UserError(f"{path}: it has {min(twice)}, as another part does; download both.")
        tensors |= own
    if problem := wrapped(list(tensors)):
        raise UserError(f"{folder}: {problem}.")
    return tensors


def _opened(path: Path) -> dict[str, Tensor]:
    import torch
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        raw = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # other files may raise any exception
        if is_pointer(path):
            raise UserError(f"{path}: {NO_WEIGHTS}.") from None
        reason = one_line(str(error)).partition(". ")[0][:120]
        raise UserError(
            f"{path}: this checkpoint cannot be read safely ({type(error).__name__}: {reason}); "
            "fetch it again, or save it as safetensors."
        ) from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: this is no state dict; save it as safetensors.")
    raw = raw.get("state_dict", raw)
    return {str(name): tensor for name, tensor in raw.items() if isinstance(tensor, torch.Tensor)}
