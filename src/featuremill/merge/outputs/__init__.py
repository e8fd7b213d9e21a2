"""Result files that hold what any workload computes: one small writer a format."""

from __future__ import annotations

from featuremill.store.formats import module_of
from featuremill.workload.outputs import Target, Writer


def open_writer(name: str, target: Target) -> Writer:
    """Return the writer of the output called `name`, opened on `target`.

    Raises:
        UserError: when the values hold nothing that this format could store.
    """
    writer: Writer = module_of(name).Writer(target)
    return writer
