"""`featuremill map`: compute the t-SNE map of a run's records for its report, and keep it in
map.parquet."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featuremill import features
from featuremill.features.records import MOST_SHOWN
from featuremill.features.table import Table
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering, digest_of
from featuremill.kit.processes import VERSION
from featuremill.kit.runs import Results
from featuremill.kit.tables import add_options
from featuremill.kit.text import records
from featuremill.steps.maps import plane
from featuremill.steps.maps.section import FILE, Maps

CARD = b"featuremill"
"""The metadata key of the map's settings, versions and digest of values."""
MOST_RECORDS = 50_000
"""The largest number of evenly spaced records in a map."""
COLUMNS = ("tsne_1", "tsne_2")
log = logging.getLogger("featuremill.map")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill map`."""
    folder = "folder of a finished run"
    parser.add_argument("run_folder", type=Path, metavar="results/RUN", help=folder)
    add_options(parser, Maps, "seed", "perplexity")


def run(arguments: argparse.Namespace) -> None:
    """Compute the map of a run, with up to `MOST_RECORDS` evenly spaced records and the records of
    its report.

    Raises:
        UserError: there are no results or too few, or the package is not installed.
    """
    root = arguments.run_folder
    options = Maps.model_construct(seed=arguments.seed, perplexity=arguments.perplexity)
    if not plane.is_installed():
        raise UserError(
            f"t-SNE is computed by {plane.PACKAGE}, which is not installed here; type: "
            "pip install 'featuremill[maps]'."
        )
    digest, tables = made_of(root), [root / "embeddings.parquet", root / "embeddings"]
    table = next((Table(path) for path in tables if path.exists()), None)
    columns = features.columns_of(table.schema) if table else {}
    opened = features.open(root, next(iter(columns), None))  # the column of the report
    if opened.num_rows < plane.LEAST_RECORDS:
        raise UserError(
            f"{opened.name}: {records(opened.num_rows)} with features; t-SNE needs "
            f"{plane.LEAST_RECORDS}."
        )
    rows = np.arange(opened.num_rows)
    if len(rows) > MOST_RECORDS:
        some = np.linspace(0, len(rows) - 1, MOST_RECORDS).round().astype(np.int64)
        rows = np.union1d(some, opened.table.spread(MOST_SHOWN, opened.width))
    vectors = opened.take(rows).astype(np.float32)
    if not np.isfinite(vectors).all():
        raise UserError(
            f"{opened.name}: {opened.column} has numbers that are not finite, so no map."
        )
    ids = opened.ids_of(rows)
    keep(root, digest, opened.column, ids, vectors, opened.num_rows, options)
    log.info("%s: %s by t-SNE", root / FILE, records(len(ids)))


class Kept(NamedTuple):
    """The content of map.parquet."""

    card: Mapping[str, Any]
    ids: list[str]
    xy: plane.Plane


def made_of(folder: Path) -> str:
    """Return a digest of the values in `folder`; "" without complete results."""
    delivery = Results(folder).find_delivery()
    if delivery is None or delivery.partial:
        return ""
    values = [delivery.recipe, delivery.records_sha256, sorted(delivery.parts.items())]
    return digest_of([json.dumps(values).encode()])


def read_card(folder: Path) -> Mapping[str, Any]:
    """Return the card of the map in `folder`; empty if it is missing or cannot be read."""
    try:
        content = json.loads((pq.read_schema(folder / FILE).metadata or {})[CARD])
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_kept(folder: Path, column: str) -> Kept | None:
    """Return the map of `column` in `folder`, or None if it is missing or not of these values."""
    card = read_card(folder)
    digest = made_of(folder)
    if not digest or (card.get("made_of"), card.get("column")) != (digest, column):
        return None
    table = pq.read_table(folder / FILE)
    xy = np.column_stack([table[name].to_numpy() for name in COLUMNS])
    return Kept(card, table["id"].to_pylist(), xy.astype(np.float64))


def keep(
    folder: Path,
    digest: str,
    column: str,
    ids: Sequence[str],
    vectors: np.ndarray,
    total: int,
    options: Maps,
) -> Kept:
    """Compute the positions of `vectors` (N, D) of the records `ids`, a sample of `total` records,
    and write map.parquet. `digest` is `made_of(folder)` from before the vectors were read. Vectors
    are sorted by id, so that positions do not depend on the order of results."""
    log.info("t-SNE of %s", records(len(ids)))
    order = sorted(range(len(ids)), key=ids.__getitem__)
    xy = np.empty((len(ids), len(COLUMNS)))
    xy[order] = plane.neighbour_plane(vectors[order], options.seed, options.perplexity)
    card: dict[str, Any] = {
        "featuremill": VERSION,
        "made_of": digest,
        "column": column,
        **options.model_dump(),
        "records": len(ids),
        "of": total,
        "versions": plane.versions(),
    }
    named = {name: pa.array(xy[:, axis].astype(np.float32)) for axis, name in enumerate(COLUMNS)}
    table = pa.table({"id": pa.array(ids, pa.string()), **named})
    with delivering(folder / FILE) as temporary:
        pq.write_table(table.replace_schema_metadata({CARD: json.dumps(card)}), temporary)
    return Kept(card, list(ids), xy)
