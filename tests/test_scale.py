"""Large inputs: what shares plan's work never outlives it or hides a failure; bench.scale runs."""

import json
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from programs import is_running, wait_for, written

from featuremill.inputs import proteins
from featuremill.plan import processes

ROOT = Path(__file__).parents[1]
NUM_RECORDS = 120_000


class Planning:
    """A plan of more records than one process takes alone, caught while others share its work."""

    def __init__(self, verbs, limit_bytes=None):
        self.verbs = verbs
        config = {"inputs": ["in.fa"], "workload": "composition", "shards": {"cost": 500_000}}
        self.arguments = (
            *("plan", verbs.run_folder.root, "--config", written(config)),
            *("--threads", "2", "--log-file", verbs.folder / "plan.log"),
        )
        heeds_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # also below nohup
        self.process = verbs.start(*self.arguments, start_new_session=True, preexec_fn=heeds_ctrl_c)
        if limit_bytes:
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        self.processes = self._processes()

    def _processes(self):
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")

        def found():
            assert self.process.poll() is None, "nothing was started"
            # multiprocessing has a process of its own beside them.
            pids = [pid for pid in children.read_text().split() if "spawn_main" in command(pid)]
            return len(pids) == 2 and [int(pid) for pid in pids]

        return wait_for(found)

    def wait_until_all_spool(self):
        wait_for(lambda: len(list(self.spool().glob("*/rows*"))) == len(self.processes))

    def ends(self):
        """Wait for the end; return the status and what was said. A minute of it is a hang."""
        _, said = self.process.communicate(timeout=60)
        wait_for(lambda: not any(map(is_running, self.processes)))
        return self.process.returncode, said

    def spool(self):
        """Return the folder of what plan lays out; one that is not there where there is none."""
        store = self.verbs.run_folder.store
        return next(store.glob(".spool.*"), store / "spool")


@pytest.fixture
def planning(verbs):
    letters = str.maketrans("01", "AC")
    with (verbs.folder / "in.fa").open("w") as handle:
        for number in range(NUM_RECORDS):
            handle.write(f">p{number}\nMKV{number:b}\n".translate(letters))
    return lambda **more: Planning(verbs, **more)


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return ""


def loaded(pid):
    return Path(f"/proc/{pid}/maps").read_text()


def test_sigkill_of_plan_leaves_no_process_and_the_next_plan_tidies_up(planning, verbs):
    killed = planning()
    killed.wait_until_all_spool()
    for library in ("torch", "pandas"):
        assert not any(library in loaded(pid) for pid in killed.processes)
    killed.process.send_signal(signal.SIGKILL)
    assert killed.ends()[0] == -signal.SIGKILL
    assert killed.spool().exists()
    verbs(*killed.arguments)
    assert not killed.spool().exists()
    plan = json.loads(verbs.run_folder.plan.read_text())
    assert plan["counts"]["planned"] == NUM_RECORDS


