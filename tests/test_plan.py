"""plan: nothing is lost, nothing is planned twice, and an edit costs only what is new."""

import bz2
import gzip
import hashlib
import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import read_sealed, write_sealed

from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.config import validate
from featuremill.inputs import proteins, source
from featuremill.plan import repeats as repeats_module
from featuremill.plan import spool as spool_module
from featuremill.plan.command import plan
from featuremill.plan.records import Rows
from featuremill.plan.spool import ROWS, rows_path
from featuremill.store import state
from featuremill.store.files import digest_of
from featuremill.store.formats import RECORD
from featuremill.store.parts import SHARD, read_shard
from featuremill.store.results import Results
from featuremill.workload import Weights, find_workload
from featuremill.workload.recipe import recipe_of, settings_of
from featuremill.workloads import composition

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"


def random_proteins(count, seed=0):
    """Return `count` (id, sequence) pairs."""
    rng = random.Random(seed)
    return [
        (f"p{seed}_{n}", "".join(rng.choices(AMINO_ACIDS, k=rng.randint(1, 60))))
        for n in range(count)
    ]


def write_fasta(path, records):
    path.write_text("".join(f">{id} described\n{sequence}\n" for id, sequence in records))
    return path


def make_plan(folder, fasta, cost=500, replan=False, threads=1):
    asked = {"inputs": [str(fasta)], "workload": "composition", "device": "cpu"}
    config = validate(asked | {"shards": {"cost": cost}})
    return plan(Results(folder), config, None, replan=replan, threads=threads).plan.as_json()


def shard_names(result):
    return {shard["shard"] for shard in result["shards"]}


