"""A run survives being killed: whoever of it, at whatever moment, by whatever signal.

The environment says how: FEATUREMILL_CHAOS_SEED replays a seed's choices (whom, when, how; not
how far the machine is by then), FEATUREMILL_CHAOS_KILLS sets the number of kills of the slow test.
"""

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import NamedTuple

import dnaio
import pyarrow as pa
import pytest
import yaml
from conftest import ROOT
from programs import Verbs, written

from featuremill.extract.pipeline import MOST_IN_FLIGHT
from featuremill.store.results import Results

DATA = ("embeddings.parquet", "per-protein.h5", "failed.tsv")
VERBS = ("plan", "extract", "merge", "report")
PHASES = ("plan", "extract", "batches", "commit", "merge", "report")
"""In the order in which a run goes through them; three of them at the same time: a job is there, a
batch has begun or ended, a part is finished."""
SHARES = (3, 2, 5, 3, 4, 3)
TARGETS = {
    "plan": ("snakemake", "job", "group"),
    "extract": ("snakemake", "job", "worker", "group"),
    "batches": ("snakemake", "job", "worker", "group"),
    "commit": ("snakemake", "job", "worker", "group"),
    "merge": ("snakemake", "job", "group"),
    "report": ("snakemake", "job", "group"),
}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
DELAYS = {"plan": 1.2, "extract": 2.5, "batches": 0.6, "commit": 0.03, "merge": 1.5, "report": 3.0}
"""Up to so many seconds after the phase was seen."""
BATCH_RECORDS = 10
PHASE_SECONDS = 120
EXIT_SECONDS = 60
LEAVE_SECONDS = 20
"""How long the jobs of a dead Snakemake may take to leave."""


