"""Find models by path or by name in the cache of Hugging Face, download them, read their folders.

`place_of` looks names up in the cache only. This module handles the layout of a model's folder, not
its architecture.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import logging
import re
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from featuremill.base import environment
from featuremill.base.errors import UserError
from featuremill.base.locking import locked
from featuremill.base.progress import Progress
from featuremill.base.text import one_line
from featuremill.store.files import sync

ATTEMPTS = 4
"""Consecutive connections without new bytes before a download fails."""
STALL_SECONDS = 60.0
"""Time without a byte after which a connection ends."""
PAUSE_SECONDS = 1.0
"""Pause before the next connection; it doubles with each failure."""
BLOCK = 2**20
BUSY = (429, 500, 502, 503, 504)
"""HTTP statuses after which the request is repeated."""
log = logging.getLogger("featuremill.weights")


def download(url: str, path: Path) -> None:
    """Download `url` to `path`.

    A download in `<path>.partial` continues, if the server still has the same file (by its ETag).
    Of several processes one downloads, and the others wait.

    Raises:
        OSError: if there is no such file, or the server or the network failed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    lock = path.with_name(f"{path.name}.lock")
    try:
        with locked(lock):
            if not path.exists():
                _complete(url, partial)
                sync(partial)
                partial.rename(path)
    finally:
        if not partial.exists():
            _tag(partial).unlink(missing_ok=True)
        lock.unlink(missing_ok=True)


