"""`featuremill map`: compute the t-SNE map of a run's records for its report."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from featuremill.kit.text import records
from featuremill.steps.maps.limits import FILE, PERPLEXITY

log = logging.getLogger("featuremill.map")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill map`."""
    add = parser.add_argument
    add("run_folder", type=Path, metavar="results/RUN", help="folder of a finished run")
    add("--seed", type=int, default=0, help="random seed; equal seeds give equal maps (default 0)")
    add(
        "--perplexity",
        type=float,
        default=PERPLEXITY,
        help=f"approximate number of neighbours of a record (default {PERPLEXITY:g})",
    )


def run(arguments: argparse.Namespace) -> None:
    """Run `featuremill map`."""
    from featuremill.steps.maps.keep import Settings, compute

    settings = Settings(arguments.seed, arguments.perplexity)
    kept = compute(arguments.run_folder, settings)
    log.info("%s: %s by t-SNE", arguments.run_folder / FILE, records(len(kept.ids)))
