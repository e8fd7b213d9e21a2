"""What Geneformer's list mode, gene embeddings, shifts of genes and anchor gene are, each against
transformers and lists of Python, one cell at a time; the outputs against pandas."""

import importlib.util
import itertools
import json
import sys
import time
import types
import warnings
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from esm2_models import relative_l2
from geneformer_models import cells_of, ensembl, some_counts, write_cells, write_place
from hypothesis import given
from hypothesis import strategies as st
from pypi import fetched
from test_geneformer import (
    CPU,
    GENES,
    HUMAN,
    KNOWN,
    Reference,
    Runs,
    check_shifts,
    computed,
    cosine,
    deleted,
    delivered,
    human,  # noqa: F401
    options_of,
    read,
    resolved,
    tables,
    tokens_in,
    with_values,
)

from featuremill.__main__ import main
from featuremill.base.errors import UserError
from featuremill.store import disk_space
from featuremill.store.results import Results
from featuremill.workload.compute import values_of
from featuremill.workloads import geneformer
from featuremill.workloads.geneformer import (
    cells,
    gene_embeddings,
    gene_shifts,
    gene_statistics,
    genes,
    perturbations,
)

pytestmark = pytest.mark.filterwarnings("ignore:The following device_map keys")
NUM_CELLS = 14


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with a model of each version, its genes, and cells."""
    return write_place(tmp_path_factory.mktemp("geneformer"), GENES, KNOWN)


def by_hand(own, chosen, most):
    """Return the perturbed cell, the cell to compare it with, and the genes that both have, of
    Geneformer's list mode: `overexpress_tokens` puts the genes in front and cuts at the model's
    size, and as many of the cell's last genes are cut off as new ones were too many."""
    others = [token for token in own if token not in chosen]
    perturbed = [*chosen, *others][:most]
    num_new = len([token for token in chosen if token not in own])
    num_cut = max(0, len(own) + num_new - most)
    before = own[: len(own) - num_cut]
    common = [token for token in perturbed if token in before and token not in chosen]
    return perturbed, before, common


# Genes that a cell does not express


@pytest.mark.parametrize("version", ["V1", "V2"])
@pytest.mark.parametrize("shift", ["auto", "pooled", "genes"])
@pytest.mark.parametrize("together", [False, True])
def test_absent_genes_are_overexpressed_as_geneformers_list_mode_does(
    place, monkeypatch, version, shift, together
):
    """Some cells have place for all genes, some for one alone, and full ones for none."""
    num_special = 2 * (version == "V2")
    most = 21
    monkeypatch.setitem(genes.INPUT_SIZES, version, most + num_special)
    chosen = [KNOWN[3], KNOWN[0], KNOWN[40]]
    more = {"perturb": "overexpress", "genes": chosen, "overexpress_absent": True, "shift": shift}
    more |= {"together": together, "version": version}
    seen = set()

    def in_front(own, perturbed):
        if perturbed == own[: len(perturbed)]:
            return None
        after, before, common = by_hand(own, perturbed, most)
        seen.add((set(perturbed) <= set(own), len(before) < len(own)))
        return before, after, common

    records, values, _ = check_shifts(place, version, in_front, **more)
    names = ["+".join(chosen)] if together else chosen
    assert all([row["gene"] for row in rows] == names for _, rows in with_values(records, values))
    assert {(False, False), (False, True)} <= seen


def test_without_the_option_cells_that_lack_a_gene_have_none(place):
    chosen = [KNOWN[3], KNOWN[0]]
    more = {"perturb": "overexpress", "genes": chosen}
    tokens, _ = tables(place, "V2")
    (records, plain), (_, both) = (
        computed(place, "V2", **more, overexpress_absent=is_on) for is_on in (False, True)
    )
    num_absent = 0
    for (own, one), other in zip(
        with_values(records, plain, 0), both.column(0).to_pylist(), strict=True
    ):
        for a, b in zip(one, other, strict=True):
            if tokens[a["gene"]] in own:
                assert a["cosine"] == pytest.approx(b["cosine"], rel=1e-6, nan_ok=True)
                assert a["tokens"] == b["tokens"]
            else:
                num_absent += 1
                assert np.isnan(a["cosine"]) and b["cosine"] < 1
    assert num_absent > 3


ABSENT = geneformer.Options.model_construct(
    perturb="overexpress", genes=("x",), together=True, overexpress_absent=True, anchor=""
)


