"""What the benchmark and the tests for a GPU import, and what of it has to be brought along.

Standard library only: it is asked before anything else is imported. `python -m bench.needs` prints
what `make bench-wheels` gathers; with `--size`, what then travels; with `--limit`, that too, and it
ends with 1 where that is too much.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent
WHEELS = Path(__file__).parent / ".wheels"
SITE = ".site"
"""Where they are unpacked on such a machine."""
MOST_MIB = 60
"""What may travel."""

THERE = {
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "safetensors": "safetensors",
    "torch": "torch",
    "transformers": "transformers",
    "triton": "triton",
}
"""Module and distribution: what images for work with GPUs have, and what is large."""
BROUGHT = {
    "Bio": "biopython",
    "_yaml": "pyyaml",
    "annotated_types": "annotated-types",
    "attr": "attrs",
    "backports.zstd": "backports.zstd",
    "dnaio": "dnaio",
    "esm": "fair-esm",
    "execnet": "execnet",
    "iniconfig": "iniconfig",
    "isal": "isal",
    "jsonschema": "jsonschema",
    "jsonschema_specifications": "jsonschema-specifications",
    "packaging": "packaging",
    "pluggy": "pluggy",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic-core",
    "pygments": "pygments",
    "pynvml": "nvidia-ml-py",
    "pytest": "pytest",
    "pytest_timeout": "pytest-timeout",
    "referencing": "referencing",
    "rpds": "rpds-py",
    "typing_extensions": "typing-extensions",
    "typing_inspection": "typing-inspection",
    "xopen": "xopen",
    "xdist": "pytest-xdist",
    "xxhash": "xxhash",
    "zlib_ng": "zlib-ng",
}
"""What `make bench-wheels` gathers, in the versions of constraints.txt."""


def lacking(modules: dict[str, str]) -> dict[str, str]:
    """Return those of `modules` (module and distribution) that are not here."""
    return {module: name for module, name in modules.items() if not _is_here(module)}


def _is_here(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def sentence(brought: dict[str, str], there: dict[str, str]) -> str:
    """Say what is not here, and how to bring it."""
    names = [*there.values(), *brought.values()]
    told = f"bench: {sys.executable} lacks {', '.join(names)}; "
    if "torch" in there.values():
        return told + "take an interpreter or an image that has torch with CUDA."
    more = f' WHEELS="{" ".join(there.values())}"' if there else ""
    return (
        f"{told}where there is a network, `make bench-wheels{more}` gathers it in bench/.wheels; "
        f"here, `python3 -m pip install --no-index --no-deps --target {SITE} bench/.wheels/*.whl` "
        f"unpacks it for PYTHONPATH=src:{SITE} (bench/README.md)."
    )


def tracked_bytes() -> int:
    """Return the size of the files that git has."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    names = filter(None, listed.stdout.decode().split("\0"))
    return sum(path.stat().st_size for name in names if (path := ROOT / name).is_file())


def travelling() -> tuple[str, bool]:
    """Say how much travels to a machine without a network, and whether it may."""
    wheels = list(WHEELS.glob("*.whl"))
    files, brought = tracked_bytes() / 2**20, sum(p.stat().st_size for p in wheels) / 2**20
    whole = files + brought
    told = (
        f"{files:.1f} MiB of the project's files and {brought:.1f} MiB in {len(wheels)} wheels "
        f"(bench/.wheels) travel: {whole:.1f} MiB (without WHEELS at most {MOST_MIB})"
    )
    return told, whole <= MOST_MIB


if __name__ == "__main__":
    if asked := {"--size", "--limit"} & set(sys.argv[1:]):
        said, is_small_enough = travelling()
        print(said)
        sys.exit("--limit" in asked and not is_small_enough)
    print(*BROUGHT.values())
