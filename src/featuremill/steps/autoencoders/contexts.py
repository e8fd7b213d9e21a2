"""What a feature is strongest at: a token or a residue, and what stands around it in its record."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from featuremill.inputs.payloads import parts_of
from featuremill.kit.ids import WHOLE
from featuremill.kit.runs import Results, read_records, whole_ids
from featuremill.kit.text import one_line
from featuremill.steps.autoencoders import origin

AROUND_BYTES = 60
"""Of a text, on either side of a token; what is left of a word at the edge is not shown."""
AROUND_RESIDUES = 12
OF_RESIDUES = "residues"
"""How columns begin that have a vector a letter."""


class Context(NamedTuple):
    """A place in a record, with what stands on either side. Each is on one line."""

    before: str
    at: str
    behind: str


NOTHING = Context("", "", "")
Place = tuple[str, int]
"""The id of a record, and the number of a vector in it, from 0."""
Contexts = dict[Place, Context]


def contexts_of(root: Path, column: str, places: Iterable[Place]) -> Contexts:
    """Return the contexts of those `places` of the run in `root` whose record is in its store, and
    of whose vectors it is known what they stand for."""
    within: dict[str, set[int]] = {}
    for id, number in places:
        within.setdefault(id, set()).add(number)
    spans_of = _Spans(root, column)
    found: Contexts = {}
    for id, payload in _payloads(Results(root), within.keys()):
        spans, is_text = spans_of(payload)
        for number in within[id]:
            if number < len(spans):
                found[id, number] = _context(payload, spans[number], is_text)
    return found


class _Spans:
    """Which bytes of a payload each vector of a column stands for."""

    def __init__(self, root: Path, column: str) -> None:
        self._is_of_residues = column.startswith(OF_RESIDUES)
        self._made = None if self._is_of_residues else origin.made(root)

    def __call__(self, payload: bytes) -> tuple[Sequence[slice], bool]:
        """Return the bytes of each vector, and whether the payload is a text."""
        if self._is_of_residues:
            parts = parts_of(payload)
            begin, end = parts.tokens if parts.region else (0, len(parts.letters))
            return [slice(at, at + 1) for at in range(begin, end)], False
        made = self._made
        if made is None or made.weights is None or not hasattr(made.workload, "spans"):
            return [], True
        return made.workload.spans(payload, made.options, made.weights) or [], True


def _payloads(results: Results, ids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the payloads of those records that are in the run's own shards, with their bytes as
    planned."""
    wanted = pa.array(sorted(ids), pa.string())
    tables: dict[str, pa.Table | None] = {}
    for batch in read_records(results.records, [*WHOLE, "sha256", "shard", "row"]):
        names = whole_ids(batch)
        chosen = pc.indices_nonzero(pc.is_in(names, value_set=wanted))
        columns = [names, *(batch[name] for name in ("sha256", "shard", "row"))]
        for id, sha256, shard, row in zip(
            *(column.take(chosen).to_pylist() for column in columns), strict=True
        ):
            if shard not in tables:
                tables[shard] = _shard(results, shard)
            table = tables[shard]
            if table is None or row >= len(table):
                continue
            payload = table["payload"][row].as_py()
            if hashlib.sha256(payload).digest() == sha256:
                yield id, payload


def _shard(results: Results, shard: str | None) -> pa.Table | None:
    """Return the shard of a name; None where it was removed, or its values are of another store."""
    try:
        with pa.memory_map(str(results.shard(shard or "none"))) as file:
            return pa.ipc.open_file(file).read_all()
    except (OSError, pa.ArrowInvalid):
        return None


def _context(payload: bytes, at: slice, is_text: bool) -> Context:
    most = AROUND_BYTES if is_text else AROUND_RESIDUES
    end = len(payload) if is_text else len(parts_of(payload).letters)
    before = payload[max(0, at.start - most) : at.start]
    behind = payload[at.stop : min(end, at.stop + most)]
    if is_text and at.start > most:
        before = before[_edge(before, 1) :]
    if is_text and at.stop + most < end:
        behind = behind[: _edge(behind, -1)]
    return Context(*(_line(each) for each in (before, payload[at], behind)))


def _edge(piece: bytes, side: int) -> int:
    """Return where the first whole word of a piece begins, or (-1) where the last one ends."""
    place = piece.find(b" ") if side > 0 else piece.rfind(b" ")
    if place < 0:
        return 0 if side > 0 else len(piece)
    return place


def _line(piece: bytes) -> str:
    return one_line(piece.decode("utf-8", "ignore"))  # an edge may cut a letter