def proteins(count):
    """Return (id, sequence) of `count` stretches of the tree's 1,400 real proteins.

    The first are the proteins themselves; the others are halves of the longest ones.
    """
    whole = []
    for path in (ROOT / "bench" / "ecoli.fasta.gz", ROOT / "config" / "demo.fasta"):
        with dnaio.open(path) as reader:
            whole += [(record.id, record.sequence) for record in reader]
    longest = sorted(whole, key=lambda record: (-len(record[1]), record[0]))
    halves = [(f"{id}/second-half", s[len(s) // 2 :]) for id, s in longest]
    records = dict([*whole, *halves])
    assert len(records) >= count
    return list(records.items())[:count]


class Kill(NamedTuple):
    """Whom to kill, how, and when: so long after a sign of the phase."""

    phase: str
    target: str
    signal: signal.Signals
    delay: float
    which: float
    """Where several could be meant: from 0 for the first to 1 for the last."""

    def __str__(self):
        return f"{self.signal.name} to {self.target} in {self.phase} + {self.delay:.3f} s"


def draw(rng, count):
    """Return `count` kills in the order of their phases."""
    kills = []
    for phase in rng.choices(PHASES, SHARES, k=count):
        target = rng.choice(TARGETS[phase])
        delay = rng.uniform(0, DELAYS[phase])
        kills.append(Kill(phase, target, rng.choice(SIGNALS), delay, rng.random()))
    order = {"plan": 0, "merge": 2, "report": 3}
    return sorted(kills, key=lambda kill: order.get(kill.phase, 1))


def verb_of(phase):
    return phase if phase in VERBS else "extract"


class Process(NamedTuple):
    """A process of the run, as /proc shows it."""

    pid: int
    kind: str
    """snakemake, worker, a verb, or "" for anything else."""
    shard: str = ""


def processes(folder):
    """Return the processes whose working folder is `folder`."""
    found = []
    for about in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (about / "cwd").readlink() == folder:
                words = (about / "cmdline").read_text().split("\0")
                found.append(_process(int(about.name), words))
    return found


def _process(pid, words):
    if "snakemake" in words:
        return Process(pid, "snakemake")
    if "featuremill.extract.worker" in words:
        return Process(pid, "worker", _shard_of(pid))
    for place, word in enumerate(words[:-1]):
        if word.endswith("/featuremill") and words[place + 1] in VERBS:
            verb = words[place + 1]
            return Process(pid, verb, words[place + 3] if verb == "extract" else "")
    return Process(pid, "")


def _shard_of(worker):
    """Return the shard of a worker: the argument of its supervisor."""
    with contextlib.suppress(OSError, IndexError):
        status = Path(f"/proc/{worker}/stat").read_text()
        parent = status.rpartition(")")[2].split()[1]
        words = Path(f"/proc/{parent}/cmdline").read_text().split("\0")
        return words[words.index("extract") + 2] if "extract" in words else ""
    return ""


class Chain:
    """A run in `folder`, and the kills that it has to survive."""

    def __init__(self, folder, environment, config, kills=(), name=""):
        self.folder = folder.resolve()
        self.name = name
        self.kills = kills
        self.done = []
        self.run_folder = Results(self.folder / "results" / config["run"])
        self.locks = self.folder / "leases"
        self._environment = {
            **environment,
            "FEATUREMILL_QUIET": "",
            "FEATUREMILL_LEASE_FOLDER": str(self.locks),
        }
        self._snakemake = None
        self._was_disturbed = False
        self._struck = set()
        self._said_from = 0
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

    def __call__(self):
        """Kill what there is to kill, then let the run finish, and check what must hold."""
        try:
            for kill in self.kills:
                if not self._await(kill):
                    continue
                time.sleep(kill.delay)
                self._kill(kill)
            self._finish()
        finally:
            if self._snakemake and self._snakemake.poll() is None:
                os.killpg(self._snakemake.pid, signal.SIGKILL)
                self._snakemake.wait()
        return self

    def fail(self, what):
        said = self._said()
        done = "\n".join(map(str, self.done))
        raise AssertionError(f"{self.name}: {what}\nkills so far:\n{done}\nlast said:\n{said}")

    def _said(self):
        return (self.folder / "said.txt").read_bytes()[self._said_from :].decode(errors="replace")

    def _start(self):
        """Start the one command."""
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
        command += ["--workflow-profile", str(ROOT / "profiles" / "default")]
        command += ["--configfile", "config.yaml", "--cores", "2", "--set-threads", "extract=1"]
        command += ["--resources", "gpu=2", "--rerun-incomplete"]
        with (self.folder / "said.txt").open("ab") as said:
            self._said_from = said.tell()
            self._was_disturbed = False
            about = {"cwd": self.folder, "env": self._environment, "start_new_session": True}
            self._snakemake = subprocess.Popen(command, **about, stdout=said, stderr=said)

    def _has_ended(self):
        """Tell whether the whole run is done; start the command again where it is not."""
        if self._snakemake is None:
            self._start()
        status = self._snakemake.poll()
        if status is None:
            return False
        if status == 0:
            return True
        if not self._was_disturbed:
            self.fail(f"an undisturbed command ended with {status}")
        self._start()
        return False

    def _await(self, kill):
        """Wait for the phase of `kill`; False when the run is past it."""
        later = VERBS[VERBS.index(verb_of(kill.phase)) + 1 :]
        count = {"batches": self._num_noted, "commit": self._num_kept}.get(kill.phase)
        before = count() if count else 0
        deadline = time.monotonic() + PHASE_SECONDS
        while not self._has_ended():
            kinds = {process.kind for process in processes(self.folder)}
            if count:
                if count() > before:
                    return True
            elif kill.phase in kinds and (kill.target != "worker" or "worker" in kinds):
                return True
            if kinds & set(later):
                return False
            if time.monotonic() > deadline:
                self.fail(f"{kill.phase} never came")
            time.sleep(0.005 if count else 0.02)
        return False

    def _num_noted(self):
        logs = self.run_folder.store.glob("journals/*/*.log")
        with contextlib.suppress(FileNotFoundError):  # its part is finished this moment
            return sum(log.stat().st_size for log in logs)
        return 0

    def _num_kept(self):
        return sum(1 for _ in self.run_folder.store.glob("parts/*/*.json"))

    def _kill(self, kill):
        """Carry out `kill`, when there still is whom it means."""
        here = sorted(processes(self.folder))
        if kill.target in ("snakemake", "group"):
            if self._snakemake.poll() is None:
                self._was_disturbed = True
                self.done.append(kill)
                whom = self._snakemake.pid
                os.kill(-whom if kill.target == "group" else whom, kill.signal)
                self._leave(kill, here)
            return
        kind = kill.target if kill.target == "worker" else verb_of(kill.phase)
        meant = [process for process in here if process.kind == kind]
        if kind == "worker" and kill.signal == signal.SIGKILL:
            # Two lone deaths on one record are its own doing, whoever kills: so one a shard.
            struck = {"", *self._struck}
            meant = [process for process in meant if process.shard not in struck]
        if not meant:
            return
        victim = meant[round(kill.which * (len(meant) - 1))]
        self._was_disturbed = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, kill.signal)
            self.done.append(kill)
            if kind == "worker" and kill.signal == signal.SIGKILL:
                self._struck.add(victim.shard)

    def _leave(self, kill, here):
        """Wait until Snakemake has ended, and start it again while its jobs may be leaving."""
        try:
            self._snakemake.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.fail(f"snakemake did not end on {kill}")
        self._start()
        deadline = time.monotonic() + LEAVE_SECONDS
        pids = {process.pid for process in here}
        while left := [process for process in processes(self.folder) if process.pid in pids]:
            if time.monotonic() > deadline:
                self.fail(f"still there after {kill}: {left}")
            time.sleep(0.02)

    def _finish(self):
        """Let the run end, and check that a kill left nothing behind."""
        deadline = time.monotonic() + PHASE_SECONDS
        while not self._has_ended():
            if time.monotonic() > deadline:
                self.fail("the run never ended")
            time.sleep(0.05)
        for word in ("Traceback", "unlock", "Incomplete", "corrupt"):
            if word in self._said() and not self._was_disturbed:
                self.fail(f"the last command said {word}")
        deadline = time.monotonic() + LEAVE_SECONDS
        while left := processes(self.folder):
            if time.monotonic() > deadline:
                self.fail(f"orphans: {left}")
            time.sleep(0.05)
        self._check_locks()
        self._check_halves()

    def _check_locks(self):
        places = [*self.folder.rglob("*.lock"), *self.folder.glob(".snakemake/*.owner")]
        places += [path for path in self.locks.glob("*") if path.is_file()]
        for path in places:
            with path.open("r+b") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self.fail(f"{path} is still locked")

    def compare(self, whole):
        """Compare the results with those of `whole`, a chain without kills."""
        for name in DATA:
            mine, theirs = (run.run_folder.root / name for run in (self, whole))
            if mine.read_bytes() != theirs.read_bytes():
                self.fail(f"{name} differs")
        counts, expected = self.counts(), whole.counts()
        if counts != expected or counts["failed"]:
            self.fail(f"counts: {counts}, not {expected}")
        plan = json.loads(self.run_folder.plan.read_text())
        for shard in (entry["shard"] for entry in plan["shards"]):
            mine, theirs = (run.run_folder.part(plan["recipe"], shard) for run in (self, whole))
            if shard in self._struck:  # its rows in flight were tried alone, so stand elsewhere
                same = _rows(mine) == _rows(theirs)
            else:
                same = mine.read_bytes() == theirs.read_bytes()
            if not same:
                self.fail(f"the part of shard {shard} differs")

    def _check_halves(self):
        """No half of a receipt, a part or a result is left, and no journal of a finished part."""
        root, store = self.run_folder.root, self.run_folder.store
        places = [root / "receipts", store / "parts"]
        left = [path for place in places for path in place.rglob(".*")]
        left += [*store.glob("journals/*/*.log"), *store.glob("journals/*/*.arrows")]
        if left:
            self.fail(f"left behind: {left}")

    def counts(self):
        counts = json.loads((self.run_folder.root / "manifest.json").read_text())["counts"]
        assert counts["input"] == sum(counts[k] for k in ("ok", "failed", "refused", "duplicate"))
        return counts

    def check_noted(self):
        """Only what a dead worker had in flight is ever computed again."""
        batches = defaultdict(list)  # worker → its batches, in order
        order = []
        for line in (self.folder / "noted.txt").read_text().splitlines():
            worker, _, digests = line.partition(" ")
            if worker not in batches:
                order.append(worker)
            batches[worker].append(set(digests.split(",")))
        times = Counter(d for lists in batches.values() for batch in lists for d in batch)
        for place, worker in enumerate(order):
            settled = set().union(*batches[worker][:-MOST_IN_FLIGHT])
            for other in order[place + 1 :]:
                if again := settled & set().union(*batches[other]):
                    self.fail(f"worker {other} computed {len(again)} finished records again")
        if max(len(batch) for lists in batches.values() for batch in lists) > BATCH_RECORDS:
            self.fail("a batch is larger than asked")
        return times


def _rows(path):
    with pa.memory_map(str(path)) as source:
        rows = pa.ipc.open_stream(source).read_all().to_pylist()
    return sorted(rows, key=lambda row: row["sha256"])


def fill(folder, records):
    """Write the input: `records`, and a few that are refused or stand there twice."""
    odd = [(f"odd{n}", "MK*V" + "L" * n) for n in range(5)]
    text = "".join(f">{id}\n{sequence}\n" for id, sequence in [*records, *odd, *records[:7]])
    folder.mkdir(parents=True)
    (folder / "in.fa").write_text(text)


def seed(otherwise=None):
    """Return the seed that was asked for; without one `otherwise`, or a new one."""
    given = os.environ.get("FEATUREMILL_CHAOS_SEED")
    new = random.SystemRandom().randrange(10**6) if otherwise is None else otherwise
    return int(given) if given else new


BESIDE = 2
"""Chains at the same time."""
SHARD_RECORDS = 250
ABOUT = {"run": "test", "inputs": "in.fa", "device": "cpu"}
SLOWLY = {"batch_records": BATCH_RECORDS, "batch_seconds": 0.02, "record_seconds": 0.0002}
WITNESSED = {**ABOUT, "workload": "witnessed", "options": SLOWLY, "shards": {"cost": SHARD_RECORDS}}
MILL = {"model": "mill_t6_8M", "dtype": "fp32", "batch_tokens": 400}
ESM2 = {**ABOUT, "workload": "esm2", "options": MILL, "shards": {"cost": 3500}}


class Trial:
    """Chains of kills, each compared with an undisturbed run of its kind."""

    def __init__(self, folder, environment, seed, node, num_shards=8):
        print(f"FEATUREMILL_CHAOS_SEED={seed}")
        self.folder = folder
        self.seed = seed
        self.num_kills = 0
        self._distinct = {sequence for _, sequence in proteins(num_shards * SHARD_RECORDS)}
        self._environment = environment | {"FEATUREMILL_CACHE": str(folder / "cache")}
        self._node = node
        self._records = {
            "witnessed": proteins(num_shards * SHARD_RECORDS),
            "esm2": [record for record in proteins(400) if 100 <= len(record[1]) <= 220][:80],
        }

    def chain(self, config, name, kills=()):
        folder = self.folder / name
        fill(folder, self._records[config["workload"]])
        environment = self._environment
        if config["device"] == "cuda":
            path = {"PYTHONPATH": environment["PYTHONPATH"]}
            environment = environment | self._node.environment | path
        return Chain(folder, environment, config, kills, f"seed {self.seed}, {name}")

    def undisturbed(self, name):
        """Return a chain without kills, computed by one verb after the other."""
        chain = self.chain(WITNESSED, name)
        verbs = Verbs(chain.folder, self._environment)
        verbs("plan", verbs.run_folder.root, "--config", written(WITNESSED))
        verbs.extract(json.loads(verbs.run_folder.plan.read_text()))
        verbs("merge", verbs.run_folder.root, "--outputs", "parquet", "per_protein_h5")
        return chain

    def survive(self, number, least, most, whole):
        """Carry out chain `number` and check it."""
        rng = random.Random(f"{self.seed}.{number}")
        config = ESM2 if number % 10 == 9 else WITNESSED
        if self._node and config is WITNESSED and number % 2:
            config = WITNESSED | {"device": "cuda"}
        chain = self.chain(config, f"chain{number}", draw(rng, rng.randint(least, most)))
        chain()
        chain.compare(whole[config["workload"]])
        if config is not ESM2:
            assert len(chain.check_noted()) == len(self._distinct)
        self.num_kills += len(chain.done)
        shutil.rmtree(chain.folder)


def node_of(request):
    """Return a simulated node of two GPUs; None where there is no compiler to build one."""
    return request.getfixturevalue("gpu_node")(2) if shutil.which("cc") else None


def test_the_same_seed_makes_the_same_choices():
    first, second = (draw(random.Random("7.0"), 500) for _ in range(2))
    assert first == second != draw(random.Random("8.0"), 500)
    assert {kill.phase for kill in first} == set(PHASES)
    assert {(kill.target, kill.signal) for kill in first} == {
        (target, number) for target in ("snakemake", "job", "worker", "group") for number in SIGNALS
    }


@pytest.mark.slow
def test_a_run_survives_four_kills(tmp_path, environment, request):
    """On the simulated node, where there is one: chains of odd numbers take a GPU."""
    trial = Trial(tmp_path, environment, seed(2884), node_of(request), num_shards=2)
    trial.survive(1, 4, 4, {"witnessed": trial.undisturbed("whole")})
    assert trial.num_kills >= 3, "most kills met somebody"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_survives_two_hundred_kills(tmp_path, environment, request):
    trial = Trial(tmp_path, environment, seed(), node_of(request))
    wanted = int(os.environ.get("FEATUREMILL_CHAOS_KILLS", "200"))
    whole = {c["workload"]: trial.chain(c, f"whole-{c['workload']}") for c in (WITNESSED, ESM2)}
    for chain in whole.values():
        chain()
    numbers = count()

    def one_after_the_other():
        while trial.num_kills < wanted:
            trial.survive(next(numbers), 6, 14, whole)

    with ThreadPoolExecutor(BESIDE) as pool:
        for worker in [pool.submit(one_after_the_other) for _ in range(BESIDE)]:
            worker.result()
    print(f"{trial.num_kills} kills in {next(numbers)} chains")
