"""What disks, clocks, file systems and people do to a run: one sentence, nothing lost, the right
bytes in the end."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from broken_stores import DAMAGES, PART, RECEIPT, OfShard, damage_of, part_of, receipt_of
from mounts import mounted
from programs import Desk, Workflow, fasta, is_running, ran, random_records, wait_for, written

from featuremill.__main__ import main
from featuremill.store.results import Results

RECORDS = [(f"p{n}", "MKV" + "LWY"[n % 3] * (n + 1)) for n in range(100)]
OUTPUTS = ("parquet", "npy", "per_protein_h5")
DATA = ("embeddings.parquet", "embeddings.npy", "per-protein.h5", "failed.tsv")
NO_LOCKS = """
import errno, fcntl, os
def flock(descriptor, operation):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
fcntl.flock = flock
"""
BEHIND = """
import time
now = vars(time).setdefault("now", time.time)  # the same one in a fork of a fork
time.time = lambda: now() - 6 * 3600
"""


class Site(Desk):
    """Verbs on a run beside the input, whose file system may be one of its own."""

    def __init__(self, folder, environment, mount=None):
        super().__init__(folder, environment)
        self.mount = mount
        place = mount.seen(mount.folder) if mount else folder
        self.run = place / "run" if mount else Path("run")
        self.seen = Results(place / "run")
        self.fasta = folder / "in.fa"
        self.options = {"noted": os.devnull}
        self.write(RECORDS)

    def write(self, records):
        self.fasta.write_text(fasta(records))

    def start(self, *words, **more):
        return super().start("featuremill", *words, **more)

    def __call__(self, *words, status=0, **variables):
        """Run a verb; return what it said, which has no traceback whatever the status."""
        said = self.type("featuremill", *words, status=status, **variables).err
        assert "Traceback" not in said
        return said

    def begin(self, stages, stage):
        """Go on from a stage that another site came to."""
        shutil.copytree(stages / stage, self.seen.root)

    def plan_words(self):
        config = {"run": "test", "inputs": [str(self.fasta)], "workload": "witnessed"}
        config |= {"options": self.options, "shards": {"cost": 50}, "device": "cpu"}
        return ("plan", self.run, "--config", written(config))

    def merge_words(self):
        return ("merge", self.run, "--outputs", *OUTPUTS)

    def plan(self, **more):
        return self(*self.plan_words(), **more)

    def shards(self):
        return [shard["shard"] for shard in json.loads(self.seen.plan.read_text())["shards"]]

    def recipe(self):
        return json.loads(self.seen.plan.read_text())["recipe"]

    def extract(self):
        for shard in self.shards():
            self("extract", self.run, shard)

    def merge(self, **more):
        return self(*self.merge_words(), **more)

    def finish(self):
        """Compute what is left; return the results."""
        self.extract()
        self.merge()
        return self.data()

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
    for word in (*words, "nothing is lost: fix that and run the same command again"):
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
    mount = mounted(tmp_path / "disk", "20m")
    (tmp_path / "site").mkdir()
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
    assert disk.finish() == whole


def test_a_full_disk_while_extracting(disk, stages, whole):
    disk.begin(stages, "plan")
    first, *_ = disk.shards()
    disk.fill_disk(12)
    said = disk("extract", disk.run, first, "--log", disk.run / "extract.log", status=1)
    say_what_to_do(said, "No space left on device")
    assert "starting another" not in said
    log = disk.seen.journal(disk.recipe(), first).with_suffix(".log")
    assert not log.exists() or "strike" not in log.read_text()
    disk.empty_disk()
    assert disk.finish() == whole


@pytest.mark.parametrize("left_kb", [0, 100])
def test_a_full_disk_while_merging(disk, stages, whole, left_kb):
    disk.begin(stages, "extract")
    disk.fill_disk(left_kb)
    if left_kb:
        said = disk.merge(status=2)
        assert "it needs about 91.0 kB more" in said and "per-protein.h5 48.4 kB" in said
    words = (*disk.merge_words(), "--log", disk.run / "merge.log")
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
        if step == disk.extract:
            words = ("extract", disk.run, disk.shards()[0], "--log", disk.run / "x.log")
            said = disk(*words, status=1)
        else:
            said = step(status=1)
        say_what_to_do(said, "Read-only file system")
        disk.mount.remount("rw")
        step()
    assert disk.data() == whole
    disk.mount.remount("ro")
    words = ("report", disk.run, "--output", disk.run / "report.html")
    say_what_to_do(disk(*words, status=1), "Read-only file system")
    assert disk.data() == whole


def test_an_input_that_is_gone_leaves_the_last_plan_and_its_shards(site, whole):
    site.plan()
    before = site.seen.plan.read_bytes()
    hidden = site.fasta.rename(site.fasta.with_suffix(".hidden"))
    said = site.plan(status=2)
    assert f"{site.fasta}: this file does not exist; check the path" in said
    assert site.seen.plan.read_bytes() == before
    assert site.finish() == whole, "what was planned needs its input no more"
    hidden.rename(site.fasta)
    site.plan()
    assert site.seen.plan.read_bytes() == before


def test_an_input_that_goes_while_it_is_read_is_never_half_a_plan(site, whole):
    gate = site.folder / "gate"
    gate.mkdir()
    site.options |= {"gate": str(gate)}
    content = site.fasta.read_bytes()

    def cut():
        os.truncate(site.fasta, len(content) // 2)

    for harm in (site.fasta.unlink, cut):
        (gate / "closed").touch()
        planning = site.start(*site.plan_words())
        wait_for((gate / "came").exists)
        harm()
        (gate / "came").unlink()
        (gate / "closed").unlink()
        _, said = planning.communicate(timeout=60)
        assert planning.returncode in (1, 2), said
        assert str(site.fasta) in said and "Traceback" not in said and "same command again" in said
        assert not site.seen.plan.exists()
        site.fasta.write_bytes(content)
    site.options |= {"gate": ""}
    site.plan()
    assert site.finish() == whole


@pytest.mark.parametrize(
    "damage",
    [one for one in DAMAGES if one.merge and one.merge[1] in (PART, RECEIPT)],
    ids=lambda damage: damage.name,
)
def test_what_is_damaged_never_reaches_the_results_and_is_computed_again(
    site, stages, whole, damage, monkeypatch, capsys
):
    """A part is set aside; what is wrong with a receipt says nothing against its part."""
    site.begin(stages, "extract")
    part, receipt = part_of(site.seen), receipt_of(site.seen)
    good = part.read_bytes()
    damage.harm(site.seen)
    monkeypatch.setenv("PYTHONPATH", site.environment["PYTHONPATH"])
    merge = ["merge", str(site.seen.root), "--outputs", *OUTPUTS]
    assert main(merge) == damage.merge[0] == 4
    said = capsys.readouterr().err
    is_blamed = damage.merge[1] == PART
    assert (part if is_blamed else receipt).name in said
    assert "run the same command again" in said
    assert part.exists() == (not is_blamed)
    assert not (site.seen.root / "manifest.json").exists()
    assert not receipt.exists(), "so that Snakemake asks for it"
    assert main(["extract", str(site.seen.root), part.stem]) == 0
    assert part.read_bytes() == good
    assert main(merge) == 0
    assert site.data() == whole
    assert not list(part.parent.glob("*.bad"))


def test_a_clock_that_runs_hours_behind_changes_nothing(site, stages, whole, environment, tampered):
    behind = tampered(environment, BEHIND)
    site.begin(stages, "plan")
    later = time.time() + 6 * 3600
    os.utime(site.fasta, (later, later))
    first, second = site.shards()
    site("extract", site.run, first)
    for path in site.seen.root.rglob("*"):
        os.utime(path, (later, later))
    extract = [("extract", site.run, shard) for shard in (first, second)]
    for words in (site.plan_words(), *extract, site.merge_words()):
        site(*words, **behind)
    assert site.data() == whole
    site.plan()
    site.merge()
    assert site.data() == whole


def test_the_same_verb_twice_at_once_is_done_once_after_the_other(site, whole):
    with ThreadPoolExecutor(2) as both:
        list(both.map(lambda _: site.plan(), range(2)))
        site.extract()
        list(both.map(lambda _: site.merge(), range(2)))
    assert site.data() == whole


def test_without_locks_nothing_is_computed_until_the_user_says_so(
    site, whole, environment, tampered
):
    without = tampered(environment, NO_LOCKS)
    careless = {**without, "FEATUREMILL_WITHOUT_LOCKS": "1"}
    said = site(*site.plan_words(), status=2, **without)
    assert "the file system of run/store/plan.lock has no locks (No locks available)" in said
    assert "or set FEATUREMILL_WITHOUT_LOCKS=1 when nothing else computes this run" in said
    site(*site.plan_words(), **careless)
    extract = [("extract", site.run, shard) for shard in site.shards()]
    assert "has no locks" in site(*extract[0], status=2, **without)
    for words in extract:
        site(*words, **careless)
    assert "has no locks" in site(*site.merge_words(), status=2, **without)
    site(*site.merge_words(), **careless)
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


def test_a_person_who_kills_strikes_no_record(verbs):
    """The same record is in flight every time: struck twice, it would be a failed row."""
    hold, moments = verbs.folder / "hold", verbs.folder / "moments"
    hold.touch()
    options = {"hold": str(hold), "moments": str(moments), "batch_records": 1}
    plan = verbs.plan([("only", "MKV")], "poison", options)
    shard = plan["shards"][0]["shard"]
    log = verbs.run_folder.journal(plan["recipe"], shard).with_suffix(".log")

    def is_begun():
        return moments.exists() and "run 1\n" in moments.read_text()

    for how in ("job", "worker, then job", "job", "worker, then job", "group of both"):
        job = verbs.start("extract", verbs.run_folder.root, shard)
        wait_for(is_begun)
        worker = int(moments.read_text().split()[0])
        moments.unlink()
        if "worker" in how:  # at once: what a job does with the second it has is tested elsewhere
            os.kill(worker, signal.SIGKILL)
        if how.startswith("group"):
            os.kill(worker, signal.SIGTERM)  # first: the job reaps its worker
            os.kill(job.pid, signal.SIGTERM)
        job.kill()
        job.communicate()
        wait_for(lambda gone=worker: not is_running(gone))
        assert "strike" not in log.read_text(), how
    hold.unlink()
    verbs.extract(plan)
    (receipt,) = verbs.receipts(plan)
    assert (receipt["ok"], receipt["failed"], receipt["retries"]) == (1, 0, 0)


SIGTERM = """
import os, signal, threading, time
from snakemake.scheduling.job_scheduler import JobScheduler
from featuremill.flow.internals import answer_sigterm
answer_sigterm()
scheduler = JobScheduler.__new__(JobScheduler)
scheduler._lock, scheduler._open_jobs = threading.Lock(), threading.Semaphore(0)
signal.signal(signal.SIGTERM, scheduler.exit_gracefully)
with scheduler._lock:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0)  # Python answers between two calls
assert scheduler._open_jobs.acquire(timeout=20) and scheduler._user_kill == "graceful"
"""


def test_snakemake_hears_sigterm_while_it_holds_its_own_lock(environment):
    subprocess.run([sys.executable, "-c", SIGTERM], env=environment, check=True, timeout=60)


class Flow(Workflow):
    """Snakemake on a site of its own."""

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
    good = [part.read_bytes() for part in parts]
    damages = ["part's rows", "part cut", "another digest, sealed", "other counts, sealed"]
    for number, damage in reversed([*enumerate(damages)]):
        damage_of(damage).harm(OfShard.numbered(flow.run_folder, number))
    (flow.run_folder.root / "manifest.json").unlink()
    said = flow(status=1)
    assert "(3 more like it)" in said and "run the same command again" in said, said
    assert flow.news() == [], "merge computes nothing"
    said = flow()
    assert "300 of 300 records have features" in said
    assert [part.read_bytes() for part in parts] == good
    assert flow.data() == before
    records = {shard["shard"]: shard["records"] for shard in flow.plan()["shards"]}
    assert len(flow.news()) == sum(records[name] for name in sorted(records)[:4])
    flow()
    assert flow.news() == []


def test_a_disk_that_is_full_before_the_run_is_one_sentence(tmp_path, environment):
    mount = mounted(tmp_path / "small", "64k")
    write = "printf '>a\\nMKT\\n' > a.fa; head -c 1M /dev/zero > filled"
    config = "printf 'run: a\\ninputs: a.fa\\nworkload: composition\\n' > a.yaml"
    subprocess.run(mount.command("sh", "-c", f"{config}; {write}"), capture_output=True)
    run = mount.command(sys.executable, "-m", "featuremill", "run", "a.yaml")
    sentence = f"error: {mount.folder}: No space left on device; fix that first.\n"
    for more in ("", "truncate -s -4K filled"):  # then its lock can be written, and not Snakemake's
        subprocess.run(mount.command("sh", "-c", more), check=True)
        done = ran(*run, env=environment)
        assert (done.returncode, done.stderr) == (1, sentence)
    mount.close()


@pytest.mark.slow
def test_snakemake_on_a_disk_that_is_full_goes_on_where_there_is_room(flow, tmp_path, environment):
    flow()
    mount = mounted(tmp_path / "small", "160k")
    for name in ("in.fa", "config.yaml"):
        subprocess.run(mount.command("cp", flow.folder / name, "."), check=True)
    command = mount.command(sys.executable, "-m", *flow.words())
    statuses = []
    for size in ("160k", "400k", "1m", "20m", "20m"):
        mount.remount(f"size={size}")
        done = ran(*command, env=environment)
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
    logs = functools.partial(other.run_folder.store.glob, "journals/*/*.log")
    wait_for(lambda: any("commit" in log.read_text() for log in logs()))
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    later = time.time() + 6 * 3600
    for path in [other.folder / "in.fa", *other.run_folder.root.rglob("*")]:
        os.utime(path, (later, later))
    behind = tampered(environment, BEHIND)
    said = other(status=1, **behind)
    assert "in.fa: it was last changed in the future" in said and "so touch it" in said
    os.utime(other.folder / "in.fa")
    assert "300 of 300 records have features" in other(**behind)
    assert other.data()["failed.tsv"] == expected["failed.tsv"]
    times = other.news()
    assert len(times) - len(set(times)) <= 2 * 10, "what was in flight when it was killed"
    said = other()
    assert other.news() == []
    assert "Nothing to be done" in said or "300 of 300" in said


@pytest.mark.slow
def test_snakemake_without_locks_refuses_once_and_goes_on_when_told(flow, environment, tampered):
    without = tampered(environment, NO_LOCKS)
    said = flow(status=1, **without)
    assert said.count("has no locks (No locks available)") == 1
    assert not flow.run_folder.plan.exists()
    flow(**without, FEATUREMILL_WITHOUT_LOCKS="1")
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
    said = workflow("--config", f"max_failed={len(bad)}", **variables)
    counts = {"input": 158, "ok": 150, "failed": 8, "refused": 0, "duplicate": 0}
    assert workflow.counts() == counts
    lines = workflow.data()["failed.tsv"].decode().splitlines()[1:]
    reasons = {line.split("\t")[0]: line.split("\t")[-1] for line in lines}
    assert reasons.keys() == {id for id, _ in bad}
    for id, word in bad:
        assert reasons[id].startswith(POISON[word])
    assert "restart" not in said.lower() and "Error in rule" not in said
    logs = sorted((workflow.run_folder.logs / "extract").rglob("*.log"))
    assert len(logs) == len(workflow.plan()["shards"]) > 2
    told = [log.read_text() for log in logs]
    assert [text.count(" records in ") for text in told] == [1] * len(logs), "one job a shard"
    stacks = [text for text in told if "Timeout (0:00:0" in text]
    assert stacks and all('featuremill_poison.py", line' in text for text in stacks)
