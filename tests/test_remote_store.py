"""Stores that are read from afar: a real web server on this machine, whole, damaged and cut off."""

import errno
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import threading
from functools import partial

import pyarrow as pa
import pytest
from programs import Workflow, flip, random_records
from recordings import pip
from test_store import FORTY, NARROW, OUTPUTS, Run, parts_of

from featuremill import config
from featuremill.base.errors import UserError
from featuremill.base.words import human_bytes
from featuremill.merge import store_command
from featuremill.merge.command import merge
from featuremill.store import remote, shared, shared_index
from featuremill.store.parts import columns_of
from featuremill.store.receipt import Receipt


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; what `harm` names by its end is cut off, or is not there."""

    def do_GET(self):
        self.server.asked.append(self.path)
        how = next((how for end, how in self.server.harm.items() if self.path.endswith(end)), "")
        if how == "gone":
            self.send_error(404)
        elif how.isdigit():
            self.send_error(int(how))
        elif how == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(bytes(10))
        elif how == "closed":
            self.close_connection = True
        else:
            super().do_GET()

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Return a store of somebody else that has 36 of 40 payloads."""
    place = tmp_path_factory.mktemp("published")
    Run(place / "first", place / "shelf").write(FORTY[:36]).finish()
    own = shared.own_folder(place / "shelf")
    own.rename(own.with_name("alice"))
    return place / "shelf"


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(remote, "PAUSES", (0, 0))


@pytest.fixture
def store(tmp_path, published):
    return shutil.copytree(published, tmp_path / "shelf")


@pytest.fixture
def server(store):
    """Yield the web server of `store`, which notes what it is asked for."""
    handler = partial(Handler, directory=store)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.asked, server.harm = [], {}
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def run(tmp_path, server):
    """Return a run of 40 payloads that keeps what it fetches in a store of its own."""
    return Run(tmp_path / "second", tmp_path / "mine", server.url).write(FORTY)


def asked(server, suffix):
    return [path for path in server.asked if path.endswith(suffix)]


def test_parts_are_fetched_once_and_kept_in_the_first_layer(run, tmp_path, store, server):
    mine = tmp_path / "mine"
    assert run.finish_as_fresh() == 4
    names = {path.name for path in parts_of(store)}
    assert {path.rpartition("/")[2] for path in asked(server, ".arrows")} == names
    fetched = {str(path) for path in parts_of(mine) if path.name in names}
    assert {one.path for one in run.delivery.taken} == fetched
    (reference,) = shared.references(mine)[0]
    assert names <= {f"{name}.arrows" for name in reference.parts}
    server.asked.clear()
    assert Run(tmp_path / "third", mine, server.url).write(FORTY[5:]).finish() == []
    assert Run(tmp_path / "fourth", mine).write(FORTY).finish() == [], "without the network"
    assert not asked(server, ".arrows") and not asked(server, ".arrow"), "all is here already"


def test_only_parts_with_a_wanted_record_are_fetched(tmp_path, store, server, caplog):
    caplog.set_level("INFO")
    assert Run(tmp_path / "second", tmp_path / "mine", server.url).write(FORTY[:1]).finish() == []
    assert len(asked(server, ".arrows")) == 1 < len(parts_of(store))
    (part,) = parts_of(tmp_path / "mine")
    listed = f"{server.url}: {len(parts_of(store))} parts not here yet; fetching 1 of them ("
    assert f"{listed}{Receipt.read(part.with_suffix('.json')).rows} records)" in caplog.text
    assert f"fetched: 1 part, {human_bytes(part.stat().st_size)}" in caplog.text


def test_parts_of_what_the_run_has_computed_are_not_fetched(tmp_path, store, server):
    Run(tmp_path / "second").write(FORTY[:34]).finish()
    run = Run(tmp_path / "second", tmp_path / "mine", server.url).write(FORTY[:34])
    assert run.finish() == [] and not asked(server, ".arrows")
    assert run.write(FORTY[:35]).finish() == []
    assert len(asked(server, ".arrows")) == 1, "for what is new"
    run.check()


