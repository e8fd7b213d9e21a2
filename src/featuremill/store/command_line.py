"""The command that continues a run, for all messages: the run's last command without targets and
options for one call, such as `--forcerun`."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

from featuremill.base import this_process
from featuremill.base.environment import TYPED
from featuremill.store import run_lock

UNKNOWN = "YOUR.yaml"
"""The config in a command for a run without an owner file."""
RERUN = "--rerun-incomplete"
RULES = ("weights", "plan", "extract", "extracted", "merge", "partial", "report")
"""Rules that may be targets; the target `all` is the complete run anyway."""
PARTIAL_OF = "partial_"
"""Prefix of the rules that write the partial results of one of several runs."""
FILES = ("results/", "weights/")
"""Prefixes of files that may be targets."""
FORCING = {"--forcerun", "-R"}
ONCE = FORCING | {
    *("--until", "-U", "--omit-from", "-O", "--allowed-rules", "--batch", "-q", "--quiet"),
    *("--consider-ancient", "--prioritize", "-P"),
}
"""Snakemake's options for one call, which take values."""
ONCE_ALONE = {"--forceall", "-F", "--force", "-f", "--conda-create-envs-only"}
TOUCHING = re.compile(r"(?<!\S)(--touch|-t|(--executor|-e)[= ]?touch)(?!\S)")
"""The options with which Snakemake only sets the times of outputs."""
DRY_EXECUTOR = re.compile(r"(?<!\S)(--executor|-e)[= ]?dryrun(?!\S)")
RERUNNING = {RERUN, "--ri"}
DIRECTORY = {"--directory", "-d"}
VARIABLE = re.compile(r"[A-Z_]+=")
RESULTS, GPUS, DEVICES = OWN = ("--results", "--gpus", "--devices")
"""Options of `featuremill run` with a value that Snakemake does not get."""
STRICT = "--strict"
"""The same without a value."""
OVERRIDING = {"--config", "-C"}
"""Snakemake's options that override keys of the config."""
NAMING = {"--configfile", "--configfiles"} | OVERRIDING
"""Options whose values may look like targets."""
NAMING_ONE = {
    *("--directory", "-d", "--snakefile", "-s", "--profile", "--workflow-profile"),
    *OWN,
}
"""The same for options with one value."""


def remember(words: Sequence[str]) -> None:
    """Pass the typed command to the Snakemake that replaces this process."""
    TYPED.set(f"{os.getpid()} {shlex.join(words)}")


def command() -> str:
    """Return the command that started this process. The typed one is only for the main Snakemake;
    its jobs inherit the variable and have other arguments."""
    process, _, words = TYPED.value().partition(" ")
    return words if process == str(os.getpid()) else shlex.join(["snakemake", *sys.argv[1:]])


def results() -> str:
    """Return the folder of `featuremill run --results` of this Snakemake; "" without it."""
    return value_of({RESULTS}, shlex.split(command()))


def this() -> str:
    """Return the command that continues the run of this Snakemake, unless it is imported."""
    return whole(command())


def first(config: Path, folder: Path = Path()) -> str:
    if folder.samefile(Path()):
        return f"{this_process.program()} run {shlex.quote(str(config))}"
    path = shlex.quote(os.path.relpath(config, folder))
    return f"cd {shlex.quote(os.path.relpath(folder))} && featuremill run {path}"


def again(run_folder: Path, forced: Sequence[str] = ()) -> str:
    """Return the command that continues the run in `run_folder`, to be typed in this folder; it
    forces the rules `forced`."""
    last = run_lock.read(run_folder)
    words = ["featuremill", "run", UNKNOWN]
    if last:
        words = shlex.split(whole(last.command, last.rules, last.is_imported))
    if forced:
        end = _end_of_options(words)
        words[end:end] = ["--forcerun", *forced]
    command = shlex.join(words)
    if last is None:
        return command
    folder = os.path.normpath(run_lock.working_folder(run_folder) / last.folder)
    if directory := value_of(DIRECTORY, words):
        if Path(directory).is_absolute():
            return command
        # The command was typed in the folder from which `--directory` leads there.
        folder = folder.removesuffix(os.path.normpath(directory)).rstrip("/") or "/"
    is_here = Path(folder).is_dir() and Path(folder).samefile(".")
    return command if is_here else f"cd {shlex.quote(folder)} && {command}"


def where_typed(command: str) -> str:
    """Return a `command` for the working folder of this Snakemake, to be typed in the folder in
    which Snakemake was started."""
    directory = value_of(DIRECTORY, sys.argv[1:])
    return f"cd {shlex.quote(directory)} && {command}" if directory else command


def whole(typed: str, rules: str = "{}", is_imported: bool = False) -> str:
    """Return the command `typed` for the complete run, without targets and options for one call.

    If another workflow imports this one, targets are that workflow's and stay, and the command
    needs `--rerun-incomplete`, which the profiles of featuremill have. `rules` is as in Owner.
    """
    words = shlex.split(TOUCHING.sub("", typed))
    # Variables may be set before the program.
    start = next((n for n, word in enumerate(words) if not VARIABLE.match(word)), len(words))
    is_verb = words[start : start + 2] == ["featuremill", "run"]
    is_imported = is_imported and not is_verb  # `featuremill run` starts its own workflow
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


def value_of(names: Collection[str], words: Sequence[str]) -> str:
    """Return the value of the option that has one of these names; "" without it."""
    for option, following in pairwise([*words, ""]):
        name, has_value, value = option.partition("=")
        if name in names:
            return value if has_value else following
    return ""


def overridden(command: str) -> set[str]:
    """Return the keys of the config that a typed `command` overrides."""
    keys, option = set[str](), ""
    for word in shlex.split(command):
        if word.startswith("-"):
            option = word
            keys.update(re.findall(r"^(?:--config=|-C)(\w+)=", word))
        elif option in OVERRIDING:
            keys.add(word.partition("=")[0])
    return keys


def _end_of_options(words: Sequence[str]) -> int:
    return words.index("--") if "--" in words else len(words)
