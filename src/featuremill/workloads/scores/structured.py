"""Proteins with their structures, for networks that read both: SaProt. Others get letters alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from featuremill import inputs as readers
from featuremill.inputs import letters, residues
from featuremill.inputs.letters import Make
from featuremill.kit.errors import UserError
from featuremill.workload import Record
from featuremill.workloads.encoder import structures
from featuremill.workloads.encoder.structures import NOT_KNOWN
from featuremill.workloads.scores import sources
from featuremill.workloads.scores.options import Options

Other = TypeVar("Other")


def maker(options: Options) -> Make:
    """Return what makes records of letters, with those of their structures in turns where the
    network reads both."""
    if sources.is_saprot(options.model):
        return letters.maker(structures.clean_pairs)
    return residues.protein


def proteins(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Stream the proteins of `inputs`, as `featuremill.inputs.proteins` does.

    Raises:
        UserError: there are structures, and the network reads none.
    """
    if not sources.is_saprot(options.model):
        _refuse_structures(options)
        yield from readers.proteins(inputs, options)
        return
    found = structures.pairs(inputs, options)
    for record, _ in paired(((record, None) for record in found), options):
        yield record


def paired(
    pairs: Iterable[tuple[Record, Other]], options: Options
) -> Iterator[tuple[Record, Other]]:
    """Yield proteins, and what comes with each, once they have the structures that `options` name;
    a tab stands before those.

    Raises:
        UserError: there are structures, and the network reads none.
    """
    if not sources.is_saprot(options.model):
        _refuse_structures(options)
        yield from pairs
        return
    others: deque[Other] = deque()

    def records() -> Iterator[Record]:
        for record, other in pairs:
            others.append(other)
            yield record

    found = records()
    if options.structures:
        found = structures.added(found, structures.read(options, options.id_column))
    for record in found:
        if not record.reason and b"\n" not in record.payload and NOT_KNOWN not in record.note:
            record = record._replace(note="; ".join(filter(None, (record.note, NOT_KNOWN))))
        yield record._replace(payload=record.payload.replace(b"\n", b"\t")), others.popleft()


def _refuse_structures(options: Options) -> None:
    if options.structures:
        raise UserError(
            "options.structures: this network reads no letters of structure; leave structures out, "
            "or give a SaProt."
        )
