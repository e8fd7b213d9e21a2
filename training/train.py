"""Train `mill_t6_8M`, a masked language model of ESM-2's architecture, on a GPU or a CPU.

The learning rate rises, stays, and falls to zero at the end; so a run can be stopped at any time,
continued, and brought to its end when there is no more time:

    python training/train.py WORK OUT --device cuda --minutes 10        # warm-up to decay
    python training/train.py WORK OUT --device cpu --resume             # continue where it stood
    python training/train.py WORK OUT --resume --decay-steps 800        # end it: decay from here on
    python training/train.py WORK OUT --resume-from plateau.pt --minutes 300   # go on, longer

WORK is prepare.py's folder (only its `shards/` is read). The run's state (checkpoint.pt,
plateau.pt, loss.jsonl) goes to WORK/run or `--state`. A run follows from its seed, its options, the
number of threads and the kind of device; with `--minutes` the step at which the decay began also
depends on the machine, so the weights' metadata say which one it was, for `--decay-from`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import shards
import torch
from batches import Batch, Cursor, Sampler, masked
from network import Shape, save
from run import Clock, Run
from torch import Tensor

NAME = "mill_t6_8M"
PRESETS = {
    "cpu": {"batch_tokens": 8192, "lengths": [128, 128, 128, 256, 512], "learning_rate": 2e-3},
    "cuda": {"batch_tokens": 262144, "lengths": [512, 512, 512, 1024], "learning_rate": 4e-3},
}
DATA = "UniProtKB/Swiss-Prot 2014_01 and a sample of UniProt 2014 (UniProt Consortium, CC BY 4.0)"
VALID_ROWS, VALID_LENGTH = 192, 512


def valid_batches(proteins: shards.Proteins, batch_tokens: int) -> list[Batch]:
    """Return the same masked batches for every validation: long rows, cut alike each time."""
    size = max(1, min(VALID_ROWS, batch_tokens // VALID_LENGTH))
    sampler, cursor = Sampler(proteins, 0), Cursor()
    found = []
    for number in range(-(-VALID_ROWS // size)):
        random = np.random.default_rng([0, number, 2])
        rows = sampler.rows(cursor, size, VALID_LENGTH, random)
        found.append(masked(*rows, random, is_test=True))
    return found


def ahead(run: Run, sampler: Sampler) -> Iterator[tuple[Batch, Cursor]]:
    """Yield batches with the cursor behind each; the next is made while one is worked on.

    Where the length of rows changes, the batch that was made ahead is dropped and made again.
    """

    def make(cursor: Cursor, length: int) -> tuple[Batch, Cursor]:
        cursor = replace(cursor)
        return sampler.batch(cursor, run.arguments.batch_tokens // length, length), cursor

    with ThreadPoolExecutor(1) as pool:
        length = run.length()
        coming = pool.submit(make, run.progress.cursor, length)
        while True:
            batch, cursor = coming.result()
            if length != run.length():
                length = run.length()
                coming = pool.submit(make, run.progress.cursor, length)
                continue
            coming = pool.submit(make, cursor, length)
            yield batch, cursor


class Curve:
    """The loss curve, a JSON object a line; lines of a future that a resume undid go away."""

    def __init__(self, run: Run) -> None:
        self.run, self.path = run, run.state / "loss.jsonl"
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        step = run.progress.cursor.step
        kept = [line for line in lines if json.loads(line)["step"] <= step] if step else []
        self.path.write_text("".join(line + "\n" for line in kept))

    def add(self, **values: float) -> None:
        """Append where the run stands, with `values`."""
        progress = self.run.progress
        row = {"step": progress.cursor.step, "tokens": progress.tokens}
        row |= {"seconds": round(progress.seconds, 1), "length": self.run.length()}
        row |= {name: round(value, 4) for name, value in values.items()}
        with self.path.open("a") as file:
            print(json.dumps(row), file=file)


class Stop:
    """Whether somebody asked the run to stop (SIGTERM, Ctrl-C): it then saves its state first."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.ask)

    def ask(self, *_: object) -> None:
        self.asked = True


def begin_decay_when_due(run: Run) -> None:
    """Fix the decay once enough of the run is over; keep the state before it as plateau.pt."""
    arguments, progress = run.arguments, run.progress
    if progress.decay_from is not None:
        return
    share = arguments.decay_share
    if arguments.decay_from is not None:
        is_due, steps = progress.cursor.step >= arguments.decay_from, arguments.decay_steps
    else:
        is_due = progress.seconds >= arguments.minutes * 60 * (1 - share)
        steps = max(1, round(progress.cursor.step * share / (1 - share)))
    if is_due:
        run.save("plateau.pt")
        progress.decay_from, progress.decay_steps = progress.cursor.step, steps


