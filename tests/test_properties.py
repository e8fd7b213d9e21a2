"""Whatever goes in, a promise holds: the readers, the config, the logs, the plan and the merge.

Each property runs with a few examples, always the same, in the fast suite, and with hundreds of
random ones in `make test-slow`.
"""

import contextlib
import csv
import gzip
import io
import json
import os
import re
import signal
import struct
import tempfile
import zlib
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from broken_inputs import BROKEN
from conftest import ROOT, in_tests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from plans import receipt_json, write_sealed
from programs import Verbs, fasta, written
from xopen import xopen

from featuremill import config
from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.reasons import is_missing
from featuremill.features.loading import load
from featuremill.inputs import proteins, source
from featuremill.inputs.residues import ALPHABET
from featuremill.lease import Request
from featuremill.lease.request import VARIABLES
from featuremill.merge.command import merge
from featuremill.plan.command import plan
from featuremill.store import journal, journal_log
from featuremill.store.files import digest_of, read_json
from featuremill.store.parts import read_shard
from featuremill.store.results import Results
from featuremill.workloads import composition

THOROUGH = 500
RESIDUES = ALPHABET.decode()


def holds(fast, thorough=THOROUGH, phases=tuple(Phase), **drawn):
    """Make a test of a property `check(folder, …)` over everything that `drawn` describes."""

    def decorate(check):
        slow = [pytest.mark.slow, pytest.mark.timeout(1200)]
        numbers = [fast, pytest.param(thorough, marks=slow)]

        @pytest.mark.parametrize("num_examples", numbers)
        def test(num_examples):
            @settings(
                max_examples=num_examples,
                deadline=None,
                derandomize=num_examples == fast,
                phases=phases,
                suppress_health_check=list(HealthCheck),
                database=None,
                print_blob=True,
            )
            @given(**drawn)
            def prove(**values):
                with tempfile.TemporaryDirectory() as folder:
                    check(Path(folder), **values)

            prove()

        test.__doc__ = check.__doc__
        return test

    return decorate


# ---- inputs ----

WHITE = st.sampled_from(["", " ", "\t", "  "])
LETTERS = st.text(st.sampled_from(RESIDUES + RESIDUES.lower() + " j*#\u00e9"), max_size=30)
ODD_LETTERS = st.sampled_from("ab|/.%> \t\x01\x1b\x85\u00e9\U0001f9ec")
HEADERS = st.text(st.one_of(ODD_LETTERS, st.characters(codec="utf-8")), max_size=12).filter(
    lambda text: not re.search("[\0\r\n]", text)
)
FASTA_LINES = st.one_of(
    st.builds(lambda white, text: f"{white}>{text}".encode(), WHITE, HEADERS),
    st.builds(lambda white, text: f"{white}{text}".encode(), WHITE, LETTERS),
    st.builds(lambda text: f"{text}*".encode(), LETTERS),
    st.builds(lambda text: f"\ufeff>{text}".encode(), HEADERS),
    st.sampled_from([b"", b" ", b"\t\t", b"; a > comment", b"#", b"MK>V", b"MK*V>P", b"M\0"]),
    st.builds(lambda text, raw: b">" + text.encode() + raw, HEADERS, st.binary(max_size=3)).filter(
        lambda line: not re.search(b"[\0\r\n]", line)
    ),
)


@st.composite
def fasta_files(draw):
    """Return the bytes of a file that is nearly FASTA."""
    lines = draw(st.lists(FASTA_LINES, min_size=1, max_size=12))
    ends = draw(st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=1, max_size=3))
    data = b"".join(line + ends[number % len(ends)] for number, line in enumerate(lines))
    data = draw(st.sampled_from([b"", b"", b">first\n", b"\n; x\n>a b\n"])) + data
    if draw(st.booleans()):
        data = data.rstrip(b"\r\n")
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + data


