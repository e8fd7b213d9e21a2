"""What disks, clocks, file systems and people do to a run: one sentence, nothing lost, the right
bytes in the end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from mounts import Mount
from programs import Workflow, random_records, wait_for
from test_workflow import MOMENTS

from featuremill.store import RunFolder, read_sealed, write_sealed

RECORDS = [(f"p{n}", "MKV" + "LWY"[n % 3] * (n + 1)) for n in range(100)]
OUTPUTS = ("parquet", "npy", "per_protein_h5")
DATA = ("embeddings.parquet", "embeddings.npy", "per-protein.h5", "failed.tsv")
SHARD_RECORDS = 50
NO_LOCKS = """
import errno, fcntl, os
def flock(descriptor, operation):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
fcntl.flock = flock
"""
BEHIND = """
import time
now = time.time
time.time = lambda: now() - 6 * 3600
"""


class Site:
    """Verbs on a run in `folder`, whose file system may be one of its own."""

    def __init__(self, folder, environment, mount=None):
        self.folder = folder
        self.environment = environment
        self.mount = mount
        self.run_folder = RunFolder(Path("run"))
        self.seen = RunFolder((mount.seen(folder) if mount else folder) / "run")
        self.fasta = folder.parent / "in.fa"
        self.options = {"noted": os.devnull}
        self.write(RECORDS)

    def write(self, records):
        self.fasta.write_text("".join(f">{id}\n{sequence}\n" for id, sequence in records))

    def start(self, *words, **variables):
        command = [sys.executable, "-m", "featuremill", *map(str, words)]
        return subprocess.Popen(
            self.mount.command(*command) if self.mount else command,
            cwd=self.folder,
            env=self.environment | variables,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words, status=0, **variables):
        """Run a verb; return what it said, which has no traceback whatever the status."""
        process = self.start(*words, **variables)
        _, said = process.communicate(timeout=120)
        assert process.returncode == status, said
        assert "Traceback" not in said
        return said

    def begin(self, stages, stage):
        """Go on from a stage that another site came to."""
        if self.mount:
            copy = ("cp", "-r", str(stages / stage), str(self.folder / "run"))
            subprocess.run(self.mount.command(*copy), check=True)
        else:
            shutil.copytree(stages / stage, self.folder / "run")

    def plan_words(self):
        config = {
            "run": "test",
            "inputs": [str(self.fasta)],
            "workload": "witnessed",
            "options": self.options,
            "shards": {"cost": SHARD_RECORDS},
            "device": "cpu",
        }
        return ("plan", "run", "--config-json", json.dumps(config))

    def plan(self, **more):
        return self(*self.plan_words(), **more)

    def shards(self):
        return [shard["shard"] for shard in json.loads(self.seen.plan.read_text())["shards"]]

    def recipe(self):
        return json.loads(self.seen.plan.read_text())["recipe"]

    def extract(self, **more):
        for shard in self.shards():
            self("extract", "run", shard, **more)

    def merge(self, **more):
        return self("merge", "run", "--outputs", *OUTPUTS, **more)

    def data(self):
        return {name: (self.seen.root / name).read_bytes() for name in DATA}

    def fill_disk(self, left_kb=0):
        """Fill the file system but for `left_kb`."""
        kb = "free=$(df -k . | awk 'NR == 2 {print $4}')"
        fill = f"{kb}; head -c $(((free - {left_kb}) * 1024)) /dev/zero > filler"
        subprocess.run(self.mount.command("sh", "-c", fill), check=True)

    def empty_disk(self):
        subprocess.run(self.mount.command("rm", "-f", "filler"), check=True)


def say_what_to_do(said, *words):
    """Check that one sentence says what is wrong and how to go on."""
    for word in (*words, "nothing is lost: mend that and run the same command again"):
        assert word in said, said


@pytest.fixture(scope="module")
def stages(tmp_path_factory, environment):
    """Return the folder of a run that nothing happens to, as it was at each stage."""
    folder = tmp_path_factory.mktemp("whole") / "site"
    folder.mkdir()
    site = Site(folder, environment)
    for stage in ("plan", "extract", "merge"):
        getattr(site, stage)()
        shutil.copytree(folder / "run", folder / stage)
    return folder


@pytest.fixture(scope="module")
def whole(stages):
    """Return the results of that run."""
    return {name: (stages / "merge" / name).read_bytes() for name in DATA}


@pytest.fixture
def site(tmp_path, environment):
    (tmp_path / "site").mkdir()
    return Site(tmp_path / "site", environment)


@pytest.fixture
def disk(tmp_path, environment):
    """Return a site on a file system of its own."""
    try:
        mount = Mount(tmp_path / "site", "20m")
    except PermissionError as error:
        pytest.skip(str(error))
    yield Site(tmp_path / "site", environment, mount)
    mount.close()


@pytest.fixture
def tampered(tmp_path):
    """Return a function: the variables with which every Python process runs `text` first."""

    def variables(environment, text):
        (tmp_path / "tampered").mkdir(exist_ok=True)
        (tmp_path / "tampered" / "sitecustomize.py").write_text(text)
        path = os.pathsep.join([str(tmp_path / "tampered"), environment["PYTHONPATH"]])
        return {"PYTHONPATH": path}

    return variables


def test_a_full_disk_while_planning(disk, whole):
    disk.fill_disk(40)
    say_what_to_do(disk.plan(status=1), "No space left on device")
    assert not disk.seen.plan.exists()
    disk.empty_disk()
    disk.plan()
    before = disk.seen.plan.read_bytes()
    disk.write([*RECORDS, ("new", "MKVAAA")])
    disk.fill_disk(40)
    say_what_to_do(disk.plan(status=1), "No space left on device")
    assert disk.seen.plan.read_bytes() == before, "the last plan stands"
    disk.empty_disk()
    disk.write(RECORDS)
    disk.plan()
    disk.extract()
    disk.merge()
    assert disk.data() == whole


def test_a_full_disk_while_extracting(disk, stages, whole):
    disk.begin(stages, "plan")
    first, *_ = disk.shards()
    disk.fill_disk(12)
    said = disk("extract", "run", first, "--log", "run/extract.log", status=1)
    say_what_to_do(said, "No space left on device")
    assert "starting another" not in said
    log = disk.seen.journal(disk.recipe(), first).with_suffix(".log")
    assert not log.exists() or "strike" not in log.read_text()
    disk.empty_disk()
    disk.extract()
    disk.merge()
    assert disk.data() == whole


@pytest.mark.parametrize("left_kb", [0, 100])
def test_a_full_disk_while_merging(disk, stages, whole, left_kb):
    disk.begin(stages, "extract")
    disk.fill_disk(left_kb)
    if left_kb:
        said = disk.merge(status=2)
        assert "it needs about 91.0 kB more" in said and "per-protein.h5 48.4 kB" in said
    words = ("merge", "run", "--outputs", *OUTPUTS, "--log", "run/merge.log")
    said = disk(*words, status=1, FEATUREMILL_WITHOUT_ROOM="1")
    say_what_to_do(said, "No space left on device")
    assert not (disk.seen.root / "manifest.json").exists()
    disk.empty_disk()
    disk.merge()
    assert disk.data() == whole


def test_a_read_only_folder_is_said_by_every_verb(disk, whole):
    for step in (disk.plan, disk.extract, disk.merge):
        disk.mount.remount("ro")
        if step != disk.plan:
            before = disk.seen.plan.read_bytes()
            say_what_to_do(disk.plan(status=1), "run/store", "Read-only file system")
            assert disk.seen.plan.read_bytes() == before
        say_what_to_do(
            disk("extract", "run", disk.shards()[0], "--log", "run/x.log", status=1)
            if step == disk.extract
            else step(status=1),
            "Read-only file system",
        )
        disk.mount.remount("rw")
        step()
    assert disk.data() == whole
    disk.mount.remount("ro")
    words = ("report", "run", "--output", "run/report.html", "--figures", "run/figures")
    say_what_to_do(disk(*words, status=1), "Read-only file system")
    assert disk.data() == whole


def test_an_input_that_is_gone_leaves_the_last_plan_and_its_shards(site, whole):
    site.plan()
    before = site.seen.plan.read_bytes()
    hidden = site.fasta.rename(site.fasta.with_suffix(".hidden"))
    said = site.plan(status=2)
    assert f"{site.fasta}: this file does not exist; check the path" in said
    assert site.seen.plan.read_bytes() == before
    site.extract()
    site.merge()
    assert site.data() == whole, "what was planned needs its input no more"
    hidden.rename(site.fasta)
    site.plan()
    assert site.seen.plan.read_bytes() == before


@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_an_input_that_goes_while_it_is_read_is_never_half_a_plan(site, whole, harm):
    site.options |= {"record_seconds": 0.01}
    planning = site.start(*site.plan_words())
    wait_for(lambda: (site.seen.store / "spool").exists())
    time.sleep(0.3)
    content = site.fasta.read_bytes()
    if harm == "gone":
        site.fasta.unlink()
    else:
        os.truncate(site.fasta, len(content) // 2)
    _, said = planning.communicate(timeout=60)
    assert planning.returncode in (1, 2), said
    assert str(site.fasta) in said and "Traceback" not in said and "same command again" in said
    assert not site.seen.plan.exists()
    site.fasta.write_bytes(content)
    site.options |= {"record_seconds": 0.0}
    site.plan()
    site.extract()
    site.merge()
    assert site.data() == whole


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def lie(path, **told):
    """Let a receipt say something else under a good seal."""
    write_sealed(path, read_sealed(path) | told)


def alter(path):
    """Let a receipt say something else under the seal that it has."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ok": 3, "failed": 1}))


