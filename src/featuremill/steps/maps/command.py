"""`featuremill map`: compute the t-SNE map of a run's records for its report."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from featuremill.kit.tables import add_options
from featuremill.kit.text import records
from featuremill.steps.maps.section import FILE, Maps

log = logging.getLogger("featuremill.map")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill map`."""
    folder = "folder of a finished run"
    parser.add_argument("run_folder", type=Path, metavar="results/RUN", help=folder)
    add_options(parser, Maps, "seed", "perplexity")


def run(arguments: argparse.Namespace) -> None:
    """Run `featuremill map`."""
    from featuremill.steps.maps.keep import compute

    options = Maps.model_construct(seed=arguments.seed, perplexity=arguments.perplexity)
    kept = compute(arguments.run_folder, options)
    log.info("%s: %s by t-SNE", arguments.run_folder / FILE, records(len(kept.ids)))
