"""Read published autoencoders: folders in SAELens' layout without sae.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.kit.files import sha256_of
from featuremill.kit.text import listed
from featuremill.steps.autoencoders import network
from featuremill.steps.autoencoders.card import ARCHITECTURES, CONFIG, WEIGHTS
from featuremill.steps.autoencoders.origin import Origin

EARLY_NAMES = {"hook_point": "hook_name", "activation_fn_str": "activation_fn"}
"""Names of keys in cfg.json before SAELens 6, with the new names."""
KINDS = {architecture: kind for kind, architecture in ARCHITECTURES.items()}


class Published(NamedTuple):
    """The content of a published autoencoder."""

    folder: Path
    form: network.Form
    tensors: network.Tensors
    sha256: str
    model: str
    hook: str
    """The hook point of the network whose states it encodes; "" if cfg.json has none."""

    def refuse_other(self, root: Path, origin: Origin, column: str) -> None:
        """Raise UserError if a column of the run in `root` is of another network or hook point."""
        hook = origin.hooks.get(column, "")
        pairs = (("model", self.model, origin.model), ("hook", self.hook, hook))
        for what, its, of_run in pairs:
            if not (its and of_run) or _plain(its) != _plain(of_run):
                raise UserError(
                    f"{root}: {self.folder} is of the {what} {its or '(not named)'}, and {column} "
                    f"of {of_run or 'none that is known'}; compute those states, or let these "
                    "vectors be taken with --any-recipe."
                )

    def column_in(self, root: Path, origin: Origin) -> str:
        """Return the column of a run with the states of the hook point."""
        columns = [name for name, hook in origin.hooks.items() if hook == self.hook]
        if not columns:
            raise UserError(
                f"{root}: {self.folder} is of {self.hook or 'a place that it does not name'}, and "
                "no vectors of this run are of that place, as far as is known; compute that layer "
                "with per_residue: true, or choose the vectors with --vectors and --any-recipe."
            )
        return columns[0]


def _plain(name: str) -> str:
    """Return a model's name without the owner."""
    return name.rpartition("/")[2].lower()


def read(folder: Path) -> Published:
    """Return the autoencoder in `folder`.

    Raises:
        UserError: the folder has no autoencoder, or its kind is not supported.
    """
    config = _config(folder / CONFIG)
    width, num_features = (_number(folder, config, name) for name in ("d_in", "d_sae"))
    kind = _kind(folder, config)
    k = _number(folder, config, "k") if kind == "topk" else 0
    form = network.Form(kind, min(k, num_features), bool(config.get("apply_b_dec_to_input", True)))
    tensors = _tensors(folder / WEIGHTS, network.sizes(width, num_features, kind))
    if config.get("rescale_acts_by_decoder_norm"):
        norms_M = tensors["W_dec"].norm(dim=1)
        tensors["W_enc"], tensors["b_enc"] = tensors["W_enc"] * norms_M, tensors["b_enc"] * norms_M
        tensors["W_dec"] = tensors["W_dec"] / norms_M[:, None]
    model, hook = (str(config.get(name) or "") for name in ("model_name", "hook_name"))
    return Published(folder, form, tensors, sha256_of(folder / WEIGHTS), model, hook)


def _config(path: Path) -> dict[str, Any]:
    """Return the keys of cfg.json and of its metadata, with the names of SAELens 6."""
    try:
        content = json.loads(path.read_text("utf-8"))
        every = {**(content.get("metadata") or {}), **content}
        config = {EARLY_NAMES.get(key, key): value for key, value in every.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        raise UserError(
            f"{path}: this is not what SAELens writes; download the folder again."
        ) from None
    activation = config.get("activation_fn_kwargs")
    if config.get("activation_fn") == "topk" and isinstance(activation, Mapping):
        config |= {"architecture": "topk", "activation_fn": "relu", "k": activation.get("k")}
    return config


def _number(folder: Path, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not (isinstance(value, int) and value > 0):
        raise UserError(
            f"{folder / CONFIG}: {name} is {value!r} and no number above 0; download it again."
        )
    return value


def _kind(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the kind of the autoencoder; UserError if it is not supported."""
    architecture = config.get("architecture", "standard")
    if architecture not in KINDS:
        raise UserError(
            f"{folder / CONFIG}: its architecture is {architecture!r}, and those that can be "
            f"applied are {listed(KINDS)}; take another autoencoder."
        )
    only = {
        "normalize_activations": ("none", False),
        "reshape_activations": ("none",),
        "activation_fn": ("relu",),
        "finetuning_scaling_factor": (False, None),
    }
    for name, usual in only.items():
        if config.get(name, usual[0]) not in usual:
            raise UserError(
                f"{folder / CONFIG}: its {name} is {config[name]!r}, and only {usual[0]!r} is "
                "computed here; take another autoencoder."
            )
    return KINDS[architecture]


def _tensors(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the tensors in the file `path` in fp32, after a check of their `shapes`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError):
        raise UserError(f"{path}: it cannot be read; download the folder again.") from None
    for name, shape in shapes.items():
        if name not in tensors or tuple(tensors[name].shape) != shape:
            has = f"{tuple(tensors[name].shape)}" if name in tensors else "missing"
            raise UserError(
                f"{path}: by {CONFIG} its {name} has the shape {shape}, and it is {has}; download "
                "the folder again."
            )
    return {name: tensors[name].float() for name in shapes}
