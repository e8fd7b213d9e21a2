"""Values that are no vectors: texts, numbers, structs and lists of any size."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import PLUGINS
from programs import Verbs, random_records, written

from featuremill.base import reasons
from featuremill.base.errors import UserError
from featuremill.merge import gather
from featuremill.merge.command import merge
from featuremill.merge.gather import bytes_of_rows
from featuremill.store.formats import kind_of, refuse_outputs
from featuremill.store.results import Results
from featuremill.workload import find_workload

RECORDS = random_records(60)


@pytest.fixture
def bulky(monkeypatch):
    monkeypatch.syspath_prepend(str(PLUGINS))
    return find_workload("bulky")


@pytest.fixture(scope="module")
def computed(tmp_path_factory, environment):
    verbs = Verbs(tmp_path_factory.mktemp("bulky"), {**environment, "BULKY_LARGEST": "20000"})
    # Two ids of one sequence, so that a row is delivered twice.
    plan = verbs.plan([*RECORDS, ("again", RECORDS[0][1])], "bulky", cost=25, outputs=["parquet"])
    verbs.extract(plan)
    return verbs


def test_tables_come_out_as_they_were_delivered(computed, bulky, monkeypatch):
    monkeypatch.setattr(bulky, "LARGEST", 20000.0)
    computed("merge", computed.run_folder.root, "--outputs", "parquet", "parquet_dataset")
    rows = pq.read_table(computed.run_folder.root / "embeddings.parquet").to_pylist()
    assert [row["id"] for row in rows] == [*(id for id, _ in RECORDS), "again"]
    for row, (_, sequence) in zip(rows, [*RECORDS, RECORDS[0]], strict=True):
        assert {name: row[name] for name in bulky.SCHEMA.names} == bulky.value_of(sequence.encode())
    folder = computed.run_folder.root / "embeddings"
    assert pq.read_table(folder).drop_columns([]).num_rows == len(rows)


def test_blocks_go_by_what_the_rows_hold(computed, monkeypatch):
    """And no block is larger than a bound and one row: else memory would follow the largest."""
    monkeypatch.setattr(gather, "BLOCK_BYTES", 30_000)
    sizes = []
    pieces = gather.Gatherer.pieces

    def watched(self):
        for block in pieces(self):
            rows = block.select(self.values.names).combine_chunks().to_batches()
            sizes.extend(int(bytes_of_rows(one).sum()) for one in rows)
            yield block

    monkeypatch.setattr(gather.Gatherer, "pieces", watched)
    folder = Results(computed.run_folder.root)
    before = merge(folder, ["parquet"], 0).outputs
    assert len(sizes) > 3 and max(sizes) <= 30_000 + 20_000 + 1_000
    monkeypatch.undo()
    told = pq.read_table(folder.root / "embeddings.parquet")
    merge(folder, ["parquet"], 0)
    assert before and pq.read_table(folder.root / "embeddings.parquet").equals(told)


def test_the_bytes_of_rows_are_those_of_arrow():
    span = pa.struct({"start": pa.int32(), "name": pa.string()})
    rows = [
        {
            "t": "x" * n,
            "v": [1.0, 2.0],
            "s": {"start": 1, "name": "n" * n},
            "l": [{"name": "ab"}] * n,
        }
        for n in range(7)
    ]
    rows.append({"t": None, "v": [3.0, 4.0], "s": None, "l": []})
    schema = pa.schema(
        {"t": pa.string(), "v": pa.list_(pa.float64(), 2), "s": span, "l": pa.list_(span)}
    )
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    found = bytes_of_rows(batch)
    assert found.tolist() == [n + 16 + (4 + n) + 6 * n for n in range(7)] + [16 + 4]
    assert np.array_equal(bytes_of_rows(batch.slice(3, 3)), found[3:6]), "a slice has its own"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.list_(pa.float32(), 3), "pooled"),
        (pa.list_(pa.list_(pa.float16(), 3)), "per_residue"),
        (pa.list_(pa.int8()), "per_residue"),
        (pa.large_list(pa.float32()), "per_residue"),
        (pa.list_(pa.struct({"a": pa.int8()})), "table"),
        (pa.list_(pa.string()), "table"),
        (pa.list_(pa.string(), 2), "table"),
        (pa.string(), "table"),
        (pa.float64(), "table"),
        (pa.bool_(), "table"),
    ],
)
def test_what_a_column_is(kind, expected):
    assert kind_of(kind) == expected


def test_an_output_that_has_no_place_for_the_values_is_refused_before_anything_is_read(
    tmp_path, environment
):
    verbs = Verbs(tmp_path, environment)
    (tmp_path / "in.fa").write_text(">a\nMKV\n")
    config = {"run": "test", "inputs": ["in.fa"], "workload": "bulky"}
    for outputs, named in (({"outputs": ["h5ad"]}, "h5ad"), ({}, "per_protein_h5")):
        asked = json.dumps({**config, **outputs})
        said = verbs("plan", verbs.run_folder.root, "--config", written(asked), status=2)
        assert f"outputs: {named} " in said and len(said.splitlines()) == 1, said
    assert not verbs.run_folder.plan.exists()


def test_outputs_are_held_against_the_schema_too():
    """As `delivers` is what a workload's author says."""
    with pytest.raises(UserError, match=r"outputs: npy holds one vector a record.*a \(texts, "):
        refuse_outputs(["parquet", "npy"], pa.schema({"a": pa.string()}))


def test_a_reason_of_the_core_is_not_a_workloads_to_give():
    assert reasons.delivered("hung the worker twice: no") == "failed: hung the worker twice: no"
    assert reasons.delivered("too long: 5") == "too long: 5"
    assert reasons.delivered("my own words") == "my own words"
