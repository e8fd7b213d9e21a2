"""Matching: a row of a table is of the record with its id or its accession, and of no other."""

import logging
from pathlib import Path

import pytest

from featuremill.base.errors import UserError
from featuremill.base.id_columns import ID_ALONE, KEYS, IdColumns
from featuremill.base.matching import Matcher

HEADERS = [f"sp|P{number}|NAME{number}_HUMAN" for number in range(10000, 10008)]
TABLE = Path("t.csv")


def matcher(*names, id_columns=ID_ALONE, log=None):
    lines = {name: line for line, name in enumerate(names, 2)}
    return Matcher(TABLE, lines, "record of results/my", id_columns, log)


def test_a_name_is_a_whole_id_or_an_accession():
    names = matcher("P10000", HEADERS[1], "contig_7")
    given = [names.name_of(id) for id in [*HEADERS[:3], "contig_7", "contig_7"]]
    assert given == ["P10000", HEADERS[1], None, "contig_7", "contig_7"]
    names.check()
    assert names.id_of == {"P10000": HEADERS[0], HEADERS[1]: HEADERS[1], "contig_7": "contig_7"}


def test_of_samples_the_accession_is_behind_the_sample():
    names = matcher("a/P10000", f"b/{HEADERS[0]}", id_columns=IdColumns(KEYS))
    assert [names.name_of(f"{sample}/{HEADERS[0]}") for sample in "abc"] == [
        "a/P10000",
        f"b/{HEADERS[0]}",
        None,
    ]


def test_an_accession_of_two_records_is_refused():
    names = matcher("P10000")
    assert names.name_of(HEADERS[0]) == "P10000"
    with pytest.raises(
        UserError, match=r"t\.csv:2: 'P10000' is the accession of more than one recor"
    ):
        names.name_of("tr|P10000|OTHER_MOUSE")


def test_a_whole_id_goes_before_an_accession_in_any_order():
    for ids in (["P10000", HEADERS[0]], [HEADERS[0], "P10000"]):
        names = matcher("P10000").match(ids)
        names.check()
        assert names.id_of == {"P10000": "P10000"}
        names = matcher("P10000", HEADERS[0]).match(ids)
        names.check()
        assert names.id_of == {"P10000": "P10000", HEADERS[0]: HEADERS[0]}


def test_two_rows_of_one_record_are_refused():
    names = matcher(HEADERS[0], "P10000").match(HEADERS)
    with pytest.raises(
        UserError, match=r"t\.csv:3: 'P10000' is the record .* in line 2; leave one"
    ):
        names.check()


FORMS = {
    "in other capitals": [name.lower() for name in HEADERS],
    "as accessions": [f"tr|P{number}|OLD_NAME" for number in range(10000, 10008)],
    "as entry names": [f"NAME{number}_HUMAN" for number in range(10000, 10008)],
    "without versions": [f"P{number}.3" for number in range(10000, 10008)],
    "as first words": [f"P{number} of man" for number in range(10000, 10008)],
}


@pytest.mark.parametrize("form", FORMS)
def test_few_matches_are_refused_with_the_form_that_would_match(form):
    names = matcher("P10000", *FORMS[form][1:]).match(HEADERS)
    with pytest.raises(UserError) as caught:
        names.check()
    said = str(caught.value)
    assert "t.csv: only 1 of its 8 ids is a record of results/my" in said
    assert f"; {form}, 7 of the others would match" in said


def test_no_match_is_refused_and_a_smaller_share_is_said(caplog):
    with pytest.raises(
        UserError, match="none of its 2 ids is a record of results/my, whose first i"
    ):
        matcher("a", "b").match(HEADERS).check()
    log = logging.getLogger("featuremill.test")
    with caplog.at_level(logging.WARNING, log.name):
        matcher("P10000", "P10001", "x", log=log).match(HEADERS).check()
        assert caplog.messages == ["t.csv: 1 of its 3 ids are no record of results/my: 'x'."]


def test_a_table_of_far_more_records_may_have_few():
    names = matcher("P10000", *(f"Q{number}" for number in range(10000, 10100))).match(HEADERS)
    names.check()
    assert len(names.unmatched) == 100
