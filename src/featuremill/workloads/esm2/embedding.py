"""`featuremill.embed`: ESM-2 features of sequences in memory, without ids and a table."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import featuremill
from featuremill.inputs import residues
from featuremill.kit import reasons
from featuremill.kit.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from featuremill.workloads.esm2.options import Pool

    Pooled = npt.NDArray[np.float32]
    PerResidue = list[npt.NDArray[np.floating[Any]]]
    Features = Pooled | PerResidue
OF_A_CONFIG = re.compile(r"\boptions\.(?=\w+: )")
"""The prefix of an option in messages about a config."""


class Other(TypedDict, total=False):
    """The arguments that do not change the kind of the result."""

    output_dtype: Literal["float16", "float32"]
    dtype: Literal["auto", "bf16", "fp16", "fp32"]
    long: Literal["truncate", "full", "chunk"]
    max_residues: int
    chunk_overlap: int
    batch_tokens: int | None
    device: str
    gpus: int | str | Sequence[int | str] | None
    workers: int | None
    lease: bool
    progress: Callable[[int, int], object] | None


@overload
def embed(
    sequences: Sequence[str],
    model: str = ...,
    *,
    layers: int = ...,
    pool: Literal["mean", "max", "std", "bos"] = ...,
    per_residue: Literal[False] = ...,
    **other: Unpack[Other],
) -> Pooled: ...


@overload
def embed(
    sequences: Sequence[str],
    model: str = ...,
    *,
    layers: int = ...,
    pool: Literal["none"],
    per_residue: Literal[True],
    **other: Unpack[Other],
) -> PerResidue: ...


@overload
def embed(
    sequences: Sequence[str],
    model: str = ...,
    *,
    layers: int | Sequence[int] = ...,
    pool: Pool | Sequence[Pool] = ...,
    per_residue: bool = ...,
    **other: Unpack[Other],
) -> Features | dict[str, Features]: ...


def embed(
    sequences: Sequence[str],
    model: str = "mill_t6_8M",
    *,
    layers: int | Sequence[int] = -1,
    pool: Pool | Sequence[Pool] = "mean",
    per_residue: bool = False,
    output_dtype: Literal["float16", "float32"] = "float16",
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto",
    long: Literal["truncate", "full", "chunk"] = "truncate",
    max_residues: int = 1022,
    chunk_overlap: int = 256,
    batch_tokens: int | None = None,
    device: str = "auto",
    gpus: int | str | Sequence[int | str] | None = None,
    workers: int | None = None,
    lease: bool = True,
    progress: Callable[[int, int], object] | None = None,
) -> Features | dict[str, Features]:
    """Return the features of sequences by an ESM-2, in order, as arrays; see also `compute`.
    Without `model`, this is the demonstration network mill_t6_8M, which is not ESM-2, with a
    warning once in a process; for science, name an ESM-2 such as model="esm2_t33_650M_UR50D".

    With one layer and one pool: an array of shape (sequences, width), float32. With `pool="none",
    per_residue=True`: a list of one array for each sequence, of shape (residues, width) and type
    `output_dtype`. If `layers` or `pool` is a list, or both kinds are wanted: a dictionary of these
    by the names of result columns, such as `mean_layer_6`, `residues_layer_6`.

    `device`, `gpus`, `workers`, `lease` and `progress` are those of `compute`: gpus="all" computes
    on every GPU. The numbers are those of a run with the same options (config/README.md) on the
    same device.
    Sequences are cleaned as in a run: lower case, whitespace, a '*' at the end, J. Equal sequences
    are computed once. Only the first `max_residues` residues of a sequence are used, unless `long`
    is set; a warning has the number of truncated sequences.

    If memory runs out, batches get smaller, with one warning. The model stays loaded for the next
    call with the same model and device; `forget_model` frees its memory.

    Raises:
        UserError: if an option is invalid, a sequence (named by its index) is not a protein, or
            memory runs out for a single sequence.
    """
    several = {"layers": _values(layers), "pool": _values(pool)}
    is_one = not any(isinstance(value, list) for value in several.values())
    options = {
        "model": model,
        **several,
        "per_residue": per_residue,
        "output_dtype": output_dtype,
        "dtype": dtype,
        "long": long,
        "max_residues": max_residues,
        "chunk_overlap": chunk_overlap,
        "batch_tokens": batch_tokens,
    }
    where: dict[str, Any] = {"device": device, "gpus": gpus, "workers": workers, "lease": lease}
    with _naming_arguments():
        engine = featuremill.engine("esm2", options, "embed", **where)
    payloads = _payloads(sequences)
    num_cut = sum(long == "truncate" and len(payload) > max_residues for payload in payloads)
    if num_cut:
        warnings.warn(
            f"{num_cut} of {len(payloads)} sequences are longer than {max_residues} residues and "
            "truncated; long='full' or 'chunk' computes them whole.",
            stacklevel=2,
        )
    with _naming_arguments():
        computed = engine.compute(payloads, _refusing(payloads), progress)
    for text in computed.warnings:
        warnings.warn(text, stacklevel=2)
    features = {
        field.name: _together(field.type, computed.cells(field.name)) for field in computed.schema
    }
    return next(iter(features.values())) if is_one and len(features) == 1 else features


def _values(value: Any) -> Any:
    """Return several values as a list, and a single one as it is; numbers of NumPy become int."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


@contextlib.contextmanager
def _naming_arguments() -> Iterator[None]:
    """Replace options of a config in messages of the block by the names of arguments."""
    try:
        yield
    except UserError as error:
        raise UserError(OF_A_CONFIG.sub("", str(error))) from None


def _together(kind: pa.DataType, arrays: list[npt.NDArray[Any]]) -> Features:
    """Return vectors stacked to a matrix, but matrices of residues as a list."""
    import numpy as np

    if not hasattr(kind, "list_size"):  # of residues
        return arrays
    return np.array(arrays, np.float32).reshape(len(arrays), kind.list_size)


def _refusing(payloads: Sequence[bytes]) -> Callable[[int, str], object]:
    """Return a function that raises UserError with the reason why a payload cannot be computed."""

    def refuse(index: int, reason: str) -> None:
        if reasons.kind_of(reason) is reasons.NOT_FINITE:
            raise UserError(f"embed: {reason}, such as dtype='fp32'.")
        raise UserError(
            f"embed: memory ran out for one sequence of {len(payloads[index]):,} residues "
            f"({reason}); use long='truncate', or another device."
        )

    return refuse


def _payloads(sequences: Sequence[object]) -> list[bytes]:
    if isinstance(sequences, str):
        raise UserError(
            "sequences: this is one string; give a list of them. For a file, use "
            "featuremill.compute('proteins.fasta', 'esm2')."
        )
    if isinstance(sequences, Mapping):
        raise UserError("sequences: this is a mapping; give a list, as in list(yours.values()).")
    if isinstance(sequences, Set) or hasattr(sequences, "columns"):
        kind = type(sequences).__name__  # a set has no order, and a DataFrame yields its columns
        raise UserError(f"sequences: this is of type {kind}; give a list, such as a column.")
    payloads = []
    for index, sequence in enumerate(sequences):
        if not isinstance(sequence, str):
            kind = type(sequence).__name__
            raise UserError(f"sequences[{index}]: this is of type {kind}; give a string.")
        cleaned = residues.clean(sequence)
        if cleaned.reason:
            raise UserError(f"sequences[{index}]: {cleaned.reason}; remove or fix it.")
        payloads.append(cleaned.payload)
    return payloads