def test_a_copy_of_a_remote_index_is_removed_when_no_plan_reads_it(run, tmp_path, caplog):
    caplog.set_level("INFO")
    mine = tmp_path / "mine"
    run.plan()
    (copy,) = shared.index_copies(mine)
    os.utime(copy, (0, 0))
    run.plan()
    store_command.remove(mine, "", 0, is_meant=True)
    assert copy.exists(), "a plan has just read it"
    os.utime(copy, (0, 0))
    store_command.remove(mine, "", 0, is_meant=False)
    assert copy.exists() and "give --yes to remove them" in caplog.text
    store_command.remove(mine, "", 0, is_meant=True)
    assert not copy.exists()
    assert run.plan().num_taken == 36


def test_what_fsspec_reads_is_a_store(tmp_path, store):
    run = Run(tmp_path / "second", tmp_path / "mine", f"file://{store}").write(FORTY)
    assert run.finish_as_fresh() == 4


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        ("damaged", "it is not what was published"),
        ("gone", "it is gone"),
        ("renamed", "another"),
        ("newer", "a newer featuremill wrote its receipt"),
        ("columns", "its columns are not"),
    ],
)
def test_a_part_that_is_damaged_or_gone_is_computed_and_said(
    run, tmp_path, store, server, harm, problem, caplog
):
    victim, other = parts_of(store)[:2]
    if harm == "damaged":
        flip(victim)
    elif harm == "gone":  # after it was listed
        server.harm[victim.name] = "gone"
    elif harm == "newer":
        receipt = Receipt.read(victim.with_suffix(".json"))
        told = receipt.model_copy(update={"version": Receipt.NEWEST + 1})
        victim.with_suffix(".json").chmod(0o644)
        told.write(victim.with_suffix(".json"))
    elif harm == "renamed":
        for suffix in (".arrows", ".json"):
            other.with_suffix(suffix).replace(victim.with_suffix(suffix))
    if harm == "columns":
        run.columns = NARROW
    assert run.num_rows(run.finish()) > 4
    run.check()
    address = f"{server.url}/alice/{victim.parent.name}/{victim.name}: "
    for line in (caplog.text, "\n".join(run.delivery.warnings)):
        assert address in line and problem in line
    for path in parts_of(tmp_path / "mine"):
        assert shared_index.digest_of_file(path) == path.stem
        assert columns_of(path) == run.columns


@pytest.mark.parametrize("how", ["cut", "closed"])
def test_a_connection_that_breaks_stops_plan_and_what_came_is_kept(run, store, server, how):
    victim = parts_of(store)[-1]
    server.harm[victim.name] = how
    with pytest.raises(UserError, match=rf"^store: {server.url}/.*/{victim.name}: .*;.*\.$"):
        run.plan()
    assert not run.results.plan.exists()
    assert len(asked(server, victim.name)) > 1, "it was tried again"
    server.harm.clear()
    server.asked.clear()
    assert run.num_rows(run.finish()) == 4
    assert len(asked(server, ".arrows")) == 1, "only what was lacking"
    run.check()


def test_a_damaged_index_is_not_used_and_asked_for_again(tmp_path, store, server, caplog):
    (level,) = store.glob("*/*/index/*.arrow")
    whole = level.read_bytes()
    flip(level)
    mine = tmp_path / "mine"
    Run(tmp_path / "second", mine, server.url).write(FORTY[:2]).plan()
    assert f"{level.name}: it is damaged, so its parts are not taken" in caplog.text
    level.write_bytes(whole)
    assert Run(tmp_path / "third", mine, server.url).write(FORTY[:2]).plan().num_taken == 2
    (kept,) = mine.glob("*/*/remote/*/*.arrow")
    level.unlink()
    Run(tmp_path / "more", store).write(FORTY[36:]).finish()
    (store / "alice" / kept.parents[2].name / "index" / level.name).unlink(missing_ok=True)
    Run(tmp_path / "fourth", mine, server.url).write(FORTY).plan()
    assert not kept.exists(), "its publisher has it no more"


