"""Rows of a table of results by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from featuremill.base.errors import UserError
from featuremill.base.text import clipped
from featuremill.features.records import Records
from featuremill.features.table import Rows, Table
from featuremill.store.results import Results

MOST_NAMED = 3
"""Ids that a message lists."""


def rows_of(path: Path, ids: Sequence[str]) -> pa.Table:
    """Return the rows of the table at `path` that have these `ids` or accessions, in their order,
    each with all columns; in a run with samples, an id is <sample>/<id>.

    Raises:
        UserError: names those that are not there.
    """
    table = Table(path)
    return taken(table, places_of(table, ids))


def places_of(table: Table, ids: Sequence[str]) -> Rows:
    """Return the row of each of the `ids`.

    Raises:
        UserError: names those that are not there.
    """
    found = Records(Results(table.path.parent), table).rows_named(ids)
    if missing := [id for id in dict.fromkeys(ids) if id not in found]:
        named = ", ".join(repr(clipped(id)) for id in missing[:MOST_NAMED])
        more = f" and {len(missing) - MOST_NAMED:,} more" if len(missing) > MOST_NAMED else ""
        raise UserError(
            f"{table.path}: there is no record {named}{more} in it; failed.tsv beside it lists the "
            "records without features, and of a run with samples an id is <sample>/<id>."
        )
    return np.array([found[id] for id in ids], np.int64)


def taken(table: Table, rows: Rows) -> pa.Table:
    """Return these rows of a table, in this order, with all columns."""
    places, batches = [np.empty(0, np.int64)], [table.schema.empty_table()]
    for where, batch in table.pieces(rows, table.schema.names):
        places.append(where)
        batches.append(pa.Table.from_batches([batch]).select(table.schema.names))
    back = np.empty(len(rows), np.int64)
    back[np.concatenate(places)] = np.arange(len(rows))
    return pa.concat_tables([each.cast(table.schema) for each in batches]).take(pa.array(back))
