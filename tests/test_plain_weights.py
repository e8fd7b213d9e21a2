"""Weights of a workload that converts none: a file or a folder, taken as it is."""

import gzip
import io
import json
import lzma
import os
import pickle
import shutil
import tarfile
import zipfile

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from programs import NO_REPORT, Verbs, Workflow, fasta, random_records, written

from featuremill.base.errors import UserError
from featuremill.store.files import digest_at
from featuremill.workload import plain_weights

RECORDS = random_records(12)


class Weighed(Workflow):
    """A run whose values are the sum of the numbers in its weights."""

    def configure(self, network="net", **_):
        config = {"run": "test", "inputs": "in.fa", "workload": "weighed", "device": "cpu"}
        config |= {"options": {"network": network}, "shards": {"cost": 6}, "outputs": ["parquet"]}
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

    def value(self):
        table = pq.read_table(self.run_folder.root / "embeddings.parquet")
        ((value,),) = {tuple(row) for row in table["number"].to_pylist()}
        return value

    def parts(self):
        return {path: path.stat().st_mtime_ns for path in self.run_folder.store.rglob("*.arrows")}


@pytest.fixture
def weighed(tmp_path, environment):
    run = Weighed(tmp_path, environment, RECORDS)
    (tmp_path / "net" / "inner").mkdir(parents=True)
    (tmp_path / "net" / "a.txt").write_text("1")
    (tmp_path / "net" / "inner" / "b.txt").write_text("2")
    return run


def test_a_folder_is_hashed_once_and_its_place_is_no_matter(weighed, tmp_path):
    weighed(NO_REPORT)
    assert weighed.value() == 3
    (told,) = (tmp_path / "weights").glob("*.json")
    told = json.loads(told.read_text())
    assert [file["path"] for file in told["files"]] == ["a.txt", "inner/b.txt"]
    assert told["sha256"] == digest_at(tmp_path / "net") and told["bytes"] == 2
    parts = weighed.parts()

    shutil.move(tmp_path / "net", tmp_path / "moved")
    weighed.configure("moved")
    weighed(NO_REPORT)
    assert weighed.parts() == parts and weighed.value() == 3

    (tmp_path / "moved" / "inner" / "b.txt").write_text("5")
    weighed(NO_REPORT)
    assert weighed.value() == 6
    assert "Nothing to be done" in weighed(NO_REPORT)


def test_a_file_serves_as_well_and_what_is_not_there_is_told_with_its_line(weighed, tmp_path):
    (tmp_path / "one.txt").write_text("7")
    weighed.configure("one.txt")
    weighed(NO_REPORT)
    assert weighed.value() == 7
    weighed.configure("gone")
    said = weighed.verb("plan", "results/test", "--config", "config.yaml", status=2).err
    assert "config.yaml:4: options.network: gone: there is no such file or folder" in said


class Steps(Verbs):
    def plans(self, *more, status=0):
        (self.folder / "in.fa").write_text(fasta(RECORDS))
        config = {"run": "test", "inputs": ["in.fa"], "workload": "weighed", "device": "cpu"}
        config |= {"options": {"network": "net"}, "outputs": ["parquet"]}
        asked = json.dumps(config)
        return self("plan", self.run_folder.root, "--config", written(asked), *more, status=status)


@pytest.fixture
def steps(tmp_path, environment):
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "a.txt").write_text("4")
    return Steps(tmp_path, environment)


def test_the_verb_that_plan_names_makes_the_json(steps, tmp_path):
    said = steps.plans(status=2)
    command = said.partition("needs its weights: ")[2].partition(", then")[0]
    assert command.startswith("featuremill weights net --workload weighed --output weights/net-")
    steps.type(*command.split())
    (made,) = (tmp_path / "weights").glob("net-*.json")
    steps.plans("--weights", made)
    plan = json.loads(steps.run_folder.plan.read_text())
    (tmp_path / "net" / "a.txt").write_text("44")
    said = steps("extract", steps.run_folder.root, plan["shards"][0]["shard"], status=2)
    assert "gone or incomplete" in said, "each worker looks at the sizes"


def test_a_folder_is_staged_as_a_file_is(steps, tmp_path):
    steps("weights", "net", "--workload", "weighed", "--output", "net.json")
    steps.plans("--weights", "net.json")
    plan = json.loads(steps.run_folder.plan.read_text())
    told = {"FEATUREMILL_STAGE": str(tmp_path / "node"), "LOADED_FROM": str(tmp_path / "said")}
    steps.environment = {**steps.environment, **told}
    steps.extract(plan)
    (copy,) = (tmp_path / "node").glob("*/*/")
    assert (tmp_path / "said").read_text() == str(copy)
    assert (copy / "a.txt").read_text() == "4" and copy.name == digest_at(tmp_path / "net")
    before = (copy / "a.txt").stat().st_mtime_ns
    shutil.rmtree(steps.run_folder.store / "parts")
    steps.extract(plan)
    assert (copy / "a.txt").stat().st_mtime_ns == before, "it is copied once"
    (copy / "a.txt").write_text("5")  # somebody spoils the copy
    shutil.rmtree(steps.run_folder.store / "parts")
    steps.extract(plan)
    assert (copy / "a.txt").read_text() == "4"


def torch_like(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))


def old_torch_like(path):
    path.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2))


class Harm:
    """What runs a command when its pickle is loaded."""

    def __reduce__(self):
        return os.system, ("exit",)


OBJECT = {"weight": np.arange(6, dtype=np.float32), "names": ["a", "b"]}


def pickled(protocol, value=OBJECT, opened=open):
    def write(path):
        with opened(path, "wb") as file:
            file.write(pickle.dumps(value, protocol))

    return write


