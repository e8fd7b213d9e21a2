"""encode: the active features of an autoencoder in each record of a run."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from featuremill import features
from featuremill.features import Rows
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering
from featuremill.kit.text import Progress, records
from featuremill.steps.autoencoders import card, network
from featuremill.steps.autoencoders.card import Card

BLOCK_NUMBERS = 2**23
"""Numbers of a matrix of vectors by features, or of vectors, that is computed at a time."""
ACTIVE = pa.list_(pa.struct({"feature": pa.int32(), "value": pa.float32()}))
log = logging.getLogger("featuremill.sae")


class Encoded(NamedTuple):
    """Some encoded records: V vectors of all of them, with N active features of all vectors, in
    the order of the vectors."""

    ids: list[str]
    rows: Rows
    counts: Rows
    """Vectors of each record."""
    vectors_VD: npt.NDArray[np.float32]
    vector_N: torch.Tensor
    feature_N: torch.Tensor
    value_N: torch.Tensor
    """Above 0."""

    def highest(self, num_features: int) -> npt.NDArray[np.float32]:
        """Return the highest value of each feature in each record, (records, M)."""
        values = torch.zeros(len(self.counts) * num_features)
        values.scatter_reduce_(0, self._places(num_features), self.value_N, "amax")
        return values.view(-1, num_features).numpy()

    def where(self, highest_RM: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
        """Return at which of a record's vectors each feature is highest, (records, M); the first
        one where several are, and 0 for features that are not active."""
        starts = np.cumsum(self.counts) - self.counts
        within_N = self.vector_N.numpy() - np.repeat(starts, self.counts)[self.vector_N.numpy()]
        places_N = self._places(highest_RM.shape[1]).numpy()
        is_highest_N = self.value_N.numpy() == highest_RM.ravel()[places_N]
        found = np.zeros(highest_RM.size, np.int32)
        # Of equal places the last one is kept.
        found[places_N[is_highest_N][::-1]] = within_N[is_highest_N][::-1]
        return found.reshape(highest_RM.shape)

    def rebuilt(self, tensors: network.Tensors) -> torch.Tensor:
        """Return the vectors (V, D) that the active features rebuild."""
        num_V = torch.bincount(self.vector_N, minlength=len(self.vectors_VD))
        sums = torch.nn.functional.embedding_bag(
            self.feature_N,
            tensors["W_dec"],
            num_V.cumsum(0) - num_V,
            mode="sum",
            per_sample_weights=self.value_N,
        )
        return sums + tensors["b_dec"]

    def _places(self, num_features: int) -> torch.Tensor:
        record_V = torch.from_numpy(np.repeat(np.arange(len(self.counts)), self.counts))
        return record_V[self.vector_N] * num_features + self.feature_N


class Encoder:
    """An autoencoder, and the vectors of a run to encode."""

    def __init__(self, run: Path, sae: Path, takes_any_recipe: bool, threads: int) -> None:
        """Open both.

        Raises:
            UserError: one is missing, or they do not belong together.
            IntegrityError: a file is damaged or was changed.
        """
        torch.set_num_threads(max(1, threads))
        self.card, self.tensors = card.read(sae)
        self.form = network.Form(self.card.options.kind, self.card.options.k or 0)
        source = self.card.source
        self.vectors = features.open_parts(run, source.column)
        if (width := self.vectors.column.width) != source.width:
            raise UserError(
                f"{run}: {source.column} has {width:,} numbers a vector, and {sae} "
                f"was trained on {source.width:,}; name a run like {source.run}."
            )
        if self.vectors.recipe != source.recipe and not takes_any_recipe:
            raise UserError(
                f"{run}: the recipe of its vectors is {self.vectors.recipe}, and {sae} was trained "
                f"on {source.recipe}, so that features may mean nothing; compute the vectors by "
                "that recipe, or let these be taken with --any-recipe."
            )
        self._most = max(1, BLOCK_NUMBERS // max(self.card.options.features, source.width))
        """Vectors that are computed at a time."""
        self.vectors.check()

    def blocks(self) -> Iterator[Encoded]:
        """Yield the encoded records that have vectors, in the order of the run's input."""
        shown = Progress(log, "encoding")
        num_done = 0
        for ids, rows in self.vectors.records():
            # Records of a block have a row each in the sums, so a record counts itself, too.
            sizes = np.cumsum(self.vectors.num_of_row[rows] + 1) // self._most
            edges = [0, *(1 + np.flatnonzero(np.diff(sizes))).tolist(), len(ids)]
            for begin, end in pairwise(edges):
                if begin < end:
                    yield self._encoded(ids[begin:end], rows[begin:end])
                    num_done += end - begin
                    shown.at(num_done)

    @torch.no_grad()
    def _encoded(self, ids: list[str], rows: Rows) -> Encoded:
        vectors, counts = self.vectors.of_rows(rows)
        found, first = [], 0
        # A single record may be long.
        for x_BD in torch.split(torch.from_numpy(vectors), self._most):
            z_BM = network.features(self.tensors, x_BD, self.form)
            vector_N, feature_N = torch.nonzero(z_BM, as_tuple=True)
            found.append((vector_N + first, feature_N, z_BM[vector_N, feature_N]))
            first += len(x_BD)
        return Encoded(ids, rows, counts, vectors, *map(torch.cat, zip(*found, strict=True)))


def encode(run: Path, sae: Path, output: Path, takes_any_recipe: bool, threads: int) -> None:
    """Write the table of active features to `output`.

    Raises:
        UserError: run, autoencoder or output cannot be used.
    """
    if output.suffix != ".parquet":
        raise UserError(f"{output}: active features are a .parquet; give a name that ends so.")
    encoder = Encoder(run, sae, takes_any_recipe, threads)
    vectors = encoder.vectors
    schema = pa.schema(
        {**dict.fromkeys(vectors.id_columns.names, pa.string()), "features": ACTIVE},
        metadata={"featuremill": _provenance(encoder.card)},
    )
    num_done = 0
    with (
        delivering(output, is_named=True) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as file,
    ):
        for block in encoder.blocks():
            cells = zip(*map(vectors.id_columns.cells, block.ids), strict=True)
            columns = [*map(pa.array, cells)]
            columns.append(active(block, encoder.card.options.features))
            file.write_table(pa.table(columns, schema=schema))
            num_done += len(block.ids)
        file.close()
    log.info("%s: %s", output, records(num_done))


def active(block: Encoded, num_features: int) -> pa.Array:
    """Return the active features of each record of a block, ascending, as a list<struct> column; of
    several vectors, the highest value of each feature."""
    highest = block.highest(num_features)
    of_record, feature = np.nonzero(highest)
    ends = np.searchsorted(of_record, np.arange(len(block.ids) + 1))
    fields = [feature.astype(np.int32), highest[of_record, feature]]
    structs = pa.StructArray.from_arrays([*map(pa.array, fields)], ["feature", "value"])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), structs)


def _provenance(made: Card) -> str:
    told: dict[str, Any] = {"sae_sha256": made.sha256, "source": made.source.as_json()}
    return json.dumps(told, sort_keys=True)
