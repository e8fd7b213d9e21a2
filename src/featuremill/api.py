"""Features of sequences at hand, for notebooks: the engine of a run without its files."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from featuremill import config, machine, reasons, weights
from featuremill.at_hand import Refuse, values_in_batches
from featuremill.devices import devices_for
from featuremill.errors import UserError
from featuremill.inputs import residues
from featuremill.workload import refuse_without_packages
from featuremill.workloads import esm2

Progress = Callable[[int, int], object]
"""Called after each batch with (sequences done, sequences in all); equal ones count once."""


def embed(
    sequences: Sequence[str],
    model: str = "mill_t6_8M",
    *,
    layer: int = -1,
    pool: Literal["mean", "bos"] = "mean",
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto",
    long: Literal["truncate", "full", "chunk"] = "truncate",
    max_residues: int = 1022,
    chunk_overlap: int = 256,
    batch_tokens: int | None = None,
    device: Literal["auto", "cuda", "cpu"] = "auto",
    progress: Progress | None = None,
) -> npt.NDArray[np.float32]:
    """Return one vector a sequence, shape (sequences, width), in their order.

    The numbers are those of a run with the same options (config/README.md explains them) on the
    same device. Sequences are cleaned as there: lower case, white space, a '*' at the end, J. Equal
    ones are computed once. As there, only the first `max_residues` residues of a sequence count
    unless `long` says otherwise: a warning says of how many sequences more was cut off.

    Where memory runs out, batches get smaller, with one warning.

    Raises:
        UserError: when an option is wrong, a sequence, named by its index, is no protein, or memory
            runs out for a single one.
    """
    options = {
        "model": model,
        "layers": [layer],
        "pool": [pool],
        "dtype": dtype,
        "long": long,
        "max_residues": max_residues,
        "chunk_overlap": chunk_overlap,
        "batch_tokens": batch_tokens,
    }
    checked = config.validate({"inputs": ["memory"], "workload": "esm2", "options": options})
    refuse_without_packages(esm2.Options)
    payloads = _payloads(sequences)
    num_cut = sum(long == "truncate" and len(payload) > max_residues for payload in payloads)
    if num_cut:
        warnings.warn(
            f"{num_cut} of {len(payloads)} sequences are longer than {max_residues} residues and "
            "truncated; long='full' or 'chunk' computes them whole.",
            stacklevel=2,
        )
    (chosen,) = machine.with_processors(devices_for(device)[:1])
    found = weights.weights_of(weights.convert(model))
    resolved = esm2.resolve(esm2.Options.model_validate(checked.options), chosen, found)
    loaded = esm2.load(resolved, [chosen], found)

    # In the order of a shard, so that the batches are those of a run with a single shard.
    distinct = sorted(set(payloads), key=lambda payload: hashlib.sha256(payload).digest())
    vectors = np.empty((len(distinct), int(found.metadata["embed_dim"])), np.float32)
    costs = [esm2.cost(payload, resolved) for payload in distinct]
    num_done = 0
    budget, refuse = esm2.batch_cost(resolved, chosen), _refusing(distinct)
    for rows, values in values_in_batches(
        esm2,
        loaded,
        distinct,
        costs,
        budget,
        refuse,
        lambda text: warnings.warn(text, stacklevel=7),
    ):
        vectors[rows] = values.column(0).flatten().to_numpy().reshape(len(rows), -1)
        num_done += len(rows)
        if progress:
            progress(num_done, len(distinct))
    row_of = {payload: row for row, payload in enumerate(distinct)}
    return vectors[[row_of[payload] for payload in payloads]]


def _refusing(payloads: Sequence[bytes]) -> Refuse:
    """Return what says in a sentence why one of `payloads` cannot be computed."""

    def refuse(row: int, reason: str) -> None:
        if reasons.kind_of(reason) is reasons.NOT_FINITE:
            raise UserError(f"embed: {reason}, such as dtype='fp32'.")
        raise UserError(
            f"embed: memory ran out for one sequence of {len(payloads[row]):,} residues "
            f"({reason}); use long='truncate', or another device."
        )

    return refuse


def _payloads(sequences: Sequence[object]) -> list[bytes]:
    if isinstance(sequences, str):
        raise UserError("sequences: this is one string; give a list of them.")
    if isinstance(sequences, Mapping):
        raise UserError("sequences: this is a mapping; give a list, as in list(yours.values()).")
    payloads = []
    for index, sequence in enumerate(sequences):
        if not isinstance(sequence, str):
            kind = type(sequence).__name__
            raise UserError(f"sequences[{index}]: this is of type {kind}; give a string.")
        cleaned = residues.clean(sequence)
        if cleaned.reason:
            raise UserError(f"sequences[{index}]: {cleaned.reason}; remove or mend it.")
        payloads.append(cleaned.payload)
    return payloads
