"""Reads what VirNucPro leaves behind, by the documented format alone: nothing of ours is imported.

Run as `python virnucpro_files.py FOLDER NAME`, it prints how much there is.
"""

import csv
import sys
from pathlib import Path

import numpy as np
import torch

MOST = 10_000
HEAD = ["Sequence_ID", "Prediction", "score1", "score2"]


def fasta(path):
    """Return sequences by id, in order."""
    found = {}
    for line in path.read_text().splitlines():
        if line.startswith(">"):
            id = line[1:]
            assert id not in found
            found[id] = ""
        else:
            found[id] += line
    return found


def numbered(folder, ending):
    """Return the files output_1… with this ending, in the order of their numbers."""
    found = {path.name: path for path in folder.glob(f"output_*{ending}")}
    names = [f"output_{i}{ending}" for i in range(1, len(found) + 1)]
    assert set(names) == set(found)
    return [found[name] for name in names]


def sequences(folder, most=MOST):
    """Return all sequences of a folder; every file but the last is full."""
    files = [fasta(path) for path in numbered(folder, ".fa")]
    assert [len(file) for file in files[:-1]] == [most] * (len(files) - 1)
    assert all(0 < len(file) <= most for file in files)
    return files


def loaded(path, key):
    told = torch.load(path, weights_only=True)
    assert set(told) == {key, "data"}
    assert all(type(id) is str for id in told[key])
    assert len(told[key]) == len(told["data"])
    return told[key], told["data"]


def esm(path):
    ids, data = loaded(path, "proteins")
    assert isinstance(data, list)
    storages = {row.untyped_storage().data_ptr() for row in data}
    assert len(storages) == len(data), "each tensor is one of its own"
    assert all(row.dtype == torch.float32 and row.ndim == 1 for row in data)
    return {id: row.numpy() for id, row in zip(ids, data, strict=True)}


def dnabert(path):
    ids, data = loaded(path, "nucleotide")
    assert [set(entry) for entry in data] == [{"label", "mean_representation"}] * len(data)
    assert [entry["label"] for entry in data] == ids
    assert all(type(number) is float for entry in data for number in entry["mean_representation"])
    return {
        id: np.array(entry["mean_representation"], np.float32)
        for id, entry in zip(ids, data, strict=True)
    }


def merged(path):
    ids, data = loaded(path, "ids")
    assert isinstance(data, torch.Tensor)
    assert data.dtype == torch.float32 and data.ndim == 2
    return dict(zip(ids, data.numpy(), strict=True))


def table(path):
    with path.open(newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def results(path):
    """Return label, score1 and score2 by id, in order."""
    head, *rows = table(path)
    assert head == HEAD
    assert len({row[0] for row in rows}) == len(rows)
    return {id: (label, float(one), float(two)) for id, label, one, two in rows}


def highest(path):
    """Return whether a window is a virus's, and its highest scores, in order."""
    head, *rows = table(path)
    assert head == ["Modified_ID", "Is_Virus", "max_score_0", "max_score_1"]
    assert len({row[0] for row in rows}) == len(rows)
    is_virus = {"True": True, "False": False}
    return {id: (is_virus[told], float(one), float(two)) for id, told, one, two in rows}


def failed(path):
    """Return (file, stage, error) of each line."""
    found = [tuple(line.split("|", 2)) for line in path.read_text().splitlines()]
    assert all(len(parts) == 3 for parts in found)
    return found


def read(folder, name, most=MOST):
    """Return everything; a kind of files that is not there is an empty list."""
    place = {kind: folder / f"{name}_{kind}" for kind in ("nucleotide", "protein", "merged")}
    return {
        "nucleotide": sequences(place["nucleotide"], most),
        "protein": sequences(place["protein"], most),
        "dnabert": [dnabert(path) for path in numbered(place["nucleotide"], "_DNABERT_S.pt")],
        "esm": [esm(path) for path in numbered(place["protein"], "_ESM.pt")],
        "merged": [merged(path) for path in numbered(place["merged"], "_merged.pt")],
        "results": results(place["merged"] / "prediction_results.txt"),
        "highest": highest(place["merged"] / "prediction_results_highestscore.csv"),
        "failed": failed(folder / "failed_files.txt"),
    }


if __name__ == "__main__":
    for what, found in read(Path(sys.argv[1]), sys.argv[2]).items():
        print(what, len(found))
