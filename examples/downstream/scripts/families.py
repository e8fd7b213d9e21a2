"""Name the family of each query protein: the one that most of its nearest references have.

Near is what has a high cosine. Writes a table to standard output: id, family, votes, the nearest
reference and its cosine.
"""

import argparse
import sys
from collections import Counter

import numpy as np
import pandas as pd


def unit_vectors(path: str, column: str) -> tuple[pd.Series, np.ndarray]:
    """Return the ids of an embeddings.parquet and its vectors of length 1: (records, width)."""
    table = pd.read_parquet(path)
    vectors = np.stack(table[column]).astype("float64")
    return table["id"], vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main() -> None:
    """Read the two runs and the families; write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reference")
    parser.add_argument("query")
    parser.add_argument("families")
    parser.add_argument("--column", required=True)
    parser.add_argument("--neighbours", type=int, default=1)
    arguments = parser.parse_args()
    reference_ids, reference = unit_vectors(arguments.reference, arguments.column)
    query_ids, query = unit_vectors(arguments.query, arguments.column)
    family_of = pd.read_csv(arguments.families, sep="\t").set_index("id")["family"]
    cosines = query @ reference.T
    rows = []
    for id, row in zip(query_ids, cosines, strict=True):
        nearest = np.argsort(-row, kind="stable")[: arguments.neighbours]
        votes = Counter(family_of[reference_ids[n]] for n in nearest)
        family, count = votes.most_common(1)[0]
        first = nearest[0]
        rows.append((id, family, f"{count}/{len(nearest)}", reference_ids[first], row[first]))
    table = pd.DataFrame(rows, columns=["id", "family", "votes", "nearest", "cosine"])
    table.to_csv(sys.stdout, sep="\t", index=False, float_format="%.4f")


if __name__ == "__main__":
    main()
