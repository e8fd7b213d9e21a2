"""Read the tables of a Geneformer, with the tokens and medians of genes, from JSON or from the
published pickles.

From a pickle, only dicts, texts, whole numbers and floats are read. NumPy's numbers, which are
pickled as calls, are decoded by functions of this module. Anything else is refused.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.kit.errors import UserError
from featuremill.kit.text import one_line
from featuremill.workloads.encoder.architectures import Facts
from featuremill.workloads.encoder.vocabulary import Vocabulary
from featuremill.workloads.geneformer.options import ALL, Options

PAD, CLS, EOS = "<pad>", "<cls>", "<eos>"
INPUT_SIZES = {"V1": 2048, "V2": 4096}
"""The largest number of tokens of a cell, with special tokens."""
TOKEN = np.dtype("<u2")
"""The type of a token in a payload; published vocabularies have 20,275 and 25,426 tokens."""
MOST_TOKENS = 2**16
SPECIAL = {"V1": 0, "V2": 2}
"""The number of special tokens of a cell."""
NUMPY_NUMBERS = {"f8": "d", "f4": "f", "i8": "q", "i4": "i"}
"""The format of `struct` for each type of NumPy's numbers in a pickle."""


class Genes(NamedTuple):
    """The tables that convert a cell to tokens, and the options that name genes."""

    tokens: dict[str, int]
    """The token of each gene with a median."""
    medians: npt.NDArray[np.float64]
    """The median of each token; NaN if it has none."""
    names: dict[int, str]
    most: int
    """The largest number of genes of a cell; the others are cut off."""
    chosen: tuple[int, ...] | None
    """The tokens of the option `genes`, which are perturbed or have vectors; None for all."""
    version: str
    words: Vocabulary
    """The vocabulary for the workload encoder, in which the letters of a payload are tokens."""
    mapping: dict[str, str] | None = None
    """The gene of each id in the option `gene_mapping`; None without it."""
    anchor: tuple[int, ...] = ()
    """The token of the option `anchor`; empty without it."""


def load(options: Options, facts: Facts) -> Genes:
    """Return the genes of the model that `facts` describes.

    Raises:
        UserError: a file cannot be read, or does not belong to the model.
    """
    tokens = _table(options.vocabulary, "vocabulary", int)
    path = options.gene_mapping
    mapping = _table(path, "gene_mapping", str) if path is not None else None
    medians = _table(options.medians, "medians", float)
    width = int(facts.config.get("vocab_size") or 0)
    if sorted(tokens.values()) != list(range(width)) or width > MOST_TOKENS:
        raise UserError(
            f"options.vocabulary: {options.vocabulary}: it has {len(tokens):,} tokens, and the "
            f"model's vocab_size is {width:,}: they have to be the numbers from 0 on, as many as "
            f"that and at most {MOST_TOKENS:,}; give the vocabulary of the model."
        )
    version = _version(options, facts)
    special = (PAD, CLS, EOS) if version == "V2" else (PAD,)
    if missing := [name for name in special if name not in tokens]:
        raise UserError(
            f"options.vocabulary: {options.vocabulary}: it has no {missing[0]}, which a cell of "
            f"{version} needs; give the vocabulary of the model, or set version."
        )
    by_token = np.full(width, np.nan)
    for gene, median in medians.items():
        if gene in tokens and math.isfinite(median) and median > 0:
            by_token[tokens[gene]] = median
    known = {gene: token for gene, token in tokens.items() if by_token[token] > 0}
    if not known:
        raise UserError(
            f"options.medians: {options.medians}: no gene of {options.vocabulary} has a median "
            "above 0 in it; give the two that belong together."
        )
    first, last = ((tokens[CLS],), (tokens[EOS],)) if version == "V2" else ((), ())
    size = min(INPUT_SIZES[version], facts.max_tokens or INPUT_SIZES[version])
    return Genes(
        tokens=known,
        medians=by_token,
        names={token: gene for gene, token in tokens.items()},
        most=size - len(first) - len(last),
        chosen=None if options.genes == ALL else _tokens_of("genes", options.genes, options, known),
        anchor=_tokens_of("anchor", (options.anchor,) * bool(options.anchor), options, known),
        version=version,
        words=Vocabulary(_as_tokens, first, last, tokens[PAD], tokens[PAD], 1, size=width),
        mapping=mapping,
    )


