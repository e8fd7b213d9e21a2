"""The features of a run, for all who go on with them: one reader, of whatever the run left.

    from featuremill import features

    run = features.open("results/demo", "mean_layer_6")
    for ids, vectors in run.blocks():
        ...

Vectors come from embeddings.npy, from embeddings.parquet or embeddings/, or, where a run has no
table, from the parts in its store. They are read in blocks, so a run may be larger than memory.
`open_parts` gives the parts themselves, with vectors of residues too. `Planned` has the records of
a run before it is computed.

It knows columns of vectors, and no workload that makes them or step that takes them.
"""

from featuremill.features.columns import Column, chosen, columns_of
from featuremill.features.index import NOWHERE, Index
from featuremill.features.opening import open, open_parts  # noqa: A004  (features.open is its name)
from featuremill.features.parts import Parts
from featuremill.features.records import Features, Listed, Planned, Record
from featuremill.features.table import Matrix, Rows
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