def test_no_process_of_plan_can_be_struck_by_ctrl_c_from_its_first_moment_on(planning):
    """Else one that is still starting shows its stack."""
    sigint = 1 << (signal.SIGINT - 1)
    stopped = planning()
    blocked = [
        int(re.search(r"^SigBlk:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)[1], 16)
        for pid in stopped.processes
    ]
    stopped.process.terminate()
    stopped.ends()
    assert [mask & sigint for mask in blocked] == [sigint, sigint]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_plan_at_once_and_without_a_word(planning, number):
    stopped = planning()
    os.killpg(stopped.process.pid, number)
    status, said = stopped.ends()
    assert status == 128 + number
    assert "Traceback" not in said and "Error" not in said
    assert not stopped.spool().exists()


def test_a_signal_waits_until_a_process_is_whole_and_then_ends_it(monkeypatch):
    """Else the process finds nothing to start from, and shows its stack."""
    started = []

    class Struck(processes._Process):
        def __init__(self):
            signal.raise_signal(signal.SIGTERM)
            super().__init__()
            started.append(self.handle)

    def leave(*_):
        raise SystemExit

    monkeypatch.setattr(processes, "_Process", Struck)
    before = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(SystemExit), processes.Processes(2) as both:
            both.start(2)
        assert signal.getsignal(signal.SIGTERM) is leave
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [process.exitcode for process in started] == [-signal.SIGKILL]


def test_the_first_error_is_raised_and_processes_work_on_after_it(tmp_path):
    """A plan looks payloads up again when it met an index that is wrong."""

    def folders():
        yield from [(tmp_path,), (tmp_path / "gone",), (tmp_path / "other",)]
        raise ValueError

    with processes.Processes(2) as both:
        both.start(2)
        for _ in range(2):
            with pytest.raises(FileNotFoundError, match="gone"):
                list(both.map(os.listdir, folders()))
            assert list(both.map(abs, [(-n,) for n in range(9)])) == [*range(9)]


def test_a_task_that_cannot_be_sent_is_an_error_and_not_a_wait():
    with processes.Processes(2) as both:
        both.start(2)
        for _ in range(2):
            with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
                list(both.map(abs, [(-1,), (lambda: 0,), (-2,)]))
            assert list(both.map(abs, [(-n,) for n in range(3)])) == [*range(3)]


def test_a_process_whose_parent_is_gone_ends_without_a_word(capfd):
    with processes.Processes(2) as both:
        both.start(2)
        (idle, busy) = both._processes
        busy.pipe.send((list, (), True))
        busy.answer()
        for process in (idle, busy):
            process.pipe.close()
            process.handle.join()
            assert process.handle.exitcode == 0
    assert capfd.readouterr().err == ""


def test_a_full_disk_is_one_sentence_whoever_meets_it(planning):
    full = planning(limit_bytes=1_000_000)
    status, said = full.ends()
    assert status == 1
    assert "File too large" in said and "nothing is lost: fix that" in said
    assert "Traceback" not in said and len(said.splitlines()) == 1
    assert not full.spool().exists()


def test_a_process_that_is_killed_is_one_sentence(planning):
    bereft = planning()
    os.kill(bereft.processes[1], signal.SIGKILL)
    status, said = bereft.ends()
    assert status == 1
    assert "a process of plan was killed by SIGKILL, perhaps for lack of memory" in said
    assert "Traceback" not in said and len(said.splitlines()) == 1
    assert not bereft.spool().exists()


def test_made_proteins_are_distinct_and_always_the_same(environment, tmp_path):
    def make(**seeds):
        """Write a file a seed, in one process; return what was said of each, and what it holds."""
        calls = [
            f"print(write_proteins(Path('{tmp_path / name}.fasta'), 21_000, seed={seed}))"
            for name, seed in seeds.items()
        ]
        code = "; ".join(["from pathlib import Path", "from bench.scale_proteins import *", *calls])
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
        contents = [(tmp_path / f"{name}.fasta").read_bytes() for name in seeds]
        return list(zip(map(int, done.stdout.split()), contents, strict=True))

    ((num_residues, made),) = make(a=1)
    again, other = make(b=1, c=2)
    assert again == (num_residues, made) and other[1] != made
    records = list(proteins([tmp_path / "a.fasta"]))
    assert not any(record.reason for record in records)
    lengths = [len(record.payload) for record in records]
    assert sum(lengths) == num_residues
    assert min(lengths) < 60 and max(lengths) > 1_500 and 300 < sum(lengths) / 21_000 < 400
    assert len({record.payload for record in records}) == 21_000
    assert len({record.id for record in records}) == 21_000


@pytest.mark.slow
def test_a_rehearsal_measures_every_stage(environment, tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench.scale", "--records", "300", "600", "--shards", "3"),
            *("--out", str(tmp_path / "out"), "--scratch", str(tmp_path / "scratch")),
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "out").iterdir()
    content = json.loads(path.read_text())
    assert [found["records"] for found in content["rehearsals"]] == [300, 600]
    for found in content["rehearsals"]:
        assert found["shards"] == found["stages"]["extract"]["jobs"] == 3
        for stage in found["stages"].values():
            assert stage["seconds"] > 0 and stage["peak_mb"] > stage["peak_anonymous_mb"] > 10
        assert found["receipts_seconds"] > 0
        assert found["bytes"]["shards"] > found["residues"]
    assert "| 600 | merge |" in done.stdout
    assert not any((tmp_path / "scratch").iterdir()), "nothing is left behind"
