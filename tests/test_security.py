"""Hostile files, names and neighbours: nothing of theirs is executed, followed or shown raw."""

import ast
import contextlib
import csv
import gzip
import json
import os
import pickle
import resource
import signal
import stat
import time
from html.parser import HTMLParser
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT
from programs import Desk, python, written

from featuremill import config
from featuremill.__main__ import main
from featuremill.base.errors import IntegrityError, UserError
from featuremill.inputs import proteins
from featuremill.kit.hdf5 import dataset_name
from featuremill.lease import condition, folder, slots, turnstile
from featuremill.lease.environment import LEASE_FOLDER
from featuremill.store import files, journal_log
from featuremill.store.parts import open_part, read_verified
from featuremill.store.plan import Plan, PlannedShard
from featuremill.store.receipt import Receipt
from featuremill.store.results import Results
from featuremill.workload.outputs import Target, open_writer

NOBODY = 65534
GOOD = b">good\nMKVLA\n"


# ---- pickles and other code in data ----

MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "imp"}
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput"}
CALLS |= {"yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "pd.read_pickle"}
CALLS |= {"pd.eval", "subprocess.getstatusoutput", "jinja2.Template", "tempfile.mktemp"}
HARMLESS = ("pickle", {"UnpicklingError"})
"""What may be imported of such a module: the exception alone."""
TRUSTED = ROOT / "src" / "featuremill" / "steps" / "heads" / "unpickle.py"
"""A program of its own, which nobody imports: it reads a pickle whose digest somebody has typed
(tests/test_heads.py), and hands back tensors."""
RESTRICTED = ROOT / "src" / "featuremill" / "workloads" / "geneformer" / "genes.py"
"""Its unpickler builds texts and numbers, and calls nothing."""
UNSAFE = {"shell": True, "allow_pickle": True, "weights_only": False, "autoescape": False}


def sources():
    folders = [ROOT / "src", ROOT / "bench", ROOT / "training", ROOT / "workflow"]
    return sorted(path for place in folders for path in place.rglob("*.py"))


def executing(path):
    """Yield what in a module may execute data that it reads."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name.partition(".")[0] for alias in node.names}
            module = getattr(node, "module", "") or ""
            names |= {module.partition(".")[0]}
            if names & MODULES and (module, names - {module}) != HARMLESS:
                yield ast.unparse(node)
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            values = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
            unsafe = [arg for arg, value in values.items() if value is not None and arg in UNSAFE]
            is_unsafe = any(values[argument] == UNSAFE[argument] for argument in unsafe)
            is_load = name == "torch.load" and values.get("weights_only") is not True
            if name in CALLS or is_unsafe or is_load:
                yield ast.unparse(node)


def test_no_module_can_execute_data():
    assert len(sources()) > 150
    found = {path: list(executing(path)) for path in sources()}
    # Of genes.py, test_geneformer.py has what its unpickler refuses to build.
    assert found.pop(RESTRICTED) == ["import pickle"]
    assert {path for path, lines in found.items() if lines} == {TRUSTED}
    started = [path for path in sources() if "heads.unpickle" in path.read_text("utf-8")]
    assert started == [TRUSTED.with_name("importing.py"), TRUSTED]


@pytest.mark.parametrize(
    "line",
    [
        *("import pickle", "from pickle import UnpicklingError, load", "from joblib import load"),
        *("import dill.source", "eval(text)", "yaml.load(text)"),
        *("np.load(path, allow_pickle=True)", "run(text, shell=True)"),
        *("torch.load(path)", "torch.load(path, weights_only=False)", "os.system(text)"),
        *("torch.load(path, weights_only=maybe)", "load(path, weights_only=False)"),
    ],
)
def test_a_line_that_can_execute_data_is_found(line, tmp_path):
    (tmp_path / "module.py").write_text(f"def function():\n    {line}\n")
    assert list(executing(tmp_path / "module.py")) == [line]


class Bomb:
    """What unpickling it does leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


@pytest.fixture
def bomb(tmp_path):
    """Return a pickle that creates a file when it is loaded, and fail where it was."""
    mark = tmp_path / "executed"
    content = pickle.dumps(Bomb(mark))
    pickle.loads(content)
    assert mark.exists(), "it does work"
    mark.unlink()
    yield content
    assert not mark.exists()


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.bin", "w.safetensors", "zip.pt", "dict.pt"])
def test_pickled_weights_are_refused(bomb, name, tmp_path):
    import torch

    from featuremill.workloads.esm2 import checkpoint

    path = tmp_path / name
    if name == "zip.pt":
        torch.save({"model": Bomb(tmp_path / "executed")}, path)
    elif name == "dict.pt":
        tensors = {"embed_tokens.weight": torch.zeros(33, 8), "x": Bomb(tmp_path / "executed")}
        torch.save(tensors, path, _use_new_zipfile_serialization=False)
    else:
        path.write_bytes(bomb)
    with pytest.raises(UserError, match="not a usable ESM-2 checkpoint: it cannot be read safely"):
        checkpoint.read(path)


@pytest.mark.parametrize("suffix", [".npy", ".fa", ".csv", ".parquet", ".gb", ".pkl", ".fa.gz"])
def test_pickled_inputs_are_no_records(bomb, suffix, tmp_path):
    path = tmp_path / f"in{suffix}"
    path.write_bytes(gzip.compress(bomb) if suffix.endswith("gz") else bomb)
    if suffix == ".npy":
        np.save(path, np.array([Bomb(tmp_path / "executed")], object), allow_pickle=True)
    with pytest.raises(UserError):
        list(proteins([path]))


def with_pickled_type(fields, content):
    """Return a schema whose first column claims to be of a pickled Python type."""
    claim = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": content}
    first, *others = fields
    return pa.schema([first.with_metadata(claim), *others], metadata={"pandas": content})


def test_pickles_in_the_metadata_of_a_table_are_left_alone(bomb, tmp_path):
    fields = pa.schema({"id": pa.string(), "sequence": pa.string()})
    table = pa.table([["a"], ["MKV"]], schema=with_pickled_type(fields, bomb))
    pq.write_table(table, tmp_path / "in.parquet")
    (record,) = proteins([tmp_path / "in.parquet"])
    assert (record.id, record.payload) == ("a", b"MKV")


def test_pickles_in_the_store_are_refused(bomb, tmp_path):
    run = Results(tmp_path / "run")
    shard = run.shard("0" * 32)
    shard.parent.mkdir(parents=True)
    schema = with_pickled_type(pa.schema({"sha256": pa.binary(32), "payload": pa.binary()}), bomb)
    for content in (bomb, arrow_of(schema)):
        shard.write_bytes(content)
        with pytest.raises(IntegrityError):
            read_verified(shard)
    part, receipt = run.part("1" * 32, "0" * 32), run.receipt("1" * 32, "0" * 32)
    part.parent.mkdir(parents=True)
    part.write_bytes(bomb)
    plan = Plan.model_construct(recipe="1" * 32)
    planned = PlannedShard("0" * 32, records=1, wanted=1, cost=1, bytes=1)
    for told in ({}, {"recipe": "1" * 32, "shard": "0" * 32, "part": "2" * 32}):
        files.write_json(receipt, told)
        with pytest.raises(IntegrityError):
            open_part(run, plan, planned)
    for path, kind in ((run.plan, Plan), (receipt, Receipt), (run.kept_plan, Plan)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bomb)
        assert kind.find(path) is None
    with pytest.raises(IntegrityError, match="delete it and run the same command again"):
        run.read_plan()
    log = tmp_path / "j.log"
    log.write_bytes(bomb)
    assert journal_log.read_log(log) is None


def arrow_of(schema):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema):
        pass
    return sink.getvalue().to_pybytes()


