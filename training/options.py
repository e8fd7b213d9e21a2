"""The command line of train.py, and which of its options a run is a function of."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from network import Shape

PRESETS = {
    "cpu": {"batch_tokens": 8192, "lengths": [128, 128, 128, 256, 512], "learning_rate": 2e-3},
    "cuda": {"batch_tokens": 262144, "lengths": [512, 512, 512, 1024], "learning_rate": 4e-3},
}
OF_A_RUN = (
    *("device", "threads", "shape", "dtype", "seed", "batch_tokens", "lengths"),
    *("optimizer", "learning_rate", "weight_decay", "warmup"),
)
"""The options that a run keeps from its first step to its last."""


def refuse(sentence: str) -> NoReturn:
    """End with a sentence, before anything is written."""
    print(f"train.py: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def parse_arguments(description: str, words: list[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments, the device's presets filled in."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("work", type=Path, help="folder with prepare.py's shards/")
    add("output", type=Path, help="the .safetensors file to write at the end")
    add("--device", choices=[*PRESETS], default="cpu")
    add("--minutes", type=float, default=120.0, help="of the device, about: a share of them decays")
    add("--state", type=Path, help="folder for checkpoints and the loss curve (default WORK/run)")
    add("--resume", action="store_true", help="from the state's checkpoint.pt, if any")
    add("--resume-from", type=Path, help="continue from this checkpoint, such as plateau.pt")
    add("--decay-share", type=float, default=0.8, help="of the run's steps, for the decay")
    add("--decay-from", type=int, help="step; with --decay-steps instead of --minutes")
    add("--decay-steps", type=int, help="without --decay-from: decay from where the run stands")
    add("--warmup", type=int, default=200, help="steps")
    add("--batch-tokens", type=int)
    add("--lengths", type=int, nargs="+", help="of rows: until the decay, then in its equal parts")
    add("--learning-rate", type=float, help="its peak")
    add("--weight-decay", type=float, default=0.01, help="of matrices and the embedding")
    add("--optimizer", choices=["muon", "adamw"], default="muon")
    add("--shape", type=int, nargs=3, default=Shape(), help="layers, width, heads")
    add("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    add("--compile", action="store_true", help="torch.compile the network")
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=1, help="of a CPU")
    add("--log-every", type=int, default=50, help="steps")
    add("--validate-every", type=int, default=250, help="steps")
    add("--checkpoint-seconds", type=float, default=120.0, help="of the device")
    arguments = parser.parse_args(words)
    if arguments.decay_from is not None and not arguments.decay_steps:
        parser.error("--decay-from needs --decay-steps")
    for name, value in PRESETS[arguments.device].items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    return arguments


def of_a_run(arguments: argparse.Namespace) -> dict[str, str]:
    """Return {option: what was given, as it is typed} of those that a run keeps."""
    given = {name: getattr(arguments, name) for name in OF_A_RUN}
    return {
        name: " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in given.items()
    }


def typed(of_a_run: dict[str, str]) -> str:
    """Return options as they are typed."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in of_a_run.items())