def in_tar(mode, name, content):
    def write(path):
        with tarfile.open(path, mode) as archive:
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))

    return write


def older_torch_like(path):
    """Write what torch.save wrote before PyTorch 0.1.10."""
    in_tar("w:", "pickle", pickle.dumps(OBJECT, protocol=2))(path)


def in_many_layers(path):
    content = pickle.dumps(OBJECT)
    for _ in range(20):
        content = gzip.compress(content)
    path.write_bytes(content)


def by_joblib(path):
    pytest.importorskip("joblib").dump(OBJECT, path, compress=3)


def zipped(name):
    with io.BytesIO() as content:
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr(name, "anything")
        return content.getvalue()


def with_capitals(path):
    path.write_bytes(zipped("net/data.PKL"))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("net.bin", torch_like),
        ("net.dat", old_torch_like),
        ("net.pkl", lambda path: path.write_text("anything")),
        ("NET.PKL", lambda path: path.write_text("anything")),
        ("net.joblib.gz", lambda path: path.write_text("anything")),
        ("net.0", pickled(0)),
        ("net.1", pickled(1)),
        ("list.0", pickled(0, [1.5, "a", None])),
        ("harm.0", pickled(0, Harm())),
        ("huge.1", pickled(1, ("\0" * 3_000_000, Harm()))),
        ("cut.1", lambda path: path.write_bytes(pickle.dumps(Harm(), 1)[:-1])),
        ("net.gz", pickled(4, opened=gzip.open)),
        ("net.xz", pickled(0, opened=lzma.open)),
        ("net.zlib", by_joblib),
        ("objects.npy", lambda path: np.save(path, np.array([OBJECT]), allow_pickle=True)),
        ("objects.npz", lambda path: np.savez(path, a=np.ones(2), b=np.array([OBJECT]))),
        ("net.zip", with_capitals),
        ("net.tar", older_torch_like),
        ("net.0.tar", in_tar("w", "net/weights", pickle.dumps(OBJECT, 0))),
        ("net.tar.gz", in_tar("w:gz", "net/data.pkl", b"anything")),
        ("zip.tar.xz", in_tar("w:xz", "net.npz", zipped("data.PKL"))),
        ("net.gz.gz", in_many_layers),
    ],
)
def test_a_pickle_is_refused_unless_the_workload_reads_it_safely(steps, tmp_path, name, write):
    write(tmp_path / "net" / name)
    with pytest.raises(UserError) as caught:
        plain_weights.look(str(tmp_path / "net"), False, 1)
    said = str(caught.value)
    assert f"{tmp_path / 'net' / name}: this is a pickle" in said and len(said.splitlines()) == 1
    plain_weights.look(str(tmp_path / "net"), True, 1)


def test_the_workload_says_whether_it_reads_pickles_safely(steps, tmp_path):
    torch_like(tmp_path / "net" / "net.bin")
    words = ("weights", "net", "--workload", "weighed", "--output", "net.json")
    assert "net.bin: this is a pickle (in 'archive/data.pkl'), which can" in steps(*words, status=2)
    steps(*words, READS_PICKLES="1")


def test_numbers_are_no_pickle_whatever_byte_they_begin_with(tmp_path):
    for start in range(256):
        numbers = np.random.default_rng(start).standard_normal(500, np.float32).tobytes()
        (tmp_path / "raw.bin").write_bytes(bytes([start]) + numbers)
        plain_weights.look(str(tmp_path / "raw.bin"), False, 1)


def test_texts_and_numbers_are_no_pickles(tmp_path):
    texts = {"vocab.txt": "cls\npad\neos\nunk\n", "README": "I am\nno pickle.\n", "dot": ".\n"}
    for name, text in {**texts, "merges": "c o\nin g\n", "letters": "L\nA\nG\nV\n"}.items():
        (tmp_path / name).write_text(text)
    np.savez_compressed(tmp_path / "numbers.npz", a=np.ones(3))
    np.save(tmp_path / "texts.npy", np.array(["a", "b"]))
    with gzip.open(tmp_path / "vocab.gz", "wb") as file:
        file.write(b"cls\npad\n")
    assert len(plain_weights.look(str(tmp_path), False, 1).files) == 8


def test_a_zip_file_and_numbers_are_no_pickles(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY")
    (tmp_path / "b.safetensors").write_bytes(os.urandom(7) + b"\0{}")
    (tmp_path / "c.zip").write_bytes(b"PK no zip file")
    in_tar("w", "x.npy", b"\x93NUMPY")(tmp_path / "d.tar")
    in_tar("w:gz", "vocab.txt", b"cls\npad\n")(tmp_path / "e.tar.gz")
    (tmp_path / "f.tar").write_bytes((tmp_path / "d.tar").read_bytes()[:700])
    (tmp_path / "zeros.bin").write_bytes(b"\0" * 4096)
    assert len(plain_weights.look(str(tmp_path), False, 1).files) == 7


def test_an_empty_folder_is_no_network(tmp_path):
    with pytest.raises(UserError, match="there is no file in this folder"):
        plain_weights.refuse_missing(str(tmp_path))


def test_code_beside_the_weights_is_never_imported(steps, tmp_path):
    for name in ("featuremill_weighed.py", "__init__.py", "sitecustomize.py"):
        (tmp_path / "net" / name).write_text("raise SystemExit('imported')")
    steps("weights", "net", "--workload", "weighed", "--output", "net.json")
    steps.plans("--weights", "net.json")
    steps.extract(json.loads(steps.run_folder.plan.read_text()))
