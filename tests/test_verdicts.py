"""Verdicts: every contig that was read has one row, by the scores of its own fragments alone."""

import csv
import json
import math
import os
import random
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import browser, needs_chromium
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import Desk

from featuremill.base.errors import UserError
from featuremill.base.id_columns import ID_ALONE
from featuremill.steps.heads import card
from featuremill.steps.translate.command import translate
from featuremill.steps.verdicts import page
from featuremill.steps.verdicts import predictions as predictions_module
from featuremill.steps.verdicts.command import write
from featuremill.steps.verdicts.contigs import trained_on
from featuremill.steps.verdicts.page import MOST_POINTS, tracks_of
from featuremill.steps.verdicts.predictions import Scored

CLASSES = ("others", "virus")


def contigs(seed=0):
    """Return contigs of 0 to some 60 chunks, one of stops only, and one that is no DNA."""
    rng = random.Random(seed)
    lengths = [200, 1, 900, 1_500, 300]
    found = {f"c{n}": "".join(rng.choices("ACGT", k=k)) for n, k in enumerate(lengths)}
    return {**found, "stops": "TAGC" * 100, "protein": "MKVLPEFQ" * 30}


@pytest.fixture(scope="module")
def translated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verdict")
    text = "".join(f">{id}\n{letters}\n" for id, letters in contigs().items())
    (folder / "contigs.fa").write_text(text)
    translate([folder / "contigs.fa"], folder / "translated", "chunks", window=90)
    return folder / "translated"


def fragments(folder):
    return pq.read_table(folder / "fragments.parquet").to_pylist()


def predict(path, scores):
    """Write predictions as head predict does: `scores` are of the virus, by id."""
    if path.suffix == ".parquet":
        columns = {"id": list(scores), "class": [CLASSES[s >= 0.5] for s in scores.values()]}
        columns |= {"score_others": [1 - s for s in scores.values()]}
        pq.write_table(pa.table({**columns, "score_virus": list(scores.values())}), path)
        return path
    with path.open("w", newline="") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(["id", "class", "score_others", "score_virus"])
        for id, score in scores.items():
            table.writerow([id, CLASSES[score >= 0.5], 1 - score, score])
    return path


def verdicts(path):
    with path.open(newline="") as file:
        return {row["contig"]: row for row in csv.DictReader(file, delimiter="\t")}


def expected(folder, scores, by):
    """Return (virus's score, others' score, fragments, failed) of each contig, one by one."""
    found = {}
    for fragment in fragments(folder):
        entry = found.setdefault(fragment["contig"], [])
        entry.append(scores.get(fragment["id"]))
    told = {}
    for contig, each in found.items():
        there = [score for score in each if score is not None]
        both = (math.nan, math.nan)
        if there and by == "max":
            both = (max(there), max(1 - score for score in there))
        elif there:
            both = (sum(there) / len(there), sum(1 - score for score in there) / len(there))
        told[contig] = (*both, len(each), len(each) - len(there))
    return told


def check(folder, table, scores, by):
    for contig, (virus, others, num, failed) in expected(folder, scores, by).items():
        row = table[contig]
        assert (int(row["fragments"]), int(row["failed"])) == (num, failed)
        if num == failed:
            assert (row["verdict"], row["score_virus"], row["status"]) == ("-", "", "failed")
            continue
        assert row["status"] == ("partly" if failed else "ok")
        told = (float(row["score_virus"]), float(row["score_others"]))
        np.testing.assert_allclose(told, (virus, others), rtol=1e-8)
        if abs(virus - others) > 1e-9:  # a tie of rounded sums is anybody's
            assert row["verdict"] == ("virus" if virus > others else "others")


@pytest.mark.parametrize("suffix", [".tsv", ".parquet"])
@settings(max_examples=15, deadline=None, suppress_health_check=[*HealthCheck])
@given(
    seed=st.integers(0, 2**32),
    failed=st.sampled_from([0.0, 0.1, 0.6, 0.97]),
    block=st.integers(1, 90),
    by=st.sampled_from(["max", "mean"]),
)
def test_every_contig_has_one_row_by_its_own_fragments(
    translated, tmp_path_factory, monkeypatch, suffix, seed, failed, block, by
):
    """Any fragments may have failed, whole contigs as well, and blocks may end anywhere."""
    monkeypatch.setattr(predictions_module, "BLOCK_ROWS", block)
    place, rng = tmp_path_factory.mktemp("run"), random.Random(seed)
    ids = [fragment["id"] for fragment in fragments(translated)]
    scores = {id: rng.random() for id in ids if rng.random() >= failed}
    path = predict(place / f"scores{suffix}", scores)
    counts = write(translated, path, place / "verdicts.tsv", by)
    table = verdicts(place / "verdicts.tsv")
    assert set(table) == set(contigs()) and counts.contigs == len(contigs())
    assert (table["stops"]["status"], table["protein"]["status"]) == ("without", "refused")
    check(translated, table, scores, by)


