"""Train `mill_t6_8M`, a masked language model of ESM-2's architecture, on a GPU or a CPU.

The learning rate rises, stays, and falls to zero at the end; so a run can be stopped at any time,
continued, and brought to its end when there is no more time:

    python training/train.py WORK OUT --device cuda --minutes 10        # warm-up to decay
    python training/train.py WORK OUT --device cpu --resume             # continue where it stood
    python training/train.py WORK OUT --resume --decay-steps 800        # end it: decay from here on
    python training/train.py WORK OUT --resume-from A/plateau.pt --state B       # longer

WORK is prepare.py's folder (only its `shards/` is read). The run's state (checkpoint.pt,
plateau.pt, loss.jsonl) goes to WORK/run or `--state`. A run follows from its options (options.py),
its data and the kind of device; with `--minutes` the step at which the decay began also depends on
the machine, so the weights' metadata say which one it was, for `--decay-from` and `--decay-steps`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import numpy as np
import shards
import torch
from batches import Batch, Cursor, Sampler, masked
from network import save
from options import parse_arguments, refuse
from run import Clock, Run
from torch import Tensor

NAME = "mill_t6_8M"
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


def mean(losses: list[Tensor]) -> float:
    """Return the mean loss; where it is not finite, end the run and keep the last checkpoint."""
    found = torch.stack(losses).mean().item()
    if not math.isfinite(found):
        raise SystemExit(f"train.py: the loss is {found}; go on from a checkpoint, or learn slower")
    return found


def train(run: Run, sampler: Sampler, valid: list[Batch], stop: Stop) -> None:
    """Step until the decay is over or somebody stops the run; log and keep checkpoints."""
    arguments, progress, curve, clock = run.arguments, run.progress, Curve(run), Clock(run.device)
    losses: list[Tensor] = []
    kept, is_first, is_stopped = progress.seconds, True, False
    stream = ahead(run, sampler)
    begin_decay_when_due(run)
    while progress.left() > 0 and not is_stopped:
        losses.append(run.step(*next(stream)))
        if run.device.type == "cuda" and (is_first or progress.cursor.step % 20 == 0):
            torch.cuda.synchronize()
        seconds, is_first = 0.0 if is_first else clock.lap(), False  # the first one compiles
        progress.seconds += seconds
        begin_decay_when_due(run)
        is_over = progress.left() == 0
        if progress.cursor.step % arguments.log_every == 0 or is_over:
            curve.add(loss=mean(losses), rate=run.rate())
            losses.clear()
        if progress.cursor.step % arguments.validate_every == 0 or is_over:
            curve.add(valid_loss=(loss := run.validate(valid)), valid_perplexity=np.exp(loss))
            clock.lap()
        is_stopped = stop.asked  # asked once a step: what ends the run has to keep it, too
        if progress.seconds - kept >= arguments.checkpoint_seconds or is_over or is_stopped:
            if losses:
                mean(losses)
            run.save()
            kept = progress.seconds
    stream.close()


def begin(arguments: argparse.Namespace) -> Run:
    """Return the run, at its first step or where a checkpoint has it."""
    run = Run(arguments)
    kept, origin = run.state / "checkpoint.pt", arguments.resume_from
    if origin is None and kept.exists():
        if not arguments.resume:
            refuse(f"{kept} is there: --resume continues that run, or name another --state")
        origin = kept
    if origin is not None:
        run.load(origin)
        curve = origin.with_name("loss.jsonl")
        if curve.exists() and not origin.parent.samefile(run.state):
            shutil.copyfile(curve, run.state / curve.name)
    settle_decay(run)
    return run


def settle_decay(run: Run) -> None:
    """Let `--decay-steps` without `--decay-from` mean from here on; refuse what comes too late."""
    arguments, progress = run.arguments, run.progress
    if not arguments.decay_steps:
        return
    if progress.decay_from is None:
        arguments.decay_from = arguments.decay_from or progress.cursor.step
        return
    begun = (progress.decay_from, progress.decay_steps)
    if (arguments.decay_from or begun[0], arguments.decay_steps) != begun:
        refuse(f"the decay began at step {begun[0]}, of {begun[1]} steps; plateau.pt is before it")


def main(words: list[str] | None = None) -> None:
    """Train, then write the weights."""
    arguments = parse_arguments(__doc__.splitlines()[0], words)
    torch.set_num_threads(arguments.threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a tenth of the time on a CPU
    run = begin(arguments)
    sampler = Sampler(shards.read(arguments.work / "shards", "train"), arguments.seed)
    valid = shards.read(arguments.work / "shards", "valid")
    train(run, sampler, valid_batches(valid, arguments.batch_tokens), Stop())
    print(json.dumps(asdict(run.progress)))
    if run.progress.left() > 0:
        raise SystemExit(f"stopped at step {run.progress.cursor.step}; --resume continues")
    save(run.network, arguments.output, metadata(run))


def metadata(run: Run) -> dict[str, str]:
    """Return what the file of weights says about itself: the network, the data and the run."""
    progress, shape = run.progress, run.network.shape
    known = {"name": NAME, "architecture": "esm2", "license": "CC-BY-4.0", "data": DATA}
    known |= {"trained_by": "featuremill", "num_layers": shape.num_layers}
    known |= {"embed_dim": shape.width, "attention_heads": shape.num_heads}
    known |= {"steps": progress.cursor.step, "tokens_seen": progress.tokens}
    known |= {"decay_from": progress.decay_from, "decay_steps": progress.decay_steps}
    known |= {"seconds": round(progress.seconds), **run.options}
    return {name: str(value) for name, value in known.items()}


if __name__ == "__main__":
    main()
