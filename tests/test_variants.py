"""Variants of deep mutational scans: what ProteinGym computes of them, in its words, and how tables
write them."""

import csv
import functools
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from esm2_models import ALPHABET, fair_esm_bundled
from programs import Verbs
from scipy.stats import spearmanr
from sklearn.metrics import matthews_corrcoef, ndcg_score, roc_auc_score
from test_scores import computed, payload_of, read, read_one

from featuremill.base.errors import UserError
from featuremill.workload.outputs import Target, open_writer
from featuremill.workloads import scores
from featuremill.workloads.scores import agreement, edits, variants

PROTEIN = "MKTAYIAKQRQISFVKSHFSRQ"
LISTED = ["M1A", "K2C:A4G:I6W", "T3V", "A4G", "M1L:Q22Y"]


@pytest.fixture(scope="module")
def proteingym():
    return ProteinGym(fair_esm_bundled())


class ProteinGym:
    """What its baselines/esm/compute_fitness.py computes with a network of fair-esm."""

    def __init__(self, network):
        self.network = network
        self.masked = functools.lru_cache(None)(self._masked)

    def log_softmax(self, tokens):
        with torch.inference_mode():
            return torch.log_softmax(self.network(tokens[None])["logits"], dim=-1)[0]

    def _masked(self, sequence, window=1024):
        """Return the log-probabilities at each token (those of start and end too), each masked."""
        _, _, (tokens,) = ALPHABET.get_batch_converter()([("protein", sequence)])
        found = []
        for place in range(len(tokens)):
            masked = tokens.clone()
            masked[place] = ALPHABET.mask_idx
            start = 0
            if len(tokens) > window:
                start, end = optimal_window(place, len(tokens), window)
                masked = masked[start:end]
            found.append(self.log_softmax(masked)[place - start])
        return torch.stack(found)

    def additive(self, sequence, variant, window=1024):
        found, score = self.masked(sequence, window), 0.0
        for part in variant.split(":"):
            row = found[int(part[1:-1])]
            score += (row[ALPHABET.get_idx(part[-1])] - row[ALPHABET.get_idx(part[0])]).item()
        return score

    def pseudo(self, sequence, window=1024):
        """Return the sum of log-probabilities of all residues, each masked in turn."""
        found = self.masked(sequence, window)
        return sum(
            found[place, ALPHABET.get_idx(letter)].item()
            for place, letter in enumerate(sequence, start=1)
        )


def optimal_window(place, length, window):
    if place < window // 2:
        return 0, window
    if place >= length - window // 2:
        return length - window, length
    return place - window // 2, place + window // 2


def scored(cache, sequence, names, **options):
    payload = payload_of(sequence, names)
    (row,) = computed("mill_t6_8M", cache, [payload], dtype="fp32", variants="listed", **options)
    return row["variants"]


def test_positions_masked_one_at_a_time_add_up_as_in_proteingym(proteingym, cache):
    kinds = ["masked", "masked_additive"]
    found = scored(cache, PROTEIN, LISTED, marginals=kinds)
    for each in found:
        expected = proteingym.additive(PROTEIN, each["variant"])
        assert each["masked_additive_marginal"] == pytest.approx(expected, abs=1e-5)
        off = abs(each["masked_marginal"] - expected)
        assert off > 1e-3 if ":" in each["variant"] else off < 1e-5
    alone = scored(cache, PROTEIN, LISTED, marginals="masked_additive")
    told = [each["masked_additive_marginal"] for each in alone]
    assert told == [each["masked_additive_marginal"] for each in found]
    (scan,) = computed("mill_t6_8M", cache, [b"MKTAYI"], dtype="fp32", marginals=kinds)
    assert all(v["masked_marginal"] == v["masked_additive_marginal"] for v in scan["variants"])


