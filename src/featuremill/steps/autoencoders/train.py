"""`sae train` and `sae estimate`: train a sparse autoencoder on the vectors of a finished run, and
estimate the memory of a training.

The estimate counts the tensors of `training.py`: parameters, Adam's moments, the gradient buffers
of the sum, and the intermediate results of a slice. The memory of CUDA is added on a GPU, and that
of Python with torch on the host.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from featuremill import features
from featuremill.features import Parts
from featuremill.kit import environment
from featuremill.kit.devices import Choice, Device, Request, lease
from featuremill.kit.errors import DeviceError, UserError, error_text
from featuremill.kit.files import delivering, note, replacing, sha256_of, write_json
from featuremill.kit.locks import locked
from featuremill.kit.processes import versions
from featuremill.kit.text import count, counted, human_bytes, records
from featuremill.steps.autoencoders import card, origin
from featuremill.steps.autoencoders.card import (
    CARD,
    CHECKPOINT,
    CONFIG,
    LOCK,
    SLICES,
    WEIGHTS,
    Options,
    Source,
    pairs_of,
    refuse_other_count,
    slices_of,
)
from featuremill.steps.autoencoders.progress import TRAINING, line_of
from featuremill.steps.autoencoders.vectors import Chosen, is_held_out

LOG_SECONDS = 10.0
VECTORS_A_FEATURE = 10
"""The least number of vectors per feature; with 1.6 per feature, 70 % were dead."""
FLOAT = 4
HOST_BYTES = 460 * 2**20
"""Python, torch with the imports of Adam, and Arrow, without a vector: measured with torch 2.13."""
ROW_BYTES = 29
"""Bytes of a record in `Parts`."""
LOADED = 8
"""Bytes per number of a slice while it is read."""
SLICE_OF_FEATURES, SLICE_OF_WIDTH = {"topk": 4, "relu": 4, "jumprelu": 6}, 6
"""The matrices of a slice at the same time, per feature and per dimension."""
log = logging.getLogger("featuremill.sae")


class Arguments(NamedTuple):
    """The arguments of `sae train`."""

    run: Path
    column: str | None
    output: Path
    options: Options
    gpus: int
    """The number of ranks."""
    devices: str
    """A comma-separated list of GPUs to choose from; "" for any."""
    device: Choice
    threads: int
    checkpoint_minutes: float
    words: Sequence[str]
    """The words of the command for the ranks, without the device."""


def train(arguments: Arguments) -> None:
    """Train, or resume from a checkpoint, on leased devices.

    Raises:
        UserError: the run, an option or the output is wrong.
    """
    from featuremill.steps.autoencoders import ranks

    if ranks.is_rank():
        try:
            _train_as_rank(arguments, arguments.device)
        except Exception as error:
            ranks.leave(error)
        return
    refuse_other_count(arguments.gpus)
    arguments.options.check()
    vectors = features.open_parts(arguments.run, arguments.column)
    card.refuse_other_folder(arguments.output)
    arguments.output.mkdir(parents=True, exist_ok=True)
    with locked(arguments.output / LOCK, lambda: _refuse_second(arguments.output)):
        if _is_done(arguments, vectors):
            return
        named = {"devices": arguments.devices or None}
        with lease(arguments.device, Request.from_environment(named, arguments.gpus)) as held:
            for name, value in held.environment.items():
                environment.Variable(name).set(value)
            kind = held.devices[0].kind
            needed = estimated(arguments.options, vectors, arguments.gpus)
            log.info("%s, %s", counted(arguments.gpus, "rank"), needed.text(kind))
            _refuse_too_large(arguments, needed.device, held.devices)
            if arguments.gpus > 1:
                words = [*arguments.words, "--device", kind]
                ranks.start(arguments.gpus, words, arguments.threads, arguments.output)
                return
            del vectors
            try:
                _train_as_rank(arguments, kind)
            except Exception as error:
                if not ranks.is_of_device(error):
                    raise
                raise DeviceError(
                    f"the device failed, or its memory ran out ({error_text(error)}); continue "
                    f"from {arguments.output} with the same command, or begin anew with a smaller "
                    "--batch."
                ) from error


def _refuse_too_large(arguments: Arguments, num_bytes: int, devices: Sequence[Device]) -> None:
    """Raise UserError if a training does not fit in the memory of a GPU; CPUs are not checked."""
    smallest = min(devices, key=lambda device: device.memory_mb)
    has_bytes = smallest.memory_mb * 2**20
    if 0 < has_bytes < num_bytes:
        raise UserError(
            f"{arguments.output}: this training takes {human_bytes(num_bytes)} of each GPU, and "
            f"{smallest.name} has {human_bytes(has_bytes)}; lower --features or --batch, or take "
            "larger GPUs."
        )


def _refuse_second(output: Path) -> NoReturn:
    raise UserError(f"{output}: another process trains there; wait for it, or name another folder.")


def source_of(vectors: Parts) -> Source:
    """Return the card's entry on the vectors."""
    return Source(
        run=str(vectors.root),
        recipe=vectors.recipe,
        column=vectors.column.name,
        is_per_residue=vectors.column.is_per_residue,
        width=vectors.column.width,
        parts=vectors.digest,
        settings=vectors.settings,
    )


