"""`python -m bench.run`: measure; print each table when it is done, write the JSON as it comes."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import needs

HERE = Path(__file__).parent
SAMPLE = HERE / "ecoli.fasta.gz"
SCRATCH = HERE / ".scratch"
"""Beside the code and not in /tmp, which may be memory: engines are to write to a disk."""
PARTS = ("tests", "small", "residues", "workloads", "large", "slots", "faults", "bits")
MINUTES = {"cpu": 30.0, "gpu": 4.0, "rehearsal": 60.0}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark.

    Returns 1 when an engine of ours is wrong, 2 when there is nothing to run with, 3 when a step
    failed.
    """
    given = _parser().parse_args(arguments)
    brought, there = needs.lacking(needs.BROUGHT), needs.lacking(needs.THERE)
    if brought or there:
        print(needs.sentence(brought, there), file=sys.stderr)
        return 2
    from bench import conductor

    return conductor.conduct(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.run", description=__doc__)
    add = parser.add_argument
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        *("--gpu",), dest="place", action="store_const", const="gpu", help="measure one GPU"
    )
    where.add_argument(
        "--rehearse",
        dest="place",
        action="store_const",
        const="rehearsal",
        help="the steps for a GPU, with tiny networks on this CPU: does everything run?",
    )
    parser.set_defaults(place="cpu")
    add("--quick", action="store_true", help="a tiny network, one pass: does everything run?")
    add(
        *("--part",),
        type=_words,
        default=list(PARTS),
        help=f"of a GPU's steps: {', '.join(PARTS)}; tests,small are one after the other",
    )
    add(
        *("--minutes",),
        type=float,
        help="leave out the last steps rather than overrun (30; on a GPU 4 for each part)",
    )
    add("--out", type=Path, help="the JSON to write (bench/results/<date>-<machine>-<kind>.json)")
    add("--fasta", type=Path, default=SAMPLE, help="proteins to use in place of the sample")
    add("--shapes", type=_words, help="only these shapes, as in 8M,35M")
    add("--steps", type=_words, help="only these kinds of steps, as in compare,same_bits")
    add(
        *("--engines",),
        type=_words,
        default=[],
        help="only engines with one of these in their names, as in featuremill,compiled; the "
        "reference, fair-esm fp32, always runs",
    )
    add("--passes", type=int, help="passes of each comparison (3)")
    add("--seconds", type=float, help="how long one pass of a peer should take")
    add("--scratch", type=Path, default=SCRATCH, help="folder for weights and what engines write")
    add("--spoil", action="store_true", help="make our weights wrong, to see the gate fail")
    return parser


def _words(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    # Whoever lends the machine ends a command so: what this has started has to end with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