DAMAGE = {
    "one flipped bit": lambda part, receipt: flip(part),
    "a cut part": lambda part, receipt: os.truncate(part, part.stat().st_size - 100),
    "an empty part": lambda part, receipt: os.truncate(part, 0),
    "another digest": lambda part, receipt: lie(receipt, part="0" * 32),
    "other counts": lambda part, receipt: lie(receipt, ok=3, failed=1),
    "another shard": lambda part, receipt: lie(receipt, shard="0" * 32),
    "half a receipt": lambda part, receipt: os.truncate(receipt, 50),
    "an altered receipt": lambda part, receipt: alter(receipt),
}
OF_THE_RECEIPT = ("another shard", "half a receipt", "an altered receipt")
"""What says nothing against the part, which stays."""
QUICK = ("one flipped bit", "other counts", "half a receipt")


@pytest.mark.parametrize(
    "damage",
    [pytest.param(d, marks=() if d in QUICK else pytest.mark.slow) for d in DAMAGE],
)
def test_what_is_damaged_never_reaches_the_results_and_is_computed_again(
    site, stages, whole, damage
):
    site.begin(stages, "extract")
    shard = site.shards()[1]
    part, receipt = (place(site.recipe(), shard) for place in (site.seen.part, site.seen.receipt))
    good = part.read_bytes()
    DAMAGE[damage](part, receipt)
    said = site.merge(status=4)
    assert (receipt if damage in OF_THE_RECEIPT else part).name in said
    assert "run the same command again" in said
    assert part.exists() == (damage in OF_THE_RECEIPT)
    assert not (site.seen.root / "manifest.json").exists()
    assert not receipt.exists(), "so that Snakemake asks for it"
    site("extract", "run", shard)
    assert part.read_bytes() == good
    site.merge()
    assert site.data() == whole
    assert not list(part.parent.glob("*.bad"))