def expected_of(data):
    """Return what is in a FASTA file (id, description, letters, line), None where it is unsound."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in data:
        return None
    records, lines, is_begun = [], [], False
    text = data.decode("utf-8", "surrogateescape")
    for number, line in enumerate(re.split("\r\n|\r|\n", text), 1):
        bare = line.lstrip()
        bare = bare.lstrip("\ufeff") if is_begun else bare
        if bare.startswith(">"):
            is_begun = True
            records.append([bare[1:], "", number])
            lines.append([])
        elif not bare or bare[0] in ";#":
            continue
        elif not is_begun:
            return None
        else:
            lines[-1].append(len(bare.rstrip()))
            records[-1][1] += re.sub("[ \t\x0b\x0c]", "", bare)
    found = []
    for header, letters, line in records:
        if re.search("[\udc80-\udcff]", header):
            header = header.encode("utf-8", "surrogateescape").decode("latin-1")
        id, *rest = header.split(None, 1) or [""]
        found.append((id, (rest or [""])[0].strip(), letters, line))
    are_alike = all(len(of_record) == 2 and len(set(of_record)) == 1 for of_record in lines)
    if are_alike and len({length for length, _ in lines}) > 1:
        return None  # the second lines are labels
    if not found or any(">" in letters for _, _, letters, _ in found):
        return None
    return found


def members_of(data, packed):
    """Return `data` in members of 9 bytes: of gzip, of bgzip (whose extra field says how long each
    is, and whose last one is empty), or frames of zstd."""
    parts = [data[at : at + 9] for at in range(0, len(data), 9)]
    if packed == "zst":
        return b"".join(pa.compress(part, codec="zstd", asbytes=True) for part in parts)
    if packed == "gz":
        return b"".join(map(gzip.compress, parts))
    members = []
    for part in [*parts, b""]:
        packer = zlib.compressobj(wbits=-15)
        deflated = packer.compress(part) + packer.flush()
        head = b"\x1f\x8b\x08\x04" + bytes(5) + b"\xff\x06\x00BC\x02\x00"
        end = struct.pack("<II", zlib.crc32(part), len(part))
        members.append(head + struct.pack("<H", len(deflated) + 25) + deflated + end)
    return b"".join(members)


@holds(
    200,
    data=fasta_files(),
    packed=st.sampled_from(["", "", "gz", "bgzip", "zst"]),
    block=st.sampled_from([1, 2, 5, 16, 64, source.BLOCK_BYTES]),
)
def test_fasta_is_read_as_a_simple_parser_reads_it(folder, data, packed, block):
    """Wherever it is cut into pieces, and whoever makes their records."""
    path = folder / "in.fa"
    path.write_bytes(members_of(data, packed) if packed else data)
    expected = expected_of(data)
    with patch.object(source, "BLOCK_BYTES", block):
        if expected is None:
            with pytest.raises(UserError):
                list(proteins([path]))
            return
        pieces = list(proteins([path]).pieces())
    by_piece = [list(proteins([]).records_of(piece)) for piece in pieces]
    assert [piece.num_records for piece in pieces] == list(map(len, by_piece))
    records = [record for each in by_piece for record in each]
    assert records == list(proteins([path]))
    assert [(r.id, r.description.strip(), r.line) for r in records] == [
        (id, description, line) for id, description, _, line in expected
    ]
    for record, (id, _, letters, _) in zip(records, expected, strict=True):
        residues = "" if is_missing(letters) else letters.upper().rstrip("*").replace("J", "X")
        is_good = bool(residues) and not set(residues) - set(RESIDUES) and id
        if is_good and not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", id):
            assert record.payload.decode() == residues and not record.reason
        else:
            assert record.reason and not record.payload


CELLS = st.text(
    st.one_of(st.sampled_from("a,;\t|\"' \n=%"), st.characters(codec="utf-8")), max_size=10
).filter(lambda text: not re.search("[\0\r\ufeff]", text))
TABLE_ROWS = st.lists(
    st.tuples(CELLS, st.text(st.sampled_from("MKVa* "), max_size=8), CELLS), max_size=8
)


def lines_of(row, separator):
    """Return the lines that csv writes for a row."""
    file = io.StringIO()
    csv.writer(file, delimiter=separator, lineterminator="\n").writerow(row)
    return file.getvalue().removesuffix("\n").split("\n")


@holds(60, rows=TABLE_ROWS, kind=st.sampled_from(["csv", "tsv", "csv.gz", "parquet"]))
def test_tables_keep_every_row_in_order(folder, rows, kind):
    path = folder / f"in.{kind}"
    rows = [("first", "MKV", ""), *rows]
    names = ["id", "sequence", "description"]
    if kind == "parquet":
        pd.DataFrame(rows, columns=names).to_parquet(path)
    else:
        with (
            xopen(path, "wb", threads=0) as raw,
            io.TextIOWrapper(raw, "utf-8", newline="") as file,
        ):
            table = csv.writer(file, delimiter="\t" if kind == "tsv" else ",", lineterminator="\n")
            table.writerows([names, *rows])
    line, wanted = 1 if kind == "parquet" else 2, []
    for row in rows:
        if kind == "parquet" or any(row):
            wanted.append((row, line))
        line += 1 if kind == "parquet" else 1 + "".join(row).count("\n")
    separator = "\t" if kind == "tsv" else ","
    later = [line for row in rows for line in lines_of(row, separator)[1:]]
    hides = [line.count(separator) == len(names) - 1 for line in later]
    if kind != "parquet" and any(hides):
        with contextlib.suppress(UserError):  # it cannot be told from a mark that nothing closes
            assert len(list(proteins([path]))) == len(wanted)
        return
    records = list(proteins([path]))
    assert [(r.id, r.description, r.line) for r in records] == [
        (id.strip(), description.strip(), line) for (id, _, description), line in wanted
    ]
    for record, ((_, letters, _), _) in zip(records, wanted, strict=True):
        is_empty = is_missing("".join(letters.split()))
        residues = "" if is_empty else letters.replace(" ", "").upper().rstrip("*")
        is_good = residues and "*" not in residues and record.id
        is_good = is_good and not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", record.id)
        assert record.payload.decode() == (residues if is_good else "")
        assert bool(record.reason) != bool(record.payload)


def seeds():
    """Return real files of every format, by suffix."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        for number, case in enumerate(BROKEN):
            folder = Path(name) / str(number)
            folder.mkdir()
            path = folder if case.unprivileged else case.make(folder)
            if path.is_file() and path.stat().st_size < 100_000:
                suffix = path.name.removeprefix("in")
                found.setdefault(suffix, []).append(path.read_bytes())
    frame = pd.DataFrame({"id": ["a", "b", "c"], "sequence": ["MKV" * 9, "MKL", "M"]})
    for more in ({"compression": None}, {"use_dictionary": False, "compression": "gzip"}):
        buffer = io.BytesIO()
        frame.to_parquet(buffer, **more)
        found[".parquet"].append(buffer.getvalue())
    found[".fa.gz"] = [gzip.compress(data) for data in found[".fa"][:40]]
    return sorted((suffix, data) for suffix, several in found.items() for data in several)