def few_vectors(num_vectors: int, num_features: int) -> str:
    """Return a warning if there are few vectors per feature, else ""."""
    if num_vectors >= VECTORS_A_FEATURE * num_features:
        return ""
    return (
        f"{count(num_vectors)} vectors for {count(num_features)} features: with fewer than "
        f"{VECTORS_A_FEATURE} each many features stay dead; take fewer features or more records."
    )


def _is_done(arguments: Arguments, vectors: Parts) -> bool:
    """Return whether this training is finished; UserError if the folder is of another one."""
    from featuremill.steps.autoencoders.training import metadata_of

    expected = card.identity(arguments.options, source_of(vectors))
    done = card.Card.find(arguments.output / CARD)
    if done:
        existing = card.identity(done.options, done.source)
        card.refuse_other(arguments.output, "autoencoder", existing, expected)
        log.info("%s is trained already.", arguments.output)
    elif (path := arguments.output / CHECKPOINT).exists():
        card.refuse_other(arguments.output, "checkpoint", metadata_of(path)["identity"], expected)
    return done is not None


def _train_as_rank(arguments: Arguments, kind: str) -> None:
    import torch

    from featuremill.steps.autoencoders.ranks import Ranks
    from featuremill.steps.autoencoders.training import Stopped, Trainer

    torch.set_num_threads(arguments.threads)
    ranks = Ranks(kind)
    is_first = ranks.number == 0
    if not is_first:
        log.setLevel(logging.WARNING)
    refuse_other_count(ranks.count)
    vectors = features.open_parts(arguments.run, arguments.column)
    if _is_done(arguments, vectors):
        return
    vectors.check(ranks.number, ranks.count)
    source, options, output = source_of(vectors), arguments.options, arguments.output
    held_out = is_held_out(vectors, options.held_out, options.seed)
    chosen = Chosen(vectors, ~held_out)
    if not len(chosen):
        raise UserError(
            f"{arguments.run}: all records with vectors are held out; give a smaller --held-out."
        )
    log.info("%s vectors of %s", count(len(chosen)), records(chosen.num_records))
    if few := few_vectors(len(chosen), options.features):
        log.warning("%s", few)
    identity = card.identity(options, source)
    trainer = Trainer(options, chosen, source.width, ranks)
    if (output / CHECKPOINT).exists():
        trainer.load(output, identity)
        log.info("continuing after step %s", count(trainer.step))
    else:
        trainer.begin()
    if is_first:
        rows = _Rows(output / TRAINING, trainer.step)
    saved = logged = time.monotonic()
    try:
        for row in trainer.run():
            if not is_first:
                continue
            now = time.monotonic()
            if row:
                rows.add(row)
            if row and now - logged >= LOG_SECONDS:
                logged = now
                log.info("%s", line_of(row))
            if now - saved >= arguments.checkpoint_minutes * 60 and trainer.step < options.steps:
                trainer.save(output / CHECKPOINT, identity)
                saved = time.monotonic()
    except Stopped as stopped:
        if is_first:
            trainer.save(output / CHECKPOINT, identity)
            note(output / CHECKPOINT)
            note(output / TRAINING)
            log.warning(
                "stopped after step %s; the same command continues from there.", count(stopped.step)
            )
        raise SystemExit(128 + stopped.number) from None
    if is_first:
        counts = {
            "records": chosen.num_records,
            "vectors": len(chosen),
            "held_out": int((held_out & (vectors.num_of_row > 0)).sum()),
        }
        _finish(output, options, source, trainer.finished(), counts, rows.last)
    ranks.close()


