"""Predictions of fragments, each with the fragment that it is of."""

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
"""A contig has the last of its fragments'."""


class Predictions(NamedTuple):
    """An open table of predictions."""

    path: Path
    classes: tuple[str, ...]
    """In the order of the columns."""
    tells_seen: bool
    """Whether it says which records the head was trained on."""
    id_columns: IdColumns = ID_ALONE

    @property
    def scores(self) -> list[str]:
        """Return the columns of scores."""
        return [f"{SCORE}{name}" for name in self.classes]

    @property
    def columns(self) -> list[str]:
        """Return the columns that are read."""
        seen = [IS_SEEN] if self.tells_seen else []
        return [*self.id_columns.names, *self.scores, *seen]

    def blocks(self) -> Iterator[pa.Table]:
        """Yield the rows, in order: the whole id, a score a class, and whether the head was trained
        on it.

        Raises:
            UserError: when a row is not what it should be.
        """
        try:
            if self.path.suffix == ".parquet":
                with pq.ParquetFile(self.path) as file:
                    for batch in file.iter_batches(BLOCK_ROWS, columns=self.columns):
                        yield with_whole_ids(with_keys(pa.table(batch)))
                return
            with _tsv(self.path, self.columns) as reader:
                for batch in reader:
                    yield with_whole_ids(with_keys(_original(pa.table(batch))))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UserError(
                f"{self.path}: a row is no prediction ({error}); predict again."
            ) from None


def open_predictions(path: Path) -> Predictions:
    """Return the predictions in `path`.

    Raises:
        UserError: when there are none in it.
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


def _original(block: pa.Table) -> pa.Table:
    """Return rows of a TSV table with the original ids, before they became cells."""
    for index, name in enumerate(block.column_names):
        if name in WHOLE:
            ids = pc.replace_substring_regex(block[name], f"^{re.escape(MARK_WRITTEN_OUT)}", '"')
            block = block.set_column(index, name, ids)
    return block


def _tsv(path: Path, columns: list[str]) -> pc_csv.CSVStreamingReader:
    types = dict.fromkeys(columns, pa.float64())
    types |= dict.fromkeys([*WHOLE, IS_SEEN], pa.string())
    convert = pc_csv.ConvertOptions(
        column_types=types, include_columns=columns, strings_can_be_null=False
    )
    parse = pc_csv.ParseOptions(delimiter="\t")
    return pc_csv.open_csv(path, parse_options=parse, convert_options=convert)


class Scored(NamedTuple):
    """Fragments in a row, of one contig or several."""

    fragments: pa.Table
    """Rows of fragments.parquet, with whole ids and contigs."""
    scores_NC: npt.NDArray[np.float64]
    """A row a fragment, in the order of the classes; NaN where it has no prediction."""
    seen_N: npt.NDArray[np.int64]
    """The place among `SEEN` of whether the head was trained on a fragment."""


def scored(folder: Path, predictions: Predictions) -> Iterator[Scored]:
    """Yield all fragments of the translation in `folder` with their scores, in order.

    They are joined by whole ids. Predictions come in the order of the fragments, as a run of them
    keeps it, so memory holds a block of each.

    Raises:
        UserError: when a prediction is of no fragment, is there twice or stands elsewhere, or is
            not finite.
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
        if waiting is not None and waiting.num_rows:
            ahead = waiting.slice(0, len(fragments))
            at = pc.index_in(ahead["id"], fragments["id"].combine_chunks())
            rows = at.fill_null(-1).to_numpy()
            # What is of later fragments stands behind what is of these.
            num = int((rows >= 0).sum())
            rows = rows[:num]
            if (rows < 0).any() or (np.diff(rows) <= 0).any():
                wrong = int(np.argmax((rows < 0) | (np.diff(rows, prepend=-1) <= 0)))
                raise _misplaced(predictions, folder, ahead["id"][wrong].as_py())
            columns = [ahead[name].slice(0, num).to_numpy() for name in predictions.scores]
            scores_NC[rows] = np.stack(columns, axis=1)
            seen_N[rows] = _seen(predictions, ahead.slice(0, num))
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


def _seen(predictions: Predictions, ahead: pa.Table) -> npt.NDArray[np.int64] | int:
    if not predictions.tells_seen:
        return SEEN.index(UNKNOWN)
    numbers = pc.index_in(ahead[IS_SEEN], pa.array(SEEN)).fill_null(SEEN.index(UNKNOWN))
    return np.asarray(numbers.to_numpy(), np.int64)


def _misplaced(predictions: Predictions, folder: Path, id: str) -> UserError:
    return UserError(
        f"{predictions.path}: {id!r} is no fragment of {folder}, is there twice or stands in "
        "another order than there; give the predictions of these fragments' own run."
    )
