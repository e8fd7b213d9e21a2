"""The workload geneformer: what it reads against anndata, its vectors and shifts against
transformers, its outputs against pandas, and what it refuses."""

import io
import json
import pickle
import re
import tarfile
import time
import warnings
from pathlib import Path
from types import MappingProxyType

import anndata
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from esm2_models import relative_l2
from geneformer_models import (
    POSITIONS,
    cells_of,
    ensembl,
    read_cells,
    some_counts,
    write_cells,
    write_genes,
    write_model,
    write_place,
)
from hdf5_elsewhere import ELSEWHERE
from hypothesis import given
from hypothesis import strategies as st
from programs import Desk, Verbs, edit_json, written
from pypi import fetched
from scipy import sparse

from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.contract import WorkloadContract
from featuremill.workload import plain_weights, weights
from featuremill.workload.compute import values_of
from featuremill.workload.outputs import Target
from featuremill.workloads import geneformer
from featuremill.workloads.geneformer import cells, gene_statistics, genes, h5ad, perturbations

pytestmark = pytest.mark.filterwarnings("ignore:The following device_map keys")
CPU = cpu()
GENES = [ensembl(number) for number in range(60)]
KNOWN = GENES[5:]
"""Those of the files' genes that the models know."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with a model of each version, its genes, and cells."""
    return write_place(tmp_path_factory.mktemp("geneformer"), GENES, KNOWN)


def options_of(place, folder="V2", **more):
    there = place / folder
    given = {"model": there / "model", "vocabulary": there / "tokens.json"}
    given |= {"medians": there / "medians.json"}
    told = {name: str(path) for name, path in given.items()} | {"dtype": "fp32"} | more
    return geneformer.Options.model_validate(told)


def resolved(place, folder="V2", **more):
    asked = options_of(place, folder, **more)
    found = weights.weights_of(plain_weights.look(asked.model, True, 1))
    return geneformer.resolve(asked, CPU, found), found


def tables(place, version):
    return [json.loads((place / version / f"{n}.json").read_text()) for n in ("tokens", "medians")]


def expected_tokens(counts, names, place, version="V2"):
    """Return each cell's tokens by Geneformer's formula, in float64."""
    tokens, medians = tables(place, version)
    most, every = POSITIONS[version] - 2 * (version == "V2"), []
    for row in np.asarray(counts, float):
        found = [
            (-(count / row.sum() * 1e4 / medians[name]), tokens[name])
            for count, name in zip(row, names, strict=True)
            if count > 0 and name in tokens
        ]
        every.append([token for _, token in sorted(found)][:most])
    return every


def read(path, options):
    return list(geneformer.records([path], options))


def tokens_in(record):
    return cells.cell_of(record.payload).tokens.tolist()


def tokens_read(path, options):
    return [tokens_in(record) for record in read(path, options)]


def with_values(records, values, column="shifts"):
    """Yield the tokens of each cell, and its values."""
    for record, value in zip(records, values.column(column).to_pylist(), strict=True):
        yield tokens_in(record), value


def asked_of(options):
    return options.model_dump(mode="json", exclude_unset=True)


# What is read


@pytest.mark.parametrize("form", ["csr", "csc", "dense"])
@pytest.mark.parametrize("version", ["V1", "V2"])
def test_cells_are_rank_encoded_as_anndata_reads_them(place, tmp_path, form, version, monkeypatch):
    monkeypatch.setattr(h5ad, "BLOCK_VALUES", 70)  # several blocks
    monkeypatch.setattr(h5ad, "PASS_VALUES", 200)  # and passes
    counts = some_counts(23, len(GENES), seed=1)
    counts[4] = 0
    path = write_cells(tmp_path / "a.h5ad", cells_of(counts, GENES, form=form))
    found = read(path, options_of(place, version))
    assert [record.id for record in found] == [f"cell{n}" for n in range(23)]
    assert [record.line for record in found] == list(range(1, 24))
    wanted = expected_tokens(counts, GENES, place, version)
    for record, tokens in zip(found, wanted, strict=True):
        if not tokens:
            assert record.reason == cells.UNKNOWN.reason() and record.id == "cell4"
            continue
        assert tokens_in(record) == tokens
        assert record.length == len(tokens) == geneformer.cost(record.payload, options_of(place))


def test_layers_raw_and_columns_of_genes_are_read_where_options_say(place, tmp_path):
    counts = some_counts(5, len(GENES), seed=2)
    made = cells_of(counts, GENES)
    made.raw = made.copy()
    made = made[:, ::2].copy()  # raw keeps all genes
    made.layers["counts"] = made.X.copy()
    symbols = pd.Index([f"symbol{n}" for n in range(30)], dtype=object)
    versioned = pd.Index([f"{name}.7" for name in GENES[::2]], dtype=object)
    made.var = pd.DataFrame({"ensembl_id": pd.Categorical(versioned)}, index=symbols)
    made.obs_names = pd.Index([f"c{n}" for n in range(5)], dtype=object)
    made.X = np.log1p(made.X.toarray())
    path = write_cells(tmp_path / "a.h5ad", made)
    half = expected_tokens(counts[:, ::2], GENES[::2], place)
    whole = expected_tokens(counts, GENES, place)
    for where, wanted in (("layers/counts", half), ("raw", whole)):
        found = read(path, options_of(place, counts=where))
        assert list(map(tokens_in, found)) == wanted and found[0].id == "c0"
    of_symbols = {"gene_column": "symbol"}
    for more, said in (
        ({}, r"X holds \d\.\d+ for gene ENSG\d+ of cell c0, which is no"),
        ({"counts": "layers/count"}, r"no layers/count in it; .* \(X, raw, layers/counts\)"),
        (of_symbols, "var has no column 'symbol'; set it to one of 'ensembl_id'"),
        (of_symbols | {"counts": "raw"}, "var has no column 'symbol'; leave it out"),
    ):
        with pytest.raises(UserError, match=said):
            read(path, options_of(place, **more))