# ---- YAML ----


def grown(first, form, part="{0}"):
    """Return nine anchors, each with nine times what the one before it has."""
    lines = [f"a0: &a0 {first}\n"]
    for n in range(1, 10):
        parts = ", ".join(part.format(f"*a{n - 1}", k) for k in range(9))
        lines.append(f"a{n}: &a{n} {form % parts}\n")
    return "".join(lines)


LAUGHS = grown("[x, x, x, x, x, x, x, x, x]", "[%s]")
MAPS, MERGES = grown("{x: y}", "{%s}", "k{1}: {0}"), grown("{x: y}", "{<<: [%s]}")
HOSTILE_YAML = {
    "python": "inputs: a\nrun: !!python/object/apply:os.system ['touch executed']\n",
    "name": "inputs: !!python/name:os.system\n",
    "module": "inputs: !!python/module:os\n",
    "new": "inputs: !!python/object/new:subprocess.Popen [[touch, executed]]\n",
    "billion laughs": f"{LAUGHS}inputs: *a9\n",
    "laughing maps": f"{MAPS}inputs: a\noptions: *a9\n",
    "laughing merges": f"{MERGES}inputs: a\n",
    "endless": "inputs: a\noptions: &a {x: *a}\n",
    "deep": f"inputs: {'[' * 1500}{']' * 1500}\n",
    "vast": f"inputs: a\nmax_failed: 0x{'f' * 100_000}\n",
}


