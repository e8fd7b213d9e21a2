"""featuremill head import: convert a head of VirNucPro's shape that was trained elsewhere.

A state dict contains only tensors and is read as such. A whole model (by `torch.save(model)`, as
VirNucPro ships it) is a pickle that can run any code. It is read only if the user gives its sha256,
in a separate process that returns tensors.
"""

from __future__ import annotations

import hashlib
import logging
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering_folder
from featuremill.kit.processes import versions
from featuremill.kit.text import clipped, listed
from featuremill.steps.heads import card

OF_NORM = ("weight", "bias", "running_mean", "running_var")
WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys under which checkpoints contain a state dict."""
SHAPE = "Linear, BatchNorm, ReLU, Linear"
log = logging.getLogger("featuremill.head")


class Chosen(NamedTuple):
    """The arguments of `head import`."""

    path: Path
    classes: Sequence[str]
    widths: Sequence[int]
    output: Path
    trusted: str | None = None
    """The sha256 of a pickle that may be read."""


def import_head(chosen: Chosen) -> None:
    """Import the head from the state dict that `chosen` names.

    Raises:
        UserError: if the file is missing, not trusted, or of another shape.
    """
    card.require("safetensors", "torch")
    card.refuse_other_folder(chosen.output)
    if len(set(chosen.classes)) != len(chosen.classes) or len(chosen.classes) < 2:
        raise UserError(
            f"--classes: {listed(chosen.classes)} are no two or more different names; give them in "
            "the order of the scores, as in --classes others,virus."
        )
    try:
        content = chosen.path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"{chosen.path}: there is no such file; name a state dict.") from None
    sha256 = hashlib.sha256(content).hexdigest()
    tensors = _named(_tensors(chosen, content, sha256), chosen)
    known = card.Card.find(chosen.output / card.CARD)
    if known and known.source is None:
        raise UserError(
            f"{chosen.output}: this head was trained here, and importing would delete it; name "
            "another folder with --output."
        )
    with delivering_folder(chosen.output) as folder:
        head = card.Card(
            version=card.Card.NEWEST,
            kind="mlp",
            classes=list(chosen.classes),
            features=[card.Part(width=width) for width in chosen.widths],
            sha256=card.write_tensors(folder / card.TENSORS, tensors),
            source=card.Source(file=str(chosen.path), sha256=sha256),
            versions=versions(),
        )
        head.write(folder / card.CARD)
    log.info(
        "%s: %s numbers to %s; its recipe is not known, so predict needs --any-recipe.",
        chosen.output,
        " + ".join(f"{width:,}" for width in chosen.widths),
        listed(chosen.classes),
    )


def _tensors(chosen: Chosen, content: bytes, sha256: str) -> Mapping[str, Any]:
    import io

    import torch

    if not content.startswith((b"PK", b"\x80")):
        return _loaded(chosen, content, "it is neither safetensors nor a file of torch.save")
    try:
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except UnpicklingError:
        return _loaded(chosen, _trusted(chosen, content, sha256), "reading it gave no tensors")
    except (RuntimeError, EOFError, ValueError) as error:
        raise _no_head(chosen, f"torch cannot read it: {clipped(str(error))}") from None
    state = unwrapped(state)
    if not isinstance(state, Mapping) or not all(
        isinstance(t, torch.Tensor) for t in state.values()
    ):
        raise _no_head(chosen, "it is no state dict")
    return state


def _loaded(chosen: Chosen, content: bytes, problem: str) -> Mapping[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: Mapping[str, Any] = load(content)
    except SafetensorError:
        raise _no_head(chosen, problem) from None
    return tensors


def unwrapped(content: Any) -> Any:
    """Return the state dict, or the model, inside a checkpoint."""
    for key in WRAPPERS:
        if isinstance(content, Mapping) and key in content:
            content = content[key]
    return content


def _trusted(chosen: Chosen, content: bytes, sha256: str) -> bytes:
    """Return the tensors of a pickled model as safetensors, if the user trusts it."""
    if chosen.trusted is None:
        again = ["featuremill", "head", "import", str(chosen.path)]
        again += ["--classes", ",".join(chosen.classes)]
        again += ["--dims", ",".join(map(str, chosen.widths)), "--output", str(chosen.output)]
        raise UserError(
            f"{chosen.path}: this is a pickled model, or has more in it than tensors (sha256 "
            f"{sha256}). Reading it can run any code that its maker put into it. If you trust its "
            "maker, type: "
            f"{shlex.join(again)} --trust {sha256}"
        )
    if chosen.trusted.lower() != sha256:
        raise UserError(
            f"{chosen.path}: its sha256 is {sha256}, and --trust names {chosen.trusted}; this is "
            "another file than the one you trust."
        )
    program = [sys.executable, "-m", "featuremill.steps.heads.unpickle"]
    done = subprocess.run(program, input=content, capture_output=True)
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _no_head(chosen, f"reading it failed: {clipped(lines[-1] if lines else 'no word')}")
    return done.stdout


def _named(of_file: Mapping[str, Any], chosen: Chosen) -> card.Tensors:
    """Return the tensors under VirNucPro's names, which are found by the shapes."""
    layers: dict[str, dict[str, npt.NDArray[np.float32]]] = {}
    for name, tensor in of_file.items():
        layer, _, kind = name.rpartition(".")
        if kind != "num_batches_tracked":
            layers.setdefault(layer, {})[kind] = tensor.detach().float().numpy()
    norms = [layer for layer in layers.values() if "running_mean" in layer]
    linears = [layer for layer in layers.values() if layer.keys() == {"weight", "bias"}]
    total, num_classes = sum(chosen.widths), len(chosen.classes)
    if len(norms) != 1 or len(linears) != 2 or len(layers) != 3:
        seen = [f"{name} {tuple(tensor.shape)}" for name, tensor in [*of_file.items()][:8]]
        raise _no_head(chosen, f"it holds {clipped(listed(seen or ['no tensor']), 300)}")
    (norm,) = norms
    size = len(norm["running_mean"])
    hidden, output = (
        next((each for each in linears if each["weight"].shape == shape), None)
        for shape in ((size, total), (num_classes, size))
    )
    is_whole = set(OF_NORM) == norm.keys() and {t.shape for t in norm.values()} == {(size,)}
    if not hidden or not output or hidden is output or not is_whole:
        shapes = listed(str(each["weight"].shape) for each in linears)
        raise _no_head(
            chosen,
            f"its layers are of shapes {shapes} around a BatchNorm of {size:,}, and "
            f"--dims {','.join(map(str, chosen.widths))} with {num_classes} --classes means "
            f"({size}, {total}) and ({num_classes}, {size})",
        )
    tensors = {f"bn1.{kind}": norm[kind] for kind in OF_NORM}
    for name, linear in (("hidden_layer", hidden), ("output_layer", output)):
        tensors |= {f"{name}.{kind}": linear[kind] for kind in ("weight", "bias")}
    if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
        raise _no_head(chosen, "it has numbers that are not finite")
    return tensors


def _no_head(chosen: Chosen, problem: str) -> UserError:
    return UserError(
        f"{chosen.path}: {problem}; give the state dict of a network of VirNucPro's shape "
        f"({SHAPE}), with its --dims and --classes."
    )
