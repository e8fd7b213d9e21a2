"""Find or download the checkpoint of a model: in the package, at a path, in Hugging Face's cache or
on Meta's server. Models of other workloads are known by name. Does not import torch."""

from __future__ import annotations

import contextlib
import difflib
import logging
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from featuremill.inputs.source import check
from featuremill.kit import environment
from featuremill.kit.errors import UserError
from featuremill.workload import Checkpoint, Converted, refuse_without_packages
from featuremill.workload.hugging_face import (
    CONFIG,
    cached,
    checkpoint_files,
    download_command,
    download_model,
    how_to_get,
    place_of,
)
from featuremill.workload.hugging_face import download as download_file
from featuremill.workloads.esm2.architecture import PUBLISHED as PUBLISHED
from featuremill.workloads.esm2.folder import ESM2, Kind, facts_of
from featuremill.workloads.esm2.options import Options

if TYPE_CHECKING:
    from featuremill.workloads.esm2.conversion import Checkpoint as Opened

__all__ = [
    "NUMBERS",
    "OWNER",
    "PUBLISHED",
    "PUBLISHED_LICENSE",
    "SUGGESTED",
    "bundled_names",
    "download",
    "hub_folder",
    "is_path",
    "locate",
    "looks_like_path",
    "name_of",
    "nearest",
    "published",
    "read",
    "refuse_missing",
    "stem_of",
    "unknown",
    "write",
]
_log = logging.getLogger("featuremill.weights")

NUMBERS = ("num_layers", "embed_dim")
LAYOUT = "esm2-1"
BUNDLED = Path(__file__).parent / "bundled"
HUGGING_FACE = "https://huggingface.co"
URL = "https://dl.fbaipublicfiles.com/fair-esm/models/{name}.pt"
"""The address that fair-esm's own `esm.pretrained` uses."""
OWNER = "facebook/"
"""The owner of the published models on Hugging Face."""


PUBLISHED_LICENSE = "MIT"
SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")
GENERIC_STEMS = {"model", "pytorch_model"}
"""Generic file names, for which the name of the folder is used."""
SUGGESTED = (
    *("esm2_t33_650M_UR50D", "esm2_t30_150M_UR50D", "esm2_t12_35M_UR50D", "esm2_t6_8M_UR50D"),
    *("esm2_t36_3B_UR50D", "esm2_t48_15B_UR50D"),
)
"""The default model, then one for any machine."""


class Other(NamedTuple):
    """A family of models."""

    pattern: str
    """A regular expression for its names, in small letters and digits only."""
    weights: str
    """The name of its default weights on Hugging Face."""
    alphabet: str = "proteins"
    """The option `alphabet` of `encoder`; "" for another workload."""
    workload: str = "encoder"
    model: str = ""
    """The model's name in that workload; "" for the name on Hugging Face."""


NUCLEOTIDES = "nucleotides"
OTHERS = (
    Other("prostt5", "Rostlab/ProstT5"),
    Other("prott5", "Rostlab/prot_t5_xl_half_uniref50-enc"),
    Other("protbert", "Rostlab/prot_bert"),
    Other("ankh3", "ElnaggarLab/ankh3-large"),
    Other("ankh", "ElnaggarLab/ankh-base"),
    Other("saprot", "westlake-repl/SaProt_650M_AF2"),
    Other("amplify", "chandar-lab/AMPLIFY_350M"),
    Other("glm2", "tattabio/gLM2_650M"),
    Other("esm1b", "facebook/esm1b_t33_650M_UR50S"),
    Other("esm1v", "facebook/esm1v_t33_650M_UR90S_1"),
    Other("esm(c|cambrian)300m", "biohub/ESMC-300M", "", "esmc", "esmc_300m"),
    Other("esm(c|cambrian)6b", "biohub/ESMC-6B", "", "esmc", "esmc_6b"),
    Other("esm(c|cambrian)", "biohub/ESMC-600M", "", "esmc", "esmc_600m"),
    Other("dnaberts", "zhihan1996/DNABERT-S", NUCLEOTIDES),
    Other("dnabert2", "zhihan1996/DNABERT-2-117M", NUCLEOTIDES),
    Other("dnabert", "zhihan1996/DNA_bert_6", NUCLEOTIDES),
    Other(
        "(nt|nucleotidetransformer)v2",
        "InstaDeepAI/nucleotide-transformer-v2-500m-multi-species",
        NUCLEOTIDES,
    ),
    Other(
        "nucleotidetransformer", "InstaDeepAI/nucleotide-transformer-500m-human-ref", NUCLEOTIDES
    ),
    Other("agro", "InstaDeepAI/agro-nucleotide-transformer-1b", NUCLEOTIDES),
    Other("segment", "InstaDeepAI/segment_nt", NUCLEOTIDES),
)


