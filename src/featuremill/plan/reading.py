"""The first pass of planning: one stream of records, dealt in chunks to those who spool them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.base.progress import Progress
from featuremill.plan.hands import Hands
from featuremill.plan.spool import Chunk, Tally, chunks_of, spool
from featuremill.workload import Record

log = logging.getLogger("featuremill.plan")


class Spooled(NamedTuple):
    """What reading left behind."""

    folders: list[Path]
    """One for each process that spooled; chunks were dealt to them in turn."""
    tally: Tally


def read_records(
    records: Iterable[Record], workload: str, options: Any, folder: Path, hands: Hands
) -> Spooled:
    """Spool every record below `folder`; the hands are started if it takes more than a chunk."""
    chunks = _with_progress(chunks_of(records))
    beginning = list(itertools.islice(chunks, 2))
    if len(beginning) > 1:
        hands.start()
    folders = [folder / str(number) for number in range(hands.num_started or 1)]
    settled = options.model_dump_json()
    tasks = [(each, workload, settled) for each in folders]
    tally = Tally()
    for part in hands.deal(spool, tasks, itertools.chain(beginning, chunks)):
        tally.add(part)
    return Spooled(folders, tally)


def _with_progress(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    shown = Progress(log, "reading")
    for chunk in chunks:
        yield chunk
        shown.at(chunk.first + len(chunk.ids))