def check(folder, result, records, overlap=False):
    """Assert that the manifest leads from every input record to its own payload."""
    run = Results(folder)
    rows = pq.read_table(run.records).to_pylist()
    tables = {name: read_shard(run.shard(name)) for name in shard_names(result)}
    assert [row["id"] for row in rows] == [id for id, _ in records]
    assert [row["ordinal"] for row in rows] == list(range(len(records)))
    for row, (_, sequence) in zip(rows, records, strict=True):
        if row["status"] == "planned":
            there = tables[row["shard"]].slice(row["row"], 1).to_pylist()[0]
            assert there["payload"].decode() == sequence
            assert there["sha256"] == row["sha256"]
        else:
            assert row["shard"] is None and row["row"] is None
    counts = result["counts"]
    assert counts["input"] == counts["planned"] + counts["refused"] + counts["duplicate"]
    if not overlap:
        digests = [digest for table in tables.values() for digest in table["sha256"].to_pylist()]
        assert len(digests) == len(set(digests)), "a record stands in two shards"
    for name, table in tables.items():
        sha256 = table["sha256"].to_pylist()
        assert sha256 == sorted(sha256)
        assert name == digest_of(sha256)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_record_is_planned_once_whatever_is_edited(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    sequences = st.text("ACDE", min_size=1, max_size=12)
    for _ in range(data.draw(st.integers(1, 4), "edits")):
        chosen = data.draw(st.lists(sequences, min_size=1, max_size=40), "sequences")
        records = [(f"id{n}", sequence) for n, sequence in enumerate(chosen)]
        cost = data.draw(st.integers(1, 80), "cost")
        result = make_plan(folder, write_fasta(folder / "in.fa", records), cost)
        check(folder, result, records)
        assert result["counts"]["unique"] == len({sequence for _, sequence in records})


def test_new_shards_have_nearly_equal_cost(tmp_path):
    result = make_plan(tmp_path, write_fasta(tmp_path / "in.fa", random_proteins(3000)), cost=4000)
    costs = [shard["cost"] for shard in result["shards"]]
    assert result["lengths"]["total"] - sum(costs) < 60, "but for a few short repeated sequences"
    assert len(costs) == round(sum(costs) / 4000)
    assert max(costs) - min(costs) <= 2 * 60, "no shard is off by more than the longest records"


EDITS = {  # and how many records are in new shards then
    "reordered and renamed": (lambda old: [(f"new_{id}", text) for id, text in reversed(old)], 0),
    "one edited": (lambda old: [*old[:250], (old[250][0], "MKVLAAGIVGLLLAQPSFA"), *old[251:]], 1),
    "ten appended": (lambda old: [*old, *random_proteins(10, seed=1)], 10),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_makes_new_shards_of_what_is_new_alone(tmp_path, edit):
    change, num_new = EDITS[edit]
    records = random_proteins(500)
    first = make_plan(tmp_path, write_fasta(tmp_path / "in.fa", records))
    edited = change(records)
    second = make_plan(tmp_path, write_fasta(tmp_path / "in.fa", edited))
    new = [s["records"] for s in second["shards"] if s["shard"] not in shard_names(first)]
    assert sum(new) == num_new
    assert num_new or shard_names(first) == shard_names(second)
    assert first["recipe"] == second["recipe"]
    check(tmp_path, second, edited)


def test_a_shard_stays_while_half_of_it_is_wanted(tmp_path):
    records = random_proteins(400)
    first = make_plan(tmp_path, write_fasta(tmp_path / "in.fa", records), cost=2000)
    mostly = make_plan(tmp_path, write_fasta(tmp_path / "in.fa", records[:300]), cost=2000)
    assert shard_names(mostly) == shard_names(first)
    check(tmp_path, mostly, records[:300])
    few = make_plan(tmp_path, write_fasta(tmp_path / "in.fa", records[:40]), cost=2000)
    assert not shard_names(few) & shard_names(first)
    check(tmp_path, few, records[:40])


def test_replan_forgets_the_last_plan_but_not_the_content(tmp_path):
    records = random_proteins(300)
    fresh = make_plan(tmp_path / "a", write_fasta(tmp_path / "in.fa", records))
    for end in (100, 200, 300):
        grown = make_plan(tmp_path / "b", write_fasta(tmp_path / "in.fa", records[:end]))
    assert shard_names(grown) != shard_names(fresh)
    again = make_plan(tmp_path / "b", tmp_path / "in.fa", replan=True)
    assert shard_names(again) == shard_names(fresh)


def add_shard(folder, result, records):
    """Add a shard of these records to the last plan, whether or not others hold them; return its
    name."""
    run = Results(folder)
    pairs = sorted((hashlib.sha256(s.encode()).digest(), s.encode()) for _, s in records)
    name = digest_of([sha256 for sha256, _ in pairs])
    table = pa.table(list(zip(*pairs, strict=True)), schema=SHARD)
    with pa.ipc.new_file(str(run.shard(name)), SHARD) as writer:
        writer.write_table(table)
    last = read_sealed(run.store / "plan.json")
    last["shards"].append({**last["shards"][0], "shard": name})
    write_sealed(run.store / "plan.json", last)
    return name


def wanted_of(result):
    return {shard["shard"]: shard["wanted"] for shard in result["shards"]}


def held_by(folder, shard):
    """Return the places in the input of the records that are asked of a shard."""
    rows = pq.read_table(Results(folder).records)
    return [n for n, name in enumerate(rows["shard"].to_pylist()) if name == shard]


@pytest.fixture
def one_shard(tmp_path):
    """Return records, their file, their plan, and its one shard."""
    records = [(f"p{n}", f"MKV{'A' * n}") for n in range(20)]
    fasta = write_fasta(tmp_path / "in.fa", records)
    first = make_plan(tmp_path, fasta, cost=10_000)
    return records, fasta, first, *shard_names(first)


def test_of_two_shards_that_hold_a_record_the_later_one_is_asked(tmp_path, one_shard):
    records, fasta, first, whole = one_shard
    later = add_shard(tmp_path, first, records[5:8])
    second = make_plan(tmp_path, fasta, cost=10_000)
    assert wanted_of(second) == {whole: 17, later: 3}
    assert held_by(tmp_path, later) == [5, 6, 7]
    assert second["counts"]["unique"] == 20
    check(tmp_path, second, records, overlap=True)
    latest = add_shard(tmp_path, second, records[7:9])
    third = make_plan(tmp_path, fasta, cost=10_000)
    assert wanted_of(third) == {whole: 16, later: 2, latest: 2}
    check(tmp_path, third, records, overlap=True)


def test_a_shard_stays_wanted_by_records_that_a_later_one_took(tmp_path, one_shard):
    records, fasta, first, whole = one_shard
    most = add_shard(tmp_path, first, records[1:])
    second = make_plan(tmp_path, fasta, cost=10_000)
    assert wanted_of(second) == {whole: 1, most: 19}, "asked for one row, wanted by all of them"
    rest = add_shard(tmp_path, second, records[:1])
    third = make_plan(tmp_path, fasta, cost=10_000)
    assert wanted_of(third) == {most: 19, rest: 1}, "asked for nothing, so dropped"
    check(tmp_path, third, records)


def test_a_later_shard_that_goes_gives_its_records_back(tmp_path, one_shard):
    records, fasta, first, whole = one_shard
    gone = [(f"gone{n}", "W" * (50 + n)) for n in range(10)]
    later = add_shard(tmp_path, first, records[:3] + gone)
    second = make_plan(tmp_path, fasta, cost=10_000)
    assert later not in shard_names(second), "most of it is not wanted"
    assert wanted_of(second) == {whole: 20}
    check(tmp_path, second, records)


def outcome(folder):
    """Return everything that a plan leaves behind, as bytes; without the times of inputs."""
    read = json.loads(state.planned_inputs(folder).read_text())
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("in.fa", RECORD, "read.json")
    } | {name: (seen["sha256"], seen["looks"][0]) for name, seen in read["inputs"].items()}


@pytest.fixture
def in_small_pieces(monkeypatch):
    """Files are read in pieces of a few records, of which a process is given some at a time."""
    monkeypatch.setattr(source, "BLOCK_BYTES", 300)
    monkeypatch.setattr(spool_module, "PIECES_BYTES", 900)


@pytest.mark.usefixtures("in_small_pieces")
def test_how_many_processes_share_the_work_changes_no_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "CHUNK_RECORDS", 60)
    records = random_proteins(400)
    records += [("bad", "M*K"), ("j", "MJKV"), ("other", "MZ1K"), *records[10:20]]
    records += [(f"copy{n}", sequence) for n, (_, sequence) in enumerate(records[:40])]
    edited = [*records[120:], *random_proteins(200, seed=1)]
    found = []
    for threads in (1, 2):
        folder = tmp_path / str(threads)
        for each in (records, edited):
            fasta = write_fasta(tmp_path / "in.fa", each)
            result = make_plan(folder, fasta, cost=1600, threads=threads)
        found.append(outcome(folder))
    assert len(result["shards"]) > 10 and result["counts"]["refused"] == 2
    assert found[0] == found[1]