def test_a_clock_that_runs_hours_behind_changes_nothing(site, stages, whole, environment, tampered):
    behind = tampered(environment, BEHIND)
    site.begin(stages, "plan")
    later = time.time() + 6 * 3600
    os.utime(site.fasta, (later, later))
    site("extract", "run", site.shards()[0])
    for path in site.seen.root.rglob("*"):
        os.utime(path, (later, later))
    site.plan(**behind)
    site.extract(**behind)
    site.merge(**behind)
    assert site.data() == whole
    site.plan()
    site.merge()
    assert site.data() == whole


def test_the_same_verb_twice_at_once_is_done_once_after_the_other(site, whole):
    merge = ("merge", "run", "--outputs", *OUTPUTS)
    for words in (site.plan_words(), None, merge):
        if words is None:
            site.extract()
            continue
        both = [site.start(*words) for _ in range(2)]
        said = [process.communicate(timeout=60)[1] for process in both]
        assert [process.returncode for process in both] == [0, 0], said
    assert site.data() == whole


def test_without_locks_nothing_is_computed_until_the_user_says_so(
    site, whole, environment, tampered
):
    without = tampered(environment, NO_LOCKS)
    careless = {**without, "FEATUREMILL_WITHOUT_LOCKS": "1"}
    said = site.plan(status=2, **without)
    assert "the file system of run/store/plan.lock has no locks (No locks available)" in said
    assert "or set FEATUREMILL_WITHOUT_LOCKS=1 when nothing else computes this run" in said
    site.plan(**careless)
    shard = site.shards()[0]
    assert "has no locks" in site("extract", "run", shard, status=2, **without)
    site.extract(**careless)
    assert "has no locks" in site.merge(status=2, **without)
    site.merge(**careless)
    assert site.data() == whole