@pytest.mark.parametrize("residues", [6, 10])
def test_long_proteins_have_the_windows_of_proteingym(proteingym, cache, residues):
    names = [f"{PROTEIN[place]}{place + 1}A" for place in (0, 12, 21)]
    names.append(f"{names[0]}:{names[1]}")
    options = {"long": "proteingym", "max_residues": residues}
    kinds = ["wildtype", "masked_additive", "pseudo"]
    found = scored(cache, PROTEIN, names, marginals=kinds, **options)
    whole = scored(cache, PROTEIN, names, marginals=kinds, long="full")
    wild_type = proteingym.pseudo(PROTEIN, residues + 2)
    for each, other in zip(found, whole, strict=True):
        variant = each["variant"]
        expected = proteingym.additive(PROTEIN, variant, residues + 2)
        assert each["masked_additive_marginal"] == pytest.approx(expected, abs=1e-5)
        assert abs(other["masked_additive_marginal"] - expected) > 1e-4
        assert each["wildtype_marginal"] == other["wildtype_marginal"]
        mutated = edits.mutated(variant, PROTEIN.encode()).decode()
        expected = proteingym.pseudo(mutated, residues + 2) - wild_type
        assert each["pseudo_log_likelihood_ratio"] == pytest.approx(expected, abs=2e-5)
    with pytest.raises(ValueError, match="proteingym has no windows for marginals: masked; set"):
        scores.Options(variants="listed", marginals=["masked"], long="proteingym")


SEQUENCES = {
    "K2del": "MTAYIAKQRQISFVKSHFSRQ",
    "K2_A4del": "MYIAKQRQISFVKSHFSRQ",
    "K2_T3insGW": "MKGWTAYIAKQRQISFVKSHFSRQ",
    "Q9_R10delinsA": "MKTAYIAKAQISFVKSHFSRQ",
    "M1delinsAM": "AMKTAYIAKQRQISFVKSHFSRQ",
    "K2C:Q22delinsQA": "MCTAYIAKQRQISFVKSHFSRQA",
    "T3V": "MKVAYIAKQRQISFVKSHFSRQ",
}


def test_a_variant_of_any_length_has_its_pseudo_likelihood_less_that_of_the_protein(
    proteingym, cache
):
    found = scored(cache, PROTEIN, list(SEQUENCES), marginals=["wildtype", "pseudo"])
    wild_type = proteingym.pseudo(PROTEIN)
    for each in found:
        expected = proteingym.pseudo(SEQUENCES[each["variant"]]) - wild_type
        assert each["pseudo_log_likelihood_ratio"] == pytest.approx(expected, abs=2e-5)
        assert (each["wildtype_marginal"] is None) == (each["variant"] != "T3V")
    (likelihood,) = computed(
        "mill_t6_8M", cache, [PROTEIN.encode()], dtype="fp32", variants="none", likelihood="pseudo"
    )
    assert likelihood["pseudo_log_likelihood"] == pytest.approx(wild_type, rel=1e-5)


WRITTEN = {
    "p.Lys2del": "K2del",
    "(Lys2_Ala4del)": "K2_A4del",
    "K2_A4delinsVW": "K2_A4delinsVW",
    "p.Lys2_Ala4delinsValTrp": "K2_A4delinsVW",
    "K2_A4delinsValTrp": "K2_A4delinsVW",
    "p.Lys2_Thr3insAlaGly": "K2_T3insAG",
    "K2_T3insAlaGly": "K2_T3insAG",
    "K2_T3insALAGLY": "K2_T3insALAGLY",
    "k2_t3insag": "K2_T3insAG",
    "p.Lys2dup": "K2_T3insK",
    "K2_A4dup": "A4_Y5insKTA",
    "Q22dup": "Q22delinsQQ",
    "p.[Lys2del;Tyr5Gly]": "K2del:Y5G",
    "NP_1.2:p.Lys2del": "K2del",
    "Y5G:K2_T3insA": "K2_T3insA:Y5G",
}