def records_of_plan(folder, threads, **more):
    config = {"workload": "composition", "device": "cpu", "shards": {"cost": 5000}, **more}
    plan(Results(folder), validate(config), None, threads=threads)
    return outcome(folder)


@pytest.mark.usefixtures("in_small_pieces")
@pytest.mark.parametrize("has_shared", [False, True])
def test_samples_and_files_of_all_kinds_are_the_same_in_pieces(tmp_path, monkeypatch, has_shared):
    """Of gzip in members, FASTA with awkward lines, and a table; ids and lines as they stand."""
    text = "".join(
        f"{' ' * (n % 7 == 0)}>p{n} d{n}\r\n{sequence}\n{';c' * (n % 5 == 0)}\n"
        for n, (_, sequence) in enumerate(random_proteins(150))
    ).encode()
    members = [gzip.compress(text[at : at + 700]) for at in range(0, len(text), 700)]
    (tmp_path / "a.fa.gz").write_bytes(b"".join(members))
    write_fasta(tmp_path / "b.fa", random_proteins(50, seed=1))
    rows = "".join(f"r{n},{sequence}\n" for n, (_, sequence) in enumerate(random_proteins(30)))
    (tmp_path / "c.csv").write_text("id,sequence\n" + rows)
    names = ("a.fa.gz", "b.fa", "c.csv")
    lines = ["sample,file", *(f"s{n},{name}" for n, name in enumerate(names))]
    lines += ["s9,b.fa"] * has_shared
    (tmp_path / "sheet.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    alone, shared = (records_of_plan(tmp_path / f"of-{n}", n, samples="sheet.csv") for n in (1, 2))
    assert alone == shared
    found = pq.read_table(tmp_path / "of-2" / "records.parquet").to_pylist()
    expected = [record for name in names for record in proteins([Path(name)])]
    assert [(row["id"], row["source"], row["line"]) for row in found[:230]] == [
        (record.id, record.source, record.line) for record in expected
    ]


BAD = b">run_into_one\nM1>K\n"
PAIRS = enumerate(random_proteins(40))
GOOD = b"".join(b">%a\n%s\n" % (n, text.encode()) for n, (_, text) in PAIRS)


@pytest.mark.usefixtures("in_small_pieces")
@pytest.mark.parametrize("num_pieces", [0, 2, 3])
@pytest.mark.parametrize("is_cut_short", [False, True])
def test_of_several_errors_the_first_one_is_told_whoever_meets_it(
    tmp_path, num_pieces, is_cut_short
):
    """Each process meets one, and so does the one that reads."""
    bad = [BAD + GOOD[:300] * 2, BAD] * bool(num_pieces)
    sound = [GOOD * num_pieces, *bad, GOOD]
    packed = bz2.compress(b"".join(sound)) + bz2.compress(GOOD)[: -9 if is_cut_short else None]
    (tmp_path / "a.fa.bz2").write_bytes(packed)
    write_fasta(tmp_path / "b.fa", [("other", "M1>K")])
    told = []
    for threads in (1, 2):
        with pytest.raises(UserError) as error:
            inputs = [str(tmp_path / name) for name in ("a.fa.bz2", "b.fa")]
            records_of_plan(tmp_path / f"of-{threads}", threads, inputs=inputs)
        told.append(str(error.value).removeprefix(str(tmp_path)))
    assert told[0] == told[1]
    if num_pieces:
        assert told[0].startswith(f"/a.fa.bz2:{80 * num_pieces + 1}: there is a '>' inside")
    else:
        assert told[0].startswith("/a.fa.bz2: this file is cut" if is_cut_short else "/b.fa:1:")


def test_a_lost_shard_file_is_written_again(tmp_path):
    records = random_proteins(300)
    first = make_plan(tmp_path, write_fasta(tmp_path / "in.fa", records))
    Results(tmp_path).shard(first["shards"][1]["shard"]).unlink()
    check(tmp_path, make_plan(tmp_path, tmp_path / "in.fa"), records)


def test_the_same_sequence_under_two_ids_is_computed_once_and_delivered_twice(tmp_path):
    records = [("a", "MKV"), ("b", "MKV"), ("c", "MKL")]
    result = make_plan(tmp_path, write_fasta(tmp_path / "in.fa", records))
    assert result["counts"]["planned"] == 3
    assert result["counts"]["unique"] == 2
    check(tmp_path, result, records)


@pytest.mark.parametrize("threads", [1, 2])
def test_one_id_with_two_sequences_refuses_those_records_alone(tmp_path, monkeypatch, threads):
    """Each with the other's place; of a sequence that others have as well, those stay."""
    monkeypatch.setattr(spool_module, "CHUNK_RECORDS", 3)
    records = [
        *(("a", "MKV"), ("b", "MKL"), ("c", "MKJ"), ("a", "MKTTT"), ("a", "MKV")),
        *(("d", "MKV"), ("b", "MKL"), ("c", "MKLLLLL"), ("e", "MK")),
    ]
    fasta = write_fasta(tmp_path / "in.fa", records)
    result = make_plan(tmp_path, fasta, threads=threads)
    assert result["counts"] == {"input": 9, "refused": 5, "duplicate": 1, "planned": 3, "unique": 3}
    head = "the id stands for two different sequences"
    assert result["refusals"] == {head: 5} and result["notes"] == {}
    assert result["lengths"] == {"total": 8 + 3, "longest": 3, "costliest": 3}
    rows = pq.read_table(tmp_path / "records.parquet").to_pylist()
    places = {row["ordinal"]: row["reason"].rpartition(":")[2] for row in rows if row["reason"]}
    assert places == {0: "7", 2: "15", 3: "1", 4: "7", 7: "5"}
    assert all(row["reason"].startswith(f"{head}: the other") for row in rows if row["reason"])
    write_fasta(fasta, [(id, sequence) for id, sequence in records if id not in "ac"])
    alone = make_plan(tmp_path / "alone", fasta)
    assert shard_names(result) == shard_names(alone)
    write_fasta(fasta, [("a", "MKV"), ("a", "MKT")])
    with pytest.raises(UserError, match="all 2 records were refused, 2 because: the id st") as told:
        make_plan(tmp_path, fasta)
    assert str(told.value).endswith(
        "; give each record its own id, or list files that use the same ids in a sheet of samples "
        "(samples:)."
    )
    assert not (tmp_path / "store" / "spool").exists()


def test_repeated_ids_are_found_in_several_passes(tmp_path, monkeypatch):
    monkeypatch.setattr(repeats_module, "KEYS_A_PASS", 37)
    monkeypatch.setattr(repeats_module, "KEYS_A_BLOCK", 5)
    monkeypatch.setattr(spool_module, "CHUNK_RECORDS", 70)
    records = [*random_proteins(300), *random_proteins(300), *random_proteins(50)]
    result = make_plan(tmp_path, write_fasta(tmp_path / "in.fa", records))
    assert result["counts"]["duplicate"] == 350
    status = pq.read_table(tmp_path / "records.parquet")["status"].to_pylist()
    assert status == ["planned"] * 300 + ["duplicate"] * 350


def test_ids_with_the_same_hash_are_compared_themselves(tmp_path):
    np.array([(7, 0), (7, 1), (7, 2), (7, 3)], repeats_module.ID_KEY).tofile(tmp_path / "ids.bin")
    digests = [letter * 32 for letter in (b"1", b"2", b"1", b"3")]
    columns = {"id": ["a", "b", "a", "a"], "sha256": digests, "owner": [0, 0, 0, 1]}
    table = pa.table({field.name: pa.nulls(4, field.type) for field in ROWS} | columns).cast(ROWS)
    with pa.ipc.new_stream(str(rows_path(tmp_path)), ROWS) as writer:
        writer.write_table(table)
    found = repeats_module.find(Rows([tmp_path]), [tmp_path / "ids.bin"])
    assert (found.repeats.tolist(), found.conflicts) == ([2], {})


def test_an_input_that_changes_meanwhile_is_refused(tmp_path, monkeypatch):
    fasta = write_fasta(tmp_path / "in.fa", random_proteins(300))
    read = composition.records

    def read_while_it_grows(files, options):
        for number, record in enumerate(read(files, options)):
            if number == 100:
                with fasta.open("a") as handle:
                    handle.write(">late\nMKV\n")
            yield record

    monkeypatch.setattr(composition, "records", read_while_it_grows)
    with pytest.raises(UserError, match=r"in\.fa: it changed while it was read; run the same"):
        make_plan(tmp_path / "run", fasta)
    assert not (tmp_path / "run" / "plan.json").exists()
    assert not (tmp_path / "run" / "store" / "spool").exists()
    monkeypatch.undo()
    assert make_plan(tmp_path / "run", fasta)["counts"]["input"] == 301


def test_nucleotides_are_refused_where_proteins_are_meant(tmp_path, monkeypatch, caplog):
    """Where most records look so, before anything is written; a user may know better."""
    genes = [(f"g{n}", "ATGGCCCTGTGGATGCGCCTCCTGCCCCTGCTGG" + "ACGT" * n) for n in range(3)]
    fasta = write_fasta(tmp_path / "in.fa", [*genes, *random_proteins(2)])
    with pytest.raises(UserError, match=r"in\.fa: most of the records look like nucleotides.*orfs"):
        make_plan(tmp_path / "run", fasta)
    assert not (tmp_path / "run" / "plan.json").exists()
    monkeypatch.setenv("FEATUREMILL_AS_PROTEINS", "1")
    assert make_plan(tmp_path / "run", fasta)["counts"]["planned"] == 5
    assert "most of the records look like nucleotides" in caplog.text
    monkeypatch.delenv("FEATUREMILL_AS_PROTEINS")
    write_fasta(fasta, [*genes, *random_proteins(3)])
    assert make_plan(tmp_path / "run", fasta)["counts"]["planned"] == 6, "half is not most"


def test_how_to_compute_is_no_part_of_the_recipe():
    workload = find_workload("esm2")
    weights = Weights("w", Path("w"), "0" * 64, {"num_layers": "6", "embed_dim": "8"})
    recipes = {
        recipe_of(settings_of("esm2", workload, workload.Options(**options), cpu(), weights))
        for options in ({}, {"batch_tokens": 100}, {"batch_tokens": 7}, {"id_column": "acc"})
    }
    assert len(recipes) == 1
    other = settings_of("esm2", workload, workload.Options(layers=[0]), cpu(), weights)
    assert recipe_of(other) not in recipes
