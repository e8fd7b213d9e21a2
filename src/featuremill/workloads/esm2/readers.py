"""Open a checkpoint file of any network: its tensors by name, and the settings of the network.

No code of a file is run: of a pickle, only tensors, containers and the `argparse.Namespace` of
fair-esm's settings are built.
"""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from featuremill.kit.errors import UserError
from featuremill.workload.hugging_face import NO_WEIGHTS, POINTER, checkpoint_files, wrapped
from featuremill.workloads.esm2.folder import Kind, facts_of

__all__ = ["open_checkpoint", "refusal"]
FACTS = {
    "encoder_layers": "num_layers",
    "encoder_embed_dim": "embed_dim",
    "encoder_attention_heads": "attention_heads",
    "num_hidden_layers": "num_layers",
    "hidden_size": "embed_dim",
    "num_attention_heads": "attention_heads",
    "n_layers": "num_layers",
    "d_model": "embed_dim",
    "n_heads": "attention_heads",
    "intermediate_size": "feed_forward",
}
"""Names of an architecture's numbers in fair-esm, Hugging Face and ESM C's folders."""

OF_A_TRAINER = (
    "it is a checkpoint of a trainer (such as Lightning); save what is in its state_dict alone, "
    "with the network's own names of tensors, without a prefix such as 'model.'"
)


class Opened(NamedTuple):
    """The tensors of a file by name, and the settings stored with them."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    is_elder: bool = False
    """Whether this is an ESM from before ESM-2, by its outermost keys."""


def open_checkpoint(path: Path, kind: Kind) -> Opened:
    """Return the content of `path`, memory-mapped if possible, and its folder's settings."""
    opened = _folder(path, kind) if path.is_dir() else _file(path, kind)
    if not opened.tensors or not all(
        isinstance(key, str) and isinstance(tensor, Tensor)
        for key, tensor in opened.tensors.items()
    ):
        raise refusal(path, "it holds no dictionary of tensors", kind)
    if problem := wrapped(list(opened.tensors)):
        raise refusal(path, problem, kind)
    facts = facts_of(path, kind) | opened.facts
    return opened._replace(facts={FACTS.get(key, key): value for key, value in facts.items()})


def _folder(path: Path, kind: Kind) -> Opened:
    """Return the joint content of the files of a checkpoint in a Hugging Face folder."""
    parts = [_file(file, kind) for file in checkpoint_files(path)]
    tensors = {key: tensor for part in parts for key, tensor in part.tensors.items()}
    if len(tensors) < sum(len(part.tensors) for part in parts):
        raise refusal(path, "two of its files have the same tensor", kind)
    return parts[0]._replace(tensors=tensors)


def _file(path: Path, kind: Kind) -> Opened:
    return _safetensors(path, kind) if path.suffix == ".safetensors" else _pickle(path, kind)


def refusal(path: Path, reason: str, kind: Kind) -> UserError:
    """Return the error that `path` cannot be used for this `reason`."""
    return UserError(
        f"{path}: this is not a usable {kind.title} checkpoint: {reason}; give {kind.give}."
    )


def _safetensors(path: Path, kind: Kind) -> Opened:
    try:
        with safe_open(path, framework="pt") as file:
            facts = dict(file.metadata() or {})
        return Opened(load_file(path), facts)
    except (SafetensorError, OSError) as error:
        raise refusal(path, _reason(path, error), kind) from None


def _pickle(path: Path, kind: Kind) -> Opened:
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            raw = torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
    except Exception as error:  # other files may raise any exception
        raise refusal(path, _reason(path, error), kind) from None
    if not isinstance(raw, dict):
        return Opened({}, {})
    if isinstance(raw.get("state_dict"), dict):
        raise refusal(path, OF_A_TRAINER, kind)
    tensors = raw.get("model", raw)
    cfg = raw.get("cfg")
    settings = cfg.get("model") if isinstance(cfg, dict) else None
    settings = raw.get("args", settings)
    facts = dict(vars(settings)) if isinstance(settings, argparse.Namespace) else {}
    return Opened(tensors if isinstance(tensors, dict) else {}, facts, "args" in raw)


def _reason(path: Path, error: Exception) -> str:
    try:
        with path.open("rb") as file:
            start = file.read(512).lstrip()
    except OSError as unreadable:
        return f"{unreadable.strerror}"
    if not start:
        return "it is empty"
    if start.startswith(POINTER):
        return NO_WEIGHTS
    if start.startswith(b"<"):
        return "it is a web page"
    if start.startswith(b"PK") and not zipfile.is_zipfile(path):
        return "it is cut short; delete it and fetch it again"
    first_line = str(error).partition("\n")[0].partition(". ")[0]
    return f"it cannot be read safely ({type(error).__name__}: {first_line[:120]})"
