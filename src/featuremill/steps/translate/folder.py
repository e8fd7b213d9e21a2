"""Write, check and read the folder of a translation.

`proteins.faa.gz`, `nucleotides.fna.gz` and the rows of `fragments.parquet` have the same ids in the
same order. `untranslated.tsv` lists contigs without a fragment. `translate.json` is written last;
it has the inputs, the options and the digests of the other files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xopen import xopen

from featuremill.inputs import Record
from featuremill.inputs.samples import FILE as FILE
from featuremill.kit.errors import UserError
from featuremill.kit.files import (
    JsonFile,
    JsonRecord,
    delivering,
    discard,
    is_beside,
    is_temporary,
    remove,
    sha256_of,
    vacate,
)
from featuremill.kit.ids import ID_ALONE, KEYS, IdColumns
from featuremill.kit.locks import claimed, is_still_there
from featuremill.kit.tsv import TsvWriter, read_tsv
from featuremill.steps.translate.contigs import Fragment
from featuremill.steps.translate.options import (
    FILES,
    FRAGMENTS,
    LOCK,
    NUCLEOTIDES,
    OF_SAMPLE,
    PROTEINS,
    SHEETS,
    SUMMARY,
    UNTRANSLATED,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["fragments", "untranslated", "whole"]
GZIP_LEVEL = 1
BLOCK_LETTERS, BLOCK_ROWS = 2**21, 10_000
"""The nucleotides or rows that are collected before they are written."""
COLUMNS = {
    "id": "string",
    "contig": "string",
    "start": "int64",
    "end": "int64",
    "strand": "string",
    "frame": "int8",
}
"""The columns of fragments.parquet, with their types."""


class InputFile(JsonRecord):
    """An input file."""

    path: str
    bytes: int
    sha256: str


class Contigs(JsonRecord):
    """The numbers of contigs."""

    read: int
    """The sum of the other fields."""
    with_fragments: int
    without_fragments: int
    refused: int


class Translation(JsonFile):
    """The content of translate.json."""

    by: str
    options: dict[str, int | str]
    program: str
    """The version of the program that found genes; empty for the other methods."""
    method: int = 1
    """The version of the method `by` (`METHODS`)."""
    inputs: list[InputFile]
    contigs: Contigs
    nucleotides: int
    """The number of nucleotides in contigs that were not refused."""
    fragments: int
    residues: int
    files: dict[str, str]
    """The sha256 of each file; with samples, of the sheets and each sample's translate.json."""
    samples: list[str] | None = None
    """The names of the samples, in order; None without samples."""

    @property
    def id_columns(self) -> IdColumns:
        """The columns of ids in files; in memory, ids are whole."""
        return ID_ALONE if self.samples is None else IdColumns(KEYS)

    @property
    def places(self) -> list[tuple[str, str]]:
        """The samples with the names of their folders; without samples, ("", "")."""
        if self.samples is None:
            return [("", "")]
        return [(sample, f"{OF_SAMPLE}{sample}") for sample in self.samples]

    def is_of(self, about: Mapping[str, Any]) -> bool:
        """Return whether the fields `about` have these values."""
        return all(getattr(self, name) == value for name, value in about.items())

    def damaged(self, folder: Path, names: Iterable[str] = FILES) -> Iterator[Path]:
        """Yield those of the files `names` in `folder` that are missing or have other digests."""
        for name in names:
            path = folder / name
            if not path.is_file() or sha256_of(path) != self.files[name]:
                yield path


def whole(folder: Path) -> Translation:
    """Return the summary of the translation in `folder`, after a check of the tables' digests.

    Raises:
        UserError: the translation is not finished, or a table was changed.
    """
    summary = Translation.find(folder / SUMMARY)
    if summary is None:
        raise UserError(
            f"{folder}: there is no finished translation; make one with featuremill translate."
        )
    for _, inside in summary.places:
        own = Translation.find(folder / inside / SUMMARY) if inside else summary
        of_sample = summary.damaged(folder, [f"{inside}/{SUMMARY}"] if inside else [])
        tables = own.damaged(folder / inside, (FRAGMENTS, UNTRANSLATED)) if own else ()
        for path in chain(of_sample, tables):
            raise UserError(f"{path}: it is not what translate wrote; translate again.")
    return summary


