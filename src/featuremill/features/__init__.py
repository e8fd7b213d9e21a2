"""Read the features of a run: one reader for all result files, and for parts in the store.

    from featuremill import features

    run = features.open("results/demo", "mean_layer_6")
    for ids, vectors in run.blocks():
        ...

Vectors are read from embeddings.npy, embeddings.parquet or embeddings/; without a table of results,
from the parts in the store. They are read in blocks, so a run may be larger than memory.
`open_parts` opens the parts, also with vectors of residues. `Planned` has the records of a run
before it is computed.
"""

from featuremill.features.index import NOWHERE, Index
from featuremill.features.opening import open, open_parts  # noqa: A004  (features.open is its name)
from featuremill.features.parts import Parts
from featuremill.features.records import Features, Listed, Planned, Record
from featuremill.features.table import Column, Matrix, Rows, chosen, columns_of
from featuremill.store.failed import Failure

__all__ = [
    "NOWHERE",
    "Column",
    "Failure",
    "Features",
    "Index",
    "Listed",
    "Matrix",
    "Parts",
    "Planned",
    "Record",
    "Rows",
    "chosen",
    "columns_of",
    "open",
    "open_parts",
]