@pytest.mark.parametrize(
    ("own", "chosen", "most", "perturbed", "before", "kept"),
    [
        # A full cell loses its last gene before and after.
        ([1, 2, 3, 4], [9], 4, [9, 1, 2, 3], 3, [0, 1, 2]),
        # It has just room.
        ([1, 2, 3], [9], 4, [9, 1, 2, 3], 3, [0, 1, 2]),
        # One of two is there, and moves.
        ([1, 2, 3, 4], [9, 2], 4, [9, 2, 1, 3], 3, [0, 2]),
        # The one that is there is the last, and cut off in the cell before.
        ([1, 2, 3, 4], [9, 4], 4, [9, 4, 1, 2], 3, [0, 1]),
        # Room for one of two.
        ([1, 2, 3], [8, 9], 4, [8, 9, 1, 2], 2, [0, 1]),
        # The genes leave room for none of the cell's own.
        ([1, 2, 3, 4], [5, 6, 7, 8], 4, None, 0, []),
        ([1], [5, 6, 7, 8, 9], 4, None, 0, []),
        # First already.
        ([1, 2, 3], [1, 2], 4, None, 0, []),
        ([1, 2, 3], [2, 1], 4, [2, 1, 3], 3, [2]),
    ],
)
def test_genes_in_front_cut_off_what_no_longer_fits(own, chosen, most, perturbed, before, kept):
    cell = cells.Cell(np.array(chosen), np.array(own))
    done = cells.possible(cell, ABSENT, most)
    if perturbed is None:
        assert done == []
        return
    ((number, tokens, places, num_before),) = done
    assert (number, tokens.tolist(), num_before) == (0, perturbed, before)
    assert places.tolist() == kept


@given(st.data())
def test_whatever_is_in_front_both_cells_end_with_the_same_genes(data):
    own = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True))
    chosen = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True))
    most = data.draw(st.integers(len(own), 14))
    perturbed, before, common = by_hand(own, chosen, most)
    done = cells.possible(cells.Cell(np.array(chosen), np.array(own)), ABSENT, most)
    if chosen == own[: len(chosen)] or (not common and not set(chosen) <= set(own)):
        assert done == []
        return
    (one,) = done
    assert one.tokens.tolist() == perturbed and len(one.tokens) <= most
    assert one.num_before == len(before)
    assert [own[place] for place in one.kept] == common == perturbed[len(chosen) :]
    assert all(place < one.num_before for place in one.kept)


@pytest.mark.parametrize("together", [False, True])
def test_the_cost_is_the_tokens_that_the_network_computes(place, monkeypatch, together):
    monkeypatch.setitem(genes.INPUT_SIZES, "V2", 23)
    more = {"perturb": "overexpress", "genes": KNOWN[:5], "overexpress_absent": True}
    options, found = resolved(place, "V2", version="V2", together=together, **more)
    model = geneformer.load(options, [CPU], found)
    for record in read(place / "cells.h5ad", options):
        batch = geneformer.prepare(model, [record.payload], 10_000)
        rows = [group.tokens_BT.shape for group in batch.units[0]]
        num_tokens = sum(count * (length - 2) for count, length in rows)
        assert geneformer.cost(record.payload, options) == max(1, num_tokens)
        assert all(length <= 23 for _, length in rows)


@pytest.mark.parametrize(
    "more",
    [
        {"perturb": "overexpress", "genes": KNOWN[:3], "overexpress_absent": True},
        {"perturb": "overexpress", "genes": KNOWN[:3], "gene_shifts": True, "shift": "genes"},
        {"perturb": "delete", "anchor": KNOWN[1], "gene_shifts": True},
        {"gene_vectors": True, "genes": KNOWN[:3]},
        {"gene_vectors": True, "output_dtype": "float32"},
    ],
)
def test_a_cell_alone_and_in_a_batch_are_equal(place, more):
    options, found = resolved(place, "V2", **more)
    model = geneformer.load(options, [CPU], found)
    payloads = [record.payload for record in read(place / "cells.h5ad", options)]
    together = values_of(geneformer, model, payloads, 10**6)
    for number, payload in enumerate(payloads):
        (alone,) = values_of(geneformer, model, [payload], 10**6).to_pylist()
        (there,) = together.slice(number, 1).to_pylist()
        if "perturb" in more:  # of one shape in any batch
            assert repr(alone) == repr(there)
            continue
        assert alone["genes"] == there["genes"]
        for name in set(alone) - {"genes"}:
            np.testing.assert_allclose(alone[name], there[name], atol=2e-3, rtol=2e-3)