def fragments(
    folder: Path, columns: Sequence[str] = tuple(COLUMNS), num_rows: int = BLOCK_ROWS
) -> Iterator[pa.Table]:
    """Yield columns of all fragments of the translation in `folder`, in order, in blocks of up to
    `num_rows`. With samples, `id` and `contig` begin with `<sample>/`, like the ids of features."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    summary = Translation.read(folder / SUMMARY)
    for sample, inside in summary.places:
        with pq.ParquetFile(folder / inside / FRAGMENTS) as file:
            for batch in file.iter_batches(num_rows, columns=list(columns)):
                table = pa.table(batch)
                for number, name in enumerate(columns if sample else ()):
                    if name in ("id", "contig"):
                        whole_names = pc.binary_join_element_wise(sample, table[name], "/")
                        table = table.set_column(number, name, whole_names)
                yield table


def untranslated(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of untranslated.tsv; with samples, `contig` begins with `<sample>/`."""
    for sample, inside in Translation.read(folder / SUMMARY).places:
        with (folder / inside / UNTRANSLATED).open(encoding="utf-8", newline="") as file:
            for row in read_tsv(file):
                yield {**row, "contig": f"{sample}/{row['contig']}"} if sample else row


def check(folder: Path, inputs: Sequence[Path]) -> None:
    """Raise UserError if `folder` is a file, or if one of `inputs` is in it."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: this is a file; name a new folder with --output.")
    for path in inputs:
        if path.resolve().parent == folder.resolve():
            raise UserError(f"{path}: this input stands in the output folder; name another folder.")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock `folder` for this process during the block.

    Raises:
        UserError: the folder has other files, or another process has the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in _unknown_files(folder):
        raise UserError(
            f"{folder}: there is {str(path.relative_to(folder))!r}, which is of no translation; "
            "name a new folder, or an empty one."
        )
    lock = folder / LOCK
    with lock.open("a") as file:
        if claimed(file, lock) is False or not is_still_there(file, lock):
            raise UserError(f"{folder}: another featuremill is translating into it; wait for it.")
        try:
            for path in folder.iterdir():
                if is_temporary(path):
                    remove(path)  # left by a killed process
            yield
        finally:
            left = {path.name for path in folder.iterdir()}
            if SUMMARY in left or not any(is_ours(path) for path in folder.iterdir()):
                lock.unlink()  # otherwise the lock marks the files as those of a translation
            with contextlib.suppress(OSError):  # the folder is not empty
                folder.rmdir()


def _marks(folder: Path) -> list[str]:
    """Return the files that mark a folder as that of a translation, complete or not."""
    return [name for name in (SUMMARY, LOCK) if (folder / name).exists()]


def _unknown_files(folder: Path) -> Iterator[Path]:
    """Yield the files in `folder` and its folders of samples that no translation wrote."""
    paths = sorted(folder.iterdir())
    # Snakemake removes its output files, with the summary, before the job.
    are_samples = [path for path in paths if path.name.startswith(OF_SAMPLE) and is_ours(path)]
    is_known = bool(_marks(folder) or are_samples) or {path.name for path in paths} >= set(FILES)
    for path in paths:
        if path.name in (SUMMARY, LOCK) or is_beside(path.name):
            continue
        if not (is_known and is_ours(path)):
            yield path
    yield from chain.from_iterable(map(_unknown_files, are_samples))


def is_ours(path: Path) -> bool:
    """Return whether a translation may have written a file, or the folder of a sample."""
    name = path.name
    if name.startswith(OF_SAMPLE):
        # An empty folder is left by a process that was killed before it had the lock.
        return path.is_dir() and (bool(_marks(path)) or not any(path.iterdir()))
    files = (*FILES, *SHEETS.values())
    begun = (*(f".{file}." for file in (*files, SUMMARY)), ".genes.")
    return name in files or name.startswith(begun)


def remove_others(folder: Path, names: Container[str]) -> None:
    """Remove other files of translations from `folder`, which is locked with `locked`."""
    for path in folder.iterdir():
        if is_ours(path) and path.name not in names:
            (remove if path.name.startswith(".") else discard)(path)


class Outputs:
    """Writes the files of a translation."""

    def __init__(self, files: contextlib.ExitStack, paths: Mapping[str, Path]) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        self.num_fragments = self.num_residues = 0
        self.sha256: dict[str, str] = {}
        """The sha256 of each file, after all are written."""
        self._fragments: list[Fragment] = []
        """The fragments that are not written yet."""
        self._contigs: list[str] = []
        self._num_letters = 0
        self._fasta = [
            files.enter_context(
                xopen(
                    files.enter_context(paths[name].open("wb")),
                    "wb",
                    compresslevel=GZIP_LEVEL,
                    threads=0,  # in this process
                    format="gz",  # without time and name, so that equal data have equal bytes
                )
            )
            for name in (PROTEINS, NUCLEOTIDES)
        ]
        self._schema = pa.schema([(name, getattr(pa, type)()) for name, type in COLUMNS.items()])
        self._table = files.enter_context(
            pa.parquet.ParquetWriter(paths[FRAGMENTS], self._schema, compression="zstd")
        )
        listed = paths[UNTRANSLATED].open("w", encoding="utf-8", newline="")
        names = ("contig", "file", "line", "status", "reason")
        self._listed = TsvWriter(files.enter_context(listed), names)

    def add(self, contig: Record, fragments: Sequence[Fragment]) -> None:
        """Add fragments of a contig."""
        self._fragments += fragments
        self._contigs += [contig.id] * len(fragments)
        self._num_letters += sum([len(fragment.nucleotides) for fragment in fragments])
        self.num_fragments += len(fragments)
        if self._num_letters >= BLOCK_LETTERS or len(self._fragments) >= BLOCK_ROWS:
            self.write()

    def leave_out(self, contig: Record, status: str, reason: str) -> None:
        """Write a contig without a fragment to untranslated.tsv."""
        self._listed.row((contig.id, contig.source, contig.line, status, reason))

    def write(self) -> None:
        """Write the collected fragments."""
        import pyarrow as pa

        if not self._fragments:
            return
        ids, starts, ends, strands, frames, proteins, nucleotides = zip(
            *self._fragments, strict=True
        )
        heads = [id.encode() for id in ids]
        for file, letters in zip(self._fasta, (proteins, nucleotides), strict=True):
            records = zip(heads, letters, strict=True)
            file.write(b"".join([b">%b\n%b\n" % record for record in records]))
        columns = (ids, self._contigs, starts, ends, strands, frames)
        arrays = [_array(*pair) for pair in zip(columns, COLUMNS.values(), strict=True)]
        self._table.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self.num_residues += sum(map(len, proteins))
        self._fragments.clear()
        self._contigs.clear()
        self._num_letters = 0


def write_sheet(path: Path, columns: Mapping[str, Sequence[str]], contents: str) -> None:
    """Write a sheet of samples to `path`. `contents` is a digest of their files, so that the sheet
    changes with them: for Snakemake, the sheet is the only output."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = [_array(values, "string") for values in columns.values()]
    pq.write_table(pa.table(arrays, list(columns), metadata={"contents": contents}), path)


