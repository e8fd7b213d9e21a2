"""Labels of contigs become labels of their fragments."""

from __future__ import annotations

from pathlib import Path

from featuremill.inputs.labels import Label


def of_fragments(label_of: dict[str, Label], translated: Path) -> tuple[dict[str, Label], int]:
    """Return the label of each fragment in the folder `translated` whose contig has one, and how
    many of those contigs have no fragment. A fragment has the group of its contig.

    Raises:
        UserError: it is no finished translation.
    """
    import pyarrow.parquet as pq

    from featuremill.steps.translate.folder import whole
    from featuremill.steps.translate.names import FRAGMENTS

    whole(translated)
    labelled: dict[str, Label] = {}
    without = set(label_of)
    with pq.ParquetFile(translated / FRAGMENTS) as file:
        for batch in file.iter_batches(columns=["id", "contig"]):
            for id, contig in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if contig in label_of:
                    labelled[id] = label_of[contig]
                    without.discard(contig)
    return labelled, len(without)
