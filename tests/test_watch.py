"""The watch: a hang is ended, and a slow device is not taken for one."""

import faulthandler

import pytest

from featuremill.extract import pipeline
from featuremill.extract.pipeline import Watch

STACKS = 2
"""Descriptor of what the timer writes a stack into."""


class Clock:
    """A clock that only the test moves, and the timer that the watch sets."""

    def __init__(self, monkeypatch):
        self.now = 50.0
        self.allowed = None
        monkeypatch.setattr(pipeline.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(faulthandler, "dump_traceback_later", self._set)

    def _set(self, seconds, exit, file):
        assert exit and file == STACKS
        self.allowed = seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_a_batch_has_the_seconds_that_were_asked_for_until_more_is_known(clock):
    Watch(600, STACKS).arm(10**9)
    assert clock.allowed == 600


@pytest.mark.parametrize("first_seconds", [2.0, 300.0])
def test_a_slow_device_has_twenty_times_what_it_takes(clock, first_seconds):
    """By what batches took after the first one, in which much happens that never does again."""
    timer = Watch(60, STACKS)
    for cost, seconds in ((10, first_seconds), (1000, 400.0), (500, 200.0)):
        begun = clock.now
        clock.now += seconds
        timer.done(cost, begun)
    timer.arm(2000)
    assert clock.allowed == pytest.approx(20 * 2000 * 600 / 1500)
    timer.arm(1)
    assert clock.allowed == 60, "never less than was asked for"


def test_what_overlaps_counts_once(clock):
    timer = Watch(1, STACKS)
    begun = clock.now
    for _ in range(3):  # launched together, done one after the other
        clock.now += 10
        timer.done(5, begun)
    assert (timer.busy_seconds, timer.cost_run) == (30.0, 15)