SEEDS = st.deferred(lambda: st.sampled_from(seeds()))
BITS = [b">", b"\r", b"\n", b'"', b",", b"\xff", b"\x1b[2J", b"//\n", b"*", b"9" * 30]


def edits_with(most_out, bits):
    """Return up to four edits: a place, how many bytes are left out there, and what is put in."""
    put_in = st.one_of(st.binary(max_size=4), st.sampled_from(bits))
    edit = st.tuples(st.floats(0, 1), st.integers(0, most_out), put_in)
    return st.lists(edit, min_size=1, max_size=4)


def edited(data, edits):
    """Return `data` with each (place, bytes left out, bytes put in) carried out."""
    for place, num_out, put_in in edits:
        at = int(place * len(data))
        data = data[:at] + put_in + data[at + num_out :]
    return data


@holds(250, thorough=4000, seed=SEEDS, edits=edits_with(20, BITS))
def test_any_file_is_records_or_one_sentence(folder, seed, edits):
    suffix, data = seed
    path = folder / f"in{suffix}"
    path.write_bytes(edited(data, edits))
    try:
        records = list(proteins([path]))
    except UserError as error:
        sentence = str(error)
        assert sentence.startswith(str(path)) and sentence.endswith(".") and sentence.isprintable()
        return
    assert records
    for record in records:
        assert bool(record.reason) != bool(record.payload)
        assert not record.payload.translate(None, ALPHABET)
        assert record.reason or not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", record.id)
        for text in (record.id, record.description, record.reason, record.note):
            text.encode()


# ---- config, logs, environment ----

