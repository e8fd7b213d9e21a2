"""reasons: a record without values is of the kind that who failed or refused it said, whatever the
words of its reason are."""

import argparse
import json
import pickle
import re
from types import SimpleNamespace

import pyarrow as pa
import pytest
from conftest import ROOT
from programs import Verbs

from featuremill.base import reasons
from featuremill.base.errors import UserError
from featuremill.inputs.residues import protein
from featuremill.merge.accounts import NOT_YET
from featuremill.plan.retry import run as run_retry
from featuremill.status.reader import RunReader
from featuremill.store import failed as failed_list
from featuremill.store.parts import failed_rows
from featuremill.workload import RecordFailed, compute
from featuremill.workload.compute import values_in_batches

HEADS = [(kind, head) for kind in reasons.KINDS for head in kind.heads]
EVERY_HEAD = " ".join(f"{head}: {kind.name}" for kind, head in HEADS)


@pytest.mark.parametrize(("kind", "head"), HEADS, ids=str)
def test_a_reason_is_of_its_kind_whatever_its_detail_says(kind, head):
    assert ":" not in head and head == head.strip()
    assert [other for other, its in HEADS if its == head] == [kind]
    for detail in ("", "x", EVERY_HEAD, "the table changed"):
        assert reasons.kind_of(kind.reason(detail, head)) is kind
    with pytest.raises(AssertionError):
        kind.reason("x", "a head of no kind")


def test_every_kind_has_a_name_of_its_own_and_a_remedy():
    names = [kind.name for kind in reasons.KINDS]
    assert len(set(names)) == len(names)
    assert all(kind.remedy.endswith(".") for kind in reasons.KINDS)
    assert all(kind.heads for kind in reasons.KINDS if kind is not reasons.OTHER)


def of_protein(id="x", letters="MKV"):
    return protein(id, "", letters, "in.fa", 1).reason


class OutOfMemoryError(RuntimeError):
    """Called as torch's own."""


MADE = [
    (of_protein(letters=""), "empty"),
    (of_protein(letters="**"), "empty"),
    (of_protein(letters="NA"), "no_sequence"),
    (of_protein(letters="M*K"), "stop"),
    (of_protein(letters="M1K"), "letters"),
    (of_protein(letters="MK\u00e9"), "letters"),
    (of_protein(id=""), "id"),
    (of_protein(id="a\x1bb"), "id"),
    (NOT_YET, "pending"),
    (compute.NOT_FINITE, "nan"),
    (compute.reason_of(MemoryError()), "oom"),
    (compute.reason_of(OutOfMemoryError("CUDA out of memory.")), "oom"),
    (compute.reason_of(RuntimeError("CUDA error: out of memory")), "oom"),
    (compute.reason_of(RuntimeError("the table changed")), "error"),
    (compute.reason_of(KeyError("info")), "error"),
    (compute.reason_of(ValueError("CUDA hangs")), "error"),
    (compute.reason_of(ValueError("out of memory: a worker crashed, killed by nan")), "error"),
    *[
        (compute.reason_of(RecordFailed(kind.name, text)), kind.name)
        for kind in reasons.OF_RECORDS
        for text in ("", "the table changed", EVERY_HEAD)
    ],
    ("no structure for it", "other"),
    ("changed: out of memory", "other"),
    ("", "other"),
]


@pytest.mark.parametrize(("reason", "kind"), MADE)
def test_every_reason_that_is_made_is_of_its_kind(reason, kind):
    assert reasons.kind_of(reason).name == kind


