"""The program that `featuremill run` executes: Snakemake with other messages and exit statuses.

Ctrl-C during the start ends it without a traceback; later, `screen.py` handles Ctrl-C. Its exit
status is that of the failed job, where Snakemake's is always 1. A wrong option is reported in one
sentence, where Snakemake prints ninety lines of usage.
"""

import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import difflib
import itertools
import re
from collections.abc import Sequence
from typing import NoReturn

from snakemake.cli import main

from featuremill.base.this_process import PROFILES, set_up_streams
from featuremill.flow import internals

OPTION = re.compile(r"--[a-z][a-z0-9-]+")
FOLDER = re.compile(r"--(out|result)")
"""Options that people try in place of `featuremill run --results`."""
ALIKE = 0.75
NO_EXECUTOR = re.compile(r"argument --executor/-e: invalid choice: '(\w+)'")
UNKNOWN = "unrecognized arguments: "


def refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """Print one sentence about a wrong option, and exit."""
    if (plugin := NO_EXECUTOR.match(message)) and plugin[1] in internals.EXECUTORS:
        print(f"error: {internals.not_installed(plugin[1])}", file=sys.stderr)
        sys.exit(2)
    known = set(OPTION.findall(parser.format_usage()))
    if message.startswith(UNKNOWN):
        words = message.removeprefix(UNKNOWN).split()
        option = next((word for word in words if word.startswith("-")), words[0]).split("=")[0]
        near = difflib.get_close_matches(option, known, 1, ALIKE)
        hint = f"did you mean {near[0]}? " if near else ""
        message, typed = f"there is no option {option}; {hint}", {option}
    else:  # of an option that was typed in short, which argparse writes in full
        named = OPTION.findall(message)
        typed = {word.split("=")[0] for word in sys.argv[1:]} - known
        short = next((word for word in typed for name in named if name.startswith(word)), "")
        message += f" ({short} was read as this option)" if short.startswith("--") else ""
        message += "; "
    if any(map(FOLDER.match, typed)):
        message += "to have results in another folder: featuremill run --results FOLDER; "
    print(f"error: {message}snakemake --help lists all options.", file=sys.stderr)
    sys.exit(2)


def misnamed_profile(words: Sequence[str]) -> str:
    """Return the profile of featuremill that `words` name with `--profile`, for which Snakemake
    searches only the user's folders; "" if they name none."""
    for before, word in itertools.pairwise(["", *words]):
        option, _, value = word.partition("=")
        name = value if option == "--profile" else word if before == "--profile" else ""
        if name and (PROFILES / name).is_dir():
            return name
    return ""


def start() -> None:
    """Run Snakemake; exit with its status, or with that of a failed job or a refusal."""
    argparse.ArgumentParser.error = refuse  # type: ignore[assignment, method-assign]
    internals.keep_own_profile_quiet()
    internals.report_full_disks()
    try:
        main()
    except SystemExit as end:
        if not end.code and (summary := sys.modules.get("featuremill.flow.summary")):
            sys.exit(summary.exit_status())
        if end.code != 1:
            raise
        is_unread = "featuremill.flow.screen" not in sys.modules  # it ended before the workflow
        if is_unread and (name := misnamed_profile(sys.argv[1:])):
            print(f"error: featuremill's own: --workflow-profile {name}", file=sys.stderr)
            sys.exit(2)
        from featuremill.flow.screen import exit_status

        sys.exit(exit_status())


if __name__ == "__main__":
    set_up_streams()
    start()
