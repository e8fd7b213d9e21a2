"""featuremill lease: lease N GPUs and become the command that uses them, or list the holders.

The command replaces this process, so exit status, signals and process id are those of the command.
It inherits the locks, and so do its child processes, unless they close them. So a slot stays taken
while a process may have memory on the device.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import signal
import sys
from typing import get_args

from . import listing
from .acquire import Choice, acquire
from .environment import Policy
from .errors import UserError
from .execute import become, restore_signals, run_beside
from .program import EXEC, LIST, die_with_parent
from .request import HELP_OF_DEVICES, VARIABLES, GpuOptions, Request

log = logging.getLogger("featuremill.lease")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{EXEC} --gpus N [options] -- COMMAND…\n       {LIST}"
    parser.epilog = "Defaults come from " + ", ".join(map(str, VARIABLES.values()))
    add = parser.add_argument
    add("--gpus", default="1", metavar="N", help="how many to lease (default 1; 0 means 1)")
    add("--slots-per-gpu", type=int, metavar="K", help="lease one of K parts of each (default 1)")
    add("--min-free-mb", type=int, metavar="MB", help="memory that must be free on each")
    add("--policy", choices=get_args(Policy), help="which of the free ones (default balanced)")
    add("--devices", metavar="LIST", help=HELP_OF_DEVICES)
    add("--wait", type=float, metavar="SECONDS", help="give up after so long (default: never)")
    add("--device", choices=get_args(Choice), default="auto", help="cuda: not without a GPU")
    add("--index-mode", action="store_true", help="name devices by number, not by UUID")
    add(
        "--outlive-parent",
        action="store_true",
        help="let the command continue when the process that started it dies (as under nohup)",
    )
    add(
        "--watch",
        action="store_true",
        help="stay, and leave a GPU out for a while on which the command fails again and again",
    )
    add("--list", action="store_true", help="print all GPUs and who has them, and exit")
    add("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)  # a command without a --


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        print(listing.text())
        return 0
    if arguments.words:
        typed = shlex.join(arguments.words)
        raise UserError(
            f"{arguments.words[0]}: this is no option; write the command after --, as in: "
            f"{EXEC} --gpus {arguments.gpus} -- {typed}"
        )
    command: list[str] | None = arguments.command
    if not command:
        raise UserError(f"nothing to run: write the command after --, as in: {EXEC} --gpus 1 -- ls")
    if not arguments.outlive_parent and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        die_with_parent(os.getppid(), signal.SIGTERM)
    restore_signals()
    gpus = GpuOptions.parse(arguments.gpus, arguments.devices)
    options = {
        "slots_per_gpu": arguments.slots_per_gpu,
        "min_free_mb": arguments.min_free_mb,
        "policy": arguments.policy,
        "devices": gpus.devices or None,
        "wait_seconds": arguments.wait,
    }
    request = Request.from_environment(options, gpus.number or 1, arguments.index_mode)
    held = acquire(arguments.device, request)
    log.info("leased %s", held.how)
    sys.stdout.flush()
    return run_beside(command, held) if arguments.watch else become(command, held)
