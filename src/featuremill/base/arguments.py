"""Arguments that several verbs have; it imports nothing that takes time, as `--help` does not."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from featuremill.base.errors import UserError


def add_runs(parser: argparse.ArgumentParser, besides: str = "") -> None:
    """Add the argument that names runs (`config.runs` says which), or what `besides` tells."""
    help = f"results/<run>, or the config that featuremill run takes{besides}"
    parser.add_argument("run_folder", type=Path, metavar="RUN", help=help)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help lists the options.")


def parsed(
    command: str, add_arguments: Callable[[argparse.ArgumentParser], Any], words: Sequence[str]
) -> argparse.Namespace:
    """Return the arguments of `featuremill <command> <words>`, as a config may give them.

    Raises:
        UserError: names the option that does not exist, or the value that it cannot have.
    """
    parser = _Parser(prog=f"featuremill {command}", allow_abbrev=False)
    add_arguments(parser)
    return parser.parse_args(words)


def split(words: str) -> list[str]:
    """Return `words` as a shell takes them apart.

    Raises:
        UserError: a quotation mark is left open.
    """
    try:
        return shlex.split(words)
    except ValueError as error:
        raise UserError(f"{words!r}: {str(error).lower()}; close the quotation mark.") from None
