"""`featuremill search`: find the records of a run that are nearest to sequences or other records.

Vectors of sequences are computed with the run's recipe. All vectors of the run are compared, so the
result is exact.
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
        help="files of sequences, in the formats of a run, or ids (or accessions) of the run's "
        "records, separated by commas or spaces",
    )
    add("-k", type=int, default=10, metavar="N", help="nearest records per query (default 10)")
    add("--vectors", help="column of vectors, if the run has several (such as mean_layer_33)")
    add(
        "--metric",
        metavar="{cosine,euclidean,dot}",
        default="cosine",
        help="measure of nearness (default cosine)",
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
    from featuremill.steps.transfer import hits

    if arguments.output:
        give_way(arguments.output, is_named=True)
    settings = hits.Settings(
        arguments.k,
        arguments.vectors,
        metric_of(arguments.metric),
        arguments.exclude_self,
        arguments.partial,
        arguments.device,
        arguments.weights,
    )
    matches = hits.search(arguments.run_folder, arguments.query, settings)
    hits.write(matches, arguments.output, arguments.format)
    return 0


def _calm_blas() -> None:
    """Limit NumPy to one thread, unless OPENBLAS_NUM_THREADS is set or NumPy is imported.

    OpenBLAS reads the variable on import. Its threads synchronise at each product: on a busy
    machine, a hundred queries take minutes instead of seconds.
    """
    if "numpy" in sys.modules or OPENBLAS_NUM_THREADS.text() is not None:
        return
    OPENBLAS_NUM_THREADS.set("1")
    import numpy  # noqa: F401  (loads OpenBLAS)

    OPENBLAS_NUM_THREADS.unset()  # not for torch, which may have an OpenBLAS of its own


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
    from names to sequences; or vectors of shape (queries, width), with row numbers as names.
    Sequences are computed with the run's recipe.

    Columns: query, rank (from 1), id, score, length (residues) and description, sorted by query and
    rank. The score is the cosine (0 for a vector of zeros), the dot product or the Euclidean
    distance (also "l2"), in float64. Records with equal scores are in the order of the input.

    Raises:
        UserError: the run has no such results, a query is missing, or the recipe cannot be
            computed here.
        IntegrityError: the results are damaged.
    """
    import numpy as np
    import pandas as pd

    from featuremill.features.nearest import metric_of
    from featuremill.steps.transfer import hits

    if isinstance(queries, Mapping | np.ndarray):
        query: hits.QueryInput = queries
    else:
        words = [queries] if isinstance(queries, str | Path) else queries
        query = [str(word) for word in words]
    settings = hits.Settings(k, column, metric_of(metric), exclude_self, partial, device, weights)
    rows = [hit for batch in hits.search(Path(run), query, settings) for hit in batch]
    return pd.DataFrame(rows, columns=list(hits.Hit._fields))