@pytest.mark.parametrize("name", HOSTILE_YAML)
def test_hostile_yaml_ends_quickly_and_runs_nothing(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my.yaml"
    path.write_text(HOSTILE_YAML[name])
    start = time.process_time()
    with pytest.raises(UserError) as error:
        config.read(path)
    assert time.process_time() - start < 10
    assert len(str(error.value)) < 2000 and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == [path]


# ---- decompression bombs ----

MEMORY_MB = 3000


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MB * 2**20,) * 2)


def plan_in_little_memory(folder, environment, file):
    """Plan `file`, which stands in `folder`; return the ended process."""
    told = {"inputs": [file], "workload": "composition", "device": "cpu"}
    words = ("-m", "featuremill", "plan", "run", "--config", written(told))
    return python(*words, cwd=folder, env=environment, preexec_fn=limit_memory)


QUICK = ("one line", "one header line")
BOMBS = {
    "one line": ("in.fa.gz", b">a\n", b"MKVLLAGG"),
    "one header line": ("in.csv.gz", b"id,sequence,", b"MKVLLAGG"),
    "one header": ("in.fa.gz", b">", b"MKVLLAGG"),
    "many lines": ("in.fa.gz", b">a\n", b"MKVLLAG\n"),
    "one cell": ("in.csv.gz", b"id,sequence\na,", b"MKVLLAGG"),
    "one quoted cell": ("in.csv.gz", b'id,sequence\n"', b"MKVLLAG\n"),
    "one entry": ("in.gb.gz", b"LOCUS  T  1 bp  DNA  linear  BCT 01-JAN-2020\n", b"COMMENT x\n"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(b, marks=() if b in QUICK else pytest.mark.slow) for b in BOMBS]
)
def test_what_unpacks_without_end_fills_no_memory(name, tmp_path, environment):
    """50 GB in 70 MB, read with 3 GB of addresses."""
    file, head, body = BOMBS[name]
    member = gzip.compress(body * (2**24 // len(body)))
    with (tmp_path / file).open("wb") as stream:
        stream.write(gzip.compress(head))
        for _ in range(3000):
            stream.write(member)
    planning = plan_in_little_memory(tmp_path, environment, file)
    assert planning.returncode == 2, planning.stderr
    assert "MB without the end of a record at about record 1; look what it holds" in planning.stderr
    assert not (tmp_path / "run" / "plan.json").exists()


def test_a_table_that_repeats_a_vast_cell_is_refused(tmp_path, environment):
    """200 GB in 50 kB: Arrow cannot have as much memory in one piece, and says so."""
    vast = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), ["M" * 20_000_000])
    table = pa.table({"id": [str(n) for n in range(20_000)], "sequence": vast})
    pq.write_table(table, tmp_path / "in.parquet", dictionary_pagesize_limit=2**30)
    planning = plan_in_little_memory(tmp_path, environment, "in.parquet")
    assert planning.returncode == 2, planning.stderr
    assert "unpacks to more than there is memory" in planning.stderr


# ---- ids and names, through a whole run ----