def test_towards_a_state_a_cell_that_was_cut_is_compared_with_itself_cut(
    place, tmp_path, monkeypatch
):
    monkeypatch.setitem(genes.INPUT_SIZES, "V2", 23)
    states = {"ill": np.random.default_rng(3).normal(size=32).tolist()}
    (tmp_path / "states.json").write_text(json.dumps(states))
    more = {"perturb": "overexpress", "genes": [KNOWN[3]], "overexpress_absent": True}
    more |= {"states": str(tmp_path / "states.json"), "version": "V2"}
    records, values = computed(place, "V2", **more)
    tokens, _ = tables(place, "V2")
    reference, num_cut = Reference(place / "V2" / "model", "V2"), 0
    for own, (shift,) in with_values(records, values):
        if own[0] == tokens[KNOWN[3]]:
            assert np.isnan(shift["shift"])
            continue
        perturbed, before, _ = by_hand(own, [tokens[KNOWN[3]]], 21)
        num_cut += len(before) < len(own)
        after, was = (reference.vector(each) for each in (perturbed, before))
        wanted = cosine(after, np.array(states["ill"])) - cosine(was, np.array(states["ill"]))
        assert shift["shift"] == pytest.approx(wanted, rel=1e-3, abs=1e-7)
    assert num_cut > 3


# Vectors of genes


@pytest.mark.parametrize("version", ["V1", "V2"])
@pytest.mark.parametrize("chosen", ["all", "few", "one"])
def test_vectors_of_genes_are_those_of_transformers(place, version, chosen):
    """With few genes, cells have 0, 1 or 2 of them, in their own order."""
    listed = {"all": "all", "few": [KNOWN[40], KNOWN[0]], "one": [KNOWN[3]]}[chosen]
    more = {"gene_vectors": True, "genes": listed, "layers": [1, -2], "output_dtype": "float32"}
    records, values = computed(place, version, **more)
    tokens, _ = tables(place, version)
    names = {token: name for name, token in tokens.items()}
    pool = {"V1": "mean", "V2": "cls"}[version]
    assert values.schema.names == [
        *(f"{pool}_layer_{layer}" for layer in (1, 2)),
        *("genes", "genes_layer_1", "genes_layer_2"),
    ]
    lengths = set()
    for layer in (1, 2):
        reference = Reference(place / version / "model", version, layer)
        for record, row in zip(records, values.to_pylist(), strict=True):
            own = tokens_in(record)
            wanted = reference.of_genes(own)
            there = [n for n, token in enumerate(own) if chosen == "all" or names[token] in listed]
            assert row["genes"] == [names[own[place]] for place in there]
            assert len(row[f"genes_layer_{layer}"]) == len(there)
            lengths.add(len(there))
            for found, place_ in zip(row[f"genes_layer_{layer}"], there, strict=True):
                assert relative_l2(found, wanted[place_]) <= 1e-5
            assert relative_l2(row[f"{pool}_layer_{layer}"], reference.vector(own)) <= 1e-5
    assert chosen != "few" or lengths == {0, 1, 2}


def test_two_genes_and_none_in_a_cell_are_not_mistaken_for_one_each(place, tmp_path):
    counts = np.zeros((4, len(GENES)), np.float32)
    counts[:, 20:30] = np.arange(1, 11)
    counts[0, 5] = counts[0, 6] = counts[3, 5] = counts[3, 6] = 7
    path = write_cells(tmp_path / "a.h5ad", cells_of(counts, GENES))
    more = {"gene_vectors": True, "output_dtype": "float32"}
    _, few = computed(place, "V1", path, genes=[GENES[5], GENES[6]], **more)
    _, every = computed(place, "V1", path, **more)
    assert few.column("genes").to_pylist()[1:3] == [[], []]
    for some, whole in zip(few.to_pylist(), every.to_pylist(), strict=True):
        known = dict(zip(whole["genes"], whole["genes_layer_2"], strict=True))
        assert len(some["genes"]) == len(some["genes_layer_2"])
        for gene, vector in zip(some["genes"], some["genes_layer_2"], strict=True):
            np.testing.assert_allclose(vector, known[gene], rtol=1e-6)


