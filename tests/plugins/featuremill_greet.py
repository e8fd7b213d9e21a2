"""A command outside the tree, of no step."""

from pathlib import Path

from featuremill.step import Command

COMMAND = Command("write a greeting", __name__)


def add_arguments(parser):
    parser.add_argument("--output", type=Path, required=True)


def run(arguments):
    arguments.output.write_text("hello\n")