def _array(values: Sequence[Any], type: str) -> pa.Array:
    """Return `pa.array(values, type)` without the import of pandas, which `pa.array` makes."""
    import numpy as np
    import pyarrow as pa

    if type != "string":
        numbers = pa.py_buffer(np.array(values, type))
        return pa.Array.from_buffers(getattr(pa, type)(), len(values), [None, numbers])
    texts = [text.encode() for text in values]
    edges = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([len(text) for text in texts], out=edges[1:])
    return pa.StringArray.from_buffers(
        len(texts), pa.py_buffer(edges), pa.py_buffer(b"".join(texts))
    )


@contextlib.contextmanager
def writing(folder: Path, is_synced: bool) -> Iterator[Outputs]:
    """Yield the writer of the files. If the block succeeds, the files are renamed to their final
    names, and translate.json and other files of an earlier translation are removed."""
    with contextlib.ExitStack() as names:
        digests: dict[Path, str] = {}
        paths = {
            name: names.enter_context(
                delivering(folder / name, is_synced=is_synced, digest=digests.__getitem__)
            )
            for name in FILES
        }
        with contextlib.ExitStack() as files:
            outputs = Outputs(files, paths)
            yield outputs
            outputs.write()
        outputs.sha256 = {name: sha256_of(path) for name, path in paths.items()}
        digests |= {path: outputs.sha256[name] for name, path in paths.items()}
        vacate(folder / SUMMARY)
        remove_others(folder, {*FILES, *(path.name for path in paths.values())})