def bundled_names() -> list[str]:
    """Return the models that come with featuremill."""
    return sorted(path.stem for path in BUNDLED.glob("*.safetensors"))


def _known(model: str) -> str:
    """Return the known model with this name, here or on Hugging Face; "" if there is none.

    If a folder with this name exists, the name means the folder.
    """
    with contextlib.suppress(OSError):  # a folder that this user may not read
        if Path(model, CONFIG).is_file():
            return ""
    name = model.removeprefix(OWNER)
    if name != model:
        return name if name in PUBLISHED and not Path(model).exists() else ""
    return model if model in PUBLISHED or model in bundled_names() else ""


def is_path(model: str) -> bool:
    """Return whether `model` is the path of a checkpoint and not the name of a known model."""
    return not _known(model)


def name_of(model: str) -> str:
    """Return the `<name>` of `weights/<name>.json` for `model`; opens no file."""
    if known := _known(model):
        return known
    if remedy := where_else(model):
        raise UserError(f"{model!r} is no ESM-2; {remedy}")
    if looks_like_path(model):
        return stem_of(model)
    raise unknown(model, [*bundled_names(), *PUBLISHED])


def unknown(model: str, names: Sequence[str]) -> UserError:
    """Return the error that `model` is neither one of `names` nor a path."""
    near = nearest(model, names)
    hint = f"did you mean {near!r}? There" if near else "there"
    return UserError(
        f"there is no model {model!r}; {hint} are {', '.join(names)}, or give the path of a "
        "checkpoint, or of a folder from Hugging Face."
    )


def where_else(model: str) -> str:
    """Return the command for a model of another workload; "" if `model` is not one, or is an
    existing file or folder."""
    if Path(model).expanduser().exists():
        return ""
    owner, _, last = model.rpartition("/")
    name = re.sub("[^a-z0-9]", "", last.lower())
    match = next((network for network in OTHERS if re.match(network.pattern, name)), None)
    owners = {network.weights.partition("/")[0] for network in OTHERS}
    if match is None or (owner and owner not in owners) or Path(last).suffix:  # a path
        return ""
    weights = model if owner else match.weights
    then = f" Set alphabet: {match.alphabet} in that config." if match.alphabet else ""
    return (
        f"workload {match.workload} computes it: type {download_command(weights)}, then "
        f"featuremill init YOUR.fasta --workload {match.workload} --model "
        f"{match.model or weights}.{then}"
    )


def looks_like_path(model: str) -> bool:
    """Return whether `model` has the form of a path, or is one."""
    return "/" in model or model.endswith(SUFFIXES) or Path(model).expanduser().exists()


def stem_of(model: str) -> str:
    """Return a name for the file or folder `model`; opens no file."""
    path = Path(model)
    stem = path.parent.name if path.stem in GENERIC_STEMS and path.parent.name else path.stem
    stem = path.name if path.suffix not in SUFFIXES else stem
    return re.sub(r"[^A-Za-z0-9._-]+", "_", stem).lstrip(".-") or "model"


def nearest(model: str, names: Sequence[str]) -> str:
    """Return the nearest of `names` to `model`, such as `650M`; "" if none is near."""
    written = {name.lower(): name for name in names}
    inside = [name for lower, name in written.items() if model.lower() in lower]
    if len(inside) == 1:
        return inside[0]
    near = difflib.get_close_matches(model.lower(), written, n=1, cutoff=0.5)
    return written[near[0]] if near else ""


def refuse_missing(model: str, kind: Kind = ESM2) -> None:
    """Raise UserError if `model` is the path of a checkpoint that does not exist, or a folder of
    another kind of network."""
    if _known(model):
        return
    path = place_of(model)
    if path.is_dir():
        checkpoint_files(path)
        facts_of(path, kind)
        return
    if path.is_file():
        return
    is_meant = model.startswith(f"{OWNER}esm2")
    near = nearest(path.name, list(PUBLISHED)) if is_meant else ""
    if name := path.name if path.name in PUBLISHED else near:
        raise UserError(f"{model}: there is no such file; as the name of a model, write {name}.")
    if remedy := how_to_get(model):
        raise UserError(f"{model}: there is no such file or folder; {remedy}.")
    check(path)