@pytest.mark.parametrize("text", WRITTEN)
def test_insertions_and_deletions_are_read_as_hgvs_writes_them(write, text):
    table = f"variant\tother\n{text}\t1\n"
    record = read_one(write, table, PROTEIN, "v.tsv", marginals="pseudo")
    (row,) = variants.rows_of(record.payload)
    assert (row.text, row.variant, row.reason) == (text, WRITTEN[text], "")


NO_SCORE = {  # where a reason ends with a colon, the text stands behind it, perhaps shortened
    ("variant", 22): {
        "T2del": "another residue stands there: T2del, and residue 2 of the protein is K",
        "K2_T4del": "another residue stands there: K2_T4del, and residue 4 of the protein is A",
        "K2_T3delinsKT": "the wild type, or no change of a residue: 'K2_T3delinsKT'",
        "K2_A4insG": "an insertion or a deletion: 'K2_A4insG'",
        "K2_T3ins": "an insertion or a deletion: 'K2_T3ins'",
        "K2_T3ins5": "an insertion or a deletion: 'K2_T3ins5'",
        "A4_K2del": "an insertion or a deletion: 'A4_K2del'",
        "K2delK": "an insertion or a deletion: 'K2delK'",
        "K2fs": "a frameshift or an extension, which names no sequence: 'K2fs'",
        "K2_T3insX": "not a substitution: K2_T3insX has other letters than those of 20 amino acids",
        "K2_A4del:T3G": "not a substitution: K2_A4del:T3G changes residue 3 twice",
        "M1_Q22del": "an insertion or a deletion: M1_Q22del leaves no residue",
        "Q22_A23del": "a variant beyond the end: Q22_A23del, and the protein has 22 residues",
        "Q22dup:Q22A": "not a substitution: Q22dup:Q22A changes residue 22 twice",
    },
    ("variant", 6): {
        "M1_I6del": "an insertion or a deletion: M1_I6del leaves no residue",
        "I6_A7del": "a variant beyond max_residues: I6_A7del, of 6",
    },
    ("mutated_sequence", 6): {
        f"{PROTEIN[:4]}{PROTEIN[8:]}": "a variant beyond max_residues: ",
        f"{PROTEIN[:2]}:{PROTEIN[3:]}": "not a substitution: ",
    },
    ("mutated_sequence", 22): {
        PROTEIN: "the wild type, or no change of a residue: ",
        "WT": "the wild type, or no change of a residue: 'WT'",
        "MKTA*YIAKQRQISFVKSHFSRQ": "a stop in place of a residue: ",
        PROTEIN[::-1]: "not the sequence of a variant: ",
        "ACDE": "not the sequence of a variant: ",
        "MXTAYIAKQRQISFVKSHFSRQ": "not a substitution: ",
    },
}


@pytest.mark.parametrize(
    ("column", "limit", "text"), [(*key, text) for key, texts in NO_SCORE.items() for text in texts]
)
def test_why_an_insertion_a_deletion_or_a_sequence_has_no_score(write, column, limit, text):
    table = f"{column}\n{text}\n"
    record = read_one(write, table, PROTEIN, marginals="pseudo", max_residues=limit)
    reason = NO_SCORE[column, limit][text]
    found = record.reason[: len(reason)] if reason.endswith(": ") else record.reason
    assert (found, record.payload) == (reason, b"")


def test_without_pseudo_an_indel_has_no_score_and_the_remedy_names_the_option(write):
    record = read_one(write, "variant\np.Lys2del\nT3V\n", PROTEIN)
    rows = variants.rows_of(record.payload)
    assert [row.reason for row in rows] == ["an insertion or a deletion: 'p.Lys2del'", ""]
    assert "Add pseudo to marginals" in variants.INDEL.remedy


