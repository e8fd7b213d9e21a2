"""The descriptions of the strongest records of each feature, and the words that they share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.kit.ids import WHOLE
from featuremill.kit.runs import read_records, whole_ids

WORD = re.compile(r"[^\W\d_]{4,}")
SHARED = 3
"""The fewest of a feature's strongest records that share a word."""
ENRICHED = 5
"""How many times as frequent a word must be as among all records."""
MOST_WORDS = 5


class Names(NamedTuple):
    """The texts of some records, by feature."""

    descriptions: dict[str, str]
    """By id."""
    words_M: list[list[str]]
    """The words in most of a feature's records come first, then the rarest."""


def names_of(records_path: Path, ids_M: Sequence[Sequence[str]]) -> Names:
    """Return the descriptions of each feature's records, and the words that are enriched in
    them."""
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
