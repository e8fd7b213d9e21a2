"""Geneformers with random weights as Hugging Face lays published ones out, their genes, and made-up
cells as anndata writes them."""

import json
import warnings

import anndata
import numpy as np
import pandas as pd
import torch
from scipy import sparse

SPECIAL = {"V1": ["<pad>", "<mask>"], "V2": ["<pad>", "<mask>", "<cls>", "<eos>"]}
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
POSITIONS = {"V1": 2048, "V2": 4096}


def ensembl(number):
    return f"ENSG{number:011d}"


def write_genes(folder, names, version="V2", seed=0):
    """Write tokens.json and medians.json; return the options that name them."""
    chosen = np.random.default_rng(seed)
    tokens = {name: token for token, name in enumerate([*SPECIAL[version], *names])}
    medians = {name: float(f"{chosen.uniform(0.5, 5):.4f}") for name in names}
    (folder / "tokens.json").write_text(json.dumps(tokens))
    (folder / "medians.json").write_text(json.dumps(medians))
    return {
        "vocabulary": str(folder / "tokens.json"),
        "medians": str(folder / "medians.json"),
    }


def write_model(folder, num_tokens, version="V2", **sizes):
    """Write a BertForMaskedLM, as Geneformer is published; return it."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=num_tokens,
        max_position_embeddings=POSITIONS[version],
        hidden_act="relu",
        **(SIZES | sizes),
    )
    torch.manual_seed(0)
    model = BertForMaskedLM(config).eval()
    model.save_pretrained(folder)
    return model


def some_counts(num_cells, num_genes, seed=0, share=0.4):
    chosen = np.random.default_rng(seed)
    counts = chosen.poisson(3.0, (num_cells, num_genes)) * (
        chosen.random((num_cells, num_genes)) < share
    )
    return counts.astype(np.float32)


def cells_of(counts, genes, names=None, form="csr"):
    """Return an AnnData; `form` says how its matrix is kept."""
    kept = {"csr": sparse.csr_matrix, "csc": sparse.csc_matrix, "dense": np.asarray}[form]
    names = names or [f"cell{number}" for number in range(len(counts))]
    obs, var = (pd.DataFrame(index=pd.Index(each, dtype=object)) for each in (names, genes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return anndata.AnnData(kept(counts), obs=obs, var=var)


def read_cells(path):
    """Return the counts (N, G), the cells' names and the genes' ids, as anndata has them."""
    with warnings.catch_warnings():  # that genes without names are called by numbers
        warnings.simplefilter("ignore")
        found = anndata.read_h5ad(path)
        return found.X, found.obs_names.tolist(), found.var["ensembl_id"].tolist()


def write_cells(path, cells):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cells.write_h5ad(path)
    return path


def write_place(folder, names, known):
    """Write a model of each version with the genes `known`, and 14 cells with the genes `names`;
    return `folder`."""
    for version, special in SPECIAL.items():
        (folder / version).mkdir()
        write_genes(folder / version, known, version)
        write_model(folder / version / "model", len(special) + len(known), version)
    write_cells(folder / "cells.h5ad", cells_of(some_counts(14, len(names)), names))
    return folder
