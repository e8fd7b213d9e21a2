"""What is typed to have a run computed: what was typed, and what to type so that it goes on.

Every message that names that command has it from here, so all of them name the same one: the run's
last command without what was wanted that one time, such as a target or `--forcerun`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from featuremill.base.environment import TYPED
from featuremill.store import run_lock

UNKNOWN = "YOUR.yaml"
"""The config of a run of which nobody knows who computed it."""
RERUN = "--rerun-incomplete"
RULES = ("weights", "plan", "extract", "merge", "partial", "report")
"""What may be asked for alone; `all` is the whole run anyway."""
PARTIAL_OF = "partial_"
"""Beginning of the rules that write the partial results of one of several runs."""
FILES = ("results/", "weights/")
"""Beginnings of the files of ours that may be."""
FORCING = {"--forcerun", "-R"}
ONCE = FORCING | {"--until", "-U", "--omit-from", "-O", "--allowed-rules", "--batch"}
"""Snakemake's options for one time, with the words behind them."""
ONCE_ALONE = {"--forceall", "-F", "--force", "-f", "--touch", "-t", "--conda-create-envs-only"}
RERUNNING = {RERUN, "--ri"}
VARIABLE = re.compile(r"[A-Z_]+=")
NAMING = {"--configfile", "--configfiles", "--config", "-C"}
"""Options of which the words behind them may look like a target and are none."""
NAMING_ONE = {"--directory", "-d", "--snakefile", "-s", "--profile", "--workflow-profile"}
"""The same of one word."""


def remember(words: Sequence[str]) -> None:
    """Have the Snakemake that this process becomes know that it was started by `words`, behind the
    variables that its parent told it of."""
    process, _, before = TYPED.value().partition(" ")
    variables = shlex.split(before) if process == str(os.getppid()) else []
    words = [*variables[: _num_variables(variables)], *words]
    TYPED.set(f"{os.getpid()} {shlex.join(words)}")


def told_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the `variables` for a `featuremill run` that this process starts, with one that has it
    remember them."""
    if not variables:
        return {}
    words = [f"{name}={value}" for name, value in variables.items()]
    return {**variables, TYPED.name: f"{os.getpid()} {shlex.join(words)}"}


def _num_variables(words: Sequence[str]) -> int:
    """Return how many variables are set before the program."""
    return next((n for n, word in enumerate(words) if not VARIABLE.match(word)), len(words))


def command() -> str:
    """Return what was typed; a Snakemake that a job of that one starts was started otherwise."""
    process, _, words = TYPED.value().partition(" ")
    return words if process == str(os.getpid()) else shlex.join(["snakemake", *sys.argv[1:]])


def this() -> str:
    """Return what goes on with the run of this Snakemake, which no other workflow imports."""
    return whole(command())


def first(config: Path, folder: Path = Path()) -> str:
    """Return what computes the run of `config` in `folder`, where nothing was typed yet."""
    if folder.samefile(Path()):
        return f"featuremill run {shlex.quote(str(config))}"
    told = shlex.quote(os.path.relpath(config, folder))
    return f"cd {shlex.quote(os.path.relpath(folder))} && featuremill run {told}"


def again(run_folder: Path, forced: Sequence[str] = ()) -> str:
    """Return what goes on with the run in `run_folder`, to be typed here.

    The rules `forced`, by the names that they have there, run although Snakemake sees no reason.
    """
    last = run_lock.read(run_folder)
    said = f"featuremill run {UNKNOWN}"
    if last:
        said = whole(last.command, last.rules, last.is_imported)
    words = shlex.split(said)
    if forced:
        end = _end_of_options(words)
        words[end:end] = ["--forcerun", *forced]
    said = shlex.join(words)
    if last is None:
        return said
    folder = os.path.normpath(run_lock.working_folder(run_folder) / last.folder)
    if directory := _directory(words):
        if Path(directory).is_absolute():
            return said
        # Snakemake went there: the words were typed above it.
        folder = folder.removesuffix(os.path.normpath(directory)).rstrip("/") or "/"
    is_here = Path(folder).is_dir() and Path(folder).samefile(".")
    return said if is_here else f"cd {shlex.quote(folder)} && {said}"


def where_typed(said: str) -> str:
    """Return `said`, which is to be typed in the folder of this Snakemake, as it is typed where
    that was started."""
    directory = _directory(sys.argv[1:])
    return f"cd {shlex.quote(directory)} && {said}" if directory else said


def whole(typed: str, rules: str = "{}", is_imported: bool = False) -> str:
    """Return the command of what was `typed` for the whole run.

    Where another workflow imports this one, its targets are its own and stay, and what a killed
    Snakemake left needs `--rerun-incomplete`, which is in the profiles of ours. `rules` is as in
    Owner.
    """
    words = shlex.split(typed)
    start = _num_variables(words)
    is_verb = words[start : start + 2] == ["featuremill", "run"]
    is_imported = is_imported and not is_verb  # what it starts is a workflow of ours
    dropped = ONCE | ONCE_ALONE | (set() if is_imported else RERUNNING)
    targets = {rules.format(rule) for rule in RULES}
    start += 3 if is_verb else 1
    kept, option = words[:start], ""
    for word in words[start:]:
        if word.startswith("-"):
            option, has_value, _ = word.partition("=")
            is_kept = option not in dropped and not word.startswith(("-R", "-U", "-O"))
            option = "" if has_value else option
        elif option in NAMING or option in NAMING_ONE:
            is_kept, option = True, option if option in NAMING else ""
        else:
            is_file = not is_imported and word.startswith(FILES)
            is_target = word in targets or word.startswith(PARTIAL_OF)
            is_kept = option not in ONCE and not is_target and not is_file
        if is_kept:
            kept.append(word)
    if kept[-1] == "--":
        kept.pop()
    if is_imported and not RERUNNING & set(kept):
        kept.insert(_end_of_options(kept), RERUN)
    return shlex.join(kept)


def _directory(words: Sequence[str]) -> str:
    """Return what `--directory` says; "" without it."""
    for option, following in pairwise([*words, ""]):
        name, has_value, value = option.partition("=")
        if name in ("--directory", "-d"):
            return value if has_value else following
    return ""


def _end_of_options(words: Sequence[str]) -> int:
    return words.index("--") if "--" in words else len(words)
