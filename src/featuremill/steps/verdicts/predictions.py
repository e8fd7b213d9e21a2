"""Read predictions, and join them with the fragments of a translation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq

from featuremill.kit.errors import UserError
from featuremill.kit.ids import ID_ALONE, WHOLE, IdColumns
from featuremill.kit.runs import with_keys, with_whole_ids
from featuremill.kit.text import listed
from featuremill.kit.tsv import MARK_WRITTEN_OUT
from featuremill.steps.heads.card import IS_SEEN, NO, UNKNOWN, YES
from featuremill.steps.translate.folder import fragments as fragments_of

__all__ = ["Predictions", "open_predictions", "scored"]
SCORE = "score_"
BLOCK_ROWS = 50_000
SEEN = (NO, UNKNOWN, YES)
"""Whether the head was trained on a record; a contig has the last value of its fragments."""


class Predictions(NamedTuple):
    """A table of predictions."""

    path: Path
    classes: tuple[str, ...]
    has_seen: bool
    """Whether the table has a column that marks records of the training set."""
    id_columns: IdColumns = ID_ALONE

    @property
    def scores(self) -> list[str]:
        """The columns of scores."""
        return [f"{SCORE}{name}" for name in self.classes]

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        seen = [IS_SEEN] if self.has_seen else []
        return [*self.id_columns.names, *self.scores, *seen]

    def blocks(self) -> Iterator[pa.Table]:
        """Yield blocks of rows, in order, with whole ids.

        Raises:
            UserError: a row is wrong.
        """
        try:
            if self.path.suffix == ".parquet":
                with pq.ParquetFile(self.path) as file:
                    for batch in file.iter_batches(BLOCK_ROWS, columns=self.columns):
                        yield with_whole_ids(with_keys(pa.table(batch)))
                return
            marked = f"^{re.escape(MARK_WRITTEN_OUT)}"
            with _tsv(self.path, self.columns) as reader:
                for batch in reader:
                    block = pa.table(batch)
                    for index, name in enumerate(block.column_names):
                        if name in WHOLE:  # the original ids, without the quoting of cells
                            ids = pc.replace_substring_regex(block[name], marked, '"')
                            block = block.set_column(index, name, ids)
                    yield with_whole_ids(with_keys(block))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UserError(
                f"{self.path}: a row is no prediction ({error}); predict again."
            ) from None


def open_predictions(path: Path) -> Predictions:
    """Return the predictions in `path`.

    Raises:
        UserError: the file is missing or not a table of predictions.
    """
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; featuremill head predict writes one.")
    try:
        if path.suffix == ".parquet":
            names = pq.read_schema(path).names
        else:
            with path.open(encoding="utf-8") as file:
                names = file.readline().rstrip("\n").split("\t")
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: this is no table of predictions ({error}); predict again."
        ) from None
    classes = tuple(name.removeprefix(SCORE) for name in names if name.startswith(SCORE))
    if "id" not in names or len(classes) < 2:
        raise UserError(
            f"{path}: predictions have a column id and one `{SCORE}…` a class, at least two, and "
            f"these are {listed(names[:8])}; give what featuremill head predict wrote."
        )
    return Predictions(path, classes, IS_SEEN in names, IdColumns.among(names))


def _tsv(path: Path, columns: list[str]) -> pc_csv.CSVStreamingReader:
    types = dict.fromkeys(columns, pa.float64())
    types |= dict.fromkeys([*WHOLE, IS_SEEN], pa.string())
    convert = pc_csv.ConvertOptions(
        column_types=types, include_columns=columns, strings_can_be_null=False
    )
    parse = pc_csv.ParseOptions(delimiter="\t")
    return pc_csv.open_csv(path, parse_options=parse, convert_options=convert)


class Scored(NamedTuple):
    """Consecutive fragments with their scores."""

    fragments: pa.Table
    """Rows of fragments.parquet, with whole ids and contigs."""
    scores_NC: npt.NDArray[np.float64]
    """The scores of each fragment and class; NaN without a prediction."""
    seen_N: npt.NDArray[np.int64]
    """The index in `SEEN` of each fragment."""


def scored(folder: Path, predictions: Predictions) -> Iterator[Scored]:
    """Yield all fragments of the translation in `folder` with their scores, in order.

    Fragments and predictions are joined by whole ids. Both must have the same order, so that only a
    block of each is in memory.

    Raises:
        UserError: a prediction has no fragment, is duplicate, out of order or not finite.
    """
    blocks = predictions.blocks()
    waiting = next(blocks, None)
    for fragments in fragments_of(folder, num_rows=BLOCK_ROWS):
        while waiting is not None and waiting.num_rows < len(fragments):
            if (more := next(blocks, None)) is None:
                break
            waiting = pa.concat_tables([waiting, more])
        scores_NC = np.full((len(fragments), len(predictions.classes)), np.nan)
        seen_N = np.zeros(len(fragments), np.int64)
        unknown = SEEN.index(UNKNOWN)
        if waiting is not None and waiting.num_rows:
            ahead = waiting.slice(0, len(fragments))
            at = pc.index_in(ahead["id"], fragments["id"].combine_chunks())
            rows = at.fill_null(-1).to_numpy()
            # Predictions of later fragments follow those of this block.
            num = int((rows >= 0).sum())
            rows = rows[:num]
            if (rows < 0).any() or (np.diff(rows) <= 0).any():
                wrong = int(np.argmax((rows < 0) | (np.diff(rows, prepend=-1) <= 0)))
                raise _misplaced(predictions, folder, ahead["id"][wrong].as_py())
            columns = [ahead[name].slice(0, num).to_numpy() for name in predictions.scores]
            scores_NC[rows] = np.stack(columns, axis=1)
            seen_N[rows] = unknown
            if predictions.has_seen:
                seen = pc.index_in(ahead[IS_SEEN].slice(0, num), pa.array(SEEN))
                seen_N[rows] = seen.fill_null(unknown).to_numpy()
            if not np.isfinite(scores_NC[rows]).all():
                wrong = int(np.argmin(np.isfinite(scores_NC[rows]).all(1)))
                raise UserError(
                    f"{predictions.path}: the scores of {ahead['id'][wrong].as_py()!r} are no "
                    "numbers; predict again."
                )
            waiting = waiting.slice(num)
        yield Scored(fragments, scores_NC, seen_N)
    left = next((block for block in (waiting, *blocks) if block is not None and len(block)), None)
    if left is not None:
        raise _misplaced(predictions, folder, left["id"][0].as_py())


def _misplaced(predictions: Predictions, folder: Path, id: str) -> UserError:
    return UserError(
        f"{predictions.path}: {id!r} is no fragment of {folder}, is there twice or stands in "
        "another order than there; give the predictions of these fragments' own run."
    )