RUN_NAMES = "run inputs workload options shards device gpus outputs max_failed"
OPTION_NAMES = "model layers pool per_residue dtype long cost hydropathy output_dtype"
WORDS = "esm2 composition cpu parquet npy mean none fp32 chunk"
NAMES = st.sampled_from([*RUN_NAMES.split(" "), *OPTION_NAMES.split(" ")])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.integers(),
    st.just(2**70),
    st.floats(),
    st.dates(),
    st.binary(max_size=3),
    st.text(max_size=6),
    st.sampled_from(WORDS.split(" ")),
    st.sampled_from(["a.fa", "../x", "a/b.pt", "a\0b", "\ud800", "{x}", "1e999", "", " "]),
)
KEYS = st.one_of(NAMES, st.text(max_size=4), st.integers(), st.none(), st.booleans(), st.floats())


def nested(inner):
    """Return a strategy of lists and mappings of what `inner` draws, and of scalars."""
    several = st.lists(inner, max_size=4)
    return st.one_of(SCALARS, several, st.dictionaries(KEYS, inner, max_size=4))


VALUES = nested(nested(SCALARS))
CONFIGS = st.dictionaries(KEYS, VALUES, max_size=6)
PLAUSIBLE = st.fixed_dictionaries(
    {"inputs": st.one_of(st.just("a.fa"), VALUES)},
    optional=dict.fromkeys(("run", "workload", "options", "shards", "gpus", "outputs"), VALUES),
)


@holds(200, thorough=2000, raw=st.one_of(CONFIGS, PLAUSIBLE))
def test_any_mapping_is_a_run_or_sentences(folder, raw):
    try:
        run = config.validate(raw, "my.yaml")
    except UserError as error:
        for sentence in str(error).split("\n"):
            assert sentence.startswith("my.yaml") and sentence.isprintable() and len(sentence) < 500
        return
    assert config.validate(json.loads(json.dumps(run.model_dump(mode="json")))) == run


YAML_SEEDS = sorted(path.read_bytes() for path in (ROOT / "config").rglob("*.yaml"))
YAML_SEEDS.append(
    b"inputs: a\noptions:\n  layers: [6, 3]\n  pool: [mean, bos]\nshards: {cost: 3}\n"
)
YAML_BITS = [b"&a ", b"*a", b"<<: *a", b"!!int ", b"!!timestamp ", b"!!python/name:os.system "]
YAML_BITS += [b"? ", b"[", b"{", b"- ", b": ", b"1e999", b"0x" + b"f" * 40]
YAML_BITS += [b"\x85", b"\xe2\x80\xa8", b"\t"]


@holds(80, thorough=2000, seed=st.sampled_from(YAML_SEEDS), edits=edits_with(9, YAML_BITS))
def test_any_yaml_is_a_run_or_sentences(folder, seed, edits):
    path = folder / "my.yaml"
    path.write_bytes(edited(seed, edits))
    try:
        run = config.read(path)
    except UserError as error:
        for sentence in str(error).split("\n"):
            assert sentence.startswith(str(path)) and sentence.isprintable()
        return
    again = folder / "again.yaml"
    again.write_text(yaml.safe_dump(run.model_dump(mode="json")))
    assert config.read(again) == run


LOG_LINES = st.one_of(
    st.binary(max_size=12),
    st.builds(
        lambda word, rest: f"{word} {rest}".encode(),
        st.sampled_from(["begin", "commit", "abort", "strike", journal_log.MAGIC]),
        st.one_of(
            st.just("7 0123456789abcdef"),
            st.sampled_from(["1,2", "-1", "1,,2", "9" * 5000, "1_0", "\u00b2", "", "0"]),
            st.text("0123456789,- ", max_size=6),
        ),
    ),
)


@holds(
    100, lines=st.lists(LOG_LINES, max_size=12), has_head=st.booleans(), tail=st.binary(max_size=5)
)
def test_any_bytes_are_a_log_or_none(folder, lines, has_head, tail):
    path = folder / "j.log"
    head = [f"{journal_log.MAGIC} 10".encode()] if has_head else []
    path.write_bytes(b"\n".join([*head, *lines]) + tail)
    state = journal_log.read_log(path)
    if state is None:
        return
    assert state.batch_cost > 0
    assert all(commit.end > 0 for commit in state.commits)
    assert all(row >= 0 for rows in [state.in_flight, *state.strikes] for row in rows)
    opened = journal.Journal(folder / "j.arrows", journal.part_schema(pa.schema([])), 10)
    opened.close()
    assert opened.num_resumed == 0, "nothing of it was ever written"


