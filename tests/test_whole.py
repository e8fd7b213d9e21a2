"""From contigs to verdicts: no id meets another's vector or verdict, every contig and fragment is
accounted for, and the verbs that take one run take a config that translates."""

import csv
import gzip
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import PLUGINS
from hypothesis import Phase
from hypothesis import strategies as st
from programs import Desk, rows_of
from safetensors.numpy import load_file
from test_heads import forward
from test_properties import holds

from featuremill import features
from featuremill.__main__ import main
from featuremill.base import tsv
from featuremill.base.errors import UserError
from featuremill.base.id_columns import ID_ALONE
from featuremill.base.locking import locked
from featuremill.config.project import runs_of
from featuremill.status.project import ProjectReader, ProjectState
from featuremill.steps.heads import DELIVERED, card, predict
from featuremill.steps.translate.command import translate
from featuremill.steps.translate.options import LOCK
from featuremill.steps.verdicts import predictions as predictions_module
from featuremill.steps.verdicts.command import write
from featuremill.store import ours
from featuremill.store.failed import Failure

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(PLUGINS))
    from featuremill_marked import WIDTH, marks

CLASSES = ("others", "virus")
RUNS = ("nucleotides", "proteins")
FILES = {"nucleotides": "nucleotides.fna.gz", "proteins": "proteins.faa.gz"}
FRAGMENT = re.compile(r"(.*)_chunk_\d+[FR][123]")
WINDOW = 60
MARKERS = {"nucleotides": "CGTACG", "proteins": "RNG"}
COMPLEMENT = bytes.maketrans(b"ACGT", b"TGCA")

# ---- what each verdict should be, from letters alone ----


def sequences(path):
    """Return the records of a gzipped FASTA file by id, in its order."""
    with gzip.open(path, "rb") as file:
        lines = file.read().decode().splitlines()
    pairs = zip(lines[::2], lines[1::2], strict=True)
    found = {head.removeprefix(">"): letters for head, letters in pairs}
    assert len(found) == len(lines) // 2, "two fragments have one id"
    return found


def expected(fragments, scores_of, by):
    """Return (scores or None, fragments, failed) of each contig with fragments: `fragments` has of
    each kind the letters by id; `scores_of` a fragment's scores by its letters, None if it has
    failed."""
    dna, proteins = (fragments[kind] for kind in RUNS)
    assert list(dna) == list(proteins)
    found = defaultdict(list)
    for id in dna:
        found[FRAGMENT.fullmatch(id)[1]].append(scores_of(dna[id], proteins[id]))
    told = {}
    for contig, each in found.items():
        there = [scores for scores in each if scores is not None]
        both = None
        if there:
            both = np.max(there, 0) if by == "max" else np.mean(there, 0)
        told[contig] = (both, len(each), len(each) - len(there))
    return told


def table(path):
    rows = rows_of(path, quoting=csv.QUOTE_NONE)
    return [{name: tsv.original(text) for name, text in row.items()} for row in rows]


def check_verdicts(path, contigs, told, num_predicted, num_missing):
    """Compare verdicts.tsv with what is `expected`, and see that nothing is lost: `contigs` are the
    ids that were read."""
    rows = {row["contig"]: row for row in table(path)}
    assert len(rows) == len(table(path)) and set(rows) == set(contigs)
    for contig, (scores, num, failed) in told.items():
        row = rows[contig]
        assert (int(row["fragments"]), int(row["failed"])) == (num, failed)
        if scores is None:
            assert (row["verdict"], row["status"], row["score_virus"]) == ("-", "failed", "")
            continue
        assert row["status"] == ("partly" if failed else "ok")
        written = [float(row[f"score_{name}"]) for name in CLASSES]
        np.testing.assert_allclose(written, scores, rtol=0, atol=2e-6)
        if abs(scores[0] - scores[1]) > 1e-5:
            assert row["verdict"] == CLASSES[int(scores.argmax())]
    without = Counter(row["status"] for id, row in rows.items() if id not in told)
    assert set(without) <= {"without", "refused"}
    # Contigs: judged, failed, without fragments, refused. Fragments: predicted, or failed.
    assert len(rows) == len(told) + without.total()
    assert sum(num for _, num, _ in told.values()) == num_predicted + num_missing
    assert sum(failed for _, _, failed in told.values()) == num_missing
    return without


