"""Records of several parts in one sequence of tokens: elements of a contig, chains of a pair.

In the letters of a payload, a byte called joint represents each special token: the strand before an
element, or the separator between chains. So each byte is a token, and a part is the letters between
joints. Until `split`, the ids of the parts follow after a line break.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from featuremill.inputs.letters import Parts, parts_of
from featuremill.workload import Record

if TYPE_CHECKING:
    from featuremill.workloads.encoder.options import Options
    from featuremill.workloads.encoder.vocabulary import Ids, Vocabulary

__all__ = ["named", "num_own", "parts_named", "places", "split", "with_joints"]
STRANDS = b"+-"
"""The signs of the strands in a contig, each before its element."""
BETWEEN = b"|"
"""The sign between the two chains of a pair."""
STRETCH = {STRANDS: re.compile(rb"[^+-]+"), BETWEEN: re.compile(rb"[^|]+")}
"""The letters between joints."""


def joints_of(options: Options) -> bytes:
    """Return the bytes of special tokens in payloads; b"" if records have one part."""
    if options.alphabet == "contigs":
        return STRANDS
    return BETWEEN if options.paired else b""


def with_joints(words: Vocabulary, ids: Mapping[int, int]) -> Vocabulary:
    """Return the vocabulary with the `ids` of special tokens, by byte, added to its letters."""
    own_of_letters = words.own

    def own(letters: bytes) -> Ids:
        ids_L = own_of_letters(letters)
        written = np.frombuffer(letters, np.uint8)
        for byte, id in ids.items():
            ids_L = np.where(written == byte, id, ids_L)
        return ids_L

    return words._replace(
        own=own,
        joints=tuple(ids.values()),
        letters=words.letters + bytes(ids),
        size=max(words.size, *(id + 1 for id in ids.values())),
    )


def named(letters: bytes, names: Sequence[str]) -> bytes:
    """Return a payload of `letters` with the names (or ids) of its parts, in order."""
    return Parts(letters, "\t".join(names).encode()).payload


def parts_named(payload: bytes) -> tuple[bytes, list[str]]:
    """Return the letters and the names in a payload of `named`."""
    letters, names, _ = parts_of(payload)
    return letters, names.decode().split("\t")


def places(parts: Parts, options: Options) -> list[int]:
    """Return the positions, from 0, of a record's own letters, without joints."""
    begin, end = parts.tokens if parts.region else (0, len(parts.letters))
    joints = joints_of(options)
    return [at for at in range(begin, end) if parts.letters[at] not in joints]


def num_own(parts: Parts, options: Options) -> int:
    """Return the number of letters of a record that have vectors."""
    begin, end = parts.tokens if parts.region else (0, len(parts.letters))
    return len(parts.letters[begin:end].translate(None, joints_of(options)))


def share(parts: Parts, options: Options, num_tokens: int) -> int:
    """Return the cost of a record: a whole and its `parts` share a sequence of `num_tokens`."""
    if not options.parts:
        return num_tokens
    num_records = len(STRETCH[joints_of(options)].findall(parts.letters)) + 1
    return -(-num_tokens // num_records)


def split(records: Iterator[Record], options: Options) -> Iterator[Record]:
    """Yield the records without names; with `parts`, each whole and then its parts."""
    for record in records:
        if record.reason:
            yield record
            continue
        letters, ids = parts_named(record.payload)
        if not options.parts:
            yield record._replace(payload=letters)
            continue
        yield record._replace(payload=Parts(letters, region=(1, len(letters))).payload)
        stretches = STRETCH[joints_of(options)].finditer(letters)
        for id, stretch in zip(ids, stretches, strict=True):
            region = (stretch.start() + 1, stretch.end())
            payload = Parts(letters, region=region).payload
            yield record._replace(id=id, payload=payload, length=len(stretch.group()))