OLD = {
    "values are not finite: try a wider dtype": "nan",
    "values are missing or not finite: try a wider dtype (or output_dtype)": "nan",
    "out of memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": "oom",
    "error in the workload: KeyError: 'info'": "error",
    "error in the workload: RuntimeError: the table changed": "error",
    "crashed the worker twice: was killed by SIGSEGV": "crash",
    "crashed the worker twice: in an earlier job": "crash",
    "crashed the worker twice: gave up its device: CUDA error: the launch timed out": "crash",
    "not computed yet": "pending",
    "empty sequence": "empty",
    "no id": "id",
    "control character in the id: U+001B": "id",
    "stop codon (*) inside the sequence: residue 3": "stop",
    "stop codon (*) inside the sequence": "stop",
    "not an amino acid: '1' at residue 7": "letters",
    "not an amino acid: U+200B at residue 3": "letters",
    # A hang's head was that of a crash, and its detail that of a worker which left by itself.
    "crashed the worker twice: left with status 1 (the log has the stack; if a slow device was "
    "taken for a hang, set FEATUREMILL_STALL_SECONDS higher)": "crash",
}
"""Reasons as stores have them that were made before a reason was made by its kind."""


@pytest.mark.parametrize(("reason", "kind"), OLD.items())
def test_old_reasons_are_sorted_by_their_heads(reason, kind):
    assert reasons.kind_of(reason).name == kind


def test_a_workloads_words_can_stand_in_any_file():
    """Half a character, as in a file name that is no UTF-8, cannot be written."""
    reason = compute.reason_of(OSError("no file 'a\udcff\x1b[31m'\nhere"))
    assert reason == "error in the workload: OSError: no file 'a\\udcff\\x1b[31m' here"
    told = compute.reason_of(RecordFailed("other", "no structure\n for it: P1\udcff"))
    assert told == "no structure for it: P1\\udcff"


def test_a_kind_that_there_is_not_is_told_to_the_workloads_author():
    for name in ("lenght", *(kind.name for kind in reasons.OF_THE_CORE)):
        with pytest.raises(
            ValueError,
            match=f"there is no reason '{name}' for a failed record; there are nan, oom, empty",
        ):
            RecordFailed(name, "x")


def test_a_failed_record_comes_through_from_another_process():
    error = pickle.loads(pickle.dumps(RecordFailed("length", "40,000 residues")))
    assert compute.reason_of(error) == "too long: 40,000 residues"
    assert str(error) == "40,000 residues"


SCHEMA = pa.schema({"length": pa.list_(pa.float32(), 1)})


def run_or_fail(model, payloads):
    if b"LONG" in payloads:
        raise RecordFailed("length", "4 residues")
    if b"ODD" in payloads:
        raise KeyError("info")
    return payloads


PICKY = SimpleNamespace(
    COST_UNIT="residues",
    cost=lambda payload, options: 1,
    prepare=lambda model, payloads, batch_cost: payloads,
    run=run_or_fail,
    collect=lambda model, result: pa.record_batch(
        [pa.array([[len(p)] for p in result], SCHEMA.field(0).type)], schema=SCHEMA
    ),
)


def test_values_in_process_are_delivered_without_the_record_that_failed():
    refused = {}
    payloads = [b"MK", b"LONG", b"MKV", b"MKVA", b"LONG", b"MK"]

    def values_of(payloads):
        batches = values_in_batches(
            PICKY, None, None, payloads, 10, refused.__setitem__, pytest.fail
        )
        return {
            place: value[0]
            for places, v in batches
            for equal, value in zip(places, v["length"].to_pylist(), strict=True)
            for place in equal
        }

    assert values_of(payloads) == {0: 2.0, 2: 3.0, 3: 4.0, 5: 2.0}
    assert refused == dict.fromkeys((1, 4), "too long: 4 residues")
    with pytest.raises(KeyError):
        values_of([b"MK", b"ODD"])


GOOD = [(f"good{n}", "MKV" + "A" * n) for n in range(9)]
FAILING = {
    "RAISETALE": ("error", "error in the workload: RuntimeError: the table changed"),
    "RAISEKEY": ("error", "error in the workload: KeyError: 'info'"),
    "RAISECLING": ("error", "error in the workload: RuntimeError: CUDA hangs: out of memory"),
    "TELLLENGTH": ("length", "too long: error in the workload: length hangs"),
    "EARLYTELLSTOP": ("stop", "stop codon (*) inside the sequence: error in the workload"),
    "LATETELLOOM": ("oom", "out of memory: error in the workload: oom hangs"),
    "TELLOTHER": ("other", "failed: error in the workload: other hangs"),
    "TELLHANG": ("error", "error in the workload: ValueError: there is no reason 'hang' for a"),
}
"""Sequences of the workload poison; the kind and the beginning of each one's reason."""


