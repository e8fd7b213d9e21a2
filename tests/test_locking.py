"""Locks: one at a time, also where the lock file is removed while somebody waits for it."""

import fcntl
import json
import threading

import pytest

from featuremill.base.locking import locked


def test_a_removed_lock_file_lets_nobody_in_beside_the_next_one(tmp_path):
    path, inside, entered = tmp_path / "x.lock", [], threading.Semaphore(0)
    waits, may_leave = threading.Event(), threading.Event()

    def enter(name):
        with locked(path, waits.set):
            inside.append(name)
            entered.release()
            may_leave.wait(30)
            inside.remove(name)

    with locked(path):
        first = threading.Thread(target=enter, args=("first",))
        first.start()
        assert waits.wait(30), "it has the file open that goes now"
        path.unlink()
        second = threading.Thread(target=enter, args=("second",))
        second.start()
        assert entered.acquire(timeout=30), "there is a new file by now"
    assert not entered.acquire(timeout=0.5) and len(inside) == 1
    may_leave.set()
    assert entered.acquire(timeout=30)
    for thread in (first, second):
        thread.join()


def test_a_look_at_a_lock_makes_nobody_wait(tmp_path, monkeypatch):
    """It shares the lock for an instant; a job of Slurm's that waits goes back into the queue."""
    path = tmp_path / "x.lock"
    with path.open("w") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        monkeypatch.setattr("time.sleep", lambda _: fcntl.flock(look, fcntl.LOCK_UN))
        with locked(path, lambda: pytest.fail("it waits")):
            pass


def test_a_merge_waits_until_the_plan_is_written(verbs):
    verbs.extract(verbs.plan([("a", "MKV"), ("b", "MKVA")]))
    lock = verbs.run_folder.store / "plan.lock"
    with locked(lock):
        merge = verbs.start("merge", verbs.run_folder.root, "--partial")
        for line in merge.stderr:
            if "another job is at plan.lock of this run; waiting" in line:
                break
        assert merge.poll() is None
        assert not verbs.run_folder.partial.delivery.exists()
    merge.communicate(timeout=60)
    assert merge.returncode == 0
    assert json.loads(verbs.run_folder.partial.delivery.read_text())["counts"]["ok"] == 2