TEXTS = st.one_of(
    st.sampled_from(["", "0", "-1", "1e400", "nan", "inf", "1_000", "0x10", "9" * 400, "memory"]),
    st.text(max_size=5).filter(lambda text: "\0" not in text),
)


@holds(100, values=st.fixed_dictionaries(dict.fromkeys(map(str, VARIABLES.values()), TEXTS)))
def test_any_environment_is_a_request_or_one_sentence(folder, values):
    texts = {name: text.encode("utf-8", "replace").decode() for name, text in values.items()}
    with patch.dict(os.environ, texts):
        try:
            request = Request.from_environment()
            request.check()
        except UserError as error:
            assert str(error).endswith(".") and "\n" not in str(error)
        else:
            assert request.slots_per_gpu >= 1 and request.min_free_mb >= 0


# ---- plan ----

PAYLOADS = st.text(st.sampled_from("ACDE"), min_size=1, max_size=10)
SOME_BAD = st.one_of(PAYLOADS, PAYLOADS, PAYLOADS, st.sampled_from(["", "M*K", "M1"]))
RECORDS = st.lists(st.tuples(SOME_BAD, st.booleans()), max_size=25)
"""Sequences, a few of them to be refused; and whether the record comes once more, later."""


def write_records(path, drawn):
    """Write the drawn records as FASTA; return them as (id, sequence), the repeated ones last."""
    records = [(f"id{number}", sequence) for number, (sequence, _) in enumerate(drawn)]
    records += [record for record, (_, again) in zip(records, drawn, strict=True) if again]
    records.append(("last", "MKVLW"))
    path.write_text(fasta(records))
    return records


def planned(folder, cost):
    run = {"inputs": [str(folder / "in.fa")], "workload": "composition", "device": "cpu"}
    run["shards"] = {"cost": cost}
    return plan(Results(folder), config.validate(run), None).plan.as_json()


def kinds_of(records):
    """Return what has to become of each record."""
    seen, kinds = set(), []
    for id, sequence in records:
        is_refused = not sequence or bool(set(sequence) - set(RESIDUES))
        is_repeat = id in seen and not is_refused
        kinds.append("refused" if is_refused else "duplicate" if is_repeat else "planned")
        seen.add(id)
    return kinds


def with_kinds(records):
    return zip(records, kinds_of(records), strict=True)


def payloads_of(run, shard):
    return [row["payload"].decode() for row in read_shard(run.shard(shard)).to_pylist()]


def check_plan(folder, found, records):
    run = Results(folder)
    rows = pq.read_table(run.records).to_pylist()
    assert [row["id"] for row in rows] == [id for id, _ in records]
    assert [row["status"] for row in rows] == kinds_of(records)
    tables = {s["shard"]: read_shard(run.shard(s["shard"])).to_pylist() for s in found["shards"]}
    for row, (_, sequence) in zip(rows, records, strict=True):
        if row["status"] == "planned":
            assert tables[row["shard"]][row["row"]]["payload"].decode() == sequence
    counts = {kind: kinds_of(records).count(kind) for kind in ("planned", "refused", "duplicate")}
    assert {kind: found["counts"][kind] for kind in counts} == counts
    assert found["counts"]["input"] == len(records)
    everything = [row["sha256"] for table in tables.values() for row in table]
    assert len(everything) == len(set(everything)), "a record would be computed twice"
    for name, table in tables.items():
        assert name == digest_of([row["sha256"] for row in table])


@holds(12, edits=st.lists(st.tuples(RECORDS, st.integers(1, 60)), min_size=2, max_size=4))
def test_edits_lose_nothing_and_leave_begun_shards_alone(folder, edits):
    before, journals = {}, folder / "store" / "journals" / "0"
    for drawn, cost in edits:
        records = write_records(folder / "in.fa", drawn)
        found = planned(folder, cost)
        check_plan(folder, found, records)
        wanted = {text for (_, text), kind in with_kinds(records) if kind == "planned"}
        names = {shard["shard"] for shard in found["shards"]}
        begun = Results(folder).begun_shards()
        for name, payloads in before.items():
            if name in begun and payloads <= wanted:
                assert name in names, "all of it is wanted still"
        before = {name: {*payloads_of(Results(folder), name)} for name in names}
        for name in sorted(names)[::2]:  # of the others nothing is computed: they may be cut anew
            journals.mkdir(exist_ok=True, parents=True)
            (journals / f"{name}.arrows").touch()