@pytest.mark.parametrize("where", ["first", "closed", "empty", "unknown", "lacking", "s3"])
def test_a_store_that_cannot_be_read_is_refused_in_a_sentence(
    tmp_path, store, server, where, monkeypatch
):
    stores = [tmp_path / "mine", server.url]
    if where == "first":
        stores = [server.url]
    elif where == "closed":
        server.harm["/"] = "closed"
    elif where == "empty":
        stores[1] += "/nothing"
    elif where == "unknown":
        stores[1] = "nonesuch://shelf"
    elif where == "s3":
        stores[1] = "s3://bucket/store"
        monkeypatch.setitem(sys.modules, "s3fs", None)
    else:
        monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UserError, match=r"^(config: )?store: [a-z0-9]+://[^ ]*: .*;.*\.$") as said:
        Run(tmp_path / "run", *stores).write(FORTY[:3]).plan()
    install = {"lacking": "pip install 'featuremill[remote]'", "s3": "pip install s3fs"}
    assert install.get(where, "") in str(said.value)
    monkeypatch.setenv("FEATUREMILL_STORE", server.url)
    with pytest.raises(UserError, match=r"^store: name the store's folder"):
        store_command.run(store_command.argparse.Namespace(act=None))


def write_index(store, change):
    """Let the index of `store` say other entries: `change` gets each row of a bucket's columns."""
    (level,) = store.glob("*/*/index/*.arrow")
    with pa.ipc.open_file(level.read_bytes()) as file:
        buckets = [file.get_batch(n).to_pylist() for n in range(file.num_record_batches)]
        schema = file.schema
    new = level.with_name("new")
    with pa.ipc.new_file(str(new), schema) as file:
        for number, rows in enumerate(buckets):
            rows = sorted(change(number, rows), key=lambda row: row["sha256"])
            file.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
    level.unlink()
    new.rename(level.with_name(f"{shared_index.digest_of_file(new)}.arrow"))


@pytest.mark.parametrize("lie", ["payload", "row", "part", "beyond"])
def test_a_remote_index_that_lies_changes_no_value(run, store, lie):
    lacking = hashlib.sha256(FORTY[39].encode()).digest()

    def change(number, rows):
        told = {"row": {"row": 0}, "part": {"part": 99}, "beyond": {"row": 10**6}}.get(lie, {})
        more = [{"sha256": lacking, "part": 0, "row": 0}]
        return [row | told for row in rows] + more * (lie == "payload" and number == lacking[0])

    write_index(store, change)
    assert run.num_rows(run.compute(run.plan())) == (40 if lie in ("part", "beyond") else 4)
    merge(run.results, OUTPUTS, 0)  # at the first try: plan itself has found the lie
    run.check()


def test_a_remote_part_that_is_no_arrow_file_is_not_taken(run, store):
    victim = parts_of(store)[0]
    receipt = Receipt.read(victim.with_suffix(".json"))
    victim.chmod(0o644)
    victim.write_bytes(b"no arrow" * 10)
    name = shared_index.digest_of_file(victim)
    victim.rename(victim.with_name(f"{name}.arrows"))
    receipt.model_copy(update={"part": name}).write(victim.with_name(f"{name}.json"))
    (level,) = store.glob("*/*/index/*.arrow")
    level.write_bytes(level.read_bytes().replace(victim.stem.encode(), name.encode()))
    level.rename(level.with_name(f"{shared_index.digest_of_file(level)}.arrow"))
    assert run.finish_as_fresh() == 4 + receipt.rows