def _tag(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.etag")


def _complete(url: str, partial: Path) -> None:
    shown, failures = Progress(log, "downloading", "MB"), 0
    while True:
        before = _size(partial)
        try:
            total = _receive(url, partial, shown)
            if total is None or _size(partial) == total:
                return
            problem = OSError(f"it ended after {_size(partial):,} of {total:,} bytes")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in BUSY:
                raise
            problem = error
        except (OSError, http.client.HTTPException) as error:
            problem = error if isinstance(error, OSError) else OSError(str(error))
        failures = 1 if _size(partial) > before else failures + 1
        if failures >= ATTEMPTS:
            raise problem
        time.sleep(PAUSE_SECONDS * 2**failures)


def _receive(url: str, partial: Path, shown: Progress) -> int | None:
    """Append the bytes of one connection to `partial`; return the size of the whole file, if the
    server sends it."""
    start, tag = _size(partial), _tag(partial)
    headers = {"User-Agent": "featuremill", "Accept-Encoding": "identity"}
    etag = tag.read_text("utf-8") if tag.exists() else ""
    if start and etag and not etag.startswith("W/"):  # a weak one does not mean equal bytes
        headers |= {"Range": f"bytes={start}-", "If-Range": etag}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  (an address of ours)
    opener = urllib.request.build_opener()  # reads the proxies of the environment
    with opener.open(request, timeout=STALL_SECONDS) as answer:
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
        if answer.status == http.client.PARTIAL_CONTENT and span and int(span[1]) == start:
            total: int | None = int(span[2])
        else:
            length = answer.headers.get("Content-Length")
            total = int(length) if length else None
            partial.unlink(missing_ok=True)
            tag.write_text(answer.headers.get("ETag", ""), "utf-8")
        with partial.open("ab") as file:
            while block := answer.read(BLOCK):
                file.write(block)
                shown.at(file.tell() // 10**6, total and total // 10**6)
    return total


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


CONFIG = "config.json"
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
"""Names of checkpoints on Hugging Face: one file, or the index of several."""
INDEX = ".index.json"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
"""A name on Hugging Face: owner/model."""
ADAPTER = "adapter_config.json"
"""The config that peft writes for an adapter (LoRA), in a folder without the model's weights."""
POINTER = b"version https://git-lfs"
"""The first bytes of a git-lfs pointer, which git writes in place of a large file."""
NO_WEIGHTS = (
    "it is a git-lfs pointer, and the weights themselves were not fetched (type git lfs pull in "
    "its folder, or download it with hf download)"
)
WRAPPERS = {"module.": "DistributedDataParallel", "_orig_mod.": "torch.compile"}
"""Prefixes of tensor names that trainers add."""
FILES = (".pt", ".pth", ".bin", ".safetensors", ".ckpt")
"""Suffixes of files with weights. A text with one of them is not a name."""


def is_name(model: str) -> bool:
    """Return whether `model` has the form of a name on Hugging Face, which a path may have, too."""
    return NAME.fullmatch(model) is not None and not model.endswith(FILES)


def cached(name: str) -> Path | None:
    """Return the folder of the model `name` in Hugging Face's cache, or None."""
    home = environment.HF_HOME.text() or Path(
        environment.XDG_CACHE_HOME.text() or Path.home() / ".cache", "huggingface"
    )
    hub = Path(environment.HF_HUB_CACHE.text() or Path(home, "hub")).expanduser()
    model = hub / f"models--{name.replace('/', '--')}"
    try:
        folder = model / "snapshots" / (model / "refs" / "main").read_text("utf-8").strip()
    except (OSError, ValueError):
        return None
    return folder if (folder / CONFIG).is_file() else None


def download_model(address: str, folder: Path) -> None:
    """Download the model at `address` (…/owner/model/resolve/main) into `folder`. config.json is
    last, so a folder with it is complete.

    Raises:
        OSError: if the model does not exist, or the server or the network failed.
    """
    whole, index = SAFETENSORS
    try:
        download(f"{address}/{whole}", folder / whole)
    except urllib.error.HTTPError as error:
        if error.code != http.client.NOT_FOUND:
            raise
        download(f"{address}/{index}", folder / index)
        try:
            parts = {
                *map(str, json.loads((folder / index).read_text("utf-8"))["weight_map"].values())
            }
        except (ValueError, KeyError, AttributeError):
            (folder / index).unlink()
            raise OSError(f"{index} there maps no weights to files") from None
        for name in sorted({Path(part).name for part in parts}):
            download(f"{address}/{name}", folder / name)
    download(f"{address}/{CONFIG}", folder / CONFIG)


def place_of(model: str) -> Path:
    """Return the path of `model`: itself, or its folder in the cache if it is a cached name."""
    path = Path(model).expanduser()
    folder = cached(model) if is_name(model) and not path.exists() else None
    return folder or path


def download_command(name: str) -> str:
    """Return the command that downloads `name` from Hugging Face. Where `hf` is missing, that which
    installs it comes first."""
    has_hf = importlib.util.find_spec("huggingface_hub") is not None
    install = "" if has_hf else "pip install huggingface_hub, then "
    return f"{install}hf download {name}"


def how_to_download(name: str, folder: str) -> str:
    """Return advice how to download `name` into the cache, or elsewhere into `folder`."""
    return (
        f"type {download_command(name)} here, or on a machine with a network: hf download {name} "
        f"--local-dir {folder}, and set model: to that folder"
    )


def how_to_get(model: str) -> str:
    """Return advice how to download `model`, if it has the form of a name; else ""."""
    if not is_name(model):
        return ""
    advice = how_to_download(model, model.rpartition("/")[2])
    return f"if it is a name on Hugging Face, {advice}"


def json_of(path: Path, whose: str = "an encoder's") -> dict[str, Any]:
    """Return the JSON object in `path`, a file of a Hugging Face folder; `whose` is for messages.

    Raises:
        UserError: if the file is missing or is not a JSON object.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{path}: there is no such file, and {whose} folder has one; give the folder as "
            "Hugging Face has it."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: it cannot be read ({one_line(str(error))}); download it again."
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: this is no JSON object; download it again.")
    return content


def is_pointer(path: Path) -> bool:
    """Return whether the file `path` is a git-lfs pointer, not the weights."""
    with path.open("rb") as file:
        return file.read(len(POINTER)) == POINTER


def wrapped(names: Sequence[str]) -> str:
    """Return the problem that tensors with these names are of a wrapped network; "" if not."""
    first, *others = names or [""]
    for prefix, wrapper in WRAPPERS.items():
        if first.startswith(prefix) and all(name.startswith(prefix) for name in others):
            return (
                f"its tensors are those of a {wrapper} (their names begin with {prefix!r}); save "
                "the state_dict of the network in it, or take the prefix off each name"
            )
    return ""


def refuse_adapter(folder: Path) -> None:
    """Raise UserError if `folder` has an adapter (LoRA) instead of a network."""
    if (folder / ADAPTER).is_file():
        raise UserError(
            f"{folder}: this is an adapter (LoRA) of a network, without its weights; merge it into "
            "the network (merge_and_unload of peft), save that, and give its folder."
        )


def checkpoint_files(folder: Path) -> list[Path]:
    """Return the checkpoint's files in `folder`: safetensors, else pickles.

    Raises:
        UserError: if there is none, or its index names none, or one that is missing.
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
        files = [
            folder / name for name in sorted({Path(str(part)).name for part in parts.values()})
        ]
        if missing := [file.name for file in files if not file.is_file()]:
            raise UserError(f"{path}: it names {missing[0]}, which is not there; download it too.")
        return files
    refuse_adapter(folder)
    raise UserError(
        f"{folder}: there are no weights in this folder; it needs {SAFETENSORS[0]}, "
        f"{PICKLES[0]}, or one of their indexes with its parts."
    )
