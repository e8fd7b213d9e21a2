"""`sae encode`: write the active features of each record of a run."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

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
from featuremill.steps.autoencoders import card, network, origin, published
from featuremill.steps.autoencoders.card import CARD, CONFIG, Card

BLOCK_NUMBERS = 2**23
"""The largest size of a matrix of features or vectors that is computed at a time."""
ACTIVE = pa.list_(pa.struct({"feature": pa.int32(), "value": pa.float32()}))
log = logging.getLogger("featuremill.sae")


class Encoded(NamedTuple):
    """A block of encoded records: their V vectors, and the N active features, in order."""

    ids: list[str]
    rows: Rows
    counts: Rows
    vectors_VD: npt.NDArray[np.float32]
    vector_N: torch.Tensor
    feature_N: torch.Tensor
    value_N: torch.Tensor
    """The values, above 0."""

    def highest(self, num_features: int) -> npt.NDArray[np.float32]:
        """Return the highest value of each feature in each record, (records, M)."""
        values = torch.zeros(len(self.counts) * num_features)
        values.scatter_reduce_(0, self._places(num_features), self.value_N, "amax")
        return values.view(-1, num_features).numpy()

    def where(self, highest_RM: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
        """Return the index of the record's vector with the highest value of each feature, (records,
        M): the first of equal ones, and 0 for features that are not active."""
        starts = np.cumsum(self.counts) - self.counts
        within_N = self.vector_N.numpy() - np.repeat(starts, self.counts)[self.vector_N.numpy()]
        places_N = self._places(highest_RM.shape[1]).numpy()
        is_highest_N = self.value_N.numpy() == highest_RM.ravel()[places_N]
        numbers = np.zeros(highest_RM.size, np.int32)
        # NumPy keeps the last value of equal indices.
        numbers[places_N[is_highest_N][::-1]] = within_N[is_highest_N][::-1]
        return numbers.reshape(highest_RM.shape)

    def rebuilt(self, tensors: network.Tensors) -> torch.Tensor:
        """Return the vectors (V, D), reconstructed from the active features."""
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
    """Encodes the vectors of a run with an autoencoder."""

    def __init__(
        self,
        run: Path,
        sae: Path,
        takes_any_recipe: bool,
        threads: int,
        column: str | None = None,
    ) -> None:
        """Open run and autoencoder; `column` chooses the vectors for a published autoencoder.

        Raises:
            UserError: run or autoencoder is missing, or they do not fit.
            IntegrityError: a file is damaged or was changed.
        """
        torch.set_num_threads(max(1, threads))
        self._folder = sae
        self._card: Card | None = None
        self.tensors: network.Tensors = {}
        if (sae / CONFIG).is_file() and not (sae / CARD).exists():
            self._open_published(run, takes_any_recipe, column)
        else:
            self._open_trained(run, takes_any_recipe, column)
        width, num_features = self.tensors["W_enc"].shape
        self.num_features = num_features
        if (here := self.vectors.column.width) != width:
            raise UserError(
                f"{run}: {self.vectors.column.name} has {here:,} numbers a vector, and {sae} was "
                f"trained on {width:,}; {self._like}."
            )
        self._most = max(1, BLOCK_NUMBERS // max(num_features, width))
        """The number of vectors that are computed at a time."""
        self.vectors.check()

    def _open_trained(self, run: Path, takes_any_recipe: bool, column: str | None) -> None:
        self._card, self.tensors = trained, _ = card.read(self._folder)
        self.form = network.Form(trained.options.kind, trained.options.k or 0)
        source = trained.source
        if column not in (None, source.column):
            raise UserError(
                f"--vectors {column}: {self._folder} was trained on {source.column}; leave "
                "--vectors out."
            )
        self.vectors = features.open_parts(run, source.column)
        self._like = f"name a run like {source.run}"
        self.provenance: dict[str, object] = {
            "sae_sha256": trained.sha256,
            "source": source.as_json(),
        }
        is_other = self.vectors.recipe != source.recipe
        is_as_wide = self.vectors.column.width == source.width
        if is_other and is_as_wide and not takes_any_recipe:
            raise UserError(
                f"{run}: the recipe of its vectors is {self.vectors.recipe}, and {self._folder} "
                f"was trained on {source.recipe}, so that features may mean nothing; compute the "
                "vectors by that recipe, or let these be taken with --any-recipe."
            )

    def _open_published(self, run: Path, takes_any_recipe: bool, column: str | None) -> None:
        sae = published.read(self._folder)
        self.form, self.tensors = sae.form, sae.tensors
        self._like = "take vectors of the network and layer that it is of"
        names = {"model_name": sae.model, "hook_name": sae.hook}
        self.provenance = {"sae_sha256": sae.sha256, **names}
        network_of_run = origin.find(run)
        hooks = network_of_run.hooks.values()
        if column is None and not (takes_any_recipe and sae.hook not in hooks):
            column = sae.column_in(run, network_of_run)
        self.vectors = features.open_parts(run, column)
        if self.vectors.column.width == len(sae.tensors["W_enc"]) and not takes_any_recipe:
            sae.refuse_other(run, network_of_run, self.vectors.column.name)

    @property
    def card(self) -> Card:
        """Return the card of an autoencoder that was trained here.

        Raises:
            UserError: it was not.
        """
        if self._card is None:
            raise UserError(
                f"{self._folder}: a published autoencoder has no held-out records and no "
                f"{CARD}, which the report needs; encode applies it."
            )
        return self._card

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
        blocks, first = [], 0
        # A single record may be long.
        for x_BD in torch.split(torch.from_numpy(vectors), self._most):
            z_BM = network.features(self.tensors, x_BD, self.form)
            vector_N, feature_N = torch.nonzero(z_BM, as_tuple=True)
            blocks.append((vector_N + first, feature_N, z_BM[vector_N, feature_N]))
            first += len(x_BD)
        return Encoded(ids, rows, counts, vectors, *map(torch.cat, zip(*blocks, strict=True)))


def encode(
    run: Path,
    sae: Path,
    output: Path,
    takes_any_recipe: bool,
    threads: int,
    column: str | None = None,
) -> None:
    """Write the table of active features to `output`.

    Raises:
        UserError: run, autoencoder or output cannot be used.
    """
    if output.suffix != ".parquet":
        raise UserError(f"{output}: active features are a .parquet; give a name that ends so.")
    encoder = Encoder(run, sae, takes_any_recipe, threads, column)
    vectors = encoder.vectors
    schema = pa.schema(
        {**dict.fromkeys(vectors.id_columns.names, pa.string()), "features": ACTIVE},
        metadata={"featuremill": json.dumps(encoder.provenance, sort_keys=True)},
    )
    num_done = 0
    with (
        delivering(output, is_named=True) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as file,
    ):
        for block in encoder.blocks():
            cells = zip(*map(vectors.id_columns.cells, block.ids), strict=True)
            columns = [*map(pa.array, cells)]
            columns.append(active(block, encoder.num_features))
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
