"""search: finds the records of a run nearest to a sequence, or to another record.

Reads the results of a run. Vectors of sequences are computed with the run's own recipe. Every
vector is compared, so the result is exact. Writes only the result.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from featuremill.kit.environment import OPENBLAS_NUM_THREADS

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

EPILOG = (
    "On a machine that others use too: featuremill lease --gpus 1 -- featuremill search …; ids of "
    "the run's own records need no device."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add("run_folder", type=Path, help="results/<run>")
    add(
        "--query",
        nargs="+",
        required=True,
        metavar="FILE|ID",
        help="a file of sequences, as a run reads it, or ids (or accessions) of the run's records, "
        "with commas or spaces between; several of them",
    )
    add("-k", type=int, default=10, metavar="N", help="nearest records of each (default 10)")
    add("--vectors", help="which vectors, where a run has several (such as mean_layer_33)")
    add(
        "--metric",
        metavar="{cosine,euclidean,dot}",
        default="cosine",
        help="what nearest means (default cosine)",
    )
    add("--exclude-self", action="store_true", help="leave out the record that is the query")
    add("--format", choices=("table", "tsv"), help="default: table on a terminal, else tsv")
    add("--output", type=Path, metavar="FILE", help="write there, not to standard output")
    add("--partial", action="store_true", help="search the partial results")
    add("--device", choices=("auto", "cuda", "cpu"), help="computes sequences (default: the run's)")
    add("--weights", type=Path, help="weights/<name>.json, where the run's is elsewhere")


def run(arguments: argparse.Namespace) -> int:
    _calm_blas()
    from featuremill.features.nearest import metric_of
    from featuremill.kit.files import give_way
    from featuremill.steps.transfer.search import hits, view

    if arguments.output:
        give_way(arguments.output, is_named=True)
    chosen = hits.Chosen(
        arguments.k,
        arguments.vectors,
        metric_of(arguments.metric),
        arguments.exclude_self,
        arguments.partial,
        arguments.device,
        arguments.weights,
    )
    matches = hits.search(arguments.run_folder, arguments.query, chosen)
    view.write(matches, arguments.output, arguments.format)
    return 0


def _calm_blas() -> None:
    """Let NumPy multiply on one thread, unless OPENBLAS_NUM_THREADS is set or NumPy is loaded.

    OpenBLAS reads the number when it is loaded. Its threads wait for each other at every product:
    beside other programs, a hundred queries take minutes instead of seconds.
    """
    if "numpy" in sys.modules or OPENBLAS_NUM_THREADS.text() is not None:
        return
    OPENBLAS_NUM_THREADS.set("1")
    import numpy  # noqa: F401  (to have it loaded)

    OPENBLAS_NUM_THREADS.unset()  # torch may bring an OpenBLAS of its own


def search(
    run: str | Path,
    queries: str | Path | Sequence[str | Path] | Mapping[str, str] | np.ndarray[Any, Any],
    k: int = 10,
    *,
    column: str | None = None,
    metric: Literal["cosine", "euclidean", "dot", "l2"] = "cosine",
    exclude_self: bool = False,
    partial: bool = False,
    device: Literal["auto", "cuda", "cpu"] | None = None,
    weights: str | Path | None = None,
) -> pd.DataFrame:
    """Return the `k` nearest records of `run` (such as "results/demo") for each query.

    `queries` are files of sequences and ids of the run's records, as on the command line; a mapping
    from names to sequences; or vectors of shape (queries, width), named by their row. Sequences are
    computed with the run's recipe.

    Columns: query, rank (from 1), id, score, length (residues), description; ordered by query and
    rank. The score is the cosine (0 with a vector of zeros), the dot product, or the Euclidean
    distance (also called "l2"); in float64. Ties have the order of the input.

    Raises:
        UserError: the run has no such results, a query is not found, or the recipe cannot be
            computed here.
        IntegrityError: the results are damaged.
    """
    import numpy as np
    import pandas as pd

    from featuremill.features.nearest import metric_of
    from featuremill.steps.transfer.search import hits

    if isinstance(queries, Mapping | np.ndarray):
        query: hits.QueryInput = queries
    else:
        words = [queries] if isinstance(queries, str | Path) else queries
        query = [str(word) for word in words]
    chosen = hits.Chosen(k, column, metric_of(metric), exclude_self, partial, device, weights)
    rows = [hit for batch in hits.search(Path(run), query, chosen) for hit in batch]
    return pd.DataFrame(rows, columns=list(hits.Hit._fields))