MARKUP = "</script><img/src=x/onerror=alert(1)>"
PRINTABLE = ["../../etc/x", "/etc/passwd", "/", "//", ".", "..", "%2F", "%2E", "%252F", "a%2Fb"]
PRINTABLE += ["a/b", MARKUP, "<!--", "{{7*7}}", "{%raw%}", "$(touch${IFS}pwned)"]
PRINTABLE += ["`touch${IFS}pwned`", ";touch${IFS}pwned", "=cmd|'/C'!A0", "@SUM(1)", "+1", '"', '""']
PRINTABLE += ["'", "a,b", "\\", "\\n", "NA", "nan", "1e5", "001"]
PRINTABLE += ["{wildcards.x}", "%s%n", "\u202eabc", "\u0301", "e\u0301", "\u00e9", "\U0001f9ec"]
PRINTABLE += ["CON", "x" * 65_536, "x" * 65_537, "#id", ";id", "--help", "-rf"]
UNPRINTABLE = ["a\nb", "a\tb", "a\rb", "\x1b[2Jx", "a\x07", "\x9b31m", "a\u2028b", "a\x85b", "\x7f"]


class Workflow(Desk):
    """A folder in which the real Snakemake runs."""

    def __init__(self, folder, environment):
        super().__init__(folder, {**environment, "FEATUREMILL_QUIET": ""})
        self.results = folder / "results" / "t"

    def __call__(self, told, *arguments, status=0):
        told = {"run": "t", "workload": "composition", "device": "cpu", **told}
        (self.folder / "my.yaml").write_text(yaml.safe_dump(told))
        words = ["snakemake", "--snakefile", ROOT / "Snakefile"]
        words += ["--workflow-profile", ROOT / "profiles" / "default"]
        words += ["--configfile", "my.yaml", "--cores", "2", *arguments]
        self.said = self.type(*words, status=status).text
        return self.said


@pytest.fixture(scope="module")
def hostile(tmp_path_factory, environment):
    """Return a whole run over records with hostile ids, in a file with a hostile name."""
    folder = tmp_path_factory.mktemp("run")
    workflow = Workflow(folder, environment)
    name = "in put'\"$(touch pwned)`touch pwned`;touch pwned<img src=x onerror=alert(1)>.parquet"
    ids = [*PRINTABLE, *UNPRINTABLE]
    letters = "ACDEFGHIKLMNPQRSTVWY"
    sequences = [letters[n % 20] * (n + 1) for n in range(len(ids))]
    table = {"id": ids, "sequence": sequences, "description": [MARKUP] * len(ids)}
    for bad in ("MK*V", "", "MK1", f"MK{MARKUP.replace('>', '')}"):
        for id in PRINTABLE:
            table["id"].append(f"bad{len(table['id'])}{id}")
            table["sequence"].append(bad)
            table["description"].append(id)
    pd.DataFrame(table).to_parquet(folder / name)
    workflow.name = name
    workflow.expected = dict(zip(PRINTABLE, sequences, strict=False))
    workflow.refused = table["id"][len(PRINTABLE) :]
    outputs = ["parquet", "npy", "per_protein_h5"]
    workflow({"inputs": [name], "outputs": outputs, "shards": {"cost": 600}})
    assert len(json.loads((workflow.results / "plan.json").read_text())["shards"]) == 2
    return workflow


def test_nothing_outside_the_run_is_touched(hostile):
    found = {path.name for path in hostile.folder.iterdir()}
    assert found == {".snakemake", "my.yaml", "results", hostile.name}
    assert [path.name for path in (hostile.folder / "results").iterdir()] == ["t"]


def test_every_table_has_the_ids_as_they_are(hostile):
    table = pq.read_table(hostile.results / "embeddings.parquet")
    assert table["id"].to_pylist() == PRINTABLE
    assert len(np.load(hostile.results / "embeddings.npy")) == len(PRINTABLE)
    with h5py.File(hostile.results / "per-protein.h5") as file:
        assert len(file) == len(PRINTABLE)
        names = []
        file.visit(names.append)
        assert len(names) == len(PRINTABLE), "no id makes a group"
        for id, vector in zip(PRINTABLE, table["composition"].to_pylist(), strict=True):
            dataset = file[dataset_name(id)]
            assert dataset.attrs["original_id"] == id
            assert dataset[:20].tolist() == vector


def test_no_two_ids_share_a_place_in_hdf5():
    several = [*PRINTABLE, "%2f", "%25", "%", "%%", "./", "/.", "a//b", "a/./b", "a/../b"]
    several += ["...", " "]
    assert len({dataset_name(id) for id in several}) == len(several)