def locate(model: str) -> Checkpoint:
    """Return the checkpoint of `model`, even before its download."""
    name = name_of(model)
    if is_path(model):
        refuse_missing(model)
        path = place_of(model)
        return Checkpoint("local", name, str(path.resolve()), path)
    if name not in PUBLISHED:
        path = BUNDLED / f"{name}.safetensors"
        return Checkpoint("bundled", name, f"featuremill/{path.name}", path)
    return published(name)


def published(name: str) -> Checkpoint:
    """Return the checkpoint of one of Meta's models, even before its download."""
    path = hub_folder() / f"{name}.pt"
    if not path.is_file() and (folder := _cached(name)):
        return Checkpoint("published", name, f"{OWNER}{name}", folder)
    return Checkpoint("published", name, URL.format(name=name), path)


def _cached(name: str) -> Path | None:
    """Return the folder of a published model with weights, in the cache or of `download`."""
    for folder in (cached(f"{OWNER}{name}"), hub_folder() / name):
        with contextlib.suppress(UserError):
            if folder and (folder / CONFIG).is_file() and checkpoint_files(folder):
                return folder
    return None


def convert(source: Checkpoint, path: Path, has_head: bool = False) -> Converted:
    """Write the weights of `source` to `path`, with or without the language-model head; download
    the checkpoint first if needed."""
    return write(source, read(source, has_head), path)


def read(source: Checkpoint, has_head: bool = False, kind: Kind = ESM2) -> Opened:
    """Open the checkpoint `source` of a network of this kind for `write`."""
    refuse_without_packages(Options)
    path = source.path
    if source.kind == "published" and not path.exists():
        path = download(source)
    from featuremill.workloads.esm2 import checkpoint

    _log.info("converting %s", path)
    return checkpoint.read(path, has_head, kind)


def write(
    source: Checkpoint, opened: Opened, path: Path, published: Collection[str] = PUBLISHED
) -> Converted:
    """Write the weights `opened` from `source` to `path`. Local weights are called after their
    architecture, sizes and digest, unless their name is among the `published` ones."""
    from featuremill.workloads.esm2 import conversion

    sha256 = conversion.write(opened, path)
    metadata = opened.metadata()
    if source.kind == "published":
        metadata["license"] = PUBLISHED_LICENSE
    name, sizes = source.name, opened.sizes
    if source.kind == "local" and name not in published:
        name = f"{sizes.architecture.name}_t{sizes.num_layers}_w{sizes.width}-{sha256[:8]}"
    return Converted(name, sha256, metadata)


def hub_folder() -> Path:
    """Return the folder in which fair-esm (torch.hub) caches its downloads."""
    cache = environment.XDG_CACHE_HOME.text() or Path.home() / ".cache"
    return Path(
        environment.TORCH_HOME.text() or Path(cache, "torch"), "hub/checkpoints"
    ).expanduser()


def download(source: Checkpoint) -> Path:
    """Download a published checkpoint from Hugging Face, or as fair-esm does; return its folder or
    file, which `published` finds from then on. Either has the same weights."""
    folder, problem = hub_folder() / source.name, ""
    endpoint = (environment.HF_ENDPOINT.text() or HUGGING_FACE).rstrip("/")
    address = f"{endpoint}/{OWNER}{source.name}/resolve/main"
    for fetch, url, path in (
        (download_model, address, folder),
        (download_file, source.location, source.path),
    ):
        _log.info("downloading %s → %s", url, path)
        try:
            fetch(url, path)
            return path
        except OSError as error:  # urllib's errors are among them
            problem += f"; {url}: {getattr(error, 'reason', error)}"
            with contextlib.suppress(OSError):
                path.rmdir()  # a folder into which nothing came
    raise UserError(
        f"{source.location}: cannot be downloaded here ({problem[2:]}); fetch it on another "
        f"machine and set options: model: /path/{source.path.name}, or put it into "
        f"{source.path.parent}, or set options: model: to the folder that hf download "
        f"{OWNER}{source.name} makes there."
    )