def test_a_job_whose_snakemake_died_while_it_started_leaves_at_once(site, stages):
    """Its parent is whoever adopts orphans then, and does not die."""
    site.begin(stages, "plan")
    dead = subprocess.Popen(["true"])
    dead.wait()
    namespace = Path("/proc/self/ns/pid").readlink()
    variables = {"FEATUREMILL_DIE_WITH_PARENT": f"{dead.pid}@{namespace}"}
    shard = site.shards()[0]
    site("extract", "run", shard, status=143, **variables)
    assert not site.seen.part(site.recipe(), shard).exists()
    for alive in (f"{os.getpid()}@{namespace}", f"{dead.pid}@pid:[0]"):
        site("extract", "run", shard, FEATUREMILL_DIE_WITH_PARENT=alive)


class Kills:
    """Kills of a run with one shard whose batches are single records."""

    def __init__(self, verbs, records, batch_seconds=1.0):
        options = {"batch_seconds": batch_seconds, "batch_records": 1}
        self.verbs = verbs
        self.plan = verbs.plan(records, "poison", options)
        self.shard = self.plan["shards"][0]["shard"]
        journal = verbs.run_folder.journal(self.plan["recipe"], self.shard)
        self.log = journal.with_suffix(".log")

    def start(self):
        """Start the job; return it and its worker once a record is in flight."""
        job = self.verbs.start("extract", self.verbs.run_folder.root, self.shard)
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
        wait_for(lambda: children.read_text().split())
        worker = int(children.read_text().split()[0])
        # The worker writes the log anew without beginnings, then notes each of its own.
        wait_for(lambda: self.log.exists() and "begin" in self.log.read_text().splitlines()[-1])
        return job, worker