def _finish(
    output: Path,
    options: Options,
    source: Source,
    tensors: dict[str, Any],
    counts: dict[str, int],
    last: dict[str, Any],
) -> None:
    """Write the autoencoder, sae.json last."""
    from safetensors.torch import save_file

    with delivering(output / WEIGHTS) as temporary:
        save_file(tensors, temporary)
    network_of_run = origin.find(Path(source.run))
    hook = network_of_run.hooks.get(source.column, "")
    card.write_config(output / CONFIG, options, source.width, network_of_run.model, hook)
    content = card.Card(
        version=card.Card.NEWEST,
        options=options,
        source=source,
        sha256=sha256_of(output / WEIGHTS),
        counts=counts,
        last=last,
        versions=versions(("torch", "safetensors")),
    )
    write_json(output / CARD, content.content())
    note(output / TRAINING)
    (output / CHECKPOINT).unlink(missing_ok=True)
    log.info("%s: %s", output, line_of(last, is_done=True))


class _Rows:
    def __init__(self, path: Path, step: int) -> None:
        """Keep the lines up to `step`, as later steps are computed again."""
        self.last: dict[str, Any] = {}
        lines = path.read_bytes().splitlines() if step and path.exists() else []
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            for row in map(json.loads, lines):
                if row["step"] <= step:
                    self.last = row
                    file.write(json.dumps(row) + "\n")
        self._path = path

    def add(self, row: dict[str, Any]) -> None:
        """Append a line."""
        self.last = row
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


class Needed(NamedTuple):
    """The memory and disk of a training, in bytes."""

    device: int
    """Memory per device; on CPUs, memory per rank in addition to `host`."""
    host: int
    """Memory of the host per rank."""
    mapped: int
    """Size of the run's vectors, which are memory-mapped."""
    checkpoint: int
    weights: int

    def total(self, kind: str) -> int:
        """Return the host memory of a rank on a device of this kind."""
        return self.host + (self.device if kind == "cpu" else 0)

    def text(self, kind: str) -> str:
        """Return a sentence with the memory."""
        where = "" if kind == "cpu" else f"{human_bytes(self.device)} of each GPU, "
        return (
            f"each with {where}{human_bytes(self.total(kind))} of memory, beside "
            f"{human_bytes(self.mapped)} of vectors in the page cache; "
            f"{human_bytes(self.checkpoint)} of disk for a checkpoint"
        )


def estimated(options: Options, vectors: Parts, num_ranks: int) -> Needed:
    """Return the memory of `num_ranks` ranks."""
    return needed(
        options, vectors.column.width, num_ranks, len(vectors.num_of_row), vectors.num_bytes
    )


def needed(
    options: Options, width: int, num_ranks: int, num_rows: int = 0, num_bytes: int = 0
) -> Needed:
    """Return the memory for vectors of `width` numbers in `num_rows` records."""
    num_features = options.features
    parameters = 2 * width * num_features + num_features + width
    if options.kind == "jumprelu":
        parameters += num_features
    shares = [pairs_of(slices_of(rank, num_ranks)) for rank in range(num_ranks)]
    depths = [n + max(1, (len(e) // 2).bit_length()) for own in shares for n, e in enumerate(own)]
    num_buffers = max(depths) + (num_ranks > 1)
    # Autograd allocates a gradient before it is added; the largest has half the parameters.
    copies = 3 + num_buffers + 1
    rows = options.batch // SLICES
    slice_numbers = rows * (SLICE_OF_FEATURES[options.kind] * num_features + SLICE_OF_WIDTH * width)
    if options.dtype == "bf16":
        slice_numbers += parameters // 2
    device = FLOAT * (copies * parameters + slice_numbers)
    host = HOST_BYTES + ROW_BYTES * num_rows + LOADED * rows * width
    return Needed(device, host, num_bytes, 3 * FLOAT * parameters, FLOAT * parameters)


def print_estimate(
    root: Path, column: str | None, options: Options, num_ranks: int, as_json: bool
) -> None:
    """Print the memory of a training on the run in `root`."""
    options.check()
    refuse_other_count(num_ranks)
    vectors = features.open_parts(root, column)
    need = estimated(options, vectors, num_ranks)
    if as_json:
        print(json.dumps(need._asdict() | {"host_with_cpu": need.total("cpu")}))
        return
    each = "" if num_ranks == 1 else " each"
    print(f"a GPU: {human_bytes(need.device)}{each}, and {human_bytes(need.host)} of memory")
    print(f"on CPUs: {human_bytes(need.total('cpu'))} of memory{each}")
    print(f"vectors: {human_bytes(need.mapped)} in parts: the page cache keeps what fits")
    print(f"files: {human_bytes(need.weights)}, and {human_bytes(need.checkpoint)} a checkpoint")