def test_ids_are_found_again_in_an_hdf5_of_residues(tmp_path):
    matrices = pa.list_(pa.list_(pa.float32(), 2))
    cells = [[[float(n), 0.0]] for n in range(len(PRINTABLE))]
    path = tmp_path / "x.h5"
    path.touch()  # as merge does
    writer = open_writer("per_residue_h5", Target(path, pa.schema({"v": matrices}), len(cells), {}))
    columns = [pa.array(PRINTABLE), pa.array(cells, matrices), pa.array([""] * len(cells))]
    writer.write(pa.table(columns, names=["id", "v", "sample"]))
    writer.close()
    with h5py.File(path) as file:
        for number, id in enumerate(PRINTABLE):
            assert file[dataset_name(id)].attrs["original_id"] == id
            assert file[dataset_name(id)][0, 0] == number


def test_the_failed_table_has_one_row_a_record(hostile):
    path = hostile.results / "failed.tsv"
    raw = path.read_text("utf-8")
    assert raw.count("\n") == len(hostile.refused) + 1
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    plain = [as_shown(id) for id in hostile.refused]
    assert [row["id"] for row in rows] == plain
    frame = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
    assert frame["id"].tolist() == plain
    reasons = {row["reason"].partition(":")[0] for row in rows[: len(UNPRINTABLE)]}
    assert reasons == {"control character in the id"}
    assert frame["source"].unique().tolist() == [hostile.name]


def as_shown(id):
    """Return an id as a table shows it."""
    acts = "\n\t\r\x1b\x07\x9b\u2028\x85\x7f"
    written = {letter: f"\\x{ord(letter):02x}" for letter in acts} | {"\u2028": "\\u2028"}
    return "".join(written.get(letter, letter) for letter in id)


class Live(HTMLParser):
    """Collects what a browser would build of a page."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes = set(), set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        for name, value in attributes:
            assert not name.startswith("on"), (tag, name, value)
            assert "javascript:" not in (value or "").lower()


def test_pages_hold_no_live_markup_from_an_id(hostile):
    live, text = Live(), (hostile.results / "report.html").read_text("utf-8")
    live.feed(text)
    assert not live.tags & {"img", "iframe", "object", "embed", "base", "form", "foreignobject"}
    assert MARKUP not in text and "<img src=x" not in text
    assert "\x1b" not in text
    assert "onerror" in text, "the ids and the path are there, as text"


def acts_on_a_terminal(text):
    return [letter for letter in text if not letter.isprintable() and letter not in "\n\t"]


def test_logs_and_screen_stay_lines_of_ours(hostile):
    logs = list((hostile.results / "logs").rglob("*.log"))
    assert logs
    for path in logs:
        text = path.read_text("utf-8")
        assert not acts_on_a_terminal(text)
        for line in text.splitlines():
            assert line[:4].isdigit() and " featuremill" in line, line
    assert not acts_on_a_terminal(hostile.said)
    manifest = json.loads((hostile.results / "manifest.json").read_text("utf-8"))
    assert manifest["inputs"][0]["path"] == hostile.name


def test_a_conflict_of_hostile_ids_is_one_clear_line(verbs):
    ids = ["\u202e" + "x" * 70_000] * 2
    verbs.folder.joinpath("in.fa").write_text(f">{ids[0]}\nMKV\n>{ids[1]}\nMKL\n")
    told = {"inputs": ["in.fa"], "workload": "composition", "device": "cpu"}
    words = ("plan", verbs.run_folder.root, "--config", written(told), "--log", "x.log")
    said = verbs(*words, status=2)
    (line,) = [line for line in said.splitlines() if "error:" in line]
    assert "two different sequences" in line and line.isprintable() and len(line) < 400


HOSTILE_NAMES = [
    "$(touch pwned)`touch pwned`;touch pwned.fa",
    "a: &b [*b] # c.fa",
    "'\"\\ {{7*7}}.fa",
    "!!python_name:os.system.fa",
    "- yes.fa",
    "--force.fa",
    "%2e\u202e\u00e9\U0001f9ec.fa",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_init_writes_names_so_that_they_are_read_as_they_are(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("".join(f">{id}\n{'MKV' * 9}\n" for id in PRINTABLE))
    assert main(["init", "--workload", "composition", "--output", "my.yaml", "--", name]) == 0
    assert config.read(tmp_path / "my.yaml").inputs == (name,)
    assert {path.name for path in tmp_path.iterdir()} == {name, "my.yaml"}
    assert not acts_on_a_terminal(capsys.readouterr().err)


@pytest.mark.parametrize("name", ["{x}.fa", "\x1b[2J.fa", "a{run.run,.*}b.fa", "line\nbreak.fa"])
def test_names_that_snakemake_or_a_screen_would_act_on_are_refused(name, tmp_path, environment):
    (tmp_path / name).write_bytes(GOOD)
    workflow = Workflow(tmp_path, environment)
    said = workflow({"inputs": [name]}, "-n", status=1)
    assert "give another one" in said or "rename the file" in said
    assert "Traceback" not in said and not acts_on_a_terminal(said)


@pytest.mark.slow
def test_a_model_with_a_hostile_name_is_a_path_and_nothing_else(tmp_path, environment):
    from featuremill.workloads.esm2 import sources

    bundled = next(sources.BUNDLED.glob("*.safetensors"))
    folder = tmp_path / "my models;touch pwned"
    folder.mkdir()
    model = folder / "$(touch pwned)`touch pwned`'\".safetensors"
    model.write_bytes(bundled.read_bytes())
    (tmp_path / "in.fa").write_bytes(GOOD)
    workflow = Workflow(tmp_path, {**environment, "FEATUREMILL_CACHE": str(tmp_path / "cache")})
    options = {"model": str(model.relative_to(tmp_path))}
    workflow({"inputs": ["in.fa"], "workload": "esm2", "options": options, "outputs": ["npy"]})
    assert "pwned" not in {path.name for path in tmp_path.iterdir()}
    assert len(np.load(workflow.results / "embeddings.npy")) == 1


# ---- neighbours on the same machine, at the folder of leases ----

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")


@contextlib.contextmanager
def soon(seconds=20):
    """Fail, instead of waiting for ever on a pipe that nobody writes to."""

    def late(*_):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def as_nobody(action):
    """Carry out `action` in a process of the user nobody; return what it returns, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            told = str(action())
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return pipe.read()


