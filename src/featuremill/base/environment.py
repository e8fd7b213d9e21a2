"""Every environment variable that the package reads or sets: its meaning, type and default.

Those of leases are in `featuremill.lease.environment`; no other module uses `os.environ`.
docs/environment.md is made from the variables here, except internal ones, which pass values from
the workflow to its jobs.
"""

from __future__ import annotations

from typing import Any

from featuremill.lease import environment as of_leases
from featuremill.lease.environment import FOLDER, LIST, NUMBER, TEXT, ValueType, number
from featuremill.lease.environment import Setting as Setting
from featuremill.lease.environment import Variable as Variable
from featuremill.lease.environment import of_child as of_child


def _yes_or_no(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError
    return text == "1"


def _internal(name: str, meaning: str) -> Setting[str]:
    return Setting(name, TEXT, "", meaning, is_internal=True)


LIST_OF_FOLDERS: ValueType[str] = ValueType("folders with colons between", str)
FOLDER_TO_EXPAND: ValueType[str] = ValueType("a folder", str)
YES_OR_NO: ValueType[bool] = ValueType("1 (yes) or 0 (no)", _yes_or_no)
SECONDS: ValueType[float] = ValueType("a number of seconds", number)

# fmt: off
CACHE = Setting("CACHE", FOLDER, None,
    "Converted weights and compiled kernels. All nodes of a cluster must share it.",
    "`featuremill` below `XDG_CACHE_HOME` or `~/.cache`; kernels: Triton's folder")
STAGE = Setting("STAGE", FOLDER_TO_EXPAND, "",
    "A folder on a node's own disk, for [copies of weights](clusters.md#on-the-nodes-own-disk).",
    "no copy")
STORE = Setting("STORE", LIST_OF_FOLDERS, "",
    "Shared [stores](store.md), if the config names none: of `a:b`, both are read, `a` is written.",
    "none")
QUIET = Setting("QUIET", YES_OR_NO, False, "1: `--quiet` for all jobs of a run.")
STALL_SECONDS = Setting("STALL_SECONDS", SECONDS, 600.0,
    "A batch that takes more seconds, and 20 times its prediction, counts as hung.")
WITHOUT = Setting("WITHOUT", LIST, "",
    "[Methods to skip](troubleshooting.md#it-is-slower-than-it-should-be), as in `FA3,FA2`: "
    "`varlen-triton`, `triton`, `llvm`, `adding`, `onednn`, `FA4`, `FA3`, `FA2`, `direct`.",
    "none")
WITHOUT_LOCKS = Setting("WITHOUT_LOCKS", YES_OR_NO, False,
    "1: run on a file system without locks. Nothing else may compute the run.")
WITHOUT_ROOM = Setting("WITHOUT_ROOM", YES_OR_NO, False,
    "1: only warn if the disk has too little free space.")
AS_PROTEINS = Setting("AS_PROTEINS", YES_OR_NO, False,
    "1: only warn if most records for a workload on proteins look like nucleotides.")
DIE_WITH_PARENT = _internal("DIE_WITH_PARENT",
    "The Snakemake whose job this is (`name_of_process`): the job ends when that one dies.")
STRICT = _internal("STRICT", "Set for the Snakemake of a `featuremill run --strict`.")
GPUS = Setting("GPUS", NUMBER, 0, "GPU slots that the workflow deals out to its jobs.",
    is_internal=True)
GPU_MODEL = _internal("GPU_MODEL",
    "The card that a profile sends jobs to, for which plan cuts shards.")
METADATA = _internal("METADATA",
    "The folder of this package's metadata, for envs/base.post-deploy.sh.")
PACKAGE = _internal("PACKAGE", "The folder of this package, for envs/base.post-deploy.sh.")
RUN_SEES = _internal("RUN_SEES",
    "CUDA_VISIBLE_DEVICES of the Snakemake whose job this is, as an executor may hide all GPUs "
    "from jobs without any; `all` if it is not set.")
SLURM_JOBS = Setting("SLURM_JOBS", YES_OR_NO, False,
    "A cluster runs the jobs of this Snakemake. In an allocation in which Snakemake itself runs, a "
    "job that waits must not send that back.",
    is_internal=True)
TYPED = _internal("TYPED",
    "Written by `featuremill run` before it becomes Snakemake: the process, and what was typed.")
_THREADS = "Set to the threads of a job."
_FLASH_ATTENTION = "FlashAttention-4's cache of compiled kernels; set unless you set it."
_ENVIRONMENT = "An active environment: commands are printed without a path."
SLURM_JOB_ID = Variable("SLURM_JOB_ID", "The job that Slurm queues again.")
XDG_CACHE_HOME = Variable("XDG_CACHE_HOME",
    "The folder of caches, if `FEATUREMILL_CACHE` is not set.")
HF_HUB_CACHE = Variable("HF_HUB_CACHE", "Hugging Face's cache of models.")
HF_HOME = Variable("HF_HOME", "The folder of that cache, if `HF_HUB_CACHE` is not set.")
HF_ENDPOINT = Variable("HF_ENDPOINT", "A mirror of Hugging Face.")
TORCH_HOME = Variable("TORCH_HOME", "torch's folder of downloaded checkpoints.")
TRITON_CACHE_DIR = Variable("TRITON_CACHE_DIR",
    "Triton's compiled kernels; set below `FEATUREMILL_CACHE` unless you set it.")
TRITON_HOME = Variable("TRITON_HOME", "Triton's own folder, if not in your home.")
FLASH_ATTENTION_CUTE_DSL_CACHE_DIR = Variable("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR",
    _FLASH_ATTENTION)
FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED = Variable("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED",
    _FLASH_ATTENTION)
CC = Variable("CC", "The C compiler of Triton.")
OMP_NUM_THREADS = Variable("OMP_NUM_THREADS", _THREADS)
MKL_NUM_THREADS = Variable("MKL_NUM_THREADS", _THREADS)
OPENBLAS_NUM_THREADS = Variable("OPENBLAS_NUM_THREADS", _THREADS)
OMP_WAIT_POLICY = Variable("OMP_WAIT_POLICY", "Set to `passive` for jobs unless you set it.")
SNAKEMAKE_PROFILE = Variable("SNAKEMAKE_PROFILE",
    "Snakemake's profile. If it is set, `featuremill run` adds no `--cores`.")
VIRTUAL_ENV = Variable("VIRTUAL_ENV", _ENVIRONMENT)
CONDA_PREFIX = Variable("CONDA_PREFIX", _ENVIRONMENT)
TERM = Variable("TERM", "`dumb`: a run prints only lines.")
PATH = Variable("PATH", "The jobs of a run find this `featuremill` first.")
# fmt: on
_ALL = [
    value
    for value in (*vars(of_leases).values(), *globals().values())
    if isinstance(value, Variable)
]
SETTINGS: tuple[Setting[Any], ...] = tuple(each for each in _ALL if isinstance(each, Setting))
"""The variables of featuremill, those of leases first."""
OF_OTHERS = tuple(each for each in _ALL if not isinstance(each, Setting))
"""The variables of other programs that the core reads."""


def check() -> None:
    """Raise UserError for the first of our variables that holds something else than it may."""
    for setting in SETTINGS:
        setting.value()