@pytest.mark.parametrize("how", ["401", "403", "410"])
def test_what_is_closed_in_a_remote_store_is_left_out_and_said(run, store, server, how, caplog):
    shutil.copytree(store / "alice", store / "bob")
    victim = parts_of(store)[0]
    server.harm |= {f"/bob/{victim.parent.name}/": how, victim.name: how}
    assert 4 < run.num_rows(run.finish()) < 40
    run.check()
    for closed in (f"bob/{victim.parent.name}", f"{victim.parent.name}/{victim.name}"):
        assert f"{closed}: it is closed" in caplog.text


def test_a_file_is_no_publisher(tmp_path, store):
    (store / "README").write_text("read me")
    run = Run(tmp_path / "second", tmp_path / "mine", f"file://{store}").write(FORTY)
    assert run.plan().num_taken == 36


def test_a_full_disk_is_not_the_fault_of_the_store(run, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(
        remote.RemoteShelf, "_fetch", lambda self, *_: self._request(self.url, full)
    )
    with pytest.raises(OSError, match="No space left"):
        run.plan()


def test_a_remote_part_that_is_there_again_is_taken(run, store, server):
    server.harm[parts_of(store)[0].name] = "gone"
    assert run.plan().num_taken < 36
    server.harm.clear()
    assert run.num_rows(run.finish()) == 4
    assert not any("is gone" in line for line in run.delivery.warnings)


def test_an_address_with_a_password_is_refused_and_not_shown(monkeypatch):
    address = "https://user:secret@example.org/shelf"
    told = {"inputs": ["my.fa"], "workload": "composition", "store": ["shelf", address]}
    with pytest.raises(UserError, match="user or password") as refused:
        config.validate(told)
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("FEATUREMILL_STORE", f"shelf:{address}")
    with pytest.raises(
        UserError, match=r"^FEATUREMILL_STORE: an address has a user or "
    ) as refused:
        shared.open_layers([])
    assert "secret" not in str(refused.value)


S3 = (
    *("moto[s3]==5.2.5", "flask", "flask-cors", "boto3==1.43.117"),
    *("s3fs==2026.9.0", "aiobotocore==3.10.0"),
)
"""An S3 server, and what reads it. They are in no extra: aiobotocore demands a python-dateutil that
is older than the one of the pins."""
SERVE = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
UPLOAD = """
import sys
import fsspec
files = fsspec.filesystem("s3")
files.mkdir("bucket")
files.put(sys.argv[1], "bucket/store", recursive=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_reads_a_store_in_a_bucket(tmp_path, environment):
    """Credentials and endpoint are environment variables of botocore."""
    pip("install", "--target", tmp_path / "packages", *S3)
    records = random_records(40)
    for name in ("first", "second", "alone"):
        (tmp_path / name).mkdir()
    shelf = tmp_path / "shelf"
    Workflow(tmp_path / "first", {**environment, "FEATUREMILL_STORE": str(shelf)}, records[:36])()
    path = os.pathsep.join([environment["PYTHONPATH"], str(tmp_path / "packages")])
    outside = {**environment, "PYTHONPATH": path, "AWS_EC2_METADATA_DISABLED": "true"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SERVE], env=outside, **pipes) as server:
        outside["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        inside = {**outside, "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret"}
        subprocess.run([sys.executable, "-c", UPLOAD, shelf], env=inside, check=True)
        run = Workflow(tmp_path / "second", outside, records)
        with (run.folder / "config.yaml").open("a") as file:
            file.write("store: [mine, s3://bucket/store]\n")
        said = run(status=None)
        assert "store: s3://bucket/store: it cannot be read (NoCredentialsError" in said
        run.environment = inside
        said = run()
        server.stdin.close()
    assert "36 of 40 distinct records are computed already" in said
    assert len(run.news()) == 4 and run.counts()["taken"] == 36
    alone = Workflow(tmp_path / "alone", environment, records)
    alone()
    assert run.data() == alone.data()
