"""pipeline: when the device waited for the disk, and when it did not."""

import threading

import numpy as np
import pyarrow as pa
import pytest

from featuremill.extract import pipeline
from featuremill.store import journal
from featuremill.store.parts import SHARD
from featuremill.workload.batches import Queue

VALUES = pa.schema({"length": pa.list_(pa.float32(), 1)})
DISK_SECONDS = 10.0


class Clock:
    """A clock that only the disk moves; it knows how often the thread that launches looked."""

    def __init__(self):
        self.now = 50.0
        self.num_looks = 0
        self.changed = threading.Condition()

    def monotonic(self):
        with self.changed:
            self.num_looks += threading.current_thread() is threading.main_thread()
            self.changed.notify_all()
            return self.now

    def wait_for(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, timeout=60)


class Toy:
    """A workload that computes nothing, on a device that is done with a batch once `may_end` is."""

    def __init__(self):
        self.collected = []
        self.may_end = [threading.Event() for _ in range(3)]
        self.may_be_prepared = threading.Event()
        """The last batch, by a host that is slow."""

    def prepare(self, model, payloads, batch_cost):
        assert payloads != [b"\2"] or self.may_be_prepared.wait(60)
        return payloads

    def run(self, model, batch):
        return batch

    def collect(self, model, result):
        (payload,) = result
        assert self.may_end[payload[0]].wait(60)
        self.collected.append(payload[0])
        numbers = pa.array(np.array([len(payload)], np.float32))
        return pa.record_batch([pa.FixedSizeListArray.from_arrays(numbers, 1)], schema=VALUES)


@pytest.mark.parametrize("slowest", ["the disk", "the device", "the host"])
def test_only_waiting_for_the_disk_counts_as_that(tmp_path, monkeypatch, slowest):
    """Three batches; the first takes the disk ten seconds, in which the third could be launched."""
    clock, toy = Clock(), Toy()
    is_device_done = slowest != "the device"
    for module in (pipeline, pipeline):
        monkeypatch.setattr(module.time, "monotonic", clock.monotonic)
    for event in toy.may_end[: 3 if is_device_done else 1]:
        event.set()
    rows = pa.table([[bytes([n]) * 32 for n in range(3)], [bytes([n]) for n in range(3)]], SHARD)
    opened = journal.Journal(tmp_path / "j.arrows", journal.part_schema(VALUES), 1)
    commit = opened.commit

    def slow_commit(batch):
        if not opened.rows_done:
            # Two launches, and then the look before it waits for this commit.
            clock.wait_for(lambda: clock.num_looks >= 3)
            clock.wait_for(lambda: line._num_collected == (2 if is_device_done else 1))
            if slowest != "the host":
                toy.may_be_prepared.set()
                line._ahead[1].result(60)
            clock.now += DISK_SECONDS
        commit(batch)
        for event in toy.may_end:
            event.set()

    class Line(pipeline.Pipeline):
        _counted = 0

        def _launch(self, batch, ahead):
            if batch.rows == [2]:
                toy.may_be_prepared.set()
            return super()._launch(batch, ahead)

        @property
        def _num_collected(self):
            return self._counted

        @_num_collected.setter
        def _num_collected(self, number):
            with clock.changed:
                self._counted = number
                clock.changed.notify_all()

    monkeypatch.setattr(opened, "commit", slow_commit)
    queue = Queue([1] * 3, 1, "records", pytest.fail)
    queue.add([[0], [1], [2]])
    shard = pipeline.Shard(rows, opened, VALUES)
    line = Line(toy, None, shard, queue, pipeline.Watch(600, 2), pytest.fail)
    line.run(lambda: None)
    opened.finish()
    assert toy.collected == [0, 1, 2]
    assert line.waited_for_disk == (DISK_SECONDS if slowest == "the disk" else 0)
    assert shard.write_seconds == DISK_SECONDS