def test_whole_sequences_are_variants_and_make_what_they_are():
    generator = np.random.default_rng(0)
    options = scores.Options(variants="listed", marginals="pseudo")
    for _ in range(200):
        letters = list(PROTEIN)
        start, num_out, num_in = generator.integers((0, 0, 0), (20, 4, 4))
        letters[start : start + num_out] = generator.choice(list("ACDK"), num_in)
        sequence = "".join(letters)
        if sequence == PROTEIN:
            continue
        name = variants.of_sequence(sequence.lower() + "*", PROTEIN.encode(), options)
        assert edits.mutated(name, PROTEIN.encode()).decode() == sequence, name
        changes = variants.read(name)
        assert variants.checked(changes, name, PROTEIN.encode(), options, 1) == name


INDELS = [f"{PROTEIN[0]}{PROTEIN[2:]}", f"M{PROTEIN}", PROTEIN[:-1]]


@pytest.mark.parametrize(
    ("head", "row", "more"),
    [
        ("mutant,DMS_score", "{0},1", {}),
        ("mutant,mutated_sequence,DMS_score", "{0},{0},1", {}),
        ("mutant,mutated_sequence", "{0},{0}", {"mutated_sequence_column": "mutated_sequence"}),
        ("mutant,mutated_sequence", "{0},{0}", {
            "variant_column": "mutated_sequence", "mutated_sequence_column": "mutated_sequence"}),
    ],
)  # fmt: skip
def test_a_column_of_variants_that_has_whole_sequences_is_read_so(write, head, row, more):
    """As in ProteinGym's files of insertions and deletions."""
    lines = [head, *(row.format(sequence) for sequence in [*INDELS, "WT"]), ""]
    record = read_one(write, "\n".join(lines), PROTEIN, marginals="pseudo", **more)
    found = variants.rows_of(record.payload)
    assert [each.variant for each in found] == ["K2del", "M1_K2insM", f"{PROTEIN[-1]}22del", ""]
    assert [edits.mutated(v.variant, PROTEIN.encode()).decode() for v in found[:3]] == INDELS


@pytest.mark.parametrize("text", ["K2fs", "p.Lys2fs", "K2Tfs*5", "p.Lys2ThrfsTer5", "*23Lext*17"])
def test_a_frameshift_names_no_sequence(write, text):
    table = f"variant\n{text}\nT3V\nK2delinsFS\n"
    record = read_one(write, table, PROTEIN, marginals="pseudo")
    shift, *others = variants.rows_of(record.payload)
    assert shift.reason == f"a frameshift or an extension, which names no sequence: {text!r}"
    assert [row.variant for row in others] == ["T3V", "K2delinsFS"]


def test_words_for_missing_values_beside_a_variant_are_empty_cells(write):
    table = "variant,mutated_sequence,start\nK2A,NA,none\nT3V,,\n"
    record = read_one(write, table, PROTEIN, first_residue_column="start")
    assert variants.parts_of(record.payload)[1] == ["K2A", "T3V"]
    assert "mutated sequences" not in record.note


@pytest.mark.parametrize("word", ["NA", "nan", "NULL", "<NA>", "None", "n/a"])
def test_a_word_for_a_missing_variant_is_an_empty_cell(write, word):
    for rows in (["K2A", "{}", "T3V"], ["", "K2A", "T3V"]):
        record = read_one(write, "\n".join(["variant", *rows, ""]).format(word), PROTEIN)
        assert [row.text for row in variants.rows_of(record.payload)] == ["K2A", "T3V"]
        assert not record.note
    table = write("t.csv", f"id,sequence,variant\na,{PROTEIN},K2A\na,{PROTEIN},{word}\n")
    (record,) = read(table)
    assert [row.text for row in variants.rows_of(record.payload)] == ["K2A"]


def test_a_peptide_is_no_word_for_a_missing_variant(write):
    table = "mutated_sequence\nNAT\nNA\nnan\nMAV\n"
    record = read_one(write, table, "MAT", marginals="pseudo")
    found = [(row.text, bool(row.variant)) for row in variants.rows_of(record.payload)]
    assert found == [("NAT", True), ("MAV", True)]


