"""How a run of the tests ends that something ends early: with a failure that names the test.

A worker of xdist that dies is not replaced, as the scheduler of whole files then may wait for ever.
A worker whose test hangs in native code, where pytest-timeout cannot reach it, is ended with its
stacks. SIGTERM ends pytest and its workers in seconds.
"""

import faulthandler
import os
import signal
import sys

import pytest

LATE = 2
"""Times its limit that a test may take, after which its worker is ended."""


def pytest_configure(config):
    is_worker = hasattr(config, "workerinput")
    if getattr(config.option, "maxworkerrestart", "0") is None:
        config.option.maxworkerrestart = "0"
    if is_worker:
        config.stash[STACKS] = os.fdopen(os.dup(sys.__stderr__.fileno()), "w")
    else:
        signal.signal(signal.SIGTERM, _end)


STACKS = pytest.StashKey()
"""Where the stacks of a worker go: its standard error, which no capture takes."""


def _end(number, frame):
    pytest.exit("SIGTERM", 128 + number)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    marker = item.get_closest_marker("timeout")
    seconds = float(
        marker.args[0] if marker and marker.args else item.config.getini("timeout") or 0
    )
    stacks = item.config.stash.get(STACKS, None)
    if stacks is None or not seconds:
        return (yield)
    faulthandler.dump_traceback_later(LATE * seconds, exit=True, file=stacks)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