# ---- merge ----

VECTOR = pa.schema({"vector": pa.list_(pa.float32(), 3), "other": pa.list_(pa.float32(), 1)})


def vector_of(sequence):
    """Return values that no other sequence has."""
    number = int.from_bytes(digest_of([sequence.encode()]).encode()[:6], "big")
    return [float(number % 9973), float(number // 9973 % 9967), float(len(sequence))]


def write_part(folder, found, shard, failed, batch_rows, order):
    """Write the part and the receipt of a shard as extract leaves them."""
    run, recipe = Results(folder), found["recipe"]
    rows = read_shard(run.shard(shard)).to_pylist()
    rows = [rows[number] for number in order.permutation(len(rows))]
    schema = journal.part_schema(VECTOR)
    opened = journal.Journal(run.journal(recipe, shard), schema, 10)
    num_failed = 0
    for start in range(0, len(rows), batch_rows):
        made = []
        for row in rows[start : start + batch_rows]:
            sequence = row["payload"].decode()
            is_failed = sequence in failed
            num_failed += is_failed
            values = {"status": "ok", "vector": vector_of(sequence), "other": [1.5]}
            if is_failed:
                values = {"status": "failed", "reason": f"bad: {sequence}"}
            empty = dict.fromkeys(schema.names)
            made.append(empty | {"sha256": row["sha256"]} | values)
        opened.commit(pa.RecordBatch.from_pylist(made, schema=schema))
    digest = opened.finish()
    part = run.part(recipe, shard)
    part.parent.mkdir(parents=True, exist_ok=True)
    opened.path.replace(part)
    counts = {"rows": len(rows), "ok": len(rows) - num_failed, "failed": num_failed}
    receipt = receipt_json(shard=shard, recipe=recipe, part=digest, **counts)
    write_sealed(part.with_suffix(".json"), receipt)
    write_sealed(run.receipt(recipe, shard), receipt)


def compute_all(folder, found, failed, batch_rows=3, seed=0):
    order = np.random.default_rng(seed)
    for shard in found["shards"]:
        write_part(folder, found, shard["shard"], failed, batch_rows, order)


def check_delivery(folder, records, failed):
    """Assert that the results hold what they should: the ok ids in order, each with its vector."""
    ok, left_out = [], []
    for (id, sequence), kind in with_kinds(records):
        if kind == "planned" and sequence not in failed:
            ok.append((id, sequence))
        elif kind != "duplicate":
            left_out.append((id, "refused" if kind == "refused" else "failed"))
    table = pq.read_table(folder / "embeddings.parquet").select(["id", "vector"]).to_pylist()
    assert table == [{"id": id, "vector": vector_of(sequence)} for id, sequence in ok]
    both = np.load(folder / "embeddings.npy")
    assert both.tolist() == [[*vector_of(sequence), 1.5] for _, sequence in ok]
    with (folder / "failed.tsv").open(newline="") as file:
        listed = [(row["id"], row["status"]) for row in csv.DictReader(file, delimiter="\t")]
    assert listed == left_out
    counts = read_json(folder / "manifest.json")["counts"]
    assert counts["ok"] == len(ok)
    assert counts["input"] == sum(counts[kind] for kind in ("ok", "failed", "refused", "duplicate"))


@holds(
    20,
    drawn=RECORDS,
    cost=st.integers(1, 60),
    failing=st.sets(st.integers(0, 24), max_size=6),
    batch_rows=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_the_merge_delivers_exactly_what_is_ok(folder, drawn, cost, failing, batch_rows, seed):
    records = write_records(folder / "in.fa", drawn)
    failed = {records[number][1] for number in failing if number < len(drawn)}
    found = planned(folder, cost)
    compute_all(folder, found, failed, batch_rows, seed)
    merge(Results(folder), ["parquet", "npy"], len(records))
    check_delivery(folder, records, failed)


# ---- samples ----

SHEETS = st.dictionaries(
    st.sampled_from(["a", "b", "B2", "c-1", "c.1"]),
    st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=2, unique=True), st.booleans()),
    min_size=1,
)
FILES = [
    [(f"p{n % 4}", RESIDUES[number : number + 1 + n]) for n in range(2, 6)]
    + [("p2", "M?"), (f"q{number % 2}", "MKV"), ("p2", RESIDUES[number : number + 3])]
    for number in range(6)
]
"""Records of files that share ids and payloads; in some, an id stands for two payloads."""


def alone(sequences):
    """Return what a script makes of the records of a sample alone: those that are ok, the ids of
    those that are refused, and counts."""
    of_id, ok, refused, kinds = {}, [], [], []
    for id, sequence in sequences:
        if sequence != "M?":
            of_id.setdefault(id, []).append(sequence)
    for id, sequence in sequences:
        is_refused = sequence == "M?" or len(set(of_id[id])) > 1
        is_repeat = not is_refused and id in [id for id, _ in ok]
        kinds.append("refused" if is_refused else "duplicate" if is_repeat else "ok")
        if kinds[-1] == "ok":
            ok.append((id, sequence))
        if is_refused:
            refused.append(id)
    return ok, refused, {kind: kinds.count(kind) for kind in ("ok", "refused", "duplicate")}


KILLS = (
    st.sampled_from(["extract", "merge", "plan"]),
    st.integers(0, 119).map(lambda number: (number + 14) % 120),
)
RUNS = (st.sampled_from(["one", "other"]), st.booleans())
SAMPLE_EDITS = st.lists(st.tuples(SHEETS, *RUNS, *KILLS, st.booleans()), min_size=1, max_size=4)
"""Sheets, each with the run that has it, whether that has a store, which of its commands SIGKILL
takes, at which change of files, and whether the sheet is edited before they are typed again."""


class SampleRuns:
    """Two runs of sheets in a folder, which may share a store."""

    def __init__(self, folder, seed):
        self.folder = folder
        self._order = np.random.default_rng(seed)
        for number, records in enumerate(FILES):
            (folder / f"{number}.fa").write_text(fasta(records))

    def write(self, drawn):
        """Write a sheet; return what each of its samples comes to alone."""
        rows = [(s, n, site) for s, (files, site) in drawn.items() for n in files]
        rows = [rows[number] for number in self._order.permutation(len(rows))]
        lines = (f"{s}\t{self.folder}/{n}.fa\t{site}\n" for s, n, site in rows)
        (self.folder / "samples.tsv").write_text("sample\tfile\tsite\n" + "".join(lines))
        files = {s: [n for of, n, _ in rows if of == s] for s in sorted(drawn)}
        return {s: alone([one for n in files[s] for one in FILES[n]]) for s in files}

    def __call__(self, name, has_store, doomed="", number=0):
        """Carry out the commands of a run; SIGKILL takes one of them at that change of a file.
        Return whether all ended, and the shards that were computed."""
        verbs = Verbs(self.folder, in_tests())
        run = verbs.run_folder = Results(self.folder / "results" / name)
        asked = {"run": name, "samples": str(self.folder / "samples.tsv"), "device": "cpu"}
        asked |= {"workload": "composition", "outputs": ["parquet", "parquet_dataset"]}
        asked |= {"store": [str(self.folder / "shelf")] if has_store else []}
        asked |= {"shards": {"cost": 60}}

        def ends(verb, *words):
            killed = ("killed", number) if verb == doomed else ()
            said = verbs.type(*killed, "featuremill", verb, run.root, *words, status=None)
            died = (-signal.SIGKILL, 3) if killed else ()  # 3: a worker alone
            assert said.status in (0, *died), said.text
            return said.status == 0

        told = ("--config", written(asked))
        if doomed != "plan":
            plan(run, config.validate(asked), None, threads=1)
        elif not ends("plan", *told, "--threads", "1"):
            return False, []
        found = run.read_plan()
        missing = [s.shard for s in found.shards if not run.receipt(found.recipe, s.shard).exists()]
        new = [name for name in missing if not run.part(found.recipe, name).exists()]
        if sum(ends("extract", shard) for shard in missing) < len(missing):
            return False, new
        if doomed == "merge" and not ends("merge", "--outputs", *asked["outputs"]):
            return False, new
        merge(run, asked["outputs"], 0)
        return True, new


@holds(2, 40, (Phase.generate,), edits=SAMPLE_EDITS, seed=st.integers(0, 99))
def test_samples_come_to_what_each_comes_to_alone(folder, edits, seed):
    """Whatever was edited, killed and taken from a store before."""
    runs = SampleRuns(folder, seed)
    for drawn, name, has_store, doomed, number, is_left in edits:
        expected = runs.write(drawn)
        if not any(ok for ok, _, _ in expected.values()):
            continue
        ended, _ = runs(name, has_store, doomed, number)
        if not ended and is_left:
            continue
        if not ended:
            assert runs(name, has_store)[0]
        check_samples(folder / "results" / name, expected)
        renamed = {f"{s}x": (files, not site) for s, (files, site) in drawn.items()}
        expected = runs.write(renamed)
        assert runs(name, has_store) == (True, []), "another name or column costs nothing"
        check_samples(folder / "results" / name, expected)


def check_samples(results, expected):
    """Assert that the tables have what each sample comes to alone, in the order of names."""
    rows = [
        (s, id, [np.float32(text.count(letter) / len(text)) for letter in composition.LETTERS])
        for s, (ok, _, _) in expected.items()
        for id, text in ok
    ]
    for table in ("embeddings.parquet", "embeddings"):
        found = load(results / table)
        vectors = [vector.tolist() for vector in found["composition"]]
        assert list(zip(found["sample"], found.index, vectors, strict=True)) == rows
    listed = pd.read_csv(results / "failed.tsv", sep="\t")
    refused = [(s, id) for s, (_, refused, _) in expected.items() for id in refused]
    assert list(zip(listed["sample"], listed["id"], strict=True)) == refused
    counted = pd.read_csv(results / "samples.tsv", sep="\t").to_dict("records")
    assert [row["sample"] for row in counted] == list(expected)
    for row in counted:
        counts = expected[row["sample"]][2]
        assert {kind: row[kind] for kind in counts} == counts
        assert row["records"] == sum(counts.values())


STORED = ["plan.json", "records.parquet", "receipts/*/*.json", "store/parts/*/*.arrows"]


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """Return a folder with everything computed, its records and those of them that failed."""
    folder = tmp_path_factory.mktemp("computed")
    drawn = [("ACDE"[: n % 4 + 1] * (n % 7 + 1), n % 5 == 0) for n in range(24)] + [("M*K", False)]
    records = write_records(folder / "in.fa", drawn)
    found = planned(folder, 60)
    assert len(found["shards"]) > 2
    compute_all(folder, found, {"AC"})
    return folder, records, {"AC"}


@pytest.mark.parametrize("pattern", STORED)
@pytest.mark.parametrize("num_places", [12, pytest.param(500, marks=pytest.mark.slow)])
def test_a_damaged_byte_never_delivers_a_wrong_vector(computed, pattern, num_places):
    folder, records, failed = computed
    run = Results(folder)
    rng = np.random.default_rng(num_places)
    everything = {path: path.read_bytes() for kind in STORED for path in folder.glob(kind)}
    paths = sorted(folder.glob(pattern))
    num_refused = 0
    for number in range(num_places):
        path = paths[number % len(paths)]
        content = bytearray(everything[path])
        content[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(content)
        try:
            merge(run, ["parquet", "npy"], len(records))
        except IntegrityError as error:
            num_refused += 1
            assert str(error).startswith(str(folder)) and str(error).isprintable()
            if (folder / "manifest.json").exists():
                check_delivery(folder, records, failed)  # of the merge before, still whole
            if path.parent.parent.name == "receipts":
                parts = [part for part in everything if part.suffix == ".arrows"]
                assert all(part.exists() for part in parts), "a bad receipt costs no good part"
        else:
            check_delivery(folder, records, failed)
        for bad in folder.glob("store/parts/*/*.bad"):
            bad.unlink()
        for good, bytes_ in everything.items():
            good.write_bytes(bytes_)
    assert num_refused > num_places * 0.8
    merge(run, ["parquet", "npy"], len(records))
    check_delivery(folder, records, failed)
