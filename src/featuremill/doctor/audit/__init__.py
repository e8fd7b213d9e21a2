"""audit: how far are the 16-bit dtypes from fp32, on these proteins, with this model, right here?

Reads the inputs and the model; writes nothing but a report, and JSON if asked. A sample of the
proteins is computed in fp32 and then in each dtype, and compared batch by batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = (
    "Compute a sample of your proteins in fp32 and in 16 bits on this machine, and say how far "
    "apart the features are, where the worst ones stand, and which dtype to take."
)
EPILOG = (
    "Exit status: 0 every dtype is within the bounds, 1 one is not, 2 the input or an option "
    "is wrong. On a machine that others use too: featuremill lease --gpus 1 -- featuremill "
    "audit …"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill audit`."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "inputs",
        nargs="*",
        type=Path,
        metavar="INPUT",
        help="FASTA, table, …; or those of --config",
    )
    parser.add_argument("--config", type=Path, help="take the options of this run's YAML file")
    parser.add_argument("--model", help="network to audit (a name or a path)")
    parser.add_argument(
        "--dtype",
        action="append",
        choices=("bf16", "fp16"),
        help="may stand twice; default: those that this device multiplies fast (a GPU: bf16, if it "
        "has it, and fp16; a CPU: bf16, if it has it) and the config's own",
    )
    parser.add_argument(
        "--layers",
        nargs="+",
        type=int,
        metavar="N",
        help="layers to compare; default: -1, the last",
    )
    parser.add_argument(
        "--sample",
        type=int,
        default=200,
        metavar="N",
        help="proteins to compute: a tenth are the longest, the rest are drawn by hash, so the "
        "same proteins in any order give the same sample; default: %(default)s",
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), help="default: auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write it for programs")


def run(arguments: argparse.Namespace) -> int:
    """Carry out `featuremill audit`; return 0 when every dtype is within the bounds, else 1."""
    from featuremill.doctor.audit import task

    return task.run(arguments)
