"""Write what config/examples/geneformer.yaml runs on: cells, a Geneformer, and its genes.

The cells are MADE UP, of two kinds that differ in a third of their genes, and so are the genes'
medians. The network's weights are RANDOM. So its values are worth nothing; it is there to see the
workload without a download. Run as `python config/examples/geneformer.py made_cells`, which makes
that folder.
"""

import csv
import json
import sys
from pathlib import Path

import h5py
import numpy as np

try:
    import torch
    from transformers import BertConfig, BertForMaskedLM
except ImportError as error:
    sys.exit(f"{error.name} is not installed; pip install 'featuremill[geneformer]' brings it.")

NUM_CELLS, NUM_GENES = 40, 90
SPECIAL = ["<pad>", "<mask>", "<cls>", "<eos>"]
GENES = [f"ENSG{number:011d}" for number in range(1, NUM_GENES + 1)]
CELLS = [f"cell-{number}" for number in range(1, NUM_CELLS + 1)]
KINDS = ("quiet", "busy")


def write_cells(folder: Path, chosen: np.random.Generator) -> None:
    """Write cells.h5ad, as anndata lays one out, and kinds.csv."""
    kind_of_cell = np.arange(NUM_CELLS) % len(KINDS)
    rates = chosen.gamma(1.0, 2.0, (len(KINDS), NUM_GENES))
    rates[:, NUM_GENES // 3 :] = rates[0, NUM_GENES // 3 :]
    counts = chosen.poisson(rates[kind_of_cell])
    rows, columns = np.nonzero(counts)
    edges = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=NUM_CELLS))))
    with h5py.File(folder / "cells.h5ad", "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        matrix = file.create_group("X")
        matrix.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0"})
        matrix.attrs["shape"] = counts.shape
        matrix["data"] = counts[rows, columns].astype(np.float32)
        matrix["indices"], matrix["indptr"] = columns.astype(np.int32), edges.astype(np.int32)
        for name, index in (("obs", CELLS), ("var", GENES)):
            frame = file.create_group(name)
            frame.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0"})
            frame.attrs["_index"] = "_index"
            frame.attrs["column-order"] = np.array([], h5py.string_dtype())
            frame.create_dataset("_index", data=index, dtype=h5py.string_dtype())
            told = {"encoding-type": "string-array", "encoding-version": "0.2.0"}
            frame["_index"].attrs.update(told)
    with (folder / "kinds.csv").open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["id", "kind"])
        lines.writerows(zip(CELLS, (KINDS[kind] for kind in kind_of_cell), strict=True))


def write_geneformer(folder: Path, chosen: np.random.Generator) -> None:
    """Write model/, tokens.json and medians.json, as Geneformer V2 has them."""
    tokens = {name: token for token, name in enumerate([*SPECIAL, *GENES])}
    medians = {gene: round(float(chosen.uniform(0.5, 4)), 3) for gene in GENES}
    (folder / "tokens.json").write_text(json.dumps(tokens))
    (folder / "medians.json").write_text(json.dumps(medians))
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        hidden_act="relu",
        max_position_embeddings=4096,
    )
    torch.manual_seed(0)
    BertForMaskedLM(config).save_pretrained(folder / "model")


if __name__ == "__main__":
    made = Path(sys.argv[1])
    made.mkdir(parents=True, exist_ok=True)
    write_cells(made, np.random.default_rng(0))
    write_geneformer(made, np.random.default_rng(1))