# ---- any contigs, any failures, any order: the joins in one process ----

IDS = st.one_of(
    # Of one beginning, and some that look like a fragment's.
    st.sampled_from(["c", "c1", "c1_chunk_1", "c1_chunk_1F1", "c1_chunk_1F1_chunk_2R3", "c10"]),
    st.text(st.sampled_from("ac1._-|;:,=#\"'\\/(){}%&é中"), min_size=1, max_size=6),
)
DNA = st.text("ACGT", min_size=WINDOW // 2, max_size=5 * WINDOW)
OTHER = DNA.map(lambda letters: letters.replace("CA", "CN").replace("T", "U"))
BARE = st.sampled_from(["TAGC" * 30, "A", "AC", "MKVLPEFQ" * 9])  # no fragment, or no DNA
LETTERS = st.one_of(DNA, DNA, DNA.map(str.lower), OTHER, BARE)


FIRST = "ACGTTGCAGC" * 9
"""By its first record a file is told from one of proteins."""


def digest_share(payload, salt):
    return hashlib.sha256(salt + payload.encode()).digest()[0] / 256


class FakeRun:
    """What a head reads of a finished run, with vectors of the payloads alone."""

    column, recipe, settings, width, id_columns = "marks", None, None, WIDTH, ID_ALONE

    def __init__(self, name, payloads, failed, order):
        self.name = name
        self._failed = set(failed)
        self._ids = [id for id in payloads if id not in self._failed]
        order.shuffle(self._ids) if order else None
        self._vectors = np.array([marks(payloads[id].encode()) for id in self._ids], np.float32)
        self._vectors = self._vectors.reshape(-1, WIDTH)
        self.num_rows = len(self._ids)

    def blocks(self):
        for start in range(0, self.num_rows, 7):
            yield self._ids[start : start + 7], self._vectors[start : start + 7]

    def ids_of(self, rows):
        return [self._ids[row] for row in rows]

    def take(self, rows):
        return self._vectors[rows]

    def failures(self):
        return (Failure(id, "", "", "failed", "so it goes") for id in self._failed)


def write_head(folder):
    """Write a head that is nobody's, and return its tensors."""
    rng = np.random.default_rng(7)
    tensors = {"weight": rng.normal(size=(2, 2 * WIDTH)) * 3, "bias": rng.normal(size=2)}
    folder.mkdir()
    digest = card.write_tensors(folder / "head.safetensors", tensors)
    part = card.Part(width=WIDTH, column="marks")
    made = card.Card(kind="logistic", classes=[*CLASSES], features=[part, part], sha256=digest)
    made.write(folder / "head.json")
    return tensors


@holds(
    25,
    phases=(Phase.explicit, Phase.generate),  # to make such examples smaller takes minutes
    ids=st.lists(IDS, min_size=1, max_size=8, unique=True),
    letters=st.lists(LETTERS, min_size=1, max_size=5),
    picks=st.lists(st.integers(0, 9), min_size=8, max_size=8),
    shares=st.tuples(*[st.sampled_from([0.0, 0.1, 0.5, 0.95])] * 2),
    seed=st.integers(0, 2**32),
    block=st.integers(1, 60),
    by=st.sampled_from(["max", "mean"]),
    is_shuffled=st.booleans(),
)
def test_no_id_meets_the_vector_or_the_verdict_of_another(
    folder, ids, letters, picks, shares, seed, block, by, is_shuffled
):
    picked = [letters[pick % len(letters)] for pick in picks]  # some ids share their letters
    contigs = {"first": FIRST, **dict(zip(ids, picked, strict=False))}
    text = "".join(f">{id} described\tso\n{letters}\n" for id, letters in contigs.items())
    (folder / "contigs.fa").write_text(text)
    translation = translate([folder / "contigs.fa"], folder / "t", "chunks", window=WINDOW)
    fragments = {kind: sequences(folder / "t" / FILES[kind]) for kind in RUNS}
    for id, payload in fragments["nucleotides"].items():  # each is a stretch of its own contig
        whole = contigs[FRAGMENT.fullmatch(id)[1]].upper().replace("U", "T").encode()
        assert payload.encode() in (whole + b" " + whole.translate(COMPLEMENT)[::-1])
    failed = {
        kind: {id for id, p in fragments[kind].items() if digest_share(p, kind.encode()) < share}
        for kind, share in zip(RUNS, shares, strict=True)
    }
    # Only the first run's order has to be that of the fragments.
    orders = {"nucleotides": None, "proteins": random.Random(seed) if is_shuffled else None}
    runs = {k: FakeRun(k, fragments[k], failed[k], orders[k]) for k in RUNS}
    tensors = write_head(folder / "head")

    def scores_of(dna, protein):
        for kind, payload, share in zip(RUNS, (dna, protein), shares, strict=True):
            if digest_share(payload, kind.encode()) < share:
                return None
        vector = np.concatenate([marks(dna.encode()), marks(protein.encode())])
        return forward(tensors, vector[None])[0]

    told = expected(fragments, scores_of, by)
    places = [folder / kind for kind in RUNS]
    for place in places:
        place.mkdir()
    with (
        mock.patch.object(features, "open", lambda run, *_, **__: runs[run.name]),
        mock.patch.object(predictions_module, "BLOCK_ROWS", block),
    ):
        num_whole = sum(num - failed for _, num, failed in told.values())
        if not num_whole:
            with pytest.raises(UserError, match="no record has all the features"):
                predict.predict(folder / "head", places, folder / "p.tsv", (), True)
            return
        predict.predict(folder / "head", places, folder / "p.tsv", (), True)
        write(folder / "t", folder / "p.tsv", folder / "v.tsv", by)
    predicted, missing = len(table(folder / "p.tsv")), table(folder / "p.missing.tsv")
    assert {row["id"] for row in missing} == failed["nucleotides"] | failed["proteins"]
    without = check_verdicts(folder / "v.tsv", contigs, told, predicted, len(missing))
    assert without["refused"] == translation.contigs.refused
    assert without["without"] == translation.contigs.without_fragments


# ---- real processes: failures in one run and not in the other, kills, and the verbs ----


def mixed_contigs(count, seed=3):
    """Return contigs of two kinds: some share their letters, one has no fragment, one is no DNA."""
    rng = random.Random(seed)
    names = ["c", "c_chunk_1", "c_chunk_1F1", '"c"', "c'|;,=", *(f"c{n}" for n in range(count - 5))]
    found = {
        id: "".join(rng.choices(("AACGGT", "ACGTTT")[n % 2], k=rng.randint(90, 900)))
        for n, id in enumerate(names)
    }
    found |= {"twin": found["c"], "twin_of_c1": found["c1"]}
    return {**found, "stops": "TAGC" * 60, "protein": "MKVLPEFQ" * 20}


class Line(Desk):
    """A folder with contigs, their config and what is known of some."""

    def __init__(self, folder, environment, contigs, **options):
        super().__init__(folder, environment)
        self.contigs = contigs
        text = "".join(f">{id}\tof soil\n{letters}\n" for id, letters in contigs.items())
        (folder / "contigs.fa").write_text(text)
        with (folder / "kinds.csv").open("w", newline="") as file:
            rows = [(id, CLASSES[n % 2]) for n, id in enumerate(contigs)]
            csv.writer(file).writerows([("id", "kind"), *rows[:-4]])
        run = {"workload": "marked", "outputs": "parquet", "max_failed": 10_000}
        told = {
            kind: {"alphabet": kind, "marker": marker, "cured": "cured", **options}
            for kind, marker in MARKERS.items()
        }
        config = {"run": "soil", "inputs": "contigs.fa", "verdicts": {"by": "max"}}
        config["translate"] = {"by": "chunks", "window": 90}
        config["features"] = {kind: {**run, "options": told[kind]} for kind in MARKERS}
        config["heads"] = {"kinds": {"labels": "kinds.csv", "column": "kind"}}
        (folder / "soil.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        self.results = folder / "results" / "soil"

    def __call__(self, verb, *words, status=0):
        return self.type("featuremill", verb, "soil.yaml", *words, status=status)

    def state(self, status):
        return json.loads(self("status", "--json", status=status).out)

    def fragments(self):
        return {kind: sequences(self.results / "translate" / FILES[kind]) for kind in RUNS}

    def check(self, is_cured, by="max"):
        """Compare the verdicts with the letters; return each run's failed ids."""
        fragments = self.fragments()
        tensors = load_file(self.results / "heads" / "kinds" / "head.safetensors")

        def has_failed(kind, payload):
            return not is_cured and MARKERS[kind] in payload

        seen = pq.read_table(self.results / "heads" / "kinds" / "held_out.parquet").to_pylist()
        held_out = {row["sha256"]: [row[f"score_{name}"] for name in CLASSES] for row in seen}

        def scores_of(dna, protein):
            if has_failed("nucleotides", dna) or has_failed("proteins", protein):
                return None
            if scores := held_out.get(hashlib.sha256(dna.encode()).hexdigest()):
                return np.array(scores)
            vector = np.concatenate([marks(dna.encode()), marks(protein.encode())])
            return forward(tensors, vector[None])[0]

        told = expected(fragments, scores_of, by)
        scores = self.results / "predictions"
        num_predicted, num_missing = (
            len(table(scores / f"kinds{e}")) for e in (".tsv", ".missing.tsv")
        )
        without = check_verdicts(
            self.results / "verdicts.tsv", self.contigs, told, num_predicted, num_missing
        )
        assert without == {"without": 1, "refused": 1}
        return {
            kind: {id for id, payload in fragments[kind].items() if has_failed(kind, payload)}
            for kind in RUNS
        }

    def page(self):
        return (self.results / "verdicts.html").read_text()


AGAIN = "featuremill run soil.yaml"


def test_before_a_run_of_contigs_its_config_says_what_to_type_and_what_it_takes(
    tmp_path, environment
):
    line = Line(tmp_path, environment, mixed_contigs(12))
    assert f"this run has not started yet; type {AGAIN}" in line("status", status=2).err
    said = line("estimate", "--tokens-per-second", 9, "--cpu-slots", "1,2").text
    assert said.count("read now: there is no plan yet") == 2 and "In all, with 2 slots" in said
    assert "139 records" in said and not (tmp_path / "results").exists()
    for verb in ("retry", "clean"):
        assert "there is no" in line(verb, status=2).err
    assert f"this run has not started yet; type {AGAIN}" in line("status", status=2).err


@pytest.mark.parametrize(("of_runs", "of_all"), [((0, 0), 0), ((0, 2), 2), ((2, 1), 1)])
def test_all_of_it_stands_as_the_least_of_its_runs(of_runs, of_all):
    states = {str(n): SimpleNamespace(exit_status=status) for n, status in enumerate(of_runs)}
    state = ProjectState(None, states, ["yes"] * 4)
    assert state.exit_status == of_all
    state.steps[3] = "older"
    assert state.exit_status == 1


@pytest.fixture
def translated(tmp_path, monkeypatch):
    """Contigs that are translated, and a head of their labels; no features."""
    monkeypatch.chdir(tmp_path)
    Path("a.fa").write_text(f">a\n{FIRST}\n")
    Path("kinds.csv").write_text("id,kind\na,virus\n")
    config = {"run": "soil", "inputs": "a.fa", "translate": {"by": "chunks", "window": WINDOW}}
    config |= {"workload": "composition", "heads": {"kinds": {"labels": "kinds.csv"}}}
    config["heads"]["kinds"]["column"] = "kind"
    Path("soil.yaml").write_text(yaml.safe_dump(config))
    results = Path("results/soil")
    translate([Path("a.fa")], results / "translate", "chunks", window=WINDOW)
    (results / "heads/kinds").mkdir(parents=True)
    digest = hashlib.sha256(Path("kinds.csv").read_bytes()).hexdigest()
    for name in DELIVERED:
        with ours.delivering(results / "heads/kinds" / name) as made:
            made.touch()
    labels = card.TableUsed(file="kinds.csv", sha256=digest, column="kind")
    about = {"kind": "logistic", "classes": [*CLASSES], "features": [], "sha256": ""}
    about["labels"] = labels
    card.Card(version=card.Card.NEWEST, **about).write(results / "heads/kinds" / card.CARD)
    for path in (Path("a.fa"), Path("kinds.csv"), results / "translate/translate.json"):
        os.utime(path, (1, 1))
    return results


def test_what_was_made_of_other_contigs_or_labels_is_older(translated):
    def made():
        runs = runs_of(Path("soil.yaml"))
        labels = (one.label for one in runs.steps)
        found = dict(zip(labels, ProjectReader(runs).inspect().steps, strict=True))
        return found["translate"], found["heads.kinds"]

    assert made() == ("yes", "yes")
    labels = Path("kinds.csv").read_text()
    os.utime(translated / "heads/kinds/head.json", (2, 2))
    Path("kinds.csv").write_text(labels + "b,virus\n")
    assert made() == ("yes", "older")
    Path("kinds.csv").write_text(labels)
    assert made() == ("yes", "yes"), "by its content"
    config = Path("soil.yaml").read_text()
    Path("b.fa").write_text(Path("a.fa").read_text())
    Path("soil.yaml").write_text(config.replace("inputs: a.fa", "inputs: [a.fa, b.fa]"))
    assert made() == ("older", "yes")
    Path("soil.yaml").write_text(config)
    Path("a.fa").write_text(Path("a.fa").read_text())
    assert made() == ("yes", "yes"), "touched, and the same"
    Path("a.fa").write_text(f">a\n{FIRST[::-1]}\n")
    assert made() == ("older", "yes")


def test_json_of_several_runs_has_the_version_of_its_runs(translated):
    state = ProjectReader(runs_of(Path("soil.yaml"))).inspect()
    (run,) = state.states.values()
    assert state.as_json()["version"] == run.as_json()["version"]
    assert state.now_as_json()["version"] == run.now_as_json()["version"]


def test_what_a_translate_is_at_is_not_cleaned(translated, capsys):
    (translated / "store").mkdir()
    (translated / "store" / "plan.lock").touch()
    with locked(translated / "translate" / LOCK):
        assert main(["clean", "soil.yaml", "--keep", "nothing", "--yes"]) == 2
    assert "soil/translate: a process is making translate; wait" in capsys.readouterr().err
    assert (translated / "translate" / "proteins.faa.gz").exists()
    assert main(["clean", "soil.yaml", "--keep", "nothing", "--yes"]) == 0
    assert not translated.exists()


@pytest.mark.parametrize("verb", ["status", "top", "retry", "clean"])
def test_a_config_that_is_not_there_is_called_that(verb, tmp_path, capsys):
    assert main([verb, str(tmp_path / "soil.yaml")]) == 2
    assert "soil.yaml: there is no such config; check the path" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_verbs_of_one_run_take_the_config_of_contigs(tmp_path, environment):
    """Through failures in one run and not in the other, to all verdicts, to nothing again."""
    line = Line(tmp_path, environment, mixed_contigs(12))
    line("run")
    failed = line.check(is_cured=False)
    assert failed["nucleotides"] - failed["proteins"] and failed["proteins"] - failed["nucleotides"]
    state = line.state(2)
    figures = {label: step["figures"] for label, step in state["steps"].items()}
    num_fragments = figures["translate"].pop("fragments")
    assert figures["translate"] == {"contigs": 16, "without a fragment": 1, "refused": 1}
    num_missing = len(failed["nucleotides"] | failed["proteins"])
    expected = {"predicted": num_fragments - num_missing, "without": num_missing}
    assert figures["predictions.kinds"] == expected
    assert sum(figures["verdicts"].values()) == 16
    num_failed = {kind: len(ids) for kind, ids in failed.items()}
    assert {kind: run["failed"] for kind, run in state["runs"].items()} == num_failed
    assert state["next"] == ["featuremill retry soil.yaml", AGAIN]
    page = line.page()
    for kind in RUNS:
        assert f'<a href="{kind}/report.html">' in page
        assert f"it holds {MARKERS[kind]}" in page and f"retry results/soil/{kind}" in page

    (tmp_path / "cured").touch()
    said = line("retry").err
    for kind, ids in failed.items():
        assert f"results/soil/{kind}: {len(ids)} failed record" in said
    assert said.rstrip().endswith(f"now run: {AGAIN}")
    assert line.state(1)["next"] == [AGAIN]
    line("run")
    assert line.check(is_cured=True) == {"nucleotides": set(), "proteins": set()}
    assert "featuremill retry" not in line.page()
    assert "Nothing to do." in line("status").out and line.state(0)["next"] == []
    assert "Nothing to be done" in line("run", "-n").text
    now = json.loads(line("top", "--once", "--json").out)
    assert [run["run"] for run in now["runs"]] == ["soil/nucleotides", "soil/proteins"]
    assert now["status"]["state"] == "done"
    assert "computed are all its" in line("estimate", "--tokens-per-second", 9).text

    labels = (tmp_path / "kinds.csv").read_bytes()
    (tmp_path / "kinds.csv").write_bytes(labels + b"nobody,virus\n")
    assert line.state(1)["steps"]["heads.kinds"]["made"] == "older"
    (tmp_path / "kinds.csv").write_bytes(labels)
    assert line.state(0)["steps"]["heads.kinds"]["made"] == "yes", "by its content"

    assert "translate" not in line("clean", "--keep", "results").err
    assert "translate: 8 files" in line("clean", "--keep", "nothing", "--yes").err
    assert not line.results.exists()
    assert "this run has not started yet" in line("status", status=2).err


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(2))
def test_whoever_is_killed_the_verdicts_are_those_of_an_undisturbed_run(
    tmp_path, environment, seed
):
    rng = random.Random(seed)
    contigs = mixed_contigs(20, seed)
    lines = {}
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
        lines[name] = Line(tmp_path / name, environment, contigs, batch_seconds=0.02)
    started = time.monotonic()
    lines["undisturbed"]("run")
    whole_seconds = time.monotonic() - started
    line, num_kills = lines["killed"], 0
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for _ in range(10):
        process = line.start("featuremill", "run", "soil.yaml", **quiet, start_new_session=True)
        try:
            process.wait(rng.uniform(0.05, 0.5) * whole_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            num_kills += 1
    assert num_kills
    line("run")
    line.check(is_cured=False)
    for name in ("verdicts.tsv", "predictions/kinds.tsv", "translate/proteins.faa.gz"):
        one, other = ((one.results / name).read_bytes() for one in lines.values())
        assert one == other, name
    assert line.state(2)["next"] == lines["undisturbed"].state(2)["next"]
