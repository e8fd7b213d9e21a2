"""Texts of the strongest records of each feature: descriptions and their common words, and the
tokens or residues with the highest values, with context."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from featuremill.kit.ids import WHOLE
from featuremill.kit.runs import Results, read_records, read_shard, whole_ids
from featuremill.kit.text import one_line
from featuremill.steps.autoencoders import origin

WORD = re.compile(r"[^\W\d_]{4,}")
SHARED = 3
"""The least number of a feature's strongest records with a common word."""
ENRICHED = 5
"""The least ratio of a word's frequency to that among all records."""
MOST_WORDS = 5
AROUND_BYTES = 60
"""The bytes of text on either side of a token; incomplete words at the ends are removed."""
AROUND_RESIDUES = 12
OF_RESIDUES = "residues"
"""The prefix of columns with a vector per letter."""
LINE_BREAK = b"\n"
"""Ends the letters of a sequence in payloads with further lines."""


class Names(NamedTuple):
    """The descriptions and words of the strongest records."""

    descriptions: dict[str, str]
    words_M: list[list[str]]
    """The common words of each feature, by decreasing number of records and then rarity."""


def names_of(records_path: Path, ids_M: Sequence[Sequence[str]]) -> Names:
    """Return the descriptions of each feature's records, and their enriched words."""
    wanted = {id for ids in ids_M for id in ids}
    descriptions = {id: text for id, text in _descriptions(records_path) if id in wanted}
    shared_M = []
    for ids in ids_M:
        counts = Counter(word for id in ids for word in _words(descriptions[id]))
        shared_M.append({word: n for word, n in counts.items() if n >= SHARED})
    candidates = {word for shared in shared_M for word in shared}
    among_all: Counter[str] = Counter()
    num_all = 0
    for _, text in _descriptions(records_path):
        among_all.update(_words(text) & candidates)
        num_all += 1
    words_M = []
    for ids, shared in zip(ids_M, shared_M, strict=True):
        enriched = [
            word
            for word, n in shared.items()
            if n * num_all >= ENRICHED * among_all[word] * len(ids)
        ]
        enriched.sort(key=lambda word: (-shared[word], among_all[word], word))
        words_M.append(enriched[:MOST_WORDS])
    return Names(descriptions, words_M)


def _descriptions(records_path: Path) -> Iterator[tuple[str, str]]:
    for batch in read_records(records_path, [*WHOLE, "description"]):
        yield from zip(
            whole_ids(batch).to_pylist(),
            (text or "" for text in batch["description"].to_pylist()),
            strict=True,
        )


def _words(text: str) -> set[str]:
    return {word.lower() for word in WORD.findall(text)}


class Context(NamedTuple):
    """A token or residue with the text on either side; each text is one line."""

    before: str
    at: str
    behind: str


NOTHING = Context("", "", "")
Position = tuple[str, int]
"""The id of a record, and the index of a vector in it."""
Contexts = dict[Position, Context]


def contexts_of(root: Path, column: str, places: Iterable[Position]) -> Contexts:
    """Return the contexts of `places` in the run in `root`; not of records without a shard, or of
    columns without spans."""
    within: dict[str, set[int]] = {}
    for id, number in places:
        within.setdefault(id, set()).add(number)
    run, is_of_residues = origin.computed(root), column.startswith(OF_RESIDUES)
    contexts: Contexts = {}
    for id, payload in _payloads(Results(root), within.keys()):
        spans: Sequence[slice] = ()
        if run and run.weights and hasattr(run.workload, "spans"):
            spans = run.workload.spans(payload, run.options, run.weights) or ()
        elif is_of_residues and LINE_BREAK not in payload:  # the payload has only letters
            spans = [slice(at, at + 1) for at in range(len(payload))]
        letters = payload.partition(LINE_BREAK)[0] if is_of_residues else payload
        for number in within[id]:
            if number < len(spans):
                contexts[id, number] = _context(letters, spans[number], not is_of_residues)
    return contexts


def _payloads(results: Results, ids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield ids and payloads of the records that are in the run's shards."""
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
    """Return the table of a shard; None if it was removed or is in another store."""
    try:
        return read_shard(results.shard(shard or "none"))
    except (OSError, pa.ArrowInvalid):
        return None


def _context(payload: bytes, at: slice, is_text: bool) -> Context:
    most = AROUND_BYTES if is_text else AROUND_RESIDUES
    before = payload[max(0, at.start - most) : at.start]
    behind = payload[at.stop : at.stop + most]
    if is_text and at.start > most:
        before = before[_edge(before, 1) :]
    if is_text and at.stop + most < len(payload):
        behind = behind[: _edge(behind, -1)]
    pieces = before, payload[at], behind  # letters at their ends may be incomplete
    return Context(*(one_line(piece.decode("utf-8", "ignore")) for piece in pieces))


def _edge(piece: bytes, side: int) -> int:
    """Return the start of a piece's first complete word or, if `side` < 0, the last's end."""
    position = piece.find(b" ") if side > 0 else piece.rfind(b" ")
    if position < 0:
        return 0 if side > 0 else len(piece)
    return position