def test_the_first_residue_may_have_another_number(write):
    fasta = write("in.fa", ">a\nMKTAYI\n>b\nMIVEQC\n")
    listed = write("v.csv", "id,variant,start\na,K25A,\nb,I3V,2\na,p.Thr26Gly:A27C,24\n")
    more = {"first_residue": 24, "first_residue_column": "start"}
    one, two = read(fasta, variants_file=str(listed), **more)
    assert variants.parts_of(one.payload)[1] == ["K2A", "T3G:A4C"]
    assert [row.text for row in variants.rows_of(one.payload)] == ["K25A", "p.Thr26Gly:A27C"]
    assert variants.parts_of(two.payload)[1] == ["I2V"]
    with pytest.raises(UserError, match=r"v.csv:3: 'x' in column 'start' is no whole number"):
        listed = write("v.csv", "id,variant,start\na,K25A,\nb,I3V,x\n")
        read(fasta, variants_file=str(listed), first_residue_column="start")
    with pytest.raises(
        UserError, match="no column 'begin'; set first_residue_column under options"
    ):
        read(fasta, variants_file=str(listed), first_residue_column="begin")
    with pytest.raises(ValueError, match="first_residue has no effect with variants: all"):
        scores.Options(first_residue=24)


@pytest.mark.parametrize("first", [0, 4, -3, 24])
def test_a_note_names_the_first_residue_that_fits(write, first):
    protein = "MKTAYIGKQR"
    places = [place for place in range(10) if place + first > 0]
    rows = [f"{protein[place]}{place + first}C" for place in places]
    table = "\n".join(["variant", *rows, ""])
    for wrong in {1, 7} - {first}:
        record = read_one(write, table, protein, first_residue=wrong)
        told = record.reason or record.note
        assert f"all positions fit with first_residue {first} under options" in told
    record = read_one(write, table, protein, first_residue=first)
    assert (record.reason, record.note) == ("", "")
    assert variants.parts_of(record.payload)[1] == [f"{protein[p]}{p + 1}C" for p in places]


def test_a_position_before_the_first_residue_is_told(write):
    record = read_one(write, "variant\nK2A\nK25A\n", first_residue=24)
    first, second = variants.rows_of(record.payload)
    told = "a variant before the first residue: K2A, and the protein has residues 24 to 29"
    assert (first.reason, second.variant) == (told, "K2A")


def test_a_sequence_that_its_variant_does_not_make_is_told(write):
    rows = ["K2A,MATAYI,1", "T3G,MKTAYI,2", "K2A:T3G,mageyi,3", "A4C,,4", "WT,MKTAYI,5"]
    record = read_one(write, "\n".join(["mutant,mutated_sequence,x", *rows, ""]))
    head, _, rest = record.note.partition(": ")
    assert head == (
        "mutated sequences that the variant does not make of the protein, and the variant counts"
    )
    assert rest.startswith("2, the first is of 'T3G' at line 3; variants without a score: 1 of 5")
    found = [row.variant for row in variants.rows_of(record.payload)]
    assert found == ["K2A", "T3G", "K2A:T3G", "A4C", ""]


# measured scores


def of_definition(measured, found):
    """Return ProteinGym's NDCG of the tenth at the top; no two scores are equal."""
    gains = (measured - measured.min()) / (measured.max() - measured.min())
    number = len(measured) // 10
    order = np.argsort(-found)[:number]
    ideal = np.sort(gains)[::-1][:number]
    discounts = 1 / np.log2(np.arange(number) + 2)
    return (gains[order] * discounts).sum() / (ideal * discounts).sum()


def agreed(measured, found, classes=None):
    columns = {"wildtype_marginal": pa.array(found, pa.float32())}
    columns["DMS_score"] = pa.array(measured, pa.float64())
    if classes is not None:
        columns["DMS_score_bin"] = pa.array(classes, pa.int8())
    rows = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    (one,) = agreement.agreements(rows)
    return one