@pytest.fixture(scope="module")
def failed(tmp_path_factory, environment):
    """Return a merged run in which those failed, and one record was refused by the workload."""
    verbs = Verbs(tmp_path_factory.mktemp("failed"), environment)
    bad = [(sequence.lower(), sequence) for sequence in FAILING]
    plan = verbs.plan([*GOOD, *bad, ("long", "REFVSE")], "poison")
    (shard,) = (shard["shard"] for shard in plan["shards"])
    root = verbs.run_folder.root
    verbs("extract", root, shard, "--log-file", verbs.folder / "extract.log")
    verbs("merge", root, "--outputs", "parquet", "--max-failed", len(FAILING))
    return verbs


def test_a_run_sorts_its_failures_by_who_said_so(failed):
    (part,) = failed.run_folder.store.glob("parts/*/*.arrows")
    _, found = failed_rows(part)
    assert len(found) == len(FAILING)
    for kind, beginning in FAILING.values():
        (reason,) = (reason for reason in found if reason.startswith(beginning))
        assert reasons.kind_of(reason).name == kind
    (receipt,) = failed.receipts(json.loads(failed.run_folder.plan.read_text()))
    assert (receipt["ok"], receipt["failed"], receipt["retries"]) == (len(GOOD), len(FAILING), 0)


def test_the_log_has_a_traceback_of_each_error_and_of_nothing_else(failed):
    text = (failed.folder / "extract.log").read_text()
    num_errors = sum(kind == "error" for kind, _ in FAILING.values())
    assert text.count("Traceback (most recent call last)") == num_errors
    assert "RecordFailed" not in text.replace("raise RecordFailed(kind", "")
    log = (failed.run_folder.root / "run.log").read_text()
    assert "failed for: 4 error, 1 length, 1 oom, 1 other, 1 stop\n" in log


def test_status_and_report_say_the_same_kinds(failed):
    root = failed.run_folder.root
    told = {
        (one["status"], one["kind"], one["reason"], one["remedy"])
        for one in RunReader(root).inspect().as_json()["reasons"]
    }
    expected = {
        ("failed", kind, beginning.partition(":")[0]) for kind, beginning in FAILING.values()
    }
    expected.add(("refused", "length", "too long"))
    assert {one[:3] for one in told} == expected
    for _, kind, _, remedy in told:
        assert remedy == next(one.remedy for one in reasons.KINDS if one.name == kind)
    groups = failed_list.read_list(root / "failed.tsv").groups
    assert {(one.status, one.reason, one.remedy) for one in groups} == {
        (status, reason, remedy) for status, _, reason, remedy in told
    }


def retried(root, caplog, *kinds):
    caplog.clear()
    with caplog.at_level("INFO"):
        run_retry(argparse.Namespace(run_folder=root, reason=list(kinds), dry_run=True, sample=[]))
    return caplog.text


def test_retry_takes_the_kind_that_is_asked_for(failed, caplog):
    root = failed.run_folder.root
    assert "4 failed records would run again: 4 error" in retried(root, caplog, "error")
    assert "1 failed record would run again: 1 oom" in retried(root, caplog, "oom")
    for kind in ("hang", "nan", "crash"):
        with pytest.raises(UserError, match=f"--reason {kind}: no record failed for it; there are"):
            retried(root, caplog, kind)


def test_the_docs_have_every_kind_with_its_heads():
    page = (ROOT / "docs" / "status.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", page.partition("## Kinds of reasons")[2], re.M)
    assert dict(rows) == {
        kind.name: ", ".join(f"`{head}`" for head in kind.heads) or "any other"
        for kind in reasons.KINDS
    }
