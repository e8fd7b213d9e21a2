"""trained: average the vectors of classes."""

import logging
from operator import attrgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from featuremill_trained import TABLE

from featuremill import features
from featuremill.inputs import labels
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering, sha256_of, write_json
from featuremill.kit.processes import VERSION
from featuremill.kit.text import Progress, counted, listed

NAME = attrgetter("name")
log = logging.getLogger("featuremill.trained")


def add_arguments(parser):
    parser.add_argument("run_folder", type=Path)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--column", required=True)
    parser.add_argument("--vectors")
    parser.add_argument("--output", type=Path, required=True)


def run(arguments):
    run = features.open(arguments.run_folder, arguments.vectors, choosing="--vectors")
    found, _ = labels.read(arguments.labels, arguments.column, None, run.id_columns, log=log)
    vectors_of, left, progress = {}, dict.fromkeys(found), Progress(log, "reading")
    for ids, vectors in run.blocks():
        for id, vector in zip(ids, vectors, strict=True):
            if id in found:
                vectors_of.setdefault(found[id].name, []).append(vector)
                del left[id]
        progress.at(sum(map(len, vectors_of.values())), len(found))
    if not vectors_of:
        raise UserError(f"{arguments.labels}: none of its ids has features in {run.name}.")
    names = [name for name in dict.fromkeys(map(NAME, found.values())) if name in vectors_of]
    means = [np.sum(vectors_of[name], 0, np.float64) / len(vectors_of[name]) for name in names]
    flat = pa.array(np.concatenate(means).astype(np.float32))
    card, missing, table = map(Path, TABLE.files(str(arguments.output)))
    with delivering(table) as path:
        means = pa.FixedSizeListArray.from_arrays(flat, run.width)
        pq.write_table(pa.table({"group": pa.array(names), "mean": means}), path)
    with delivering(missing) as path:
        path.write_text("".join(f"{id}\n" for id in ["id", *left]))
    made_of = [arguments.labels, arguments.run_folder / "manifest.json"]
    told = {
        "featuremill": VERSION,
        "made_of": {str(path): sha256_of(path) for path in made_of},
        "column": arguments.column,
        "counts": {"classes": len(names)},
    }
    write_json(card, told)
    log.info("%s: %s", counted(len(names), "class", "classes"), listed(names))