@pytest.fixture
def shared():
    """Return a sticky folder for all users, and a file of ours that nobody else may write to."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        leases = root / "leases"
        leases.mkdir()
        leases.chmod(0o1777)
        victim = root / "victim"
        victim.write_text("[[1, 2]] precious")
        victim.chmod(0o644)
        yield leases, victim
        assert victim.read_text() == "[[1, 2]] precious"
        assert stat.S_IMODE(victim.stat().st_mode) == 0o644


PLANTED = {
    "symbolic link": lambda path, victim: path.symlink_to(victim),
    "hard link": lambda path, victim: path.hardlink_to(victim),
    "dangling link": lambda path, victim: path.symlink_to(victim.with_name("new")),
    "pipe": lambda path, victim: os.mkfifo(path),
    "folder": lambda path, victim: path.mkdir(),
    "device": lambda path, victim: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_file_is_neither_followed_nor_waited_for(shared, kind):
    leases, victim = shared
    for name in ("turnstile", "GPU-1.device", "GPU-1@0of1.slot", "GPU-1.failures"):
        PLANTED[kind](leases / name, victim)
    with soon():
        for name in ("turnstile", "GPU-1.device", "GPU-1@0of1.slot"):
            with pytest.raises(UserError, match="not a plain file; let its owner"):
                folder.open_lock(leases / name)
        with pytest.raises(UserError, match="not a plain file"):
            slots.take(leases, "GPU-1", 1)
        with (
            pytest.raises(UserError, match="not a plain file"),
            turnstile.turn(leases / "turnstile", None, lambda: 1.0),
        ):
            pass
        failures = condition.Failures(leases, "GPU-1")
        assert failures.read() == [] and failures.cooling() == ""
        failures.add("a device failed")
        failures.forget()
    assert not victim.with_name("new").exists()


@needs_root
def test_files_of_another_user_are_shared_or_refused_in_a_sentence(shared):
    leases, _ = shared

    def make_locks():
        os.umask(0o077)
        os.close(folder.open_lock(leases / "open"))
        (leases / "closed").touch(0o600)
        os.mkfifo(leases / "pipe", 0o666)
        (leases / "link").symlink_to(leases / "open")

    assert as_nobody(make_locks) == "None"
    descriptor = folder.open_lock(leases / "open")
    assert folder.try_lock(descriptor)
    assert as_nobody(lambda: folder.try_lock(folder.open_lock(leases / "open"))) == "False"
    os.close(descriptor)
    with soon():
        for name in ("pipe", "link"):
            with pytest.raises(UserError, match=r"let its owner \(nobody\) remove it"):
                folder.open_lock(leases / name)
    os.chown(leases / "closed", 0, 0)
    said = as_nobody(lambda: folder.open_lock(leases / "closed"))
    assert said.startswith("UserError") and "it is closed to you; let its owner (root)" in said


@needs_root
@pytest.mark.parametrize(
    ("mode", "is_fine"), [(0o1777, True), (0o777, False), (0o700, False), (0o1755, False)]
)
def test_a_folder_that_another_user_made_first(shared, monkeypatch, mode, is_fine):
    leases, _ = shared
    made = leases / "made"
    as_nobody(lambda: (made.mkdir(), made.chmod(mode)))
    assert made.stat().st_uid == NOBODY
    monkeypatch.setenv(LEASE_FOLDER.name, str(made))
    if is_fine:
        assert folder.find() == made
    else:
        with pytest.raises(UserError, match=r"owner \(nobody\) chmod 1777 it, or name another"):
            folder.find()
        assert stat.S_IMODE(made.stat().st_mode) == mode, "somebody else's folder stays as it is"


def test_a_link_in_place_of_the_folder_is_not_followed(shared, tmp_path, monkeypatch):
    leases, _ = shared
    target = tmp_path / "home"
    target.mkdir(mode=0o700)
    (leases / "link").symlink_to(target)
    monkeypatch.setenv(LEASE_FOLDER.name, str(leases / "link"))
    with pytest.raises(UserError, match="a folder, and no link to one"):
        folder.find()
    assert stat.S_IMODE(target.stat().st_mode) == 0o700 and not list(target.iterdir())


SPOILED = [b"", b"\xff\xfe", b"[]", b"7", b"null", b"{" * 50_000, b'{"pid": "x", "since": "y"}']
SPOILED += [b'{"pid": 1e400, "since": [], "user": {}, "command": null}', b"9" * 100_000]
ACTS = b'"user": "\\u001b[2J", "command": "\\n\\u001b]0;x\\u0007"'
SPOILED += [b'{"pid": -1, "since": 1e300, ' + ACTS + b"}"]
SPOILED += [b'[[1e400, "x"]]', b"[[1, 2, 3]]", b'{"a": 1}', b'[["nan", "x"]]']


@pytest.mark.parametrize("content", SPOILED)
def test_spoiled_notes_decide_nothing_and_reach_no_screen(shared, content):
    leases, _ = shared
    path = leases / "GPU-1@0of1.slot"
    held = folder.open_lock(path)
    assert folder.try_lock(held)
    path.write_bytes(content)
    (leases / "GPU-1.failures").write_bytes(content)
    (leases / "x@\x1b[2J.slot").touch()
    (holder,) = slots.holders(leases)
    assert holder.name == "GPU-1@0of1"
    assert 0 <= holder.pid < 2**31 and time.localtime(holder.since)
    assert f"{holder.user}{holder.command}".isprintable()
    assert condition.Failures(leases, "GPU-1").cooling() == ""
    os.close(held)


def test_what_others_wrote_of_a_failure_is_shown_plainly(shared):
    leases, _ = shared
    failures = condition.Failures(leases, "GPU-1")
    for _ in range(3):
        failures.add("ours")
    told = [[at, "\x1b[2J\nok"] for at, _ in json.loads((leases / "GPU-1.failures").read_text())]
    (leases / "GPU-1.failures").write_text(json.dumps(told))
    assert "3 quick failures, \\x1b[2J" in failures.cooling()


@pytest.mark.parametrize(
    "number", [b"%d" % (2**63 - 2), b"%d" % (2**63 - 1), b"9" * 20, b"x", b"-5"]
)
def test_a_spoiled_queue_still_serves(shared, number):
    leases, _ = shared
    (leases / "turnstile").write_bytes(number)
    for _ in range(2):
        with soon(), turnstile.turn(leases / "turnstile", None, lambda: 0.1):
            pass
