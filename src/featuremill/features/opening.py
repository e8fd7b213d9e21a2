"""Open the features of a run: find its results and the files to read.

The sizes of result files are compared with manifest.json before the first vector is read.
"""

from __future__ import annotations

import logging
import shlex
from pathlib import Path

import pyarrow as pa

from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.words import counted
from featuremill.features.parts import Parts
from featuremill.features.records import Features, Record
from featuremill.features.table import CHOOSING, Matrix, Stored, Table, chosen, mapped
from featuremill.store import command_line
from featuremill.store.delivery import Delivery
from featuremill.store.formats import bytes_of, outputs_of
from featuremill.store.results import Results

log = logging.getLogger("featuremill.features")


def open(
    run: str | Path,
    column: str | None = None,
    *,
    partial: bool | None = False,
    choosing: str = CHOOSING,
) -> Features:
    """Open the features of `run` (such as "results/demo"): the vectors `column`, or the only ones.

    Sizes of files are compared with manifest.json here, digests by `Features.check`. `partial` is
    False for complete results, True for partial results, and None for complete results if there are
    any, else partial ones. `choosing` is advice in messages how to choose one of several columns.

    Raises:
        UserError: if there are no such results, or no such column with a vector per record.
        IntegrityError: if files of the store contradict each other.
    """
    folder = Results(Path(run))
    delivered, delivery = _delivered(folder, partial)
    features = _opened(folder, delivered, delivery, column, choosing)
    if delivered.find_delivery() != delivery:
        raise UserError(
            f"{folder.root}: a merge is writing these results; try again when it is done."
        )
    if not features.num_rows:
        raise UserError(
            f"{folder.root}: no record of these results has a vector; see failed.tsv there."
        )
    _warn(features)
    return features


def open_parts(run: str | Path, column: str | None = None) -> Parts:
    """Open the vectors in the parts of `run`, with a row per distinct payload: of `column`, or of
    the only column, with a vector per record or per residue.

    Raises:
        UserError: if the run is not complete, a part was removed, or there is no such column.
        IntegrityError: if its files contradict each other.
    """
    folder = Results(Path(run))
    _, delivery = _delivered(folder, False)
    return _parts(folder, delivery, column, "--vectors", True)


def _delivered(folder: Results, partial: bool | None) -> tuple[Results, Delivery]:
    """Return the folder of the results, complete or partial, and their manifest.json."""
    root = folder.root
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder; name a run's, such as results/demo.")
    folders = {False: [folder], True: [folder.partial], None: [folder, folder.partial]}
    for results in folders[partial]:
        delivery = results.find_delivery()
        if delivery is not None and not (delivery.partial and partial is False):
            return results, delivery
        if delivery is None and results.delivery.exists():
            again = " --partial" if results != folder else ""
            raise UserError(
                f"{results.delivery}: it cannot be read, so it is not known what the results are; "
                f"featuremill merge {root}{again} writes them anew."
            )
    if not (folder.plan.exists() or folder.delivery.exists()):
        raise UserError(f"{root}: this is no run's folder; name one, such as results/demo.")
    if partial is False:
        raise _not_whole(folder)
    raise UserError(
        f"{root}: there are no {'partial ' if partial else ''}results yet; let the run come "
        f"to its end ({command_line.again(root)}), or take what is computed by now "
        f"(featuremill merge {shlex.quote(str(root))} --partial)."
    )


def _not_whole(folder: Results) -> UserError:
    return UserError(
        f"{folder.root}: there are no complete results of this run yet; let it come to its end "
        f"({command_line.again(folder.root)})."
    )


def _parts(
    folder: Results, delivery: Delivery, column: str | None, choosing: str, of_residues: bool
) -> Parts:
    plan = folder.read_plan_of_records()
    if not delivery.is_of(plan):
        raise _not_whole(folder)
    return Parts(folder, plan, delivery, column, choosing, of_residues)


def _opened(
    folder: Results, delivered: Results, delivery: Delivery, column: str | None, choosing: str
) -> Features:
    """Open the table of the results, with embeddings.npy if there is one, else the parts."""
    root, written = folder.root, delivered.written()
    paths = {output: delivered.root / file for file, output in outputs_of(written).items()}
    path, npy = paths.get("parquet_dataset") or paths.get("parquet"), paths.get("npy")
    if delivery.row_order == "shard":
        npy = None  # an exported one is in the order of the input
    if path is None and delivery.partial:
        raise UserError(
            f"{root}: this needs embeddings.parquet or embeddings/, which name the record of "
            f"each vector, and these results have {', '.join(written) or 'no file'}; "
            f"featuremill merge {root} --partial --outputs {' '.join([*paths, 'parquet'])} adds it "
            "from the parts, without computing."
        )
    if path is None:
        parts = _parts(folder, delivery, column, choosing, False)
        return Features(folder, delivered, delivery, parts.column, *parts.by_record(), parts.check)
    used = [path, npy] if npy else [path]
    for file in used:
        if not file.exists() or bytes_of(file) != written[file.name].bytes:
            raise UserError(_not_as_written(file, root))
    try:
        table = Table(path)
    except (pa.ArrowInvalid, OSError) as error:
        if getattr(error, "errno", None):
            raise
        raise UserError(_not_as_written(path, root)) from None
    if not set(table.schema.names) >= set(Record._fields):
        raise UserError(_not_as_written(path, root))
    which = chosen(table.schema, column, path, choosing)
    vectors: Stored | Matrix = Stored(table, which)
    if npy:
        try:
            vectors = mapped(npy, which, table.num_rows)
        except (ValueError, EOFError):
            raise UserError(_not_as_written(npy, root)) from None

    def check() -> None:
        for file in used:
            if not written[file.name].is_at(file):
                raise IntegrityError(_not_as_written(file, root))

    return Features(folder, delivered, delivery, which, table, vectors, check)


def _not_as_written(path: Path, root: Path) -> str:
    return (
        f"{path}: this is not what merge wrote; featuremill merge {root} writes it anew (if a "
        "merge is at work now, wait for it)."
    )


def _warn(features: Features) -> None:
    counts, plan, root = features.delivery.counts, features.plan, features.folder.root
    if features.delivery.partial:
        log.warning(
            "partial results: %s of %s are not computed yet and are left out.",
            f"{counts.pending:,}",
            counted(counts.input, "record"),
        )
    if plan and not features.delivery.is_of(plan):
        log.warning(
            "%s: these results are of an earlier plan than plan.json; they are made new by: %s",
            root,
            command_line.again(root),
        )