def train(run: Run, sampler: Sampler, valid: list[Batch], stop: Stop) -> None:
    """Step until the decay is over or somebody stops the run; log and keep checkpoints."""
    arguments, progress, curve, clock = run.arguments, run.progress, Curve(run), Clock(run.device)
    losses: list[Tensor] = []
    kept = progress.seconds
    stream = ahead(run, sampler)
    begin_decay_when_due(run)
    while progress.left() > 0 and not stop.asked:
        losses.append(run.step(*next(stream)))
        if run.device.type == "cuda" and progress.cursor.step % 20 == 0:
            torch.cuda.synchronize()
        progress.seconds += clock.lap()
        begin_decay_when_due(run)
        is_over = progress.left() == 0
        if progress.cursor.step % arguments.log_every == 0 or is_over:
            curve.add(loss=torch.stack(losses).mean().item(), rate=run.share())
            losses.clear()
        if progress.cursor.step % arguments.validate_every == 0 or is_over:
            curve.add(valid_loss=(loss := run.validate(valid)), valid_perplexity=np.exp(loss))
            clock.lap()
        if progress.seconds - kept >= arguments.checkpoint_seconds or is_over or stop.asked:
            run.save()
            kept = progress.seconds
    stream.close()


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments, the device's presets filled in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("work", type=Path, help="folder with prepare.py's shards/")
    add("output", type=Path, help="the .safetensors file to write at the end")
    add("--device", choices=[*PRESETS], default="cpu")
    add("--minutes", type=float, default=120.0, help="of the device, over all sessions")
    add("--state", type=Path, help="folder for checkpoints and the loss curve (default WORK/run)")
    add("--resume", action="store_true", help="from the state's checkpoint.pt, if any")
    add("--resume-from", type=Path, help="continue from this checkpoint, such as plateau.pt")
    add("--decay-share", type=float, default=0.8, help="of the run, for the decay")
    add("--decay-from", type=int, help="step; instead of --minutes")
    add("--decay-steps", type=int, help="without --decay-from: decay from where the run stands")
    add("--warmup", type=int, default=200, help="steps")
    add("--batch-tokens", type=int)
    add("--lengths", type=int, nargs="+", help="of rows: until the decay, then in its equal parts")
    add("--learning-rate", type=float, help="its peak")
    add("--weight-decay", type=float, default=0.01)
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
    for name, value in PRESETS[arguments.device].items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    return arguments


def main(words: list[str] | None = None) -> None:
    """Train, then write the weights."""
    arguments = parse_arguments(words)
    torch.set_num_threads(arguments.threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=arguments.device == "cuda")
    torch.utils.deterministic.fill_uninitialized_memory = False  # a tenth of the time on a CPU
    run = Run(arguments)
    origin = arguments.resume_from or run.state / "checkpoint.pt"
    if arguments.resume_from or (arguments.resume and origin.exists()):
        run.load(origin)
        if origin.parent != run.state:
            shutil.copyfile(origin.parent / "loss.jsonl", run.state / "loss.jsonl")
    if arguments.decay_steps and arguments.decay_from is None and run.progress.decay_from is None:
        arguments.decay_from = run.progress.cursor.step
    sampler = Sampler(shards.read(arguments.work / "shards", "train"), arguments.seed)
    valid = shards.read(arguments.work / "shards", "valid")
    train(run, sampler, valid_batches(valid, arguments.batch_tokens), Stop())
    if run.progress.left() == 0:
        save(run.network, arguments.output, metadata(run))
    print(json.dumps(asdict(run.progress)))


def metadata(run: Run) -> dict[str, str]:
    """Return what the file of weights says about itself: the network, the data and the run."""
    arguments, progress, shape = run.arguments, run.progress, run.network.shape
    known = {"name": NAME, "architecture": "esm2", "license": "CC-BY-4.0", "data": DATA}
    known |= {"trained_by": "featuremill", "num_layers": shape.num_layers}
    known |= {"embed_dim": shape.width, "attention_heads": shape.num_heads}
    known |= {"steps": progress.cursor.step, "tokens_seen": progress.tokens}
    known |= {"decay_from": progress.decay_from, "seconds": round(progress.seconds)}
    for name in ("device", "threads", "optimizer", "learning_rate", "batch_tokens", "seed"):
        known[name] = getattr(arguments, name)
    known["lengths"] = " ".join(map(str, arguments.lengths))
    return {name: str(value) for name, value in known.items()}


if __name__ == "__main__":
    main()