@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize("has_classes", [False, True])
def test_figures_are_those_of_scipy_and_scikit_learn(has_ties, has_classes):
    generator = np.random.default_rng(3)
    for number in (10, 57, 400):
        measured = generator.standard_normal(number)
        found = (measured + generator.standard_normal(number)).astype(np.float32)
        if has_ties:
            measured, found = np.round(measured, 1), np.round(found, 1)
        classes = (measured + generator.standard_normal(number) > 0).astype(int)
        one = agreed(measured, found, classes if has_classes else None)
        fit = classes if has_classes else measured > np.median(measured)
        assert one.classes == ("DMS_score_bin" if has_classes else "above the median")
        assert (one.num_variants, one.num_without_score, one.remark) == (number, 0, "")
        assert one.spearman == pytest.approx(spearmanr(measured, found)[0])
        assert one.auc == pytest.approx(roc_auc_score(fit, found))
        assert one.mcc == pytest.approx(matthews_corrcoef(fit, found >= np.median(found)))
        gains = (measured - measured.min()) / (measured.max() - measured.min())
        assert one.ndcg == pytest.approx(ndcg_score([gains], [found], k=number // 10))
        if not has_ties:
            assert one.ndcg == pytest.approx(of_definition(measured, found))
        top = measured >= np.percentile(measured, 90)
        also = found >= np.percentile(found.astype(float), 90)
        assert one.top_recall == pytest.approx((top & also).sum() / top.sum())


def test_equal_scores_count_alike_in_any_order():
    measured, found = np.arange(40.0), np.repeat([1.0, 2.0], 20)
    assert agreed(measured, found).ndcg == pytest.approx(agreed(measured[::-1], found[::-1]).ndcg)


def test_what_cannot_be_told_is_empty_and_why_is_said():
    ten = np.arange(10.0)
    assert agreed([1, None, 2], [1, 2, None]).remark == "fewer than 3 variants have both"
    assert agreed(ten, np.ones(10)).remark == "all scores are equal"
    one = agreed(np.ones(10), ten)
    assert (one.remark, one.spearman, one.auc, one.ndcg) == (
        *("all measured scores are equal", None, None, None),
    )
    one = agreed(ten[:9], ten[:9])
    assert one.remark == "no NDCG and top recall of fewer than 10 variants"
    assert (one.spearman, one.auc, one.ndcg, one.top_recall) == (pytest.approx(1), 1, None, None)
    one = agreed(ten, ten, [1] * 10)
    assert one.remark == "no AUC and MCC, as all are of one class"
    assert (one.auc, one.mcc, one.ndcg) == (None, None, pytest.approx(1))
    one = agreed(ten, ten, [0, 1, *[None] * 8])
    assert (one.remark, one.auc) == ("8 have no class; no MCC, as no score is below the median", 1)
    one = agreed([*[0] * 5, *[1] * 5], ten)
    assert (one.top_recall, one.remark) == (pytest.approx(0.2), "")
    one = agreed([1, 2, 3, None, 5], [1, 3, 2, 4, None])
    assert one[1:5] == (3, 1, 1, pytest.approx(0.5))


@pytest.mark.parametrize(
    ("cell", "options", "part"),
    [
        ("high,1", {}, r"v.csv:3: 'high' in column 'DMS_score' is no number; write a measured"),
        ("0_5,1", {}, "'0_5' in column 'DMS_score' is no number"),
        ("inf,1", {}, "'inf' in column 'DMS_score' is no number"),
        ("0.5,fit", {}, r"v.csv:3: 'fit' in column 'DMS_score_bin' is neither 0 nor 1; write 1"),
        ("1,1", {"measured_column": "fitness"}, "no column 'fitness'; set measured_column under"),
    ],
)
def test_a_measured_score_that_is_no_number_is_refused(write, cell, options, part):
    with pytest.raises(UserError, match=part):
        table = f"mutant,DMS_score,DMS_score_bin\nK2A,NA,\nT3G,{cell}\n"
        read_one(write, table, **options)


def test_measured_columns_come_along_as_numbers(write):
    table = "mutant,DMS_score,DMS_score_bin,mine,x\nK2A,NA,,1.5,a\nT3G,2,True,,b\n"
    record = read_one(write, table)
    assert [row.others for row in variants.rows_of(record.payload)] == [
        *((None, None, "1.5", "a"), ("2", "1", None, "b")),
    ]
    for more, wanted in (
        ({}, {"DMS_score": pa.float64(), "DMS_score_bin": pa.int8()}),
        ({"measured_column": "mine", "columns": ("x",)}, {"mine": pa.float64()}),
        ({"columns": ("x",)}, {}),
    ):
        options = scores.Options(variants="listed", variants_file="v.csv", **more)
        struct = scores.schema(scores.with_columns(options), None).field("variants").type.value_type
        numbers = {field.name: field.type for field in struct if field.type != pa.string()}
        numbers.pop("wildtype_marginal")
        assert numbers == wanted
    with pytest.raises(UserError, match="measured_class_column: there is no column of measured"):
        plain = write("p.csv", "mutant,fit\nK2A,1\n")
        given = {"variants_file": str(plain), "measured_class_column": "fit"}
        scores.with_columns(scores.Options(variants="listed", **given))


def test_a_table_of_inputs_may_have_whole_sequences_and_measured_scores(write):
    rows = ["a,MKTAYI,MTAYI,1", "b,MIVEQC,MIVEQCG,NA", "a,MKTAYI,MKTGYI,2"]
    table = write("in.csv", "\n".join(["id,sequence,mutated_sequence,fitness", *rows, ""]))
    one, two = read(table, marginals="pseudo", measured_column="fitness")
    told = [[(row.variant, row.others) for row in variants.rows_of(r.payload)] for r in (one, two)]
    assert told == [[("K2del", ("1",)), ("A4G", ("2",))], [("C6delinsCG", (None,))]]


@pytest.mark.parametrize(("limit", "note"), [(6, ""), (5, "longer than 5 residues, in windows")])
def test_a_protein_that_is_read_in_windows_of_proteingym_has_a_note(write, limit, note):
    options = {"marginals": "masked_additive", "long": "proteingym", "max_residues": limit}
    record = read_one(write, "variant\nK2A\n", **options)
    assert record.note == note


# whole runs


@pytest.fixture
def verbs(tmp_path, environment, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Verbs(tmp_path, {**environment, "FEATUREMILL_CACHE": str(tmp_path / "cache")})


def finish(verbs, proteins, options, *outputs):
    verbs("weights", "mill_t6_8M", "--workload", "scores", "--output", "weights.json")
    options = {"dtype": "fp32", "variants": "listed", **options}
    more = ("--weights", "weights.json")
    outputs = ["parquet", *outputs]
    verbs.extract(verbs.plan(proteins, "scores", options, more=more, outputs=outputs))
    verbs("merge", verbs.run_folder.root, "--outputs", *outputs)
    return [pd.read_csv(verbs.run_folder.root / f"{name}.tsv", sep="\t") for name in outputs[1:]]


def test_files_of_proteingym_give_its_scores_and_its_figures(verbs, proteingym):
    generator = np.random.default_rng(1)
    names = [f"{PROTEIN[p]}{p + 1}{new}" for p in range(1, 21, 2) for new in "GWE"]
    names = [name for name in names if name[0] != name[-1]]
    names += [f"{one}:{two}" for one, two in zip(names[::3], names[4::3], strict=False)]
    made = [edits.mutated(name, PROTEIN.encode()).decode() for name in names]
    measured = generator.standard_normal(len(names))
    with (verbs.folder / "dms.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["mutant", "mutated_sequence", "DMS_score", "DMS_score_bin"])
        rows = zip(names, made, measured.tolist(), (measured > 0.2).astype(int), strict=True)
        table.writerows([*rows, ["WT", PROTEIN, 0.1, 1], ["K2*", "", -4, 0], ["T3G", "", "", ""]])
    options = {"variants_file": "dms.csv", "marginals": ["masked_additive", "wildtype"]}
    outputs = "variant_scores", "variant_metrics"
    found, figures = finish(verbs, [("wild type", PROTEIN)], options, *outputs)
    kinds = ["wildtype_marginal", "masked_additive_marginal"]
    others = ["read_as", "DMS_score", "DMS_score_bin", "reason"]
    assert list(found) == ["id", "variant", *kinds, *others]
    assert found["variant"].tolist() == [*names, "WT", "K2*", "T3G"]
    own = found.iloc[: len(names)]
    for row in own.itertuples():
        expected = proteingym.additive(PROTEIN, row.variant)
        assert row.masked_additive_marginal == pytest.approx(expected, abs=1e-5)
    np.testing.assert_allclose(own["DMS_score"], measured)
    assert figures["score"].tolist() == kinds
    for row in figures.itertuples():
        assert (row.id, row.classes) == ("wild", "DMS_score_bin")
        told = (row.num_variants, row.num_without_score, row.num_without_measured)
        assert told == (len(names), 2, 1)
        assert row.spearman == pytest.approx(spearmanr(measured, own[row.score])[0], abs=1e-6)
        assert row.auc == pytest.approx(roc_auc_score(measured > 0.2, own[row.score]))
        assert row.ndcg == pytest.approx(of_definition(measured, own[row.score].to_numpy()))
    verbs("report", verbs.run_folder.root)
    page = (verbs.run_folder.root / "report.html").read_text()
    text = re.sub(r"\s+", " ", page)
    told = f"wildtype_marginal: Spearman {figures['spearman'][0]:.3f}, AUC {figures['auc'][0]:.3f}"
    assert told in text and "(2 measured ones have no score)" in text


def test_insertions_and_deletions_of_proteingym_are_scored_by_their_sequences(verbs, proteingym):
    table = [f"{SEQUENCES[name]},{number}\n" for number, name in enumerate(SEQUENCES)]
    (verbs.folder / "indels.csv").write_text("mutated_sequence,DMS_score\n" + "".join(table))
    options = {"variants_file": "indels.csv", "marginals": "pseudo"}
    found, figures = finish(verbs, [("a", PROTEIN)], options, "variant_scores", "variant_metrics")
    assert found["read_as"].tolist() == list(SEQUENCES)
    wild_type = proteingym.pseudo(PROTEIN)
    expected = [proteingym.pseudo(sequence) - wild_type for sequence in SEQUENCES.values()]
    np.testing.assert_allclose(found["pseudo_log_likelihood_ratio"], expected, atol=2e-5)
    assert figures["spearman"][0] == pytest.approx(spearmanr(range(7), expected)[0])
    verbs("report", verbs.run_folder.root)


def test_a_column_with_a_quotation_mark_in_its_name_comes_along(verbs):
    with (verbs.folder / "named.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["mutant", 'dose "high"'], [f"{PROTEIN[1]}2A", 'x "y"']])
    options = {"variants_file": "named.csv"}
    found, *_ = finish(verbs, [("a", PROTEIN)], options, "variant_scores")
    assert found['dose "high"'].tolist() == ['x "y"']


def test_metrics_without_a_measured_column_are_refused(tmp_path):
    for options in ({}, {"variants": "none", "likelihood": "pseudo"}):
        values = scores.schema(scores.Options(**options), None)
        with pytest.raises(UserError, match=r"variant_metrics needs .* measured score \(DMS_score"):
            open_writer("variant_metrics", Target(tmp_path / "a.tsv", values, 1, {}))
