"""The journal: whatever is cut off or damaged, what it keeps is right and complete."""

import os
import random
import resource
import signal
import stat
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from featuremill.store import files, journal, journal_log
from featuremill.store.journal import Journal, part_schema

VALUES = pa.schema({"value": pa.list_(pa.float32(), 4)})
SCHEMA = part_schema(VALUES)
LARGE = part_schema(pa.schema({"a": pa.list_(pa.float32(), 2**18), "b": pa.list_(pa.int8(), 9)}))
"""A value of `a` is `messages.LARGE_BYTES`, and so written by itself."""


def batch(first, count=3):
    rows = range(first, first + count)
    columns = [
        pa.array([row.to_bytes(32, "big") for row in rows], pa.binary(32)),
        pa.array(["ok"] * count),
        pa.nulls(count, pa.string()),
        pa.array([[float(row)] * 4 for row in rows], VALUES.field("value").type),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def write(path, firsts, budget=10):
    opened = Journal(path, SCHEMA, budget)
    for first in firsts:
        opened.begin(range(first, first + 3))
        opened.commit(batch(first))
    return opened


def large_batch(first, count=3):
    a, b = np.arange(count * 2**18, dtype=np.float32) + first, np.arange(9 * count, dtype=np.int8)
    pairs = ((a, 2**18), (b, 9))
    values = [pa.FixedSizeListArray.from_arrays(pa.array(x), width) for x, width in pairs]
    return pa.record_batch([*batch(first, count).columns[:3], *values], schema=LARGE)


def read(path):
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_stream(source).read_all()


def test_a_resumed_journal_ends_as_one_written_in_one_go(tmp_path):
    whole, resumed = tmp_path / "whole.arrows", tmp_path / "resumed.arrows"
    digest = write(whole, range(0, 30, 3)).finish()
    write(resumed, range(0, 12, 3)).close()
    again = write(resumed, range(12, 30, 3), budget=99)
    assert (again.num_resumed, again.batch_cost) == (4, 10)
    assert again.finish() == digest == journal_log.digest_of_file(whole)
    assert resumed.read_bytes() == whole.read_bytes()
    assert read(whole)["value"].to_pylist()[5] == [5.0] * 4


def test_large_values_are_written_as_small_ones_are(tmp_path):
    """From where they stand, hashed on another thread: the bytes are those of Arrow's own writer,
    and those that a journal had before it did so."""
    path = tmp_path / "j.arrows"
    batches = [large_batch(0), large_batch(3).slice(1, 2), large_batch(6, 1), large_batch(9, 0)]
    opened = Journal(path, LARGE, 10)
    for rows in batches:
        opened.commit(rows)
    digest = opened.finish()
    whole = pa.BufferOutputStream()
    with pa.ipc.new_stream(whole, LARGE) as stream:
        for rows in batches:
            stream.write_batch(rows)
    content = path.read_bytes()
    assert content == whole.getvalue().to_pybytes()
    assert digest == xxhash.xxh3_128_hexdigest(content) == journal_log.digest_of_file(path)
    start = len(LARGE.serialize())
    for rows, (end, told, num_rows) in zip(
        batches, journal_log.read_log(opened.log_path).commits, strict=True
    ):
        assert content[start:end] == rows.serialize().to_pybytes()
        assert told == xxhash.xxh3_64_hexdigest(content[start:end])
        assert num_rows == rows.num_rows
        start = end
    assert opened.counts == {"ok": 6, "failed": 0} and len(opened.rows_done) == 6


@pytest.mark.parametrize("kind", ["cut", "zero", "flip"])
def test_damage_to_large_values_is_seen(tmp_path, kind):
    path = tmp_path / "j.arrows"
    opened = Journal(path, LARGE, 10)
    for first in (0, 3, 6):
        opened.commit(large_batch(first))
    opened.close()
    kept, end, _ = [commit.end for commit in journal_log.read_log(opened.log_path).commits]
    at = (kept + end) // 2
    with path.open("r+b") as file:
        if kind == "cut":
            file.truncate(at)
        else:
            file.seek(at)
            before = file.read(4096)
            file.seek(at)
            file.write(bytes(4096) if kind == "zero" else bytes([before[0] ^ 1]))
    again = Journal(path, LARGE, 10)
    assert again.num_resumed == 1 and len(again.rows_done) == 3
    for first in (3, 6):
        again.commit(large_batch(first))
    assert again.finish() == journal_log.digest_of_file(path)
    assert read(path).num_rows == 9


def test_a_batch_that_could_not_be_written_does_not_count(tmp_path):
    """A full disk, in the midst of a large value."""
    path = tmp_path / "j.arrows"
    opened = Journal(path, LARGE, 10)
    opened.commit(large_batch(0))
    room = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 2**20, room[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            opened.commit(large_batch(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, room)
        signal.signal(signal.SIGXFSZ, before)
    opened.close()
    again = Journal(path, LARGE, 10)
    assert again.num_resumed == 1
    again.commit(large_batch(3))
    assert again.finish() == journal_log.digest_of_file(path)


class Disk:
    """What a power cut would leave: of each file, what it held when it was last synced."""

    def __init__(self, monkeypatch):
        self._synced = {}
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, descriptor):
        about = os.fstat(descriptor)
        content = None
        if stat.S_ISREG(about.st_mode):
            content = Path(f"/proc/self/fd/{descriptor}").read_bytes()
        self._synced[about.st_dev, about.st_ino] = content

    def holds(self, path):
        """Return the content of a file, or whether a folder's names are there."""
        about = path.stat()
        is_there = (about.st_dev, about.st_ino) in self._synced
        return self._synced.get((about.st_dev, about.st_ino)) if path.is_file() else is_there


def test_a_power_cut_costs_no_finished_part_and_few_seconds_of_a_journal(tmp_path, monkeypatch):
    disk, now = Disk(monkeypatch), 100.0
    monkeypatch.setattr(journal.time, "monotonic", lambda: now)
    path = tmp_path / "j.arrows"
    opened = write(path, [0])
    assert disk.holds(path) is None, "a batch more or less is not worth a sync"
    now += journal.SYNC_SECONDS
    opened.begin([3])
    opened.commit(batch(3))
    assert disk.holds(path) == path.read_bytes()
    log = path.with_suffix(".log")
    assert disk.holds(log) == log.read_bytes()
    opened.finish()
    assert disk.holds(path) == path.read_bytes()
    journal_log.add_strike(log, [5])
    assert disk.holds(log) == log.read_bytes()


def test_a_power_cut_leaves_the_old_file_or_the_whole_new_one(tmp_path, monkeypatch):
    disk, path = Disk(monkeypatch), tmp_path / "receipts" / "r.json"
    replace, moved = Path.replace, []

    def after_the_content(source, target):
        moved.append(disk.holds(source))
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", after_the_content)
    files.write_json(path, {"a": 1})
    assert moved == [path.read_bytes()] and disk.holds(path.parent)


@pytest.mark.parametrize("seed", range(40))
def test_damage_never_gets_past_the_log(tmp_path, seed):
    """Cut either file anywhere, zero a page or flip a bit: whole leading batches are what is
    left."""
    rng = random.Random(seed)
    path = tmp_path / "j.arrows"
    write(path, range(0, 60, 3)).close()
    victim = path if rng.random() < 0.6 else path.with_suffix(".log")
    content = bytearray(victim.read_bytes())
    at = rng.randrange(len(content))
    kind = rng.choice(["cut", "zero", "flip"])
    if kind == "cut":
        del content[at:]
    elif kind == "zero":
        content[at:] = bytes(len(content) - at)
    else:
        content[at] ^= 1 << rng.randrange(8)
    victim.write_bytes(content)
    again = Journal(path, SCHEMA, 10)
    kept = again.num_resumed
    assert again.rows_done == {row.to_bytes(32, "big") for row in range(3 * kept)}
    assert again.counts["ok"] == 3 * kept
    for first in range(3 * kept, 60, 3):
        again.commit(batch(first))
    again.finish()
    clean = tmp_path / "clean.arrows"
    write(clean, range(0, 60, 3)).finish()
    assert path.read_bytes() == clean.read_bytes()


def test_the_log_tells_what_was_in_flight(tmp_path):
    path = tmp_path / "j.arrows"
    opened = write(path, [0, 3])
    opened.begin([6, 7, 8])
    opened.close()
    log = path.with_suffix(".log")
    assert journal_log.read_log(log).in_flight == (6, 7, 8)
    journal_log.add_strike(log, (6, 7, 8))
    state = journal_log.read_log(log)
    assert (state.in_flight, state.strikes) == ((), [(6, 7, 8)])
    Journal(path, SCHEMA, 10).close()
    assert journal_log.read_log(log).strikes == [(6, 7, 8)], "a resume forgets no strike"


def test_several_batches_may_be_in_flight(tmp_path):
    opened = Journal(tmp_path / "j.arrows", SCHEMA, 10)
    log = opened.log_path
    opened.begin([0, 1, 2])
    opened.begin([3, 4])
    assert journal_log.read_log(log).in_flight == (0, 1, 2, 3, 4)
    opened.commit(batch(0))
    assert journal_log.read_log(log).in_flight == (3, 4), "they commit in the order of beginning"
    opened.begin([5])
    opened.abort()
    assert journal_log.read_log(log).in_flight == ()
    opened.begin([3])
    opened.close()
    assert journal_log.read_log(log).in_flight == (3,)


def test_batches_begin_while_others_commit(tmp_path):
    """Two threads write the log; no line of it may be torn or get lost."""
    opened = Journal(tmp_path / "j.arrows", SCHEMA, 10)

    def begin():
        for row in range(3000):
            opened.begin([row] * 50)

    beginner = threading.Thread(target=begin)
    beginner.start()
    for first in range(0, 900, 3):
        opened.commit(batch(first))
    beginner.join()
    digest = opened.finish()
    lines = opened.log_path.read_text().splitlines()[1:]
    begun = [f"begin {','.join([str(row)] * 50)}" for row in range(3000)]
    assert [line for line in lines if line.startswith("begin")] == begun
    assert len(journal_log.read_log(opened.log_path).commits) == 300 == len(lines) - 3000
    assert digest == journal_log.digest_of_file(opened.path)


def test_a_strike_survives_a_torn_line_before_it(tmp_path):
    log = tmp_path / "j.log"
    log.write_text(f"{journal_log.MAGIC} 10\nbegin 1,2")
    journal_log.add_strike(log, (1, 2))
    assert journal_log.read_log(log).strikes == [(1, 2)]


def test_who_looks_at_a_journal_that_becomes_a_part_sees_nothing(tmp_path, monkeypatch):
    """Its files go between two looks of another process."""
    monkeypatch.setattr(Path, "exists", lambda _: True)
    path = tmp_path / "j.arrows"
    assert journal_log.num_rows_in(path) == 0
    path.with_suffix(".log").write_text(f"{journal_log.MAGIC} 10\ncommit 9 x 3\n")
    assert journal_log.num_rows_in(path) == 0
    path.write_bytes(b"x" * 9)
    assert journal_log.num_rows_in(path) == 3


def test_another_schema_starts_over(tmp_path):
    path = tmp_path / "j.arrows"
    write(path, [0]).close()
    again = Journal(path, part_schema(pa.schema({"value": pa.list_(pa.float32(), 5)})), 10)
    again.close()
    assert again.num_resumed == 0
