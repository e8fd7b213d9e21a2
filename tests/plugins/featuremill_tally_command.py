"""tally: count the records of a finished run."""

import json
import logging
from pathlib import Path

log = logging.getLogger("featuremill.tally")


def add_arguments(parser):
    parser.add_argument("run_folder", type=Path)
    parser.add_argument("--word", default="records")
    parser.add_argument("--output", type=Path, required=True)


def run(arguments):
    counts = json.loads((arguments.run_folder / "manifest.json").read_text())["counts"]
    arguments.output.write_text(f"{counts['ok']} {arguments.word}\n")
    log.info("%d %s", counts["ok"], arguments.word)
