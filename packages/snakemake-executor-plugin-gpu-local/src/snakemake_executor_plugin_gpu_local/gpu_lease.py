"""gpu-lease: gives a command its own GPUs, or lists who has which."""

from __future__ import annotations

import argparse
import logging
import sys

from .lease import command, listing
from .lease.errors import DeviceError, UserError, sentence


def main(words: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    typed = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(prog="gpu-lease", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="print all GPUs and who has them")
    run = verbs.add_parser("exec", help="wait for GPUs, lock them, and become a command")
    command.add_arguments(run)
    run.add_argument("--quiet", action="store_true", help="print no messages but errors")
    before, dashes, after = _parted(typed)
    arguments = parser.parse_args(before)
    logging.basicConfig(
        format="gpu-lease: %(message)s",
        level=logging.WARNING if getattr(arguments, "quiet", False) else logging.INFO,
    )
    try:
        if arguments.verb == "list":
            print(listing.text())
            return 0
        arguments.command = after if dashes else None
        return command.run(arguments)
    except (DeviceError, UserError) as error:
        print(f"gpu-lease: {error}", file=sys.stderr)
        return error.exit_status
    except OSError as error:  # of a lock file
        print(f"gpu-lease: {sentence(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parted(words: list[str]) -> tuple[list[str], bool, list[str]]:
    """Return the words before the first `--`, whether there is one, and the words after it."""
    if "--" not in words:
        return words, False, []
    place = words.index("--")
    return words[:place], True, words[place + 1 :]


if __name__ == "__main__":
    sys.exit(main())
