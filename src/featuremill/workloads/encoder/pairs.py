"""Read pairs of antibody chains for IgBert and IgT5: heavy chain, separator, light chain.

A pair is two columns of a table, two rows with the same id and a column of the chain (as in AIRR
tables of cells), or two records whose ids differ in the ending only. Chains of different files are
not paired, because cells of two samples may have the same id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from featuremill.inputs import residues, rows, sequences
from featuremill.kit.reasons import Kind, kind_of
from featuremill.kit.text import clipped
from featuremill.workload import Record
from featuremill.workloads.encoder import joined

if TYPE_CHECKING:
    from featuremill.workloads.encoder.options import Options

__all__ = ["REASONS", "read"]
ENDS = re.compile(
    r"(?P<id>.+)[_|/.-](?:(?P<heavy>H|VH|heavy|heavy_chain)|(?:L|VL|light|light_chain))", re.I
)
"""The id of a chain: the id of its pair, and an ending that names the chain."""
HEAVY, LIGHT = CHAINS = ("heavy", "light")
CHAIN_NAMES = dict.fromkeys(("igh", "h", "vh", "heavy"), HEAVY)
CHAIN_NAMES |= dict.fromkeys(
    ("igk", "igl", "k", "l", "vk", "vl", "kappa", "lambda", "light"), LIGHT
)
"""The values of a column of chains, in small letters."""
NO_PARTNER = Kind(
    "no_partner",
    ("a chain without its partner", "more chains than a pair has", "a chain that cannot be read"),
    "A pair is one heavy and one light chain of one file. Give these two, or compute single chains "
    "in a run without paired.",
)
_, MORE, UNREAD = NO_PARTNER.heads
NO_CHAIN = Kind(
    "no_chain",
    ("not known which chain it is",),
    "Let ids of chains end in _H and _L (or _heavy and _light), or give a table with a column for "
    "each, or with one that holds IGH, IGK or IGL.",
)
REASONS = (NO_PARTNER, NO_CHAIN)
MISSING = ("empty", "no_sequence")
"""Names of the kinds of reasons for a missing chain."""


def read(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Yield the pairs of `inputs`, and other records as refused. Chains of separate records are
    kept in memory until the end of their file."""
    if options.heavy_column:
        names = (options.heavy_column, options.light_column)
        return map(partial(_of_row, names), rows(inputs, options))
    if options.chain_column:
        names = (options.chain_column, options.sequence_column)
        chains = map(partial(_chain_by_column, names), rows(inputs, options))
    else:
        chains = map(_chain_by_id, sequences(inputs, options))
    by_file = groupby(chains, lambda each: each.record.source)
    return (pair for _, of_file in by_file for pair in _of_chains(of_file))


def _of_row(names: Sequence[str], record: Record) -> Record:
    if record.reason:
        return record
    values = json.loads(record.payload)
    heavy, light = (_chain(record, values[name]) for name in names)
    return _pair(record, heavy, light)


def _chain(record: Record, text: str | None) -> Record:
    return residues.protein(record.id, "", text or "", record.source, record.line)


class Chain(NamedTuple):
    """A chain of a pair."""

    id: str
    """The id of the pair."""
    name: str
    """heavy, light or "" if unknown."""
    record: Record


def _chain_by_column(names: Sequence[str], record: Record) -> Chain:
    if record.reason:
        return Chain(record.id, "", record)
    values = json.loads(record.payload)
    chain, text = (values[name] for name in names)
    name = CHAIN_NAMES.get((chain or "").strip().lower(), "")
    reason = "" if name else NO_CHAIN.reason(clipped(chain or ""))
    return Chain(record.id, name, _chain(record, text) if name else record._replace(reason=reason))


def _chain_by_id(record: Record) -> Chain:
    match = ENDS.fullmatch(record.id)
    if match:
        return Chain(match["id"], HEAVY if match["heavy"] else LIGHT, record)
    reason = record.reason or NO_CHAIN.reason(clipped(record.id))
    return Chain(record.id, "", record._replace(reason=reason))


def _of_chains(chains: Iterator[Chain]) -> Iterator[Record]:
    """Yield the pairs of a file in the order of their first chains, and other chains as refused."""
    chains_of: dict[str, list[Chain]] = {}
    for chain in chains:
        if chain.name:
            chains_of.setdefault(chain.id, []).append(chain)
        else:
            yield chain.record._replace(payload=b"")
    for id, each in chains_of.items():
        of_name = {chain.name: chain.record for chain in each}
        if len(of_name) == len(each) == len(CHAINS):
            yield _pair(of_name[HEAVY]._replace(id=id), of_name[HEAVY], of_name[LIGHT])
            continue
        missing = [name for name in CHAINS if name not in of_name]
        reason = NO_PARTNER.reason(f"{len(each)} of this id", MORE)
        if missing:
            reason = NO_PARTNER.reason(f"no {missing[0]} chain")
        for chain in each:
            yield chain.record._replace(payload=b"", reason=chain.record.reason or reason)


def _pair(record: Record, heavy: Record, light: Record) -> Record:
    """Return the record of two chains; it is refused if one of them is missing or refused."""
    notes = dict.fromkeys(filter(None, (record.note, heavy.note, light.note)))
    for name, chain in ((HEAVY, heavy), (LIGHT, light)):
        if kind_of(chain.reason).name in MISSING:
            return record._replace(payload=b"", reason=NO_PARTNER.reason(f"no {name} chain"))
        if chain.reason:
            reason = NO_PARTNER.reason(f"{name}, {chain.reason}", UNREAD)
            return record._replace(payload=b"", reason=reason)
    letters = heavy.payload + joined.BETWEEN + light.payload
    return record._replace(
        payload=joined.named(letters, [f"{record.id}/{name}" for name in CHAINS]),
        note="; ".join(notes),
        length=len(letters),
    )