def test_where_two_classes_score_the_same_the_last_or_the_named_one_has_it(translated, tmp_path):
    scores = dict.fromkeys([fragment["id"] for fragment in fragments(translated)], 0.5)
    path = predict(tmp_path / "scores.tsv", scores)
    for prefer, verdict in ((None, "virus"), ("others", "others")):
        write(translated, path, tmp_path / "verdicts.tsv", "max", prefer)
        assert verdicts(tmp_path / "verdicts.tsv")["c3"]["verdict"] == verdict
    # One fragment that is sure of either: VirNucPro's rule is about the best of each.
    first, second = list(scores)[-2:]
    path = predict(tmp_path / "s.tsv", {**scores, first: 0.9, second: 0.05})
    write(translated, path, tmp_path / "verdicts.tsv")
    assert verdicts(tmp_path / "verdicts.tsv")["c4"]["verdict"] == "others"


def write_head(folder, labels):
    """Write a head that was trained on these fragments (id: label), and held out says `others`."""
    folder.mkdir()
    ids, names = list(labels), list(labels.values())
    scores = np.tile([0.75, 0.25], (len(ids), 1))
    sha256s = [str(n) for n in range(len(ids))]
    columns = {"label": names, "group": names}
    columns |= {f"score_{name}": scores[:, n] for n, name in enumerate(CLASSES)}
    tensors = {"weight": np.zeros((2, 3)), "bias": np.zeros(2)}
    path = folder / card.HELD_OUT
    held_out = card.write_held_out(path, ids, sha256s, columns, ID_ALONE)
    about = {"kind": "logistic", "classes": [*CLASSES], "features": [card.Part(width=3)]}
    about |= {"scores": {"accuracy": [0.5, 0.4, 0.6], "auc": [0.55, 0.45, 0.65]}}
    about |= {"guesses": {"accuracy": 0.5, "auc": 0.5}, "held_out_sha256": held_out}
    sha256 = card.write_tensors(folder / card.TENSORS, tensors)
    card.Card(**about, sha256=sha256).write(folder / card.CARD)
    return folder


def test_what_the_head_was_trained_on_is_marked_and_said(translated, tmp_path, monkeypatch):
    """c2 and c3 were seen in training; c4 has a label of the same id, but of another sample."""
    by_contig = {f["id"]: f["contig"] for f in fragments(translated)}
    kinds = {"c2": "virus", "c3": "others", "c4": "virus"}
    labels = {id: kinds[contig] for id, contig in by_contig.items() if contig in kinds}
    path = predict(tmp_path / "scores.tsv", dict.fromkeys(by_contig, 0.25))
    write(translated, path, tmp_path / "my.tsv")
    seen = {row["seen_in_training"] for row in verdicts(tmp_path / "my.tsv").values()}
    assert seen == {"unknown", "no"}, "the latter of contigs without a fragment"
    assert "It is not known which records" in (tmp_path / "my.html").read_text()
    head, *lines = path.read_text().splitlines()
    first = {contig: id for id, contig in reversed(by_contig.items())}  # one of its fragments
    was_seen = {first["c2"], first["c3"]}
    seen = ["yes" if line.split("\t")[0] in was_seen else "no" for line in lines]
    monkeypatch.setattr(predictions_module, "BLOCK_ROWS", 2)
    marked = [f"{line}\t{is_seen}" for line, is_seen in zip(lines, seen, strict=True)]
    path.write_text("\n".join([f"{head}\tseen_in_training", *marked]) + "\n")
    trained = write_head(tmp_path / "head", labels)
    write(translated, path, tmp_path / "my.tsv", head=trained)
    table = verdicts(tmp_path / "my.tsv")
    told = {contig for contig, row in table.items() if row["seen_in_training"] == "yes"}
    assert told == {"c2", "c3"} and table["c4"]["seen_in_training"] == "no"
    text = (tmp_path / "my.html").read_text()
    for sentence in (
        "The head was trained on 2 of these 7 contigs.",
        "Of the labelled ones, 50.0%",
        "No better than guessing: ",
        "are not calibrated",
        "0.450–0.650",
        "1 of 2 labelled contigs have the verdict that is their label",
        "the highest of many is high by chance alone",
    ):
        assert sentence in text
    shown = json.loads(text.partition('id="contig-rows">')[2].partition("</script>")[0])
    assert shown["rows"] == [list(row.values()) for row in table.values()]
    with pytest.raises(UserError, match="name the head that predicted"):
        trained_on(translated, trained, 3)


def edited(edit):
    def broken(folder, scores):
        head, *rows = scores.read_text().splitlines(keepends=True)
        scores.write_text("".join(edit(head, rows)))

    return broken


def ends(cell):
    """Return an edit after which the first score is `cell`."""
    return edited(lambda head, rows: [head, rows[0].rpartition("\t")[0], f"\t{cell}\n", *rows[1:]])


