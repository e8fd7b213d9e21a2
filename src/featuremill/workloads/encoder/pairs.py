"""Pairs of chains for IgBert and IgT5: the heavy one, what ends a sequence, the light one.

They come from two columns of a table, or from two records whose ids differ in their ends alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from featuremill.inputs import residues, rows, sequences
from featuremill.kit.errors import UserError
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
"""Of the ids of chains; the rest is that of the pair."""
HEAVY, LIGHT = CHAINS = ("heavy", "light")
NO_PARTNER = Kind(
    "no_partner",
    ("a chain without its partner", "a chain that cannot be read"),
    "A pair needs a heavy and a light chain. Give the other one, or compute single chains in a run "
    "without paired.",
)
NO_CHAIN = Kind(
    "no_chain",
    ("the id does not say which chain it is",),
    "Let ids of chains end in _H and _L (or _heavy and _light), or give a table with a column for "
    "each.",
)
REASONS = (NO_PARTNER, NO_CHAIN)
MISSING = ("empty", "no_sequence")
"""Kinds of reasons of a chain that is not there."""


def read(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Yield the pairs of `inputs`, and refused what has no partner.

    Raises:
        UserError: two records are the same chain of a pair.
    """
    if options.heavy_column:
        return map(_of_row, rows(inputs, options))
    return _of_chains(sequences(inputs, options))


def _of_row(record: Record) -> Record:
    if record.reason:
        return record
    found = {}
    for name, text in zip(CHAINS, json.loads(record.payload).values(), strict=True):
        found[name] = residues.protein(record.id, "", str(text or ""), record.source, record.line)
    return _pair(record, found[HEAVY], found[LIGHT])


def _of_chains(records: Iterator[Record]) -> Iterator[Record]:
    """Yield a pair where its second chain stands, and at the end the chains that are left."""
    chains: dict[str, dict[str, Record]] = {}
    for record in records:
        told = ENDS.fullmatch(record.id)
        if told is None:
            reason = record.reason or NO_CHAIN.reason(clipped(record.id))
            yield record._replace(payload=b"", reason=reason)
            continue
        name = HEAVY if told["heavy"] else LIGHT
        pair = chains.setdefault(told["id"], {})
        if name in pair:
            raise UserError(
                f"{record.source}:{record.line}: {clipped(told['id'])!r} has two {name} chains; "
                "give each antibody an id of its own."
            )
        pair[name] = record
        if len(pair) == len(CHAINS):
            yield _pair(pair[HEAVY]._replace(id=told["id"]), pair[HEAVY], pair[LIGHT])
            chains[told["id"]] = dict.fromkeys(CHAINS, record._replace(payload=b""))
    for pair in chains.values():
        if len(pair) < len(CHAINS):
            ((name, record),) = pair.items()
            other = LIGHT if name == HEAVY else HEAVY
            reason = record.reason or NO_PARTNER.reason(f"no {other} chain")
            yield record._replace(payload=b"", reason=reason)


def _pair(record: Record, heavy: Record, light: Record) -> Record:
    """Return the record of two chains, refused where one of them is."""
    notes = dict.fromkeys(filter(None, (record.note, heavy.note, light.note)))
    for name, chain in ((HEAVY, heavy), (LIGHT, light)):
        if kind_of(chain.reason).name in MISSING:
            return record._replace(payload=b"", reason=NO_PARTNER.reason(f"no {name} chain"))
        if chain.reason:
            reason = NO_PARTNER.reason(f"{name}, {chain.reason}", NO_PARTNER.heads[1])
            return record._replace(payload=b"", reason=reason)
    letters = heavy.payload + joined.BETWEEN + light.payload
    return record._replace(
        payload=joined.named(letters, [f"{record.id}/{name}" for name in CHAINS]),
        note="; ".join(notes),
        length=len(letters),
    )