def test_two_ids_of_one_gene_have_one_vector(place, tmp_path):
    counts = some_counts(3, len(GENES), seed=5)
    counts[:, 5] = 2
    both = cells_of(np.hstack((counts, counts[:, 5:6])), [*GENES, ensembl(900)])
    path = write_cells(tmp_path / "old.h5ad", both)
    mapping = {ensembl(900): GENES[5]} | {name: name for name in KNOWN}
    (tmp_path / "mapping.json").write_text(json.dumps(mapping))
    more = {"gene_vectors": True, "gene_mapping": str(tmp_path / "mapping.json")}
    _, values = computed(place, "V2", path, genes=[GENES[5]], **more)
    assert values.column("genes").to_pylist() == [[GENES[5]]] * 3
    assert [len(rows) for rows in values.column("genes_layer_2").to_pylist()] == [1] * 3


def embeddings_of(blocks, schema, folder):
    delivered(gene_embeddings, folder, schema, *blocks)
    return pq.read_table(folder / gene_embeddings.FORMAT.file)


def cut(table, *edges):
    edges = [0, *edges, len(table)]
    return [table.slice(a, b - a) for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_gene_embeddings_are_means_over_the_cells_with_the_gene(place, tmp_path, dtype):
    """As EmbExtractor has them with `emb_mode` gene: pandas means of all vectors of a gene."""
    more = {"gene_vectors": True, "output_dtype": dtype, "layers": [1, 2]}
    records, values = computed(place, "V2", **more)
    table = pa.table(values)
    found = embeddings_of(cut(table, 1, 1, 6), values.schema, tmp_path)
    assert found.schema.names == ["gene", "cells", "mean_layer_1", "mean_layer_2"]
    tokens, _ = tables(place, "V2")
    names = {token: name for name, token in tokens.items()}
    for layer in (1, 2):
        reference, rows = Reference(place / "V2" / "model", "V2", layer), []
        for record in records:
            own = tokens_in(record)
            for token, vector in zip(own, reference.of_genes(own), strict=True):
                rows.append([names[token], *vector])
        by_gene = pd.DataFrame(rows).groupby(0)
        assert found["gene"].to_pylist() == sorted(by_gene.groups)
        assert found["cells"].to_pylist() == by_gene.size().tolist()
        wanted = by_gene.mean().to_numpy()
        got = np.array(found[f"mean_layer_{layer}"].to_pylist())
        errors = np.linalg.norm(got - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
        assert errors.max() <= {"float16": 1e-3, "float32": 1e-5}[dtype]


def test_gene_embeddings_do_not_depend_on_the_order_and_the_blocks(place, tmp_path):
    _, values = computed(place, "V2", gene_vectors=True, output_dtype="float32")
    table, chosen = pa.table(values), np.random.default_rng(2)
    one = embeddings_of([table], values.schema, tmp_path)
    for _ in range(5):
        moved = table.take(pa.array(chosen.permutation(len(table))))
        edges = np.sort(chosen.integers(0, len(table), 3))
        other = embeddings_of(cut(moved, *edges), values.schema, tmp_path)
        assert other.equals(one)


def test_numbers_that_cannot_be_added_up_exactly_are_refused(tmp_path):
    kinds = {"genes": pa.list_(pa.string()), "genes_layer_2": pa.list_(pa.list_(pa.float32(), 2))}
    schema = pa.schema(kinds)
    for number in (np.inf, np.nan, 2.0**33):
        columns = {"genes": [["A"]], "genes_layer_2": [[[1.0, number]]]}
        with pytest.raises(UserError, match="gene_embeddings cannot add up 1 vectors"):
            embeddings_of([pa.table(columns, schema)], schema, tmp_path)
    columns = {"genes": [["A"], ["A"], []], "genes_layer_2": [[[1.0, 2e9]], [[3.0, 1e9]], []]}
    found = embeddings_of([pa.table(columns, schema)], schema, tmp_path)
    assert found.to_pylist() == [{"gene": "A", "cells": 2, "mean_layer_2": [2.0, 1.5e9]}]


def test_no_gene_at_all_is_a_table_without_rows(tmp_path):
    kinds = {"genes": pa.list_(pa.string()), "genes_layer_2": pa.list_(pa.list_(pa.float16(), 2))}
    table = pa.table({"genes": [[], []], "genes_layer_2": [[], []]}, pa.schema(kinds))
    assert len(embeddings_of([table], table.schema, tmp_path)) == 0


def test_space_is_asked_for_as_many_vectors_a_cell_as_there_are_genes_in_the_list(place):
    options, found = resolved(place, "V2", gene_vectors=True, genes=KNOWN[:2])
    of_two = geneformer.schema(options, found)
    options, found = resolved(place, "V2", gene_vectors=True)
    of_all = geneformer.schema(options, found)
    told = [disk_space.expected_bytes(each, 1000, 2_000_000) for each in (of_two, of_all)]
    assert told == [1000 * 32 * (4 + 2 * number) for number in (2, 2000)]
    a_gene = [disk_space.expected_bytes(each, 0, 1) for each in (of_two, of_all)]
    assert a_gene == [64, 64]
    few = [disk_space.expected_bytes(each, 1000, 1500) for each in (of_two, of_all)]
    assert few == [32 * (4000 + 2 * 1500)] * 2


# Shifts of genes


@pytest.mark.parametrize("version", ["V1", "V2"])
@pytest.mark.parametrize("perturb", ["delete", "overexpress", "absent"])
@pytest.mark.parametrize("shift", ["genes", "pooled"])
def test_shifts_of_genes_are_those_of_transformers(
    place, tmp_path, monkeypatch, version, perturb, shift
):
    num_special = 2 * (version == "V2")
    monkeypatch.setitem(genes.INPUT_SIZES, version, 21 + num_special)
    chosen = [KNOWN[3], KNOWN[0], KNOWN[40]]
    more = {"perturb": "overexpress", "overexpress_absent": True}
    if perturb != "absent":
        more = {"perturb": perturb}
    more |= {"genes": chosen, "gene_shifts": True, "shift": shift, "version": version}
    records, values = computed(place, version, **more)
    tokens, _ = tables(place, version)
    names = {token: name for name, token in tokens.items()}
    reference, rows = Reference(place / version / "model", version), []
    assert values.schema.names == ["gene_shifts", "genes"]
    assert values.column("genes").to_pylist() == [[names[t] for t in tokens_in(r)] for r in records]
    for own, shifts in with_values(records, values, "gene_shifts"):
        for shift_ in shifts:
            token = tokens[shift_["gene"]]
            is_there = token in own and (perturb == "delete" or own[0] != token)
            if not (is_there or (perturb == "absent" and token not in own)):
                assert np.isnan(shift_["cosine"]) and shift_["cosines"] == []
                continue
            perturbed, before, common = by_hand(own, [token], 21)
            if perturb == "delete":
                perturbed = common = [each for each in own if each != token]
                before = own
            wanted = reference.turns(before, perturbed, common)
            found = dict(zip(own, shift_["cosines"], strict=True))
            assert {each for each in own if not np.isnan(found[each])} == set(wanted)
            for each, cosine_ in wanted.items():
                assert 1 - found[each] == pytest.approx(1 - cosine_, rel=1e-3, abs=1e-9)
                rows.append((shift_["gene"], names[each], found[each]))
            if shift == "genes":
                assert shift_["cosine"] == pytest.approx(np.mean([*wanted.values()]), abs=1e-9)
    table = pa.table(values)
    statistics = delivered(gene_shifts, tmp_path, values.schema, *cut(table, 2, 3))
    expected = pd.DataFrame(rows, columns=["gene", "affected", "cosine"])
    by_pair = expected.groupby(["gene", "affected"]).cosine
    assert statistics[["gene", "affected"]].to_numpy().tolist() == [
        list(pair) for pair in sorted(by_pair.groups)
    ]
    assert statistics.cells.tolist() == by_pair.count().tolist()
    assert set(statistics.kind) == {more["perturb"]}
    np.testing.assert_allclose(statistics["mean"], by_pair.mean(), rtol=1e-13)
    np.testing.assert_allclose(statistics.deviation, by_pair.std(), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("few", [0, 5, 10**6])
def test_the_statistics_of_shifts_of_genes_are_those_of_pandas(tmp_path, monkeypatch, few):
    """Over many blocks, which are merged one by one, some at a time, or at the end."""
    monkeypatch.setattr(gene_shifts, "FEW", few)
    chosen = np.random.default_rng(4)
    shift = pa.struct([*geneformer.SHIFT_TOWARDS, geneformer.COSINES])
    schema = pa.schema({"gene_shifts": pa.list_(shift), "genes": pa.list_(pa.string())})
    letters, blocks, rows = [*"ABCDEFG"], [], []
    for _ in range(12):
        found = {"gene_shifts": [], "genes": []}
        for _ in range(chosen.integers(0, 5)):
            names = chosen.permutation(letters)[: chosen.integers(1, 7)].tolist()
            shifts = []
            for gene in chosen.permutation(letters)[: chosen.integers(0, 4)].tolist():
                cosines = chosen.normal(0.99, 0.01, len(names))
                cosines[[name == gene for name in names]] = np.nan
                for number, state in enumerate("xy"):
                    told = {"gene": gene, "kind": "delete", "tokens": 1, "cosine": 0.5}
                    told |= {"state": state, "shift": 0.1}
                    shifts.append(told | {"cosines": [] if number else cosines})
                rows += zip([gene] * len(names), names, cosines, strict=True)
            found["gene_shifts"].append(shifts)
            found["genes"].append(names)
        blocks.append(pa.table(found, schema))
    statistics = delivered(gene_shifts, tmp_path, schema, *blocks)
    frame = pd.DataFrame(rows, columns=["gene", "affected", "cosine"]).dropna()
    by_pair = frame.groupby(["gene", "affected"]).cosine
    assert [*zip(statistics.gene, statistics.affected, strict=True)] == sorted(by_pair.groups)
    assert statistics.cells.tolist() == by_pair.count().tolist()
    np.testing.assert_allclose(statistics["mean"], by_pair.mean(), rtol=1e-13)
    np.testing.assert_allclose(statistics.deviation, by_pair.std(), rtol=1e-9)


def test_with_states_the_shifts_of_genes_stand_once(place, tmp_path):
    (tmp_path / "states.json").write_text(json.dumps({"ill": [1.0] * 32, "well": [-1.0] * 32}))
    more = {"perturb": "delete", "genes": KNOWN[:2], "gene_shifts": True}
    _, plain = computed(place, "V2", **more)
    _, values = computed(place, "V2", **more, states=str(tmp_path / "states.json"))
    for one, other in zip(plain.to_pylist(), values.to_pylist(), strict=True):
        shifts = other["gene_shifts"]
        assert [shift["state"] for shift in shifts] == ["ill", "well"] * 2
        assert [shift["cosines"] for shift in shifts[1::2]] == [[], []]
        again = [shift["cosines"] for shift in shifts[::2]]
        assert repr(again) == repr([shift["cosines"] for shift in one["gene_shifts"]])
        assert other["genes"] == one["genes"]
    ids = [f"c{number}_block_1" for number in range(len(values))]
    table = pa.table({"id": ids, "gene_shifts": values.column(0), "genes": values.column(1)})
    delivered(gene_statistics, tmp_path, values.schema, table)
    long = delivered(perturbations, tmp_path, values.schema, table)
    assert [*long] == ["cell", "gene", "kind", "cosine", "tokens", "state", "shift"]
    assert len(long) == 4 * len(values)


# An anchor gene


@pytest.mark.parametrize("version", ["V1", "V2"])
@pytest.mark.parametrize("chosen", ["all", "few"])
def test_an_anchor_is_deleted_together_with_each_other_gene(place, version, chosen):
    """As Geneformer's `anchor_gene` with `combos` 1: in cells with the anchor alone."""
    listed = "all" if chosen == "all" else [KNOWN[3], KNOWN[40]]
    more = {"perturb": "delete", "anchor": KNOWN[0], "genes": listed}
    records, values, num_without = check_shifts(place, version, deleted, **more)
    tokens, _ = tables(place, version)
    names, anchor = {token: name for name, token in tokens.items()}, tokens[KNOWN[0]]
    for record, (own, shifts) in zip(records, with_values(records, values), strict=True):
        others = [names[token] for token in own] if anchor in own else []
        others = [name for name in (listed if chosen == "few" else others) if name != KNOWN[0]]
        assert [shift["gene"] for shift in shifts] == [f"{KNOWN[0]}+{name}" for name in others]
        asked = options_of(place, version, **more)
        assert geneformer.cost(record.payload, asked) == len(own) * (1 + len(others))
    assert (num_without > 0) == (chosen == "few")


def test_all_genes_beside_an_anchor_come_in_blocks_that_each_have_it(place, monkeypatch):
    monkeypatch.setattr(cells, "BLOCK", 8)
    tokens, _ = tables(place, "V2")
    anchor, num_with = tokens[KNOWN[0]], 0
    found = read(place / "cells.h5ad", options_of(place, perturb="delete", anchor=KNOWN[0]))
    for number in range(NUM_CELLS):
        mine = (each for each in found if each.id.startswith(f"cell{number}_block_"))
        blocks = [cells.cell_of(record.payload) for record in mine]
        own = blocks[0].tokens.tolist()
        assert {block.perturbed[0] for block in blocks} == {anchor}
        others = [token for block in blocks for token in block.perturbed[1:].tolist()]
        assert others == ([token for token in own if token != anchor] if anchor in own else [])
        num_with += anchor in own
    assert 0 < num_with < NUM_CELLS


# Options, outputs and whole runs


@pytest.mark.parametrize(
    ("option", "more"),
    [
        ("anchor", {"perturb": "delete", "anchor": "ENSG1"}),
        ("genes", {"gene_vectors": True, "genes": ["ENSG1"]}),
        ("genes", {"perturb": "overexpress", "genes": ["ENSG1"], "overexpress_absent": True}),
    ],
)
def test_an_unknown_gene_is_one_sentence(place, option, more):
    with pytest.raises(UserError, match=f"options.{option}: 'ENSG1' has no token in .*have both"):
        resolved(place, **more)


@pytest.fixture
def runs(tmp_path, environment):
    return Runs(tmp_path, environment)


def test_a_run_to_gene_embeddings_is_the_same_whatever_the_shards(place, runs):
    outputs = ["parquet", "gene_embeddings", "per_residue_h5"]
    config = runs.configure(place, outputs, gene_vectors=True, batch_tokens=64)
    tables_, numbers = [], []
    for cost in (60, 100_000):
        runs.run_folder = Results(runs.folder / f"{cost}" / "test")
        folder, number = runs.merged(config | {"shards": {"cost": cost}})
        tables_.append(pq.read_table(folder / "gene_embeddings.parquet"))
        numbers.append(number)
    assert numbers[1] == 1 < numbers[0] and tables_[0].equals(tables_[1])
    cells_ = pd.read_parquet(folder / "embeddings.parquet")
    counts = cells_.genes.explode().value_counts()
    assert tables_[0]["cells"].to_pylist() == counts.sort_index().tolist()
    assert len(tables_[0]) > 40


def test_a_run_to_shifts_of_genes(place, runs):
    outputs = ["parquet", "perturbations", "gene_statistics", "gene_shifts"]
    more = {"perturb": "overexpress", "genes": KNOWN[:3], "overexpress_absent": True}
    results, _ = runs.merged(runs.configure(place, outputs, **more, gene_shifts=True))
    long = pd.read_parquet(results / "perturbations.parquet")
    assert len(long) == 3 * NUM_CELLS and long.cosine.notna().sum() > 2 * NUM_CELLS
    statistics = pd.read_parquet(results / "gene_statistics.parquet").set_index("gene")
    pairs = pd.read_parquet(results / "gene_shifts.parquet")
    assert (pairs.gene != pairs.affected).all() and set(pairs.gene) == set(KNOWN[:3])
    for gene, own in pairs.groupby("gene"):
        assert own.cells.max() <= statistics.cells[gene]
    assert pairs["mean"].between(-1, 1).all()


@pytest.mark.parametrize(
    ("output", "more", "said"),
    [
        ("gene_shifts", {"perturb": "delete"}, "gene_shifts holds columns such as gene_shifts"),
        ("gene_embeddings", {}, "gene_embeddings needs values per residue"),
        ("perturbations", {"gene_vectors": True}, "perturbations holds columns such as shifts"),
    ],
)
def test_outputs_that_the_options_do_not_fill_are_refused_before_anything_is_computed(
    place, runs, output, more, said
):
    assert said in runs.planned(runs.configure(place, [output], **more), status=2)


def test_the_audit_and_the_estimate_serve_them(place, runs, capsys):
    for more in (
        {"perturb": "delete"},
        {"gene_vectors": True, "genes": KNOWN[:2]},
        {"perturb": "delete", "anchor": KNOWN[0], "gene_shifts": True},
        {"perturb": "overexpress", "genes": KNOWN[:2], "overexpress_absent": True},
    ):
        runs.configure(place, ["parquet"], **more)
        words = ["audit", "--config", str(runs.folder / "c.yaml"), "--device", "cpu", "--json"]
        assert main([*words, "--dtype", "bf16" if CPU.has_bf16 else "fp16"]) == 0
        assert '"cls_layer_2"' in capsys.readouterr().out
        settled = options_of(place, **more, version="V2")
        records = read(place / "cells.h5ad", settled)
        costs = sum(geneformer.cost(record.payload, settled) for record in records)
        assert runs.estimated()["cost_left"] == costs


# Beside another program

HELICAL_SHA256 = "80f5458581331b2931f4b4883b5b944a8e330ac9684a23167bc24b8d4a8985cf"


class Rows:
    """What `get_embs` of helical asks of a data set."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, key):
        lists = [row if key == "input_ids" else len(row) for row in self.rows]
        if key != "input_ids":
            return torch.tensor(lists)
        return [torch.tensor(row) for row in lists]

    def select(self, numbers):
        return Rows([self.rows[number] for number in numbers])

    def set_format(self, **_):
        pass


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """Return helical's module with `get_embs`."""
    with zipfile.ZipFile(fetched("helical==2.2.0", HELICAL_SHA256)) as wheel:
        wheel.extract("helical/models/geneformer/geneformer_utils.py", tmp_path)
    for name in ("helical", "helical.utils", "helical.utils.attn_backend"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["helical.utils.attn_backend"].select_attn_backend = None
    path = tmp_path / "helical/models/geneformer/geneformer_utils.py"
    found = importlib.util.spec_from_file_location("helical_geneformer", path)
    module = importlib.util.module_from_spec(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.loader.exec_module(module)
    return module


def beside_helical(theirs, place, version, records, values, batch):
    """Return the largest relative L2 between vectors of genes, and helical's seconds of a core.

    Where cells are padded, it takes filling for genes; that is left out.
    """
    from transformers import BertForMaskedLM

    folder = place / version / "model"
    network = BertForMaskedLM.from_pretrained(folder, output_hidden_states=True).eval()
    tokens, _ = tables(place, version)
    names = {token: name for name, token in tokens.items()}
    special = version == "V2"
    rows = map(tokens_in, records)
    rows = [[2, *row, 3] if special else row for row in rows]
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # autocast for CUDA on a CPU
        embeddings = theirs.get_embs(
            *(network, Rows(rows), "gene", -2, tokens["<pad>"], batch, tokens, names),
            *(special, special, "cpu"),
            silent=True,
        )
    seconds, largest = time.process_time() - start, 0.0
    (column,) = [name for name in values.schema.names if name.startswith("genes_layer_")]
    for own, row in zip(embeddings, values.to_pylist(), strict=True):
        assert set(row["genes"]) == set(own.index) - {"<pad>", "<cls>", "<eos>"}
        for gene, vector in zip(row["genes"], row[column], strict=True):
            largest = max(largest, relative_l2(vector, own[gene]))
    return largest, seconds


@pytest.mark.slow
@pytest.mark.parametrize("version", ["V1", "V2"])
def test_vectors_of_genes_are_those_of_helical(place, theirs, capsys, version):
    more = {"gene_vectors": True, "output_dtype": "float32"}
    records, values = computed(place, version, **more)
    largest, _ = beside_helical(theirs, place, version, records, values, 5)
    assert largest <= 1e-5
    with capsys.disabled():
        print(f"{version}: relative L2 {largest:.1e} at most")


@pytest.mark.slow
def test_vectors_of_genes_of_human_cells_are_those_of_helical(human, theirs, capsys):  # noqa: F811
    """20 cells of the true shape; of both only the network is timed, and the lists of vectors."""
    options, found = resolved(human, gene_vectors=True, output_dtype="float32")
    model = geneformer.load(options, [CPU], found)
    records = read(human / HUMAN, options)[:20]
    payloads = [record.payload for record in records]
    start = time.process_time()
    values = values_of(geneformer, model, payloads, 8192)
    ours = time.process_time() - start
    largest, seconds = beside_helical(theirs, human, "V2", records, values, 10)
    assert largest <= 1e-5
    with capsys.disabled():
        print(f"relative L2 {largest:.1e} at most; ours {ours:.0f} s, helical {seconds:.0f} s")