def states_of(options: Options, width: int) -> dict[str, npt.NDArray[np.float64]]:
    """Return the vector of each state in the option `states`.

    Raises:
        UserError: the file cannot be read, or its vectors do not fit the model.
    """
    if options.states is None:
        return {}
    path = Path(options.states)
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(
            f"options.states: {path}: this is no JSON ({error}); write it anew."
        ) from None
    if not isinstance(content, dict) or not content:
        raise UserError(
            f"options.states: {path}: give names with a list of numbers each, such as "
            '{"healthy": [0.1, …]}; docs/geneformer.md has lines that write them.'
        )
    states = {}
    for name, numbers in content.items():
        try:
            vector = np.asarray(numbers, np.float64)
        except (TypeError, ValueError):
            vector = np.empty(0)
        if vector.shape != (width,) or not np.isfinite(vector).all() or not vector.any():
            raise UserError(
                f"options.states: {path}: {one_line(name)[:40]!r} has no list of {width:,} "
                "numbers, as many as a vector of the model has; take means of vectors that this "
                "model gave."
            )
        states[name] = vector
    return states


def _as_tokens(payload: bytes) -> npt.NDArray[np.int64]:
    return np.frombuffer(payload, TOKEN).astype(np.int64)


def _version(options: Options, facts: Facts) -> str:
    if options.version != "auto":
        return options.version
    for version, size in INPUT_SIZES.items():
        if facts.max_tokens == size:
            return version
    raise UserError(
        f"options.version: this model has {facts.max_tokens or 0:,} positions, and auto finds V1 "
        "by 2,048 and V2 by 4,096; set V1 or V2."
    )


def _tokens_of(
    option: str, ids: Sequence[str], options: Options, known: Mapping[str, int]
) -> tuple[int, ...]:
    if missing := [gene for gene in ids if gene not in known]:
        raise UserError(
            f"options.{option}: {missing[0]!r} has no token in {options.vocabulary}, or no median "
            f"in {options.medians}; give Ensembl ids that have both."
        )
    return tuple(known[gene] for gene in ids)


def _table(name: str, option: str, kind: type[int | float | str]) -> dict[str, Any]:
    """Return the table from texts to values of this `kind` in the file `name`."""
    path = Path(name)
    try:
        content = path.read_bytes()
        is_pickle = content.startswith(b"\x80")
        table = _Unpickler(io.BytesIO(content)).load() if is_pickle else json.loads(content)
    except OSError as error:
        problem = f"it cannot be read ({error.strerror})"
        raise UserError(f"options.{option}: {path}: {problem}; name another one.") from None
    except Exception as error:  # a damaged pickle can raise any exception
        raise UserError(
            f"options.{option}: {path}: this is neither JSON nor a pickle of texts and numbers "
            f"({one_line(str(error))[:120]}); download it again, or write it as JSON."
        ) from None
    kinds = (int, float) if kind is float else (kind,)
    if not isinstance(table, dict) or not table:
        example = '{"ENSG…": "ENSG…"}' if kind is str else '{"ENSG…": 1}'
        raise UserError(f"options.{option}: {path}: this must be a dict, such as {example}.")
    for gene, number in table.items():
        if not isinstance(gene, str) or isinstance(number, bool) or not isinstance(number, kinds):
            what = {int: "a whole number", float: "a number", str: "another text"}[kind]
            raise UserError(
                f"options.{option}: {path}: {str(gene)[:40]!r} has {str(number)[:40]!r}, and a "
                f"text with {what} is meant; give the file of the model."
            )
    return table


class _NumberType:
    """A type of NumPy's numbers, as a pickle describes it."""

    order = "<"

    def __init__(self, code: str, *_: Any) -> None:
        self.format = NUMPY_NUMBERS[code]

    def __setstate__(self, state: Sequence[Any]) -> None:
        self.order = {"<": "<", ">": ">"}[state[1]]


def _number(kind: _NumberType, raw: bytes) -> Any:
    return struct.unpack(kind.order + kind.format, raw)[0]


BUILDERS = {
    ("numpy", "dtype"): _NumberType,
    ("numpy.core.multiarray", "scalar"): _number,
    ("numpy._core.multiarray", "scalar"): _number,
}
"""Functions that a pickle may name, and those that are called in their place."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in BUILDERS:
            raise pickle.UnpicklingError(f"it calls {module}.{name}")
        return BUILDERS[module, name]