def test_a_person_who_kills_strikes_no_record(verbs):
    """The same record is in flight every time: struck twice, it would be a failed row."""
    kills = Kills(verbs, [("only", "MKV")], batch_seconds=6.0)  # busy machines kill late
    for how in ("job", "worker, then job", "job", "worker, then job", "group of both"):
        job, worker = kills.start()
        if "worker" in how:
            os.kill(worker, signal.SIGKILL)
            time.sleep(0.3)
        if how.startswith("group"):
            os.kill(worker, signal.SIGTERM)
            os.kill(job.pid, signal.SIGTERM)
        job.kill()
        job.communicate()
        wait_for(lambda gone=worker: not Path(f"/proc/{gone}").exists())
        assert "strike" not in kills.log.read_text(), how
    verbs.extract(kills.plan)
    (receipt,) = verbs.receipts(kills.plan)
    assert (receipt["ok"], receipt["failed"], receipt["retries"]) == (1, 0, 0)


SIGTERM = """
import os, signal, threading, time
from snakemake.scheduling.job_scheduler import JobScheduler
from featuremill.workflow_support import answer_sigterm
answer_sigterm()
scheduler = JobScheduler.__new__(JobScheduler)
scheduler._lock, scheduler._open_jobs = threading.Lock(), threading.Semaphore(0)
signal.signal(signal.SIGTERM, scheduler.exit_gracefully)
with scheduler._lock:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
assert scheduler._open_jobs.acquire(timeout=20) and scheduler._user_kill == "graceful"
"""


def test_snakemake_hears_sigterm_while_it_holds_its_own_lock(environment):
    subprocess.run([sys.executable, "-c", SIGTERM], env=environment, check=True, timeout=60)


class Flow(Workflow):
    """Snakemake on a site of its own: some of its processes under other conditions."""

    def start(self, *arguments, **more):
        variables = more.pop("variables", {})
        before, self.environment = self.environment, self.environment | variables
        try:
            return super().start(*arguments, **more)
        finally:
            self.environment = before

    def plan(self):
        return json.loads(self.run_folder.plan.read_text())

    def places(self, place):
        """Return the paths of the shards' parts, or receipts, or journals."""
        plan = self.plan()
        return [place(plan["recipe"], shard["shard"]) for shard in plan["shards"]]


@pytest.fixture
def flow(tmp_path, environment):
    (tmp_path / "flow").mkdir()
    return Flow(tmp_path / "flow", environment, random_records(300))


@pytest.mark.slow
def test_snakemake_computes_again_what_is_damaged_and_nothing_else(flow):
    flow()
    flow.news()
    before = flow.data()
    parts = flow.places(flow.run_folder.part)
    receipts = flow.places(flow.run_folder.receipt)
    good = [part.read_bytes() for part in parts]
    damages = ["one flipped bit", "a cut part", "another digest", "other counts"]
    for part, receipt, damage in zip(parts, receipts, damages, strict=False):
        DAMAGE[damage](part, receipt)
    (flow.run_folder.root / "manifest.json").unlink()
    said = flow(status=1)
    assert "(3 more like it)" in said and "run the same command again" in said, said
    assert flow.news() == [], "merge computes nothing"
    said = flow()
    assert "300 of 300 records ok" in said
    assert [part.read_bytes() for part in parts] == good
    assert flow.data() == before
    assert len(flow.news()) == sum(s["records"] for s in flow.plan()["shards"][:4])
    flow()
    assert flow.news() == []


@pytest.mark.slow
def test_snakemake_on_a_disk_that_is_full_goes_on_where_there_is_room(flow, tmp_path, environment):
    flow()
    try:
        mount = Mount(tmp_path / "small", "160k")
    except PermissionError as error:
        pytest.skip(str(error))
    for name in ("in.fa", "config.yaml"):
        subprocess.run(mount.command("cp", flow.folder / name, "."), check=True)
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--workflow-profile", str(ROOT / "profiles" / "default"), "--cores", "2"]
    command += ["--configfile", "config.yaml"]
    statuses = []
    for size in ("160k", "400k", "1m", "20m", "20m"):
        mount.remount(f"size={size}")
        done = subprocess.run(
            mount.command(*command), env=environment, capture_output=True, text=True, check=False
        )
        statuses.append(done.returncode)
        if done.returncode:
            assert "No space left on device" in done.stderr + done.stdout
    assert statuses[0] == 1 and statuses[-2:] == [0, 0]
    root = mount.seen(tmp_path / "small") / "results" / "test"
    assert {name: (root / name).read_bytes() for name in flow.data()} == flow.data()
    mount.close()