def test_ids_in_small_letters_are_read_as_geneformer_reads_them(place, tmp_path):
    counts = some_counts(4, len(GENES), seed=2)
    small = [f"{name.lower()}.3" for name in GENES]
    path = write_cells(tmp_path / "small.h5ad", cells_of(counts, small))
    assert tokens_read(path, options_of(place)) == expected_tokens(counts, GENES, place)


@pytest.mark.parametrize("form", ["json", "pickle"])
def test_older_ids_are_mapped_and_counts_of_one_gene_are_added_up(place, tmp_path, form):
    """As Geneformer's tokenizer does with its ensembl_mapping_dict."""
    counts = some_counts(6, len(GENES), seed=5)
    old = [ensembl(number) for number in range(900, 910)]  # of ten genes there are two columns
    mapping = dict(zip(old, KNOWN[:10], strict=True)) | {name: name for name in KNOWN}
    more = some_counts(6, 10, seed=6)
    both = cells_of(np.hstack((counts, more)), [*GENES, *old])
    path = write_cells(tmp_path / "old.h5ad", both)
    summed = counts.copy()
    summed[:, 5:15] += more
    assert GENES[5:15] == KNOWN[:10]
    told = tmp_path / f"mapping.{form}"
    told.write_bytes(json.dumps(mapping).encode() if form == "json" else pickle.dumps(mapping, 4))
    alone, wanted = (expected_tokens(each, GENES, place) for each in (counts, summed))
    assert tokens_read(path, options_of(place, gene_mapping=str(told))) == wanted != alone
    assert tokens_read(path, options_of(place)) == alone


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_numbers_that_stand_twice_in_a_matrix_are_added_up(place, tmp_path, form, is_mapped):
    """scipy and anndata allow a sparse matrix several entries of one place: they are its parts."""
    counts = some_counts(9, len(GENES), seed=8) * 2
    parts = sparse.coo_matrix(counts)
    half = np.arange(parts.nnz) % 3 > 0  # the others are whole
    kept = [np.concatenate((one, one[half])) for one in (parts.row, parts.col)]
    values = np.concatenate((np.where(half, 1, parts.data), (parts.data - 1)[half]))
    order = np.lexsort(kept if form == "csc" else kept[::-1])
    rows, columns = (one[order] for one in kept)
    outer, inner = (columns, rows) if form == "csc" else (rows, columns)
    edges = np.searchsorted(outer, np.arange(counts.shape[form == "csc"] + 1))
    of = {"csr": sparse.csr_matrix, "csc": sparse.csc_matrix}[form]
    matrix = of((values[order], inner, edges), shape=counts.shape)
    path = write_cells(tmp_path / "clean.h5ad", cells_of(counts, GENES, form=form))
    with h5py.File(path, "r+") as file:
        for name in ("data", "indices", "indptr"):
            del file["X"][name]
            file["X"][name] = getattr(matrix, name)
    assert len(matrix.data) > np.count_nonzero(counts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.array_equal(anndata.read_h5ad(path).X.toarray(), counts)
    mapping = tmp_path / "mapping.json"
    mapping.write_text(json.dumps({name: name for name in GENES}))
    more = {"gene_mapping": str(mapping)} if is_mapped else {}
    assert tokens_read(path, options_of(place, **more)) == expected_tokens(counts, GENES, place)


@pytest.mark.parametrize(("names", "told"), [("ab", ""), ("aab", "1 cell has"), ("aaabb", "3 ce")])
def test_cells_of_one_name_are_warned_of(place, tmp_path, caplog, names, told):
    counts = some_counts(len(names), len(GENES), seed=2)
    path = write_cells(tmp_path / "a.h5ad", cells_of(counts, GENES, names=[*names]))
    assert [record.id for record in read(path, options_of(place))] == [*names]
    assert ("adata.obs_names_make_unique()" in caplog.text) == bool(told)
    assert told in caplog.text


@pytest.mark.parametrize(("num_unknown", "is_told"), [(9, False), (49, True)])
def test_a_file_of_genes_that_the_model_hardly_knows_is_warned_of(
    place, tmp_path, caplog, num_unknown, is_told
):
    names = [KNOWN[0], *(ensembl(number) for number in range(500, 500 + num_unknown))]
    path = write_cells(tmp_path / "few.h5ad", cells_of(np.ones((2, len(names))), names))
    assert [record.length for record in read(path, options_of(place))] == [1, 1]
    assert ("the vocabulary has 1 of the 50 genes" in caplog.text) == is_told


def test_frames_of_older_files_are_read(place, tmp_path):
    """As AnnData before 0.7 wrote them: tables, and a matrix that says itself what it is; and 0.7's
    own categories, which stand beside the columns."""
    counts = some_counts(4, len(GENES), seed=3)
    path = write_cells(tmp_path / "new.h5ad", cells_of(counts, GENES))
    wanted = read(path, options_of(place))
    with h5py.File(path, "r+") as file:
        for name, index in (("obs", [f"cell{n}" for n in range(4)]), ("var", GENES)):
            del file[name]
            rows = [(each.encode(), 1.0) for each in index]
            file[name] = np.array(rows, [("index", "S20"), ("n", "f4")])
        for key in ("encoding-type", "encoding-version", "shape"):
            del file["X"].attrs[key]
        file["X"].attrs["h5sparse_format"] = b"csr"
        file["X"].attrs["h5sparse_shape"] = (4, len(GENES))
    assert read(path, options_of(place)) == [each._replace(source=str(path)) for each in wanted]
    path = write_cells(tmp_path / "categories.h5ad", cells_of(counts, GENES))
    with h5py.File(path, "r+") as file:
        var = file["var"]
        var["__categories/ensembl_id"] = [gene.encode() for gene in GENES[::-1]]
        var["ensembl_id"] = np.arange(len(GENES), dtype=np.int8)[::-1]
        var["ensembl_id"].attrs["categories"] = var["__categories/ensembl_id"].ref
        del var["_index"]
        var["_index"] = [f"symbol{n}".encode() for n in range(len(GENES))]
    assert [each.payload for each in read(path, options_of(place))] == [e.payload for e in wanted]


@given(st.lists(st.integers(0, 4), min_size=6, max_size=6), st.permutations(range(6)))
def test_a_cells_tokens_do_not_depend_on_the_order_of_the_genes_in_the_file(counts, order):
    """Also where genes are tied."""
    by_token = np.array([np.nan, 1.0, 2.0, 1.0, 4.0, 2.0, 0.5])
    known = genes.Genes({}, by_token, {}, 9, None, "V1", None)

    def ranked(places):
        values = np.array([counts[place] for place in places], np.float32)
        block = h5ad.Block(0, ["c"], np.array([0, 6]), np.arange(6), values)
        ((_, tokens),) = cells._ranked(block, np.array(places) + 1, known)
        return tokens.tolist()

    assert ranked(list(order)) == ranked(list(range(6)))
    scores = {token: counts[token - 1] / by_token[token] for token in range(1, 7)}
    assert ranked(list(order)) == sorted(
        (token for token in scores if scores[token]), key=lambda token: (-scores[token], token)
    )


def test_long_cells_are_cut_and_say_so(place, monkeypatch):
    monkeypatch.setitem(genes.INPUT_SIZES, "V2", 12)
    found = read(place / "cells.h5ad", options_of(place, version="V2"))
    assert {record.length for record in found} == {10}
    assert {record.note for record in found} == {"more than 10 genes, truncated"}


def test_a_cell_that_just_fits_is_not_cut_and_a_stored_zero_is_no_token(
    place, tmp_path, monkeypatch
):
    monkeypatch.setitem(genes.INPUT_SIZES, "V2", 12)
    counts = np.zeros((2, len(GENES)), np.float32)
    tokens, _ = tables(place, "V2")
    columns = [column for column, gene in enumerate(GENES) if gene in tokens]
    counts[0, columns[:10]] = counts[1, columns[:11]] = 1
    path = write_cells(tmp_path / "fits.h5ad", cells_of(counts, GENES))
    fits, cut = read(path, options_of(place, version="V2"))
    assert (fits.length, fits.note) == (10, "")
    assert (cut.length, cut.note) == (10, "more than 10 genes, truncated")
    known = genes.Genes({}, np.ones(4, np.float32), {}, 9, None, "V1", None)
    block = h5ad.Block(0, ["c"], np.array([0, 3]), np.arange(3), np.array([2, 0, 1], np.float32))
    ((_, tokens),) = cells._ranked(block, np.array([1, 2, 3]), known)
    assert tokens.tolist() == [1, 3]


def test_a_cell_is_as_many_records_as_blocks_of_perturbations(place, monkeypatch):
    monkeypatch.setattr(cells, "BLOCK", 8)
    (whole, *_), found = (
        read(place / "cells.h5ad", options_of(place, perturb=perturb))
        for perturb in ("none", "delete")
    )
    of_first = [cells.cell_of(r.payload) for r in found if r.id.startswith("cell0_block_")]
    tokens = tokens_in(whole)
    assert [cell.tokens.tolist() for cell in of_first] == [tokens] * -(-len(tokens) // 8)
    assert [token for cell in of_first for token in cell.perturbed.tolist()] == tokens
    assert found[0].id == "cell0_block_1"
    assert geneformer.cost(found[0].payload, options_of(place)) == len(tokens) * 9


# What is refused


def test_each_bad_input_is_one_sentence(place, tmp_path):
    counts = some_counts(3, len(GENES))
    options = options_of(place)

    def said(made, asked=options):
        is_file = hasattr(made, "exists")
        path = made if is_file else write_cells(tmp_path / "bad.h5ad", made)
        with pytest.raises(UserError) as caught:
            read(path, asked)
        assert str(path) in str(caught.value) and str(caught.value).endswith(".")
        return str(caught.value)

    negative = counts.copy()
    negative[1, 3] = -1
    told = "X holds -1 for gene ENSG00000000003 of cell cell1, which is no count"
    assert told in said(cells_of(negative, GENES, form="dense"))
    for wrong in (np.nan, np.inf, 0.5):
        negative[1, 3] = wrong
        assert "is no count; set counts" in said(cells_of(negative, GENES))
    for names, told in (
        ([f"TP{n}" for n in range(len(GENES))],
         "such as 'TP0', are taken as the genes' ids, and these are no Ensembl ids"),
        ([f"ENSMUSG{n:011d}" for n in range(len(GENES))], "none of them is in"),
        ([*GENES[:-1], GENES[-2]], f"two genes are called {GENES[-2]} in it"),
    ):  # fmt: skip
        assert told in said(cells_of(counts, names))
    (tmp_path / "text.h5ad").write_text("no cells")
    assert "this is no HDF5 file" in said(tmp_path / "text.h5ad")
    path = write_cells(tmp_path / "cut.h5ad", cells_of(some_counts(300, len(GENES)), GENES))
    path.write_bytes(path.read_bytes()[:-4000])
    assert "this .h5ad cannot be read" in said(path)
    for where, place_in in (("X/indices", "gene"), ("X/indptr", "cannot be read")):
        path = write_cells(tmp_path / "damaged.h5ad", cells_of(counts, GENES))
        with h5py.File(path, "r+") as file:
            file[where][2] = 1000
        assert place_in in said(path)
    with h5py.File(tmp_path / "other.h5ad", "w") as file:
        file["sequences"] = [1, 2]
    assert "there is no obs in it" in said(tmp_path / "other.h5ad")
    for write in ELSEWHERE:
        path = write_cells(tmp_path / "pointing.h5ad", cells_of(counts, GENES))
        with h5py.File(path, "r+") as file:
            del file["X/data"]
            write(file, "X/data", tmp_path)
        assert "are in another file (an external link" in said(path)
    path = write_cells(tmp_path / "hidden.h5ad", cells_of(counts, GENES))
    with h5py.File(path, "r+") as file:  # categories to which only a reference leads
        hidden = file.create_dataset(None, (8,), "S2", external=[("secret.bin", 0, 16)])
        file["var/kind"] = np.zeros(len(GENES), np.int8)
        file["var/kind"].attrs["categories"] = hidden.ref
        with pytest.raises(UserError, match=r"hidden\.h5ad: .* are in another file"):
            h5ad._texts(file["var"], "kind")


def test_options_that_do_not_fit_the_model_are_refused(place, tmp_path):
    def said(folder="V2", **more):
        with pytest.raises(UserError) as caught:
            resolved(place, folder, **more)
        return str(caught.value)

    tokens, _ = tables(place, "V2")
    other = str(place / "V1" / "tokens.json")
    assert "it has 57 tokens, and the model's vocab_size is 59" in said(vocabulary=other)
    assert "V1 has no <cls>; take mean" in said("V1", pool="cls")
    assert "no <cls>, which a cell of V2 needs" in said("V1", version="V2")
    assert "there is no layer 4 in a model of 3" in said(layers=4)
    assert "'ENSG1' has no token in" in said(perturb="delete", genes=["ENSG1"])
    for name, content, part in (
        (
            "vocabulary",
            {**tokens, GENES[9]: 1.5},
            f"{GENES[9]!r} has '1.5', and a text with a whole",
        ),
        ("vocabulary", [1, 2], "this must be a dict"),
        ("gene_mapping", {GENES[9]: 1}, "a text with another text is meant"),
        ("medians", {"other": 1.0}, "no gene of"),
        ("medians", {GENES[9]: "2"}, "a text with a number is meant"),
        ("medians", ..., "neither JSON nor a pickle"),
    ):
        path = tmp_path / "wrong.json"
        path.write_text("{" if content is ... else json.dumps(content))
        assert part in said(**{name: str(path)})
    write_model(tmp_path / "short", len(tokens), hidden_size=8)
    for changes, part in (
        ({"max_position_embeddings": 512}, "512 positions, and auto finds V1 by 2,048"),
        ({"model_type": "t5", "num_layers": 2, "d_model": 8}, "this is a t5, and a Geneformer is"),
    ):
        edit_json(tmp_path / "short" / "config.json", **changes)
        assert part in said(model=str(tmp_path / "short"))


class Evil:
    def __reduce__(self):
        return print, ("run",)


def test_of_pickles_only_texts_and_numbers_are_built(place, tmp_path, capsys):
    tokens, medians = tables(place, "V2")
    wanted = read(place / "cells.h5ad", options_of(place))
    of_numpy = {name: np.float64(median) for name, median in medians.items()}
    for protocol in (3, 4, 5):
        for name, content in (("t", tokens), ("m", medians), ("n", of_numpy)):
            (tmp_path / f"{name}.pkl").write_bytes(pickle.dumps(content, protocol))
        for kept in ("m", "n"):
            paths = {"vocabulary": tmp_path / "t.pkl", "medians": tmp_path / f"{kept}.pkl"}
            options = options_of(place, **{name: str(path) for name, path in paths.items()})
            assert read(place / "cells.h5ad", options) == wanted
    old = pickle.dumps(of_numpy, 3).replace(b"numpy._core", b"numpy.core")  # NumPy 1's
    found = genes._Unpickler(io.BytesIO(old)).load()
    assert found == medians and {type(number) for number in found.values()} == {float}
    for content, called in ((Evil(), "builtins.print"), (np.ones(2), "_reconstruct")):
        (tmp_path / "m.pkl").write_bytes(pickle.dumps({"A": content}))
        with pytest.raises(UserError, match=rf"it calls \S*{called}.*write it as JSON"):
            read(place / "cells.h5ad", options_of(place, medians=str(tmp_path / "m.pkl")))
    assert "run" not in capsys.readouterr().out


# What is computed


class Reference:
    """transformers, one cell at a time."""

    def __init__(self, folder, version, layer=-2, pool=None):
        from transformers import BertForMaskedLM

        self.model = BertForMaskedLM.from_pretrained(folder).eval()
        self.version, self.layer = version, layer
        self.pool = pool or {"V1": "mean", "V2": "cls"}[version]  # its own defaults

    def hidden(self, tokens):
        given = [2, *tokens, 3] if self.version == "V2" else list(tokens)
        with torch.inference_mode():
            told = self.model.bert(torch.tensor([given]), output_hidden_states=True)
        return told.hidden_states[self.layer][0].double().numpy()

    def vector(self, tokens):
        hidden = self.hidden(tokens)
        return hidden[0] if self.pool == "cls" else self.of_genes(tokens).mean(0)

    def of_genes(self, tokens):
        hidden = self.hidden(tokens)
        return hidden[1:-1] if self.version == "V2" else hidden

    def turns(self, before, after, common):
        """Return for each gene in `common` the cosine of its vector in two cells."""
        one = dict(zip(before, self.of_genes(before), strict=True))
        other = dict(zip(after, self.of_genes(after), strict=True))
        return {token: cosine(one[token], other[token]) for token in common}


def computed(place, folder="V2", path=None, **more):
    options, found = resolved(place, folder, **more)
    model = geneformer.load(options, [CPU], found)
    records = read(path or place / "cells.h5ad", options)
    payloads = [record.payload for record in records]
    costs = [geneformer.cost(payload, options) for payload in payloads]
    return records, values_of(geneformer, model, payloads, max(4096, *costs))


@pytest.mark.parametrize(
    ("version", "layer", "pool"),
    [("V1", -2, "mean"), ("V2", -2, "mean"), ("V2", -1, "mean"), ("V2", 0, "cls")],
)
def test_vectors_are_those_of_transformers_one_cell_at_a_time(place, version, layer, pool):
    records, values = computed(place, version, layers=layer, pool=pool)
    reference = Reference(place / version / "model", version, layer, pool)
    assert values.schema.names == [f"{pool}_layer_{layer % 4}"]
    for own, vector in with_values(records, values, 0):
        assert relative_l2(vector, reference.vector(own)) <= 1e-5


def check_shifts(place, folder, changed, **more):
    """Hold shifts against transformers. `changed(own, genes)` gives a cell before and after, and
    the genes that both have; or nothing, where there is no shift. Return the records, the values,
    and how many have no shift."""
    tokens, _ = tables(place, folder)
    records, values = computed(place, folder, **more)
    reference = Reference(place / folder / "model", folder)
    by_genes = more.get("shift", "auto") == "genes"
    by_genes |= more.get("shift", "auto") == "auto" and folder == "V1"
    num_without = 0
    for own, shifts in with_values(records, values):
        for shift in shifts:
            perturbed = [tokens[gene] for gene in shift["gene"].split("+")]
            if not (cells_ := changed(own, perturbed)):
                num_without += 1
                assert np.isnan(shift["cosine"])
                continue
            before, after, common = cells_
            assert (shift["kind"], shift["tokens"]) == (more["perturb"], len(before))
            if by_genes:
                wanted = np.mean([*reference.turns(before, after, common).values()])
            else:
                wanted = cosine(reference.vector(before), reference.vector(after))
            assert 1 - shift["cosine"] == pytest.approx(1 - wanted, rel=1e-3, abs=1e-9)
    return records, values, num_without


def deleted(own, genes_):
    others = [token for token in own if token not in genes_]
    return (own, others, others) if {*genes_} <= {*own} else None


def moved(own, genes_):
    _, others, _ = deleted(own, genes_) or (own, None, None)
    is_first = own[: len(genes_)] == genes_
    return None if others is None or is_first else (own, [*genes_, *others], others)


@pytest.mark.parametrize("version", ["V1", "V2"])
@pytest.mark.parametrize("perturb", ["delete", "overexpress"])
@pytest.mark.parametrize("shift", ["auto", "pooled", "genes"])
def test_shifts_are_those_of_transformers(place, version, perturb, shift):
    more = {"perturb": perturb, "genes": [KNOWN[3], KNOWN[0], KNOWN[40]], "shift": shift}
    changed = deleted if perturb == "delete" else moved
    records, values, num_absent = check_shifts(place, version, changed, **more)
    for own, shifts in with_values(records, values):
        assert [shift["gene"] for shift in shifts] == more["genes"]
        assert {(shift["kind"], shift["tokens"]) for shift in shifts} == {(perturb, len(own))}
    assert 0 < num_absent < 3 * len(records)


@pytest.mark.parametrize(("version", "perturb"), [("V1", "delete"), ("V2", "overexpress")])
def test_genes_are_perturbed_together_in_cells_that_have_all_of_them(place, version, perturb):
    more = {"perturb": perturb, "genes": [KNOWN[3], KNOWN[0]], "together": True}
    changed = deleted if perturb == "delete" else moved
    records, values, num_without = check_shifts(place, version, changed, **more)
    for record, (own, (shift,)) in zip(records, with_values(records, values), strict=True):
        assert shift["gene"] == "+".join(more["genes"]) and record.id.endswith("_block_1")
        assert geneformer.cost(record.payload, options_of(place, **more)) == 2 * len(own)
    assert 0 < num_without < len(records)


def test_shifts_towards_states_are_differences_of_cosines(place, tmp_path):
    chosen = np.random.default_rng(3)
    states = {name: chosen.normal(size=32).tolist() for name in ("healthy", "ill")}
    (tmp_path / "states.json").write_text(json.dumps(states))
    more = {"perturb": "delete", "genes": [KNOWN[3]], "states": str(tmp_path / "states.json")}
    tokens, _ = tables(place, "V2")
    token = tokens[KNOWN[3]]
    records, values = computed(place, "V2", **more)
    reference = Reference(place / "V2" / "model", "V2")
    for own, shifts in with_values(records, values):
        assert [shift["state"] for shift in shifts] == [*states]
        for shift in shifts:
            if token not in own:
                assert np.isnan(shift["shift"]) and np.isnan(shift["cosine"])
                continue
            state = np.array(states[shift["state"]])
            after = reference.vector([each for each in own if each != token])
            wanted = cosine(after, state) - cosine(reference.vector(own), state)
            assert shift["shift"] == pytest.approx(wanted, rel=1e-3, abs=1e-7)


def cosine(one, other):
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


def test_what_is_no_state_of_the_model_is_one_sentence(place, tmp_path):
    path = tmp_path / "states.json"
    asked = options_of(place, perturb="delete", states=str(path))
    for text, said in (
        ("[", "this is no JSON"),
        ("{}", "give names with a list of numbers"),
        ('{"a": [1, 2]}', "'a' has no list of 32 numbers"),
        (json.dumps({"b": [0.0] * 32}), "'b' has no list of 32 numbers"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=re.escape(f"options.states: {path}: {said}")):
            genes.states_of(asked, 32)


def test_deleting_a_token_is_encoding_anew_without_its_counts(place, tmp_path):
    counts = some_counts(14, len(GENES))
    tokens, _ = tables(place, "V2")
    names = {token: name for name, token in tokens.items()}

    def encoded(counts):
        path = write_cells(tmp_path / "some.h5ad", cells_of(counts, GENES))
        return tokens_read(path, options_of(place))

    for number in range(14):
        (whole,) = encoded(counts[number : number + 1])
        gone = whole[number % len(whole)]
        less = counts[number : number + 1].copy()
        less[0, GENES.index(names[gone])] = 0
        (found,) = encoded(less)
        cell = cells.Cell(np.array([gone]), np.array(whole))
        (deleted,) = cells.possible(cell, options_of(place, perturb="delete"), 4094)
        assert found == deleted.tokens.tolist()


@pytest.mark.parametrize("perturb", ["delete", "overexpress"])
@pytest.mark.parametrize("shift", ["pooled", "genes"])
def test_the_only_gene_of_a_cell_can_be_neither_deleted_nor_moved(place, tmp_path, perturb, shift):
    counts = np.zeros((2, len(GENES)), np.float32)
    counts[0, 9] = counts[1, 9] = 1
    path = write_cells(tmp_path / "one.h5ad", cells_of(counts, GENES))
    _, values = computed(place, "V1", path, perturb=perturb, shift=shift)
    (first, second) = values.column("shifts").to_pylist()
    assert np.isnan(first[0]["cosine"])
    assert first[0]["gene"] == second[0]["gene"] == GENES[9]


def test_a_gene_that_is_first_already_is_not_overexpressed(place, tmp_path):
    """As in Geneformer, which leaves out index 0; statistics count the other cells alone."""
    state = str(tmp_path / "states.json")
    Path(state).write_text(json.dumps({"ill": [1.0] * 32}))
    more = {"perturb": "overexpress", "states": state}
    records, values = computed(place, "V2", **more)
    tokens, _ = tables(place, "V2")
    rows = [row for shifts in values.column("shifts").to_pylist() for row in shifts]
    for own, shifts in with_values(records, values):
        is_first = [tokens[shift["gene"]] == own[0] for shift in shifts]
        assert is_first == [True] + [False] * (len(own) - 1)
        assert [np.isnan(shift["cosine"]) for shift in shifts] == is_first
        assert [np.isnan(shift["shift"]) for shift in shifts] == is_first
        assert max(shift["cosine"] for shift in shifts[1:]) < 1 - 1e-9
    table = pa.table({"id": [r.id for r in records], "shifts": values.column("shifts")})
    counted = delivered(gene_statistics, tmp_path, values.schema, table).set_index("gene").cells
    moved = pd.DataFrame(rows).dropna().groupby("gene").size()
    assert counted[counted > 0].sort_index().to_dict() == moved.to_dict()
    assert sum(counted) == len(rows) - len(records)


def test_genes_together_that_are_first_already_are_not_overexpressed(place):
    records = read(place / "cells.h5ad", options_of(place))
    first, second = tokens_in(records[0])[:2]
    options = options_of(place, perturb="overexpress", genes=[*KNOWN[:2]], together=True)
    own = cells.cell_of(records[0].payload).tokens
    for chosen, is_moved in ([first, second], False), ([second, first], True), ([second], True):
        cell = cells.Cell(np.array(chosen), own)
        assert bool(cells.possible(cell, options, 4094)) == is_moved


def test_a_cell_is_computed_once_a_block_beside_its_perturbations(place, monkeypatch):
    options, found = resolved(place, perturb="delete", batch_tokens=200)
    model = geneformer.load(options, [CPU], found)
    record = read(place / "cells.h5ad", options)[0]
    batch = geneformer.prepare(model, [record.payload], 10_000)
    shapes = [tuple(group.tokens_BT.shape) for group in batch.units[0]]
    cell = cells.cell_of(record.payload)
    assert shapes[0] == (1, len(cell.tokens) + 2)
    assert sum(count for count, _ in shapes[1:]) == len(cell.perturbed)
    assert {length for _, length in shapes[1:]} == {len(cell.tokens) + 1}
    assert all(count * length <= 200 for count, length in shapes)
    assert all(group.is_token_BT is None for group in batch.units[0])


# Its outputs


def delivered(output, folder, schema, *blocks):
    """Return what an output makes of blocks."""
    path = folder / output.FORMAT.file
    writer = output.Writer(Target(path, schema, sum(map(len, blocks)), {"recipe": "abc"}))
    for block in blocks:
        writer.write(block)
    writer.close()
    assert json.loads(pq.read_schema(path).metadata[b"featuremill"]) == {"recipe": "abc"}
    return pd.read_parquet(path)


@pytest.fixture
def shifts_block():
    """Return blocks of records with shifts as merge hands them on, and the long table."""
    chosen = np.random.default_rng(5)
    blocks, rows = [], []
    for start in (0, 30, 60):
        ids, values = [], []
        for number in range(start, start + 30):
            ids.append(f"c_block_{number // 2}_block_{number % 2 + 1}")
            names = chosen.choice(["A", "B", "C", "D"], chosen.integers(0, 4), replace=False)
            shifts = [
                {"gene": str(name), "kind": "delete", "cosine": cosine, "tokens": number}
                for name in names
                for cosine in [float("nan") if chosen.random() < 0.3 else chosen.normal(0.99, 1e-3)]
            ]
            shifts.append({"gene": "E", "kind": "delete", "cosine": float("nan"), "tokens": 1})
            rows += [{"cell": ids[-1].rpartition("_block_")[0]} | shift for shift in shifts]
            values.append(shifts)
        columns = {"id": ids, "shifts": pa.array(values, pa.list_(geneformer.SHIFT))}
        blocks.append(pa.table(columns))
    schema = pa.schema({"shifts": pa.list_(geneformer.SHIFT)})
    return blocks, schema, pd.DataFrame(rows)


def test_the_long_table_and_its_statistics_are_those_of_pandas(shifts_block, tmp_path):
    blocks, schema, wanted = shifts_block
    found = delivered(perturbations, tmp_path, schema, *blocks)
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False)
    statistics = delivered(gene_statistics, tmp_path, schema, *blocks).set_index("gene")
    by_gene = wanted.groupby("gene").cosine
    assert statistics.index.tolist() == list("ABCDE")
    assert statistics.cells.tolist() == by_gene.count().tolist()
    np.testing.assert_allclose(statistics["mean"], by_gene.mean(), rtol=1e-13)
    np.testing.assert_allclose(statistics.deviation, by_gene.std(), rtol=1e-9)
    assert np.isnan(statistics.loc["E", ["mean", "deviation"]].astype(float)).all()


def test_with_states_the_statistics_are_of_the_shifts_towards_each(tmp_path):
    schema = pa.schema({"shifts": pa.list_(geneformer.SHIFT_TOWARDS)})
    told = {"kind": "delete", "cosine": 0.9, "tokens": 7}
    found = [("A", "ill", 0.5), ("A", "ill", 0.1), ("B", "ill", -0.2), ("A", "well", float("nan"))]
    rows = [{**told, "gene": gene, "state": state, "shift": shift} for gene, state, shift in found]
    columns = {"id": ["c_block_1"], "shifts": pa.array([rows], schema.field("shifts").type)}
    got = delivered(gene_statistics, tmp_path, schema, pa.table(columns))
    assert got[["gene", "kind", "state", "cells"]].to_numpy().tolist() == [
        ["A", "delete", "ill", 2],
        ["B", "delete", "ill", 1],
        ["A", "delete", "well", 0],
    ]
    np.testing.assert_allclose(got["mean"], [0.3, -0.2, np.nan])


class Runs(Verbs):
    """Runs on the cells of a place."""

    def configure(self, place, outputs, **more):
        """Write c.yaml and the file of the weights; return the config."""
        options = asked_of(options_of(place, **more))
        config = {"run": "test", "inputs": str(place / "cells.h5ad"), "workload": "geneformer"}
        config |= {"options": options, "outputs": outputs, "device": "cpu"}
        (self.folder / "c.yaml").write_text(yaml.safe_dump(config))
        self("weights", "--workload", "geneformer", "--output", "w.json", options["model"])
        return config

    def planned(self, config, status=0):
        """Return what plan says."""
        told = ("--config", written(config), "--weights", "w.json")
        return self("plan", self.run_folder.root, *told, status=status)

    def merged(self, config):
        """Return the folder of the results, and how many shards they took."""
        self.planned(config)
        plan = json.loads(self.run_folder.plan.read_text())
        self.extract(plan)
        folder = self.run_folder.root
        self("merge", folder, "--outputs", *config["outputs"], "--max-failed", "0")
        return folder, len(plan["shards"])

    def estimated(self):
        asked = ("featuremill", "estimate", "c.yaml", "--tokens-per-second", "1000", "--json")
        return json.loads(self.type(*asked).out)


def test_a_run_from_cells_to_statistics(place, tmp_path, environment):
    runs = Runs(tmp_path, environment)
    outputs = ["parquet", "perturbations", "gene_statistics"]
    folder, _ = runs.merged(runs.configure(place, outputs, perturb="delete"))
    long = pd.read_parquet(folder / "perturbations.parquet")
    counts = some_counts(14, len(GENES))
    wanted = list(map(len, expected_tokens(counts, GENES, place)))
    assert long.groupby("cell", sort=False).size().tolist() == wanted
    assert long.cosine.between(-1, 1).all()
    statistics = pd.read_parquet(folder / "gene_statistics.parquet").set_index("gene")
    by_gene = long.groupby("gene").cosine
    np.testing.assert_allclose(statistics["mean"], by_gene.mean(), rtol=1e-12)
    np.testing.assert_allclose(statistics.deviation, by_gene.std(), rtol=1e-6, atol=1e-15)
    assert runs.estimated()["device_mb"] > 100


def test_init_writes_a_config_to_be_filled_in(place, tmp_path, environment):
    desk = Desk(tmp_path, environment)
    words = ["featuremill", "init", "--workload", "geneformer", "--output", "c.yaml"]
    desk.type(*words, place / "cells.h5ad")
    made = yaml.safe_load((tmp_path / "c.yaml").read_text())
    assert made["options"] == dict.fromkeys(("model", "vocabulary", "medians"))
    assert made["workload"] == "geneformer" and made["outputs"] == ["parquet"]


def test_its_memory_is_told_before_anything_is_hashed(place):
    options, found = resolved(place)
    ahead = geneformer.weights_ahead(options_of(place))
    assert geneformer.resolve(options_of(place), CPU, ahead) == options and ahead.sha256 == ""
    small, large = (geneformer.memory_mb(options, CPU, ahead, cost) for cost in (64, 40_960))
    assert small < large == geneformer.memory_mb(options, CPU, found, 40_960)
    # A record of 64 perturbations costs more than what is ever in the network at once.
    options = options.model_copy(update={"perturb": "delete"})
    usual, block = (geneformer.memory_mb(options, CPU, found, cost) for cost in (4096, 64 * 4096))
    assert usual == block < large


# The contract


class Surrounded(WorkloadContract):
    workload = "geneformer"
    inputs = ("cells.h5ad",)

    @pytest.fixture(autouse=True)
    def _surroundings(self, place, monkeypatch):
        monkeypatch.chdir(place)


FILES = {"model": "V2/model", "vocabulary": "V2/tokens.json", "medians": "V2/medians.json"}
FILES |= {"dtype": "fp32"}


@pytest.mark.slow
class TestTheContractOfVectors(Surrounded):
    options = MappingProxyType(FILES)
    tolerance = 1e-5


@pytest.mark.slow
class TestTheContractOfShifts(Surrounded):
    options = MappingProxyType(FILES | {"perturb": "overexpress"})


@pytest.mark.slow
class TestTheContractOfVectorsOfGenes(Surrounded):
    options = MappingProxyType(FILES | {"gene_vectors": True})
    tolerance = 1e-3


@pytest.mark.slow
class TestTheContractOfShiftsOfGenes(Surrounded):
    options = MappingProxyType(
        FILES
        | {"perturb": "overexpress", "genes": KNOWN[:9], "gene_shifts": True}
        | {"overexpress_absent": True}
    )


# Real cells and the true shape

HUMAN = "transcriptformer-0.6.1/test/data/human_val.h5ad"
TRUE_SIZES = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}
"""Of Geneformer V1 (10M)."""


SDIST_SHA256 = "e08e8488c037de54e2dabcdf02199f2bc384a5ddf306c7bcf37b3e333abfb387"


@pytest.fixture(scope="module")
def human(tmp_path_factory):
    """Return 1,000 human cells, and options of a model of the true shape with random weights."""
    folder = tmp_path_factory.mktemp("human")
    words = ("--no-binary", ":all:", "--no-build-isolation")
    with tarfile.open(fetched("transcriptformer==0.6.1", SDIST_SHA256, *words)) as archive:
        archive.extract(HUMAN, folder, filter="data")
    with h5ad.opened(folder / HUMAN, "X", "") as file:
        names = sorted(set(file.genes))[:20_271]
    (folder / "V2").mkdir()
    write_genes(folder / "V2", names)
    write_model(folder / "V2" / "model", 4 + len(names), **TRUE_SIZES)
    return folder


@pytest.mark.slow
def test_a_thousand_cells_are_read_in_five_seconds_of_one_core(human):
    options = options_of(human)
    start = time.process_time()
    found = read(human / HUMAN, options)
    seconds = time.process_time() - start
    assert len(found) == 1000 and seconds <= 5
    print(f"{seconds:.2f} s")


@pytest.mark.slow
def test_real_cells_are_read_as_anndata_reads_them(human):
    counts, ids, names = read_cells(human / HUMAN)
    options = options_of(human)
    found = read(human / HUMAN, options)
    assert [record.id for record in found] == ids
    tokens, medians = tables(human, "V2")
    places = {tokens[name]: place for place, name in enumerate(names) if name in tokens}
    for record, row in zip(found[:200], counts[:200].toarray().astype(float), strict=True):
        own = tokens_in(record)
        assert set(own) == {token for token, place in places.items() if row[place] > 0}
        ids = [names[places[token]] for token in own]
        scores = [row[places[token]] / row.sum() * 1e4 for token in own]
        scores = np.array(scores) / [medians[id] for id in ids]
        # But for rounding, which sets genes apart that are equal.
        assert (scores[1:] <= scores[:-1] * (1 + 1e-12)).all()


@pytest.mark.slow
def test_deleting_a_token_equals_encoding_real_cells_anew(human, tmp_path):
    """In each of 200 cells, deleting a gene equals reading the cell with 0 counts of it."""
    counts, _, names = read_cells(human / HUMAN)
    options = options_of(human)
    whole = [cells.cell_of(r.payload).tokens for r in read(human / HUMAN, options)[:200]]
    tokens, _ = tables(human, "V2")
    columns = {tokens[name]: n for n, name in enumerate(names) if name in tokens}
    counts, gone = counts[:200].toarray(), []
    for number, own in enumerate(whole):
        gone.append(own[(7 * number) % len(own)])
        counts[number, columns[int(gone[-1])]] = 0
    path = write_cells(tmp_path / "less.h5ad", cells_of(counts, names))
    less = [cells.cell_of(r.payload).tokens for r in read(path, options)]
    asked = options_of(human, perturb="delete")
    for own, token, found in zip(whole, gone, less, strict=True):
        (deleted,) = cells.possible(cells.Cell(np.array([token]), own), asked, 4094)
        assert np.array_equal(found, deleted.tokens)


@pytest.mark.slow
def test_vectors_of_the_true_shape_are_those_of_transformers(human):
    options, found = resolved(human)
    model = geneformer.load(options, [CPU], found)
    payloads = [record.payload for record in read(human / HUMAN, options)[:10]]
    values = values_of(geneformer, model, payloads, 8192).column(0).to_pylist()
    reference = Reference(human / "V2" / "model", "V2")
    for payload, vector in zip(payloads, values, strict=True):
        expected = reference.vector(cells.cell_of(payload).tokens)
        assert relative_l2(vector, expected) <= 1e-5
