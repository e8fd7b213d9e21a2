"""Weights on a node's own disk, and in a cache that belongs to somebody else."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from leases import NOBODY, skip_where_closed
from programs import random_records

from featuremill.__main__ import main
from featuremill.base.errors import IntegrityError, UserError
from featuremill.store.files import temporary_file
from featuremill.workload import weights

MODEL = "mill_t6_8M"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Return the weights in a shared folder."""
    return weights.weights_of(weights.convert(MODEL, tmp_path_factory.mktemp("cache")))


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Return the folder that copies go to."""
    monkeypatch.setenv("FEATUREMILL_STAGE", str(tmp_path / "node"))
    return tmp_path / "node" / f"featuremill-{os.getuid()}"


def refused(sentence):
    raise AssertionError(sentence)


def test_a_copy_is_made_once_and_again_when_it_was_touched(shared, node, monkeypatch):
    found = weights.staged(shared, refused)
    assert weights.staged(shared, refused) == found
    assert found == shared._replace(path=node / f"{shared.sha256}.safetensors")
    assert found.path.read_bytes() == shared.path.read_bytes()
    with found.path.open("r+b") as file:
        file.write(b"spoiled")
    temporary_file(found.path).write_bytes(b"half")  # of a job that was killed
    assert weights.staged(shared, refused).path.read_bytes() == shared.path.read_bytes()
    assert sorted(path.suffix for path in node.iterdir()) == [".json", ".lock", ".safetensors"]
    monkeypatch.delenv("FEATUREMILL_STAGE")
    assert weights.staged(shared, refused) is shared


def test_jobs_of_one_node_copy_once(shared, node, environment):
    code = (
        "import shutil, sys; from pathlib import Path; from featuremill.workload import weights\n"
        "from featuremill.workload import Weights\n"
        "copy = shutil.copyfile\n"
        "shutil.copyfile = lambda *paths: (print('copied'), copy(*paths))\n"
        "weights.staged(Weights('m', Path(sys.argv[1]), sys.argv[2], {}), print)\n"
    )
    command = [sys.executable, "-c", code, str(shared.path), shared.sha256]
    variables = {**environment, "FEATUREMILL_STAGE": str(node.parent)}
    jobs = [subprocess.Popen(command, env=variables, stdout=subprocess.PIPE) for _ in range(3)]
    said = b"".join(job.communicate(timeout=60)[0] for job in jobs)
    assert said == b"copied\n" and not any(job.returncode for job in jobs)


def test_a_damaged_shared_file_is_used_by_nobody(shared, node, tmp_path):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(shared.path.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match=f"delete weights/{MODEL}.json and run again"):
        weights.staged(shared._replace(path=path), refused)
    assert [file.suffix for file in node.iterdir()] == [".lock"]


@pytest.mark.parametrize("name", ["$NOT_SET_ANYWHERE/x", "scratch"])
def test_a_name_that_cannot_be_meant_is_refused(shared, monkeypatch, name):
    monkeypatch.setenv("FEATUREMILL_STAGE", name)
    with pytest.raises(UserError, match="give an absolute path"):
        weights.staged(shared, refused)


def test_variables_are_those_of_the_job(shared, tmp_path, monkeypatch):
    monkeypatch.setenv("FEATUREMILL_STAGE", "$NODE_DISK/job_7")
    monkeypatch.setenv("NODE_DISK", str(tmp_path))
    assert weights.staged(shared, refused).path.is_relative_to(tmp_path / "job_7")


def test_a_full_disk_costs_nothing_but_speed(shared, node, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(9, 9, 0))
    said = []
    assert weights.staged(shared, said.append) is shared
    assert said[0].startswith(f"FEATUREMILL_STAGE: {node}: the weights take ")
    assert said[0].endswith(f"0 bytes are free; the weights are read from {shared.path}")
    assert [file.suffix for file in node.iterdir()] == [".lock"]


def test_a_folder_that_others_can_write_to_or_lead_astray_is_not_used(shared, node):
    ours = node.parent / "ours"
    ours.mkdir(parents=True)
    node.symlink_to(ours)
    said = []
    assert weights.staged(shared, said.append) is shared
    node.unlink()
    node.mkdir(mode=0o700)
    for mode in (0o770, 0o707):
        node.chmod(mode)
        assert weights.staged(shared, said.append) is shared
    if os.getuid() == 0:
        node.chmod(0o700)
        os.chown(node, NOBODY, NOBODY)
        assert weights.staged(shared, said.append) is shared
        assert "belongs to another user" in said.pop()
    assert (
        "it is a link" in said[0] and ["others may write" in one for one in said[1:]] == [True] * 2
    )
    assert not any(ours.iterdir()) and not any(node.iterdir())


def test_a_job_says_where_it_reads_its_weights(verbs, shared, tmp_path):
    entry = tmp_path / "weights.json"
    words = ["weights", MODEL, "--cache", str(tmp_path / "cache"), "--output", str(entry)]
    assert main(words) == 0
    plan = verbs.plan(random_records(3), "esm2", {"model": MODEL}, more=("--weights", entry))
    verbs.environment = {**verbs.environment, "FEATUREMILL_STAGE": str(entry)}
    said = verbs.extract(plan)
    assert "Not a directory; the weights are read from" in said
    assert sum(receipt["ok"] for receipt in verbs.receipts(plan)) == 3
    verbs.environment["FEATUREMILL_STAGE"] = str(tmp_path / "$FEATUREMILL_TEST_JOB")
    verbs.environment["FEATUREMILL_TEST_JOB"] = "7"
    shutil.rmtree(verbs.run_folder.store / "parts")
    assert "are read from" not in verbs.extract(plan)
    assert len(list((tmp_path / "7").glob("*/*.safetensors"))) == 1


@contextlib.contextmanager
def open_folder():
    with tempfile.TemporaryDirectory(prefix="featuremill-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.getuid() != 0, reason="needs two users")
def test_a_cache_of_somebody_else_serves_a_group():
    skip_where_closed()
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from featuremill.workload import weights\n"
        "from featuremill.workloads.esm2 import sources\n"  # nobody may read this Python's modules
        "os.setgid(int(sys.argv[1])); os.setuid(65534)\n"
        "for cache in sys.argv[2:]:\n"
        "    try:\n"
        f"        print(weights.convert({MODEL!r}, Path(cache)).path)\n"
        "    except weights.UserError as error:\n"
        "        print(error)\n"
    )

    def as_nobody(group, *caches):
        words = [sys.executable, "-c", code, str(group), *map(str, caches)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    with open_folder() as folder:
        mask = os.umask(0o002)
        try:
            written = Path(weights.convert(MODEL, folder / "cache").path)
        finally:
            os.umask(mask)
        assert {path.stat().st_mode & 0o777 for path in written.parent.iterdir()} == {0o664}
        assert written.parent.stat().st_mode & 0o777 == 0o775
        shutil.copytree(folder / "cache", folder / "mounted_elsewhere")
        for group in (NOBODY, 0):  # others, who may only read; and the group, which may write
            first, second, refusal = as_nobody(
                group, folder / "cache", folder / "mounted_elsewhere", folder / "mine"
            )
            assert first == str(written)
            assert second.startswith(f"{folder}/mounted_elsewhere/")
            assert "mine/esm2-1: converted weights cannot be kept here (Permission" in refusal