@pytest.mark.slow
def test_a_clock_that_goes_back_in_mid_run_changes_nothing(flow, tmp_path, environment, tampered):
    flow()
    expected = flow.data()
    (tmp_path / "other").mkdir()
    other = Flow(tmp_path / "other", environment, random_records(300), batch_seconds=0.1)
    first = other.start()
    wait_for(lambda: MOMENTS["extract"](other.run_folder))
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    later = time.time() + 6 * 3600
    for path in [other.folder / "in.fa", *other.run_folder.root.rglob("*")]:
        os.utime(path, (later, later))
    behind = tampered(environment, BEHIND)
    said = other(status=1, variables=behind)
    assert "in.fa: it was last changed in the future" in said and "so touch it" in said
    os.utime(other.folder / "in.fa")
    assert "300 of 300 records ok" in other(variables=behind)
    assert other.data()["failed.tsv"] == expected["failed.tsv"]
    times = other.news()
    assert len(times) - len(set(times)) <= 2 * 10, "what was in flight when it was killed"
    said = other()
    assert other.news() == []
    assert "Nothing to be done" in said or "300 of 300" in said


@pytest.mark.slow
def test_snakemake_without_locks_refuses_once_and_goes_on_when_told(flow, environment, tampered):
    without = tampered(environment, NO_LOCKS)
    said = flow(status=1, variables=without)
    assert said.count("has no locks (No locks available)") == 1
    assert not flow.run_folder.plan.exists()
    flow(variables={**without, "FEATUREMILL_WITHOUT_LOCKS": "1"})
    assert len(flow.news()) == 300
    flow()
    assert flow.news() == []


POISON = {
    "CRASHA": "crashed the worker twice: was killed by SIGABRT",
    "SEGVA": "crashed the worker twice: was killed by SIGSEGV",
    "RAISEA": "error in the workload: ValueError",
    "NANA": "values are missing or not finite",
    "GREEDA": "out of memory: MemoryError",
    "QUITA": "crashed the worker twice: left with status 1",
    "HANGA": "hung the worker twice: was ended",
    "GILA": "hung the worker twice: was ended",
}


@pytest.mark.slow
def test_poison_in_several_shards_costs_no_other_record_and_no_retry(tmp_path, environment):
    bad = [(f"bad-{word}", word) for word in POISON]
    workflow = Flow(tmp_path, environment, [*random_records(150), *bad])
    variables = {"FEATUREMILL_STALL_SECONDS": "2"}
    said = workflow("--config", f"max_failed={len(bad)}", variables=variables)
    assert workflow.counts() == {
        "input": 158,
        "ok": 150,
        "failed": 8,
        "refused": 0,
        "duplicate": 0,
    }
    lines = workflow.data()["failed.tsv"].decode().splitlines()[1:]
    reasons = {line.split("\t")[0]: line.split("\t")[-1] for line in lines}
    assert reasons.keys() == {id for id, _ in bad}
    for id, word in bad:
        assert reasons[id].startswith(POISON[word])
    assert "restart" not in said.lower() and "Error in rule" not in said
    logs = sorted((workflow.folder / "logs" / "test" / "extract").rglob("*.log"))
    assert len(logs) == len(workflow.plan()["shards"]) > 2
    told = [log.read_text() for log in logs]
    assert [text.count(" records in ") for text in told] == [1] * len(logs), "one job a shard"
    stacks = [text for text in told if "Timeout (0:00:0" in text]
    assert stacks and all('featuremill_poison.py", line' in text for text in stacks)