def cut_table(folder, scores):
    os.truncate(folder / "fragments.parquet", 100)


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (edited(lambda head, rows: [head, *rows, rows[-1]]), "is there twice"),
        (edited(lambda head, rows: [head, *reversed(rows)]), "stands in another order"),
        (edited(lambda head, rows: [head, *rows, "who\tvirus\t0\t1\n"]), "'who' is no fragment"),
        (ends("x"), "a row is no prediction"),
        (ends("nan"), "are no numbers"),
        (edited(lambda *_: ["id\tclass\n"]), "give what featuremill head predict"),
        (lambda folder, scores: scores.unlink(), "there is no such file"),
        (cut_table, "it is not what translate wrote"),
        (lambda folder, scores: (folder / "translate.json").unlink(), "no finished"),
    ],
)
def test_what_does_not_belong_together_is_one_sentence(translated, tmp_path, break_it, sentence):
    folder = shutil.copytree(translated, tmp_path / "translated")
    scores = {fragment["id"]: 0.25 for fragment in fragments(folder)}
    path = predict(tmp_path / "scores.tsv", scores)
    write(folder, path, tmp_path / "verdicts.tsv")
    before = (tmp_path / "verdicts.tsv").read_bytes()
    break_it(folder, path)
    with pytest.raises(UserError, match=sentence):
        write(folder, path, tmp_path / "verdicts.tsv")
    assert (tmp_path / "verdicts.tsv").read_bytes() == before


def test_the_verb_writes_the_table_and_a_page_that_draws_it(translated, tmp_path, environment):
    desk = Desk(tmp_path, environment)
    some = {f["id"]: 0.75 for f in fragments(translated) if f["contig"] != "c2"}
    path = predict(tmp_path / "scores.tsv", some)
    said = desk.type("featuremill", "verdict", translated, path, "--output", "my.tsv")
    assert "7 contigs" in said.err and "virus" in said.err
    page = (tmp_path / "my.html").read_text()
    for text in ("What the contigs are", "Scores for virus along", "no fragment has a prediction"):
        assert text in page
    drawn = json.loads(page.partition('id="data-tracks">')[2].partition("</script>")[0])
    place = ("contig", "start", "end")
    marks = [tuple(mark[key] for key in place) for mark in drawn["data"]["values"]]
    known = [tuple(f[key] for key in place) for f in fragments(translated) if f["id"] in some]
    assert sorted(marks) == sorted(known)
    assert [drawn["encoding"][key]["field"] for key in ("x", "x2")] == ["start", "end"]
    said = desk.type("featuremill", "verdict", translated, path, "--output", "my.csv", status=2)
    assert "my.csv: verdicts are a .tsv" in said.err
    asked = ("featuremill", "verdict", translated, path, "--output", "my.tsv", "--prefer", "plants")
    assert "has others and virus; name one" in desk.type(*asked, status=2).err


def test_of_more_fragments_than_can_be_drawn_the_best_around_each_place_stay():
    """What begins where others do and ends far from them stands for none of them."""
    short = [("long", 10 * n, 10 * n + 10, 0.5) for n in range(MOST_POINTS + 1)]
    rows = [*short, ("long", 0, 1005, 0.9), ("other", 0, 10, 0.5)]
    columns = zip(*rows, strict=True)
    fragments = pa.table(dict(zip(("contig", "start", "end", "score"), columns, strict=True)))
    scores = np.array(fragments["score"].to_pylist())
    block = Scored(fragments, np.stack([1 - scores, scores], 1), np.zeros(len(rows), np.int64))
    (track,) = tracks_of(["long"], [block], 1)
    assert len(track.spans) <= MOST_POINTS and track.spans[-1] == (0, 1005, 0.9)
    assert (0, 10, 0.5) in track.spans and not {span.start for span in track.spans} & {490, 500}


def test_contigs_that_begin_alike_are_drawn_apart():
    """Names of samples make them long."""
    names = [f"a-sample-of-the-deep-sea-in-winter/c{n}" for n in range(2)]
    figure = page._tracks([page.Track(name, [page.Span(0, 9, 0.5)]) for name in names], "virus")
    assert [row["contig"] for row in figure.panels[0].chart["data"]["values"]] == names


@pytest.mark.slow
@needs_chromium
def test_the_table_of_contigs_sorts_and_filters(translated, tmp_path):
    some = {f["id"]: n / 100 for n, f in enumerate(fragments(translated)) if f["contig"] != "c2"}
    write(translated, predict(tmp_path / "scores.tsv", some), tmp_path / "my.tsv")
    column = """Array.from(document.querySelectorAll("#contig-table tbody tr"))
        .map(row => row.cells[{}].textContent)"""
    with browser(tmp_path / "profile") as tab:
        assert tab.open_drawn(tmp_path / "my.html", width=390) == 2
        assert tab.value(column.format(0)) == [*verdicts(tmp_path / "my.tsv")]
        for is_falling in (True, False):
            tab.value("document.querySelectorAll('#contig-table th button')[3].click()")
            found = tab.value(column.format(3))
            numbers = [float(text) for text in found if text]
            assert numbers == sorted(numbers, reverse=is_falling) and len(numbers) == 3
            assert found[len(numbers) :] == [""] * 4  # what has no score is last
        tab.value("""(() => { const field = document.getElementById("contig-filter");
            field.value = "STOP"; field.dispatchEvent(new Event("input")); })()""")
        assert tab.value(column.format(0)) == ["stops"]
        assert not tab.console and not tab.requests
        assert tab.value("document.documentElement.scrollWidth") <= 390
