"""The Arrow columns of scores: their schema, and record batches from NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.kit.reasons import NOT_FINITE
from featuremill.workload.arrays import lists, lists_of_vectors, numbers
from featuremill.workloads.scores import passes
from featuremill.workloads.scores.options import LIKELIHOODS, MARGINALS, Options
from featuremill.workloads.scores.passes import Work
from featuremill.workloads.scores.variants import AMINO_ACIDS

VARIANTS = "variants"
"""The column that the output `variant_scores` writes."""
POSITIONS = "positions"
"""The column that the output `position_scores` writes."""
MEASURED, CLASS = pa.float64(), pa.int8()
"""The types of a measured score and of its class; no other field of a variant has these types."""
MATRIX = "log_probabilities"
POSITION = pa.struct(
    {
        "position": pa.int32(),
        "residue": pa.string(),
        "log_probability": pa.float32(),
        "entropy": pa.float32(),
    }
)


Rows = npt.NDArray[np.float32]
"""Log-probabilities of 33 tokens: one row for each masked or scored residue of a pass."""
Pairs = Sequence[tuple[Work, Rows]]
"""Proteins with their rows from one network."""
Numbers = npt.NDArray[np.float64]


def schema(options: Options) -> pa.Schema:
    """Return the columns for resolved `options`."""
    fields: dict[str, pa.DataType] = {}
    if kinds := options.kinds:
        several = len(options.networks) > 1
        suffixes = (options.mean, *options.networks) if several else options.networks
        names = [f"{MARGINALS[kind]}{each}" for kind in kinds for each in suffixes]
        row = {"variant": pa.string(), **dict.fromkeys(names, pa.float32())}
        if options.variants == "listed":
            others = dict.fromkeys(options.carried_as, pa.string())
            measured = zip(options.measured.values(), (MEASURED, CLASS), strict=False)
            row |= {"read_as": pa.string(), **others, **dict(measured), "reason": pa.string()}
        fields[VARIANTS] = pa.list_(pa.struct(row))
    for kind in LIKELIHOODS:
        if kind in options.likelihood:
            for each in options.networks:
                fields[f"{kind}_log_likelihood{each}"] = pa.float64()
                fields[f"{kind}_perplexity{each}"] = pa.float64()
            if len(options.networks) > 1:
                fields[f"{kind}_log_likelihood{options.mean}"] = pa.float64()
    if options.positions != "none":
        fields[POSITIONS] = pa.list_(POSITION)
    if options.log_probabilities != "none":
        number = pa.float16() if options.output_dtype == "float16" else pa.float32()
        for each in options.networks:
            fields[f"{MATRIX}{each}"] = pa.list_(pa.list_(number, len(AMINO_ACIDS)))
    return pa.schema(fields)


def batch(
    works: Sequence[Work], networks_rows: Sequence[Sequence[Rows]], options: Options
) -> pa.RecordBatch:
    """Return one row for each protein, from its log-probabilities by each network."""
    networks_pairs: list[Pairs] = [list(zip(works, rows, strict=True)) for rows in networks_rows]
    arrays = [_variants(networks_pairs, options)] if options.kinds else []
    for kind, source in LIKELIHOODS.items():
        if kind in options.likelihood:
            each = [_likelihoods(pairs, source) for pairs in networks_pairs]
            arrays += [numbers(column) for columns in each for column in columns]
            if len(each) > 1:
                arrays.append(numbers(np.mean([sums for sums, _ in each], axis=0)))
    if options.positions != "none":
        arrays.append(_positions(networks_pairs[0], options.positions))
    if options.log_probabilities != "none":
        arrays += [_matrices(pairs, options) for pairs in networks_pairs]
    values = pa.RecordBatch.from_arrays(arrays, schema=schema(options))
    wrong = [
        None if all(np.isfinite(rows).all() for rows in protein_rows) else NOT_FINITE.reason()
        for protein_rows in zip(*networks_rows, strict=True)
    ]
    return values.append_column("reason", pa.array(wrong, pa.string())) if any(wrong) else values


def _variants(networks_pairs: Sequence[Pairs], options: Options) -> pa.Array:
    works = [work for work, _ in networks_pairs[0]]
    names = [name for work in works for name in work.names]
    scores = list[Rows]()
    for kind in options.kinds:
        each = [
            np.concatenate([passes.marginal(work, kind, rows) for work, rows in pairs])
            for pairs in networks_pairs
        ]
        if len(each) > 1:
            scores.append(np.stack(each).astype(np.float64).mean(0).astype(np.float32))
        scores += each
    struct = schema(options).field(VARIANTS).type.value_type
    columns = [pa.array(names, pa.string()), *map(_nullable, scores)]
    if options.variants == "listed":
        return _rows(works, columns, struct)
    return _lists(columns, struct, [work.num_variants for work in works])


def _rows(works: Sequence[Work], columns: Sequence[pa.Array], struct: pa.StructType) -> pa.Array:
    """Return for each protein the list of its table rows; `columns` have its distinct variants."""
    rows = [row for work in works for row in work.rows]
    indices, start = list[int | None](), 0
    for work in works:
        index_of = {name: start + number for number, name in enumerate(work.listed)}
        indices += [index_of.get(row.variant) for row in work.rows]
        start += work.num_variants
    read_as, *scores = (column.take(pa.array(indices, pa.int64())) for column in columns)
    num_others = len(struct) - len(columns) - len(("read_as", "reason"))
    others = zip(*(row.others for row in rows), strict=True) if rows else [[]] * num_others
    texts = [[row.text for row in rows], *others, [row.reason or None for row in rows]]
    fields = [struct[0], *list(struct)[-1 - num_others :]]
    variants, *more = (_texts(text, field.type) for text, field in zip(texts, fields, strict=True))
    return _lists([variants, *scores, read_as, *more], struct, [len(work.rows) for work in works])


def _nullable(scores: Rows) -> pa.Array:
    """Return scores with null for NaN."""
    import pyarrow.compute as pc

    array = numbers(scores)
    return pc.if_else(pc.is_nan(array), None, array) if np.isnan(scores).any() else array


def _texts(values: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    """Return texts of a table, converted to the type `kind`."""
    if kind == pa.string():
        return pa.array(values, kind)
    read = float if kind == MEASURED else int
    return pa.array([None if value is None else read(value) for value in values], kind)


def _likelihoods(pairs: Pairs, source: str) -> tuple[Numbers, Numbers]:
    """Return the log-likelihoods and perplexities, exp(-log-likelihood / residues), of proteins."""
    every = [(work, passes.of_every_residue(work, source, rows)) for work, rows in pairs]
    each = [passes.own(work.letters, rows).sum(dtype=np.float64) for work, rows in every]
    sums = np.array(each)
    lengths = np.array([len(work.letters) for work, _ in pairs])
    return sums, np.exp(-sums / lengths)


def _positions(pairs: Pairs, source: str) -> pa.Array:
    every = [(work, passes.of_every_residue(work, source, rows)) for work, rows in pairs]
    lengths = [len(work.letters) for work, _ in pairs]
    letters = b"".join(work.letters for work, _ in pairs).decode()
    columns = [
        numbers(np.concatenate([np.arange(1, n + 1, dtype=np.int32) for n in lengths])),
        pa.array(list(letters), pa.string()),
        numbers(np.concatenate([passes.own(work.letters, rows) for work, rows in every])),
        numbers(np.concatenate([passes.entropies(rows) for _, rows in every])),
    ]
    return _lists(columns, POSITION, lengths)


def _matrices(pairs: Pairs, options: Options) -> pa.Array:
    tokens = passes.tokens_of(AMINO_ACIDS.encode())
    every = [
        passes.of_every_residue(work, options.log_probabilities, rows)[:, tokens]
        for work, rows in pairs
    ]
    stacked = np.concatenate(every).astype(options.output_dtype)
    return lists_of_vectors(stacked, [len(work.letters) for work, _ in pairs])


def _lists(columns: list[pa.Array], struct: pa.StructType, lengths: Sequence[int]) -> pa.Array:
    return lists(pa.StructArray.from_arrays(columns, fields=list(struct)), lengths)
