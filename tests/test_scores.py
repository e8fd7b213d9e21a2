"""The workload scores, held against fair-esm's own arithmetic (examples/variant-prediction), of
fair-esm's network and of transformers' ESM C."""

import functools
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from esm2_models import (
    ALPHABET,
    cosines,
    demo_proteins,
    fair_esm,
    fair_esm_bundled,
    save_fair_esm,
    save_hugging_face,
)
from esmc_models import esmc as esmc_model
from esmc_models import save_package, save_research
from programs import QuickWorkload, working_in
from safetensors.torch import load_file

import featuremill
from featuremill.__main__ import main
from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.report import facts
from featuremill.workload import weights as weights_verb
from featuremill.workload.compute import values_of
from featuremill.workloads import esm2, scores
from featuremill.workloads.scores import heat_maps, passes, variants

CPU = cpu()
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
TOKENS = [ALPHABET.get_idx(letter) for letter in AMINO_ACIDS]
PROTEINS = ["MKTAYIAKQRQISFVKSHFSRQ", "ACDEFGHIKLMXBN", "M", *demo_proteins(2, 60)]


def random_network():
    """Return fair-esm's model with random weights, the head's too, and logits of a usual size."""
    network = fair_esm(3, 48, 3, seed=3)
    network.embed_tokens.weight *= 0.2
    for parameter in network.lm_head.parameters():
        parameter += torch.randn_like(parameter) * 0.2
    return network


@pytest.fixture(scope="module")
def esm_c(cache):
    """Return transformers' ESM C, the head's norm and biases random too, and its folder."""
    model = esmc_model(3, 128, 256)
    for parameter in model.lm_head.parameters():
        parameter += torch.randn_like(parameter) * 0.05
    model.save_pretrained(cache / "esm_c")
    return model, str(cache / "esm_c")


@pytest.fixture(scope="module", params=["random", "bundled", "ESM C"])
def network(request, cache):
    """Return the reference, and the model option that gives ours the same weights."""
    if request.param == "bundled":
        return FairEsm(fair_esm_bundled()), "mill_t6_8M"
    if request.param == "ESM C":
        model, folder = request.getfixturevalue("esm_c")
        return EsmC(model), folder
    model = random_network()
    return FairEsm(model), str(save_fair_esm(model, cache / "random.pt"))


def converted(model, cache):
    return weights_verb.weights_of(weights_verb.convert(model, cache, "scores"))


def computed(model, cache, payloads, budget=4096, **options):
    """Return the values of payloads as rows."""
    asked = scores.Options(model=model, **options)
    found = converted(asked.model, cache)
    settled = scores.resolve(asked, CPU, found)
    loaded = scores.load(settled, [CPU], found)
    values = values_of(scores, loaded, payloads, budget)
    assert values.schema.equals(scores.schema(settled, found))
    return values.to_pylist()


class FairEsm:
    """What fair-esm's predict.py computes, in its words."""

    def __init__(self, network):
        self.network = network
        self.log_softmax = functools.lru_cache(None)(self._log_softmax)

    def tokens(self, sequence, masked=()):
        _, _, tokens = ALPHABET.get_batch_converter()([("protein", sequence)])
        for place in masked:
            tokens[0, 1 + place] = ALPHABET.mask_idx
        return tokens

    def _log_softmax(self, sequence, masked=()):
        with torch.inference_mode():
            logits = self.network(self.tokens(sequence, masked))["logits"]
        return torch.log_softmax(logits, dim=-1)[0]

    def difference(self, found, part):
        wt, place, mt = part[0], int(part[1:-1]) - 1, part[-1]
        row = found[1 + place]
        return (row[ALPHABET.get_idx(mt)] - row[ALPHABET.get_idx(wt)]).item()

    def marginal(self, kind, sequence, variant):
        parts = variant.split(":")
        masked = tuple(int(part[1:-1]) - 1 for part in parts) if kind == "masked" else ()
        if kind == "mutant":
            letters = list(sequence)
            for part in parts:
                letters[int(part[1:-1]) - 1] = part[-1]
            sequence = "".join(letters)
        found = self.log_softmax(sequence, masked)
        return sum(self.difference(found, part) for part in parts)

    def every(self, source, sequence):
        """Return the log-probabilities at each residue, of all 33 tokens."""
        if source == "wildtype":
            return self.log_softmax(sequence)[1:-1].numpy()
        rows = [self.log_softmax(sequence, (n,))[1 + n] for n in range(len(sequence))]
        return torch.stack(rows).numpy()


class EsmC(FairEsm):
    """The same of the logits, of all 64 rows, that transformers' masked-language model has."""

    def _log_softmax(self, sequence, masked=()):
        with torch.inference_mode():
            logits = self.network(self.tokens(sequence, masked)).logits
        return torch.log_softmax(logits, dim=-1)[0, :, : len(ALPHABET)]


def payload_of(letters, names):
    letters = letters if isinstance(letters, bytes) else letters.encode()
    return variants.payload_of(letters, [variants.Row(name, name) for name in names])


LISTED = ["M1A", "K2C:A4G:I6W", "T3V", "A4G", "Q22Y:M1L"]
EVERYTHING = {
    "dtype": "fp32",
    "variants": "listed",
    "marginals": ["mutant", "wildtype", "masked"],
    "likelihood": ["one_pass", "pseudo"],
    "log_probabilities": "masked",
    "positions": "wildtype",
}


def test_marginals_of_listed_variants_are_those_of_fair_esm(network, cache):
    reference, name = network
    names = [variant if variant[0] != "Q" else "M1L:Q22Y" for variant in LISTED]
    payload = payload_of(PROTEINS[0], names)
    (row,) = computed(name, cache, [payload], **EVERYTHING)
    assert [each["variant"] for each in row["variants"]] == names
    for each in row["variants"]:
        assert list(each)[1:4] == [f"{kind}_marginal" for kind in ("wildtype", "masked", "mutant")]
        assert each["read_as"] == each["variant"] and each["reason"] is None
        for kind in ("wildtype", "masked", "mutant"):
            expected = reference.marginal(kind, PROTEINS[0], each["variant"])
            assert each[f"{kind}_marginal"] == pytest.approx(expected, abs=1e-5)


def test_all_substitutions_are_scored_as_fair_esm_does(network, cache):
    reference, name = network
    payloads = [protein.encode() for protein in PROTEINS[:4]]
    kinds = ["wildtype", "masked"]
    rows = computed(name, cache, payloads, dtype="fp32", marginals=kinds)
    for protein, row in zip(PROTEINS, rows, strict=False):
        expected = [
            f"{old}{number}{new}"
            for number, old in enumerate(protein, 1)
            for new in AMINO_ACIDS
            if old in AMINO_ACIDS and new != old
        ]
        assert [each["variant"] for each in row["variants"]] == expected
        for kind in kinds:
            found = [each[f"{kind}_marginal"] for each in row["variants"]]
            told = [reference.marginal(kind, protein, variant) for variant in expected]
            np.testing.assert_allclose(found, told, atol=1e-5)


def test_a_long_protein_is_scored_in_windows_as_fair_esm_scores_each_window(network, cache):
    reference, name = network
    protein = "MKTAYIAKQRQISFVK"
    payload = payload_of(protein, ["M1A", "R10W", "A7G:I12V"])
    asked = EVERYTHING | {"long": "chunk", "max_residues": 6, "likelihood": [], "positions": "none"}
    (row,) = computed(name, cache, [payload], **asked)
    # Each variant in the window around it; unmasked, each residue in the nearest of those that
    # begin at 0, 3, 6, 9 and 10.
    around = {"M1A": (0, "M1A"), "R10W": (6, "R4W"), "A7G:I12V": (6, "A1G:I6V")}
    nearest = {"M1A": [(0, "M1A")], "R10W": [(6, "R4W")], "A7G:I12V": [(3, "A4G"), (9, "I3V")]}
    for each in row["variants"]:
        start, there = around[each["variant"]]
        window = protein[start : start + 6]
        for kind in ("masked", "mutant"):
            expected = reference.marginal(kind, window, there)
            assert each[f"{kind}_marginal"] == pytest.approx(expected, abs=1e-5)
        parts = nearest[each["variant"]]
        expected = sum(reference.marginal("wildtype", protein[n : n + 6], v) for n, v in parts)
        assert each["wildtype_marginal"] == pytest.approx(expected, abs=1e-5)
    masked = reference.every("masked", protein[8:14])[3]  # the window around the 12th residue
    np.testing.assert_allclose(row["log_probabilities"][11], masked[TOKENS], atol=1e-5)


def test_what_is_told_of_proteins_and_residues_is_of_fair_esm(network, cache):
    reference, name = network
    chosen = PROTEINS[:4]
    payloads = [protein.encode() for protein in chosen]
    rows = computed(name, cache, payloads, **EVERYTHING)
    alone = {"variants": "none", "log_probabilities": "wildtype", "positions": "masked"}
    (other,) = computed(name, cache, payloads[:1], dtype="fp32", **alone)
    for protein, row in zip(chosen, rows, strict=True):
        for kind, source in (("pseudo", "masked"), ("one_pass", "wildtype")):
            every = reference.every(source, protein)
            own = [every[n, ALPHABET.get_idx(letter)] for n, letter in enumerate(protein)]
            total = float(np.sum(own, dtype=np.float64))
            assert row[f"{kind}_log_likelihood"] == pytest.approx(total, rel=1e-5)
            perplexity = np.exp(-total / len(protein))
            assert row[f"{kind}_perplexity"] == pytest.approx(perplexity, rel=1e-5)
        every = reference.every("masked", protein)[:, TOKENS]
        np.testing.assert_allclose(row["log_probabilities"], every, atol=1e-5)
        check_positions(row["positions"], protein, reference.every("wildtype", protein))
    every = reference.every("wildtype", chosen[0])[:, TOKENS]
    np.testing.assert_allclose(other["log_probabilities"], every, atol=1e-5)
    check_positions(other["positions"], chosen[0], reference.every("masked", chosen[0]))


def test_rows_of_a_table_have_the_scores_of_their_variants(network, cache, tmp_path):
    reference, name = network
    table = tmp_path / "v.csv"
    written = ["K2C", "WT", "A4G:I6W", "p.Lys2Cys", "I6W:A4G", "K2*", "K2C"]
    told = "".join(f"{text},{number}.5\n" for number, text in enumerate(written))
    table.write_text(f"mutant,measured\n{told}")
    more = {"variants": "listed", "variants_file": str(table), "marginals": ["wildtype", "masked"]}
    given = scores.Options(model=name, **more)
    (tmp_path / "in.fa").write_text(f">a\n{PROTEINS[0]}\n")
    (record,) = scores.records([tmp_path / "in.fa"], given)
    first = variants.payload_of(b"MKVLA", [variants.Row("M1V", "M1V", "", ("x",))])
    plain = payload_of(b"MKVLA", [])
    one, none, row = computed(name, cache, [first, plain, record.payload], dtype="fp32", **more)
    assert none["variants"] == [] and one["variants"][0]["measured"] == "x"
    assert [each["variant"] for each in row["variants"]] == written
    assert [each["measured"] for each in row["variants"]] == [f"{n}.5" for n in range(7)]
    named = ["K2C", None, "A4G:I6W", "K2C", "A4G:I6W", None, "K2C"]
    for each, substitutions in zip(row["variants"], named, strict=True):
        assert each["read_as"] == substitutions
        assert bool(each["reason"]) == (substitutions is None)
        for kind in ("wildtype", "masked"):
            found = each[f"{kind}_marginal"]
            if substitutions is None:
                assert found is None
            else:
                expected = reference.marginal(kind, PROTEINS[0], substitutions)
                assert found == pytest.approx(expected, abs=1e-5)


def check_positions(found, protein, every):
    assert [each["position"] for each in found] == list(range(1, len(protein) + 1))
    assert "".join(each["residue"] for each in found) == protein
    for each, row in zip(found, every, strict=True):
        own = row[ALPHABET.get_idx(each["residue"])]
        assert each["log_probability"] == pytest.approx(own, abs=1e-5)
        of_20 = np.array([row[ALPHABET.get_idx(letter)] for letter in AMINO_ACIDS], np.float64)
        shares = np.exp(of_20) / np.exp(of_20).sum()
        assert each["entropy"] == pytest.approx(-(shares * np.log(shares)).sum(), abs=1e-5)


@pytest.mark.parametrize("of_esm_c", [False, True])
def test_bf16_stays_near_fp32(cache, esm_c, of_esm_c):
    if not CPU.has_bf16:
        pytest.skip("this CPU has no bf16")
    model = esm_c[1] if of_esm_c else "mill_t6_8M"
    payloads = [protein.encode() for protein in PROTEINS]
    options = {"variants": "none", "log_probabilities": "wildtype", "likelihood": "one_pass"}
    exact, found = (
        computed(model, cache, payloads, dtype=dtype, **options) for dtype in ("fp32", "bf16")
    )
    for one, other in zip(exact, found, strict=True):
        pair = [np.array(each["log_probabilities"]) for each in (one, other)]
        assert min(cosines(*pair)) >= 0.9995
        differences = np.subtract(*pair)
        assert 0 < np.abs(differences).mean() < 0.02
        assert np.abs(differences).max() < 0.2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shape", [(4, 960, 2560), (3, 1152, 3072)])
def test_an_esm_c_of_true_width_scores_as_transformers_does(tmp_path, shape):
    model = esmc_model(*shape)
    model.save_pretrained(tmp_path / "esm_c")
    proteins = [PROTEINS[1], *demo_proteins(1, 60)]
    reference, payloads = EsmC(model), [protein.encode() for protein in proteins]
    expected = [reference.every("masked", protein)[:, TOKENS] for protein in proteins]
    for dtype in ("fp32", "bf16"):
        options = {"variants": "none", "log_probabilities": "masked", "dtype": dtype}
        rows = computed(str(tmp_path / "esm_c"), tmp_path / "cache", payloads, **options)
        pairs = [(r["log_probabilities"], e) for r, e in zip(rows, expected, strict=True)]
        off = max(np.abs(np.subtract(*pair)).max() for pair in pairs)
        lowest = min(cosines(*pair).min() for pair in pairs)
        print(f"{shape[1]} {dtype}: at most {off:.1e} off, lowest cosine {lowest:.6f}")
        assert off <= (1e-5 if dtype == "fp32" else 0.1)
        assert lowest >= (1 - 1e-8 if dtype == "fp32" else 0.9995)


def test_a_cost_is_the_tokens_of_the_passes_that_are_computed():
    payloads = [protein.encode() for protein in PROTEINS[:2]]
    some = (["K2C:A4G", "A4G", "A4C"], ["K2del", "K2C", "M1_K2insAG", "A4_A7delinsW"])
    listed = [payload_of(payloads[0], names) for names in ([], *some)]
    asked = [
        {"marginals": ["wildtype"]},
        {"marginals": ["masked", "mutant"]},
        {"variants": "none", "likelihood": ["pseudo", "one_pass"]},
        {"variants": "none", "positions": "masked", "long": "truncate", "max_residues": 5},
        {"variants": "listed", "marginals": ["masked"]},
        {"variants": "listed", "marginals": ["wildtype", "masked", "mutant"]},
        {"variants": "listed", "marginals": ["masked"], "likelihood": "pseudo"},
        {"marginals": ["wildtype", "masked"], "long": "chunk", "max_residues": 7},
        {"variants": "listed", "marginals": ["wildtype"], "long": "chunk", "max_residues": 7},
        {"variants": "listed", "marginals": ["masked", "masked_additive"]},
        {"variants": "listed", "marginals": ["masked_additive", "wildtype", "pseudo"]},
        {"variants": "listed", "marginals": "pseudo", "long": "chunk", "max_residues": 7},
        {"marginals": ["masked_additive", "wildtype"], "long": "proteingym", "max_residues": 7},
    ]
    for given in asked:
        options = scores.Options(**given)
        for payload in listed if options.variants == "listed" else payloads:
            done = list(passes.passes(passes.work_of(payload, options)))
            num_tokens = sum(len(one.tokens) for one in done)
            assert passes.num_tokens(passes.work_of(payload, options)) == num_tokens, given
            assert num_tokens in (scores.cost(payload, options), 0)
    assert scores.cost(payloads[0], scores.Options()) == len(payloads[0]) + 2  # a scan is one pass


def test_masked_places_alone_go_through_the_head():
    work = passes.work_of(b"ACDEF", scores.Options(variants="none", likelihood="pseudo"))
    assert [one.rows.tolist() for one in passes.passes(work)] == [[n] for n in range(1, 6)]


def read(path, **options):
    return list(scores.records([path], scores.Options(variants="listed", **options)))


def read_one(write, table, protein="MKTAYI", name="v.csv", **options):
    """Return the record of a protein with a table of its variants."""
    fasta, listed = write("in.fa", f">a\n{protein}\n"), write(name, table)
    (record,) = read(fasta, variants_file=str(listed), **options)
    return record


def test_variants_come_from_a_file_by_id_or_accession(write):
    listed = write("v.csv", 'id,mutant\nP35309,K2A\nb,"A1C, p.D3E:a1g;"\nP35309,K2A M1L\nb,\n')
    fasta = write("in.fa", ">sp|P35309|A\nMKTAYI\n>b\nACDEFGHIKL\n")
    one, other = read(fasta, variants_file=str(listed))
    assert (variants.parts_of(one.payload), one.length) == ((b"MKTAYI", ["K2A", "M1L"]), 6)
    assert [row[0] for row in variant_rows(one)] == ["K2A", "K2A", "M1L"]
    assert variants.parts_of(other.payload) == (b"ACDEFGHIKL", ["A1C", "A1G:D3E"])
    everywhere = write("one.tsv", "mutation\tDMS_score\nK2A\t0.5\n")
    (same,) = read(write("c.fa", ">c\nMKTAYI\n"), variants_file=str(everywhere))
    assert variant_rows(same) == [("K2A", "K2A", "", ("0.5",))]
    with pytest.raises(UserError, match=r"v.csv:3: no protein of the inputs is called 'b'; take"):
        read(write("d.fa", ">P35309\nMKTAYI\n"), variants_file=str(listed))


def test_variants_come_from_a_column_of_the_inputs(write):
    table = write("in.csv", "id,sequence,variants\na,mktayi,K2A;M1L\nb,ACDE,\n")
    one, other = read(table)
    assert (one.id, one.payload, one.line) == ("a", b"MKTAYI\nK2A M1L", 2)
    assert other.payload == b"ACDE\n"
    with pytest.raises(UserError, match="variants: listed needs a table of variants"):
        read(write("in.fa", ">a\nMK\n"))
    with pytest.raises(UserError, match=r"no column of variants is found .* set variant_column"):
        read(write("in.csv", "id,sequence\na,MKT\n"))


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        ("K3A", "another residue stands there: K3A, and residue 3 of the protein is T"),
        ("M1L:K3A", "another residue stands there: K3A, and residue 3 of the protein is T"),
        ("A9G", "a variant beyond the end: A9G, and the protein has 6 residues"),
        ("I6V", "a variant beyond max_residues: I6V, of 5"),
        ("K2del", "an insertion or a deletion: 'K2del'"),
        ("K2_T3insA", "an insertion or a deletion: 'K2_T3insA'"),
        ("K2*", "a stop in place of a residue: 'K2*'"),
        ("p.Lys2Ter", "a stop in place of a residue: 'p.Lys2Ter'"),
        ("T3G:K2*", "a stop in place of a residue: 'T3G:K2*'"),
        ("p.Lys2fsTer5", "a frameshift or an extension, which names no sequence: 'p.Lys2fsTer5'"),
        ("WT", "the wild type, or no change of a residue: 'WT'"),
        ("_wt", "the wild type, or no change of a residue: '_wt'"),
        ("p.Lys2=", "the wild type, or no change of a residue: 'p.Lys2='"),
        ("p.(=)", "the wild type, or no change of a residue: 'p.(=)'"),
        ("K2K", "the wild type, or no change of a residue: 'K2K'"),
        ("K2A_T3G", "not a substitution: 'K2A_T3G'"),
        ("p.?", "not a substitution: 'p.?'"),
        ("K2X", "not a substitution: 'K2X'"),
        ("K2", "not a substitution: 'K2'"),
        ("2A", "not a substitution: '2A'"),
        ("K2A:K2C", "not a substitution: K2A:K2C changes residue 2 twice"),
        ("Lys2Xaa", "not a substitution: 'Lys2Xaa'"),
    ],
)
def test_why_a_variant_cannot_be_scored(write, variant, reason):
    table = write("in.csv", f"id,sequence,variant\na,MKTAYI,{variant}\n")
    (record,) = read(table, max_residues=5)
    assert (record.reason, record.payload) == (reason, b"")


def test_substitutions_farther_apart_than_a_window_are_refused(write):
    table = write("in.csv", "id,sequence,variant\na,MKTAYI,M1L:I6V\nb,MKTAYI,K2L:I6V\n")
    chunk = {"long": "chunk", "max_residues": 5, "marginals": "masked"}
    one, other = read(table, **chunk)
    assert one.reason == "substitutions farther apart than a window: M1L:I6V, of 5"
    assert (other.reason, other.note) == ("", "longer than 5 residues, in windows")
    one, _ = read(table, **chunk | {"marginals": "wildtype"})  # each is read in its own window
    assert not one.reason


def test_variants_may_be_written_as_hgvs_does(write):
    cells = "p.Lys2Ala p.(Ile6Val) p.Thr3Ser:p.Ala4Gly", "NP_000537.3:p.Lys2Ala"
    cells += ('"p.[Lys2Ala;Thr3Gly] p.[(Ile6Val);(Ala4Gly)]"',)
    table = write("in.csv", "\n".join(["id,sequence,variant,b,c", ",".join(("a,MKTAYI", *cells))]))
    for column, found in (
        ("", ["K2A", "I6V", "T3S:A4G"]),
        ("b", ["K2A"]),
        ("c", ["K2A:T3G", "A4G:I6V"]),
    ):
        (record,) = read(table, **({"variant_column": column} if column else {}))
        assert variants.parts_of(record.payload)[1] == found


def variant_rows(record):
    return [tuple(row) for row in variants.rows_of(record.payload)]


def test_a_row_without_a_score_is_refused_alone_and_listed(write, caplog):
    table = "mutant,score\nWT,0\nK2A,1.5\nK2*,\nT3G:A4C,2\nA4C:T3G,3\np.Lys2Ala,1\nA9G,1\nM1A,7\n"
    record = read_one(write, table)
    assert variants.parts_of(record.payload) == (b"MKTAYI", ["K2A", "T3G:A4C", "M1A"])
    assert variant_rows(record) == [
        ("WT", "", "the wild type, or no change of a residue: 'WT'", ("0",)),
        ("K2A", "K2A", "", ("1.5",)),
        ("K2*", "", "a stop in place of a residue: 'K2*'", (None,)),
        ("T3G:A4C", "T3G:A4C", "", ("2",)),
        ("A4C:T3G", "T3G:A4C", "", ("3",)),
        ("p.Lys2Ala", "K2A", "", ("1",)),
        ("A9G", "", "a variant beyond the end: A9G, and the protein has 6 residues", ("1",)),
        ("M1A", "M1A", "", ("7",)),
    ]
    assert (record.reason, record.length) == ("", 6)
    assert record.note == (
        "variants without a score: 3 of 8, the first is the wild type, or no change of a residue: "
        "'WT' (line 2)"
    )
    assert f"'a': {record.note}" in caplog.messages


@pytest.mark.parametrize(
    ("cells", "first", "helps"),
    [
        ("K12A T13G A14C", "a variant beyond the end: K12A, and the protein has 10 residues",
         ", and all positions fit with first_residue 11 under options"),
        ("M4A T6G A7C", "another residue stands there: M4A, and residue 4 of the protein is A",
         ", and all positions fit with first_residue 4 under options"),
        ("A1G T2G Y3F", "another residue stands there: A1G, and residue 1 of the protein is M",
         ", so positions may be counted from elsewhere"),
        ("K2* WT", "a stop in place of a residue: 'K2*'", ""),
    ],
)  # fmt: skip
def test_a_protein_without_a_variant_that_fits_is_refused_with_what_may_help(
    write, cells, first, helps
):
    names = cells.split()
    table = "\n".join(["id,variant", *(f"a,{name}" for name in names)])
    record = read_one(write, table, "MKTAYIGKQR")
    reason = f"{first} (the first of {len(names)} variants, and none has a score{helps})"
    assert (record.reason, record.payload) == (reason, b"")


def test_a_cell_of_several_variants_is_taken_apart_with_a_note(write):
    for cell in ("K2A;T3G", "K2A, T3G", "K2A T3G"):
        record = read_one(write, f"mutant\tscore\nM1A\t1\n{cell}\t2\n", name="v.tsv")
        assert [row[0] for row in variant_rows(record)] == ["M1A", "K2A", "T3G"]
        head, _, told = record.note.partition(": ")
        assert head == (
            "cells of several variants, each scored by itself (a colon makes one variant of "
            "substitutions)"
        )
        assert told == f"1, the first is {cell!r} at line 3"


TWO_PROTEINS = ">P1\nMKTAYI\n>P2\nMIVEQC\n"


@pytest.mark.parametrize("name", ["protein", "gene", "UniProtKB", "Uniprot AC", "label"])
def test_variants_of_several_proteins_need_to_say_whose_they_are(write, name, caplog):
    listed = write("v.csv", f"{name},variant\nP1,M1V\nP2,M1L\n")
    fasta = write("in.fa", TWO_PROTEINS)
    with pytest.raises(UserError, match=rf"v.csv: .* more than one protein, .* '{name}', .*set id"):
        read(fasta, variants_file=str(listed))
    with caplog.at_level("INFO", "featuremill.scores"):
        one, two = read(fasta, variants_file=str(listed), id_column=name)
    assert (one.payload, two.payload) == (b"MKTAYI\nM1V", b"MIVEQC\nM1L")
    assert f"variants from column 'variant', their proteins from '{name}'" in caplog.text
    with pytest.raises(UserError, match=r"v.csv: there is no column 'other'"):
        read(fasta, variants_file=str(listed), id_column="other")
    with pytest.raises(UserError, match=r"v.csv:3: .* called 'P2'.* or set id_column .* 'id'"):
        listed = write("v.csv", f"{name},id,variant\nb,P1,M1V\na,P2,M1L\n")
        read(write("one.fa", ">P1\nMKTAYI\n"), variants_file=str(listed))


def test_the_id_column_of_variants_may_be_named_in_memory(write, surroundings):
    listed = write("v.csv", "protein,mutant,measured\nP2,M1L,0.5\nP1,M1V,1\nP1,K2*,2\n")
    options = {"variants": "listed", "variants_file": str(listed), "id_column": "protein"}
    with pytest.warns(UserWarning, match="1 record: variants without a score"):
        table = featuremill.compute({"P1": "MKTAYI", "P2": "MIVEQC"}, "scores", options)
    found = {id: [each["variant"] for each in row] for id, row in table["variants"].items()}
    assert found == {"P1": ["M1V", "K2*"], "P2": ["M1L"]}
    assert [each["measured"] for each in table.loc["P1", "variants"]] == ["1", "2"]


def test_an_accession_of_two_proteins_is_refused(write):
    listed = write("v.csv", "id,variant\nP12345,K2A\n")
    fasta = write("in.fa", ">sp|P12345|ONE_HUMAN\nMKV\n>tr|P12345|TWO_MOUSE\nMKT\n")
    said = "v.csv:2: 'P12345' is the accession of more than one protein of the inputs"
    with pytest.raises(UserError, match=said):
        read(fasta, variants_file=str(listed))


def test_what_variants_do_is_no_id_of_their_protein(write):
    record = read_one(write, "variant,label\nM1V,benign\nK2A,pathogenic\n")
    assert variant_rows(record) == [
        ("M1V", "M1V", "", ("benign",)),
        ("K2A", "K2A", "", ("pathogenic",)),
    ]


def test_a_table_of_inputs_may_repeat_a_protein_for_each_variant(write):
    rows = ["P1,MKTAYI,K2A,1", "P2,MIVEQC,I2V,0", "P1,MKTAYI,T3G,2", "P1,MKTAYI,K2A,3", "P2,MIV,,"]
    table = write("long.csv", "\n".join(["id,sequence,mutant,score", *rows, ""]))
    one, two, other = read(table)
    assert one.payload.startswith(b"MKTAYI\nK2A T3G\n") and (one.id, one.line) == ("P1", 2)
    assert [row[0] for row in variant_rows(one)] == ["K2A", "T3G", "K2A"]
    assert two.payload == b"MIVEQC\nI2V" and other.payload == b"MIV\n"  # which plan refuses
    one, *_ = read(table, columns=["score"])
    assert [row[3] for row in variant_rows(one)] == [("1",), ("2",), ("3",)]


def test_columns_that_come_along_have_names_of_their_own(write):
    names = "id,variant,read_as,score,mutated_sequence,wildtype_marginal"
    listed = write("v.csv", f"{names}\na,K2A,x,1,MATAYI,0.5\n")
    options = scores.Options(variants="listed", variants_file=str(listed))
    settled = scores.with_columns(options)
    assert settled.columns == ("read_as", "score", "wildtype_marginal")
    assert scores.schema(settled, None).field("variants").type.value_type.names == [
        *("variant", "wildtype_marginal", "read_as"),
        *("table_read_as", "score", "table_wildtype_marginal", "reason"),
    ]
    with pytest.raises(UserError, match=r"two columns would be called 'table_variant'"):
        named = ("variant", "table_variant")
        scores.with_columns(options.model_copy(update={"columns": named}))


# checkpoints


def test_a_checkpoint_gives_the_head_in_every_form_and_esm2_stays_what_it_was(cache, tmp_path):
    model = random_network()
    ours = save_fair_esm(model, tmp_path / "fair.pt")
    head = {k: v for k, v in model.state_dict().items() if k.startswith("lm_head.")}
    head["lm_head.decoder.weight"] = head.pop("lm_head.weight")
    folder = save_hugging_face(model, tmp_path / "face", head=head).parent
    one, other = (converted(str(path), cache) for path in (ours, folder))
    assert one.sha256 == other.sha256 and "esm2-lm_head-1" in str(one.path)
    without = weights_verb.convert(str(save_hugging_face(model, tmp_path / "bare").parent), cache)
    assert without.sha256 == weights_verb.convert(str(ours), cache).sha256 != one.sha256
    assert weights_verb.json_of("mill_t6_8M", "scores") != weights_verb.json_of("mill_t6_8M")
    with pytest.raises(UserError, match=r"no language-model head .* as an EsmForMaskedLM has"):
        converted(str(tmp_path / "bare"), cache)


def test_every_layout_of_an_esm_c_gives_the_head(esm_c, cache, tmp_path):
    model, folder = esm_c
    expected = converted(folder, cache)
    research, package = save_research(model, tmp_path / "r"), save_package(model, tmp_path / "p")
    (pth,) = package.glob("data/weights/*.pth")
    for place in (research, package, pth, Path(folder, "model.safetensors")):
        assert converted(str(place), cache).sha256 == expected.sha256, place
    model.esmc.save_pretrained(tmp_path / "bare")
    with pytest.raises(UserError, match=r"no tensor lm_head.dense…\), as an EsmcForMaskedLM has"):
        converted(str(tmp_path / "bare"), cache)


def test_the_network_is_chosen_by_the_model(esm_c, cache, tmp_path):
    ours = save_fair_esm(random_network(), tmp_path / "fair.pt")
    of_names = ("esm2_t33_650M_UR50D", "mill_t6_8M", str(ours))
    assert {scores.Options(model=name).limit for name in of_names} == {1022}
    assert {scores.Options(model=name).limit for name in ("esmc_600m", esm_c[1])} == {2046}
    assert scores.Options(model="esmc_600m", max_residues=7).limit == 7
    found = converted(esm_c[1], cache)
    settled = scores.resolve(scores.Options(model=esm_c[1]), CPU, found)
    assert (settled.max_residues, settled.limit) == (2046, 2046)
    full = scores.resolve(scores.Options(model=esm_c[1], long="full"), CPU, found)
    assert scores.Options.model_validate(full.model_dump()) == full
    with pytest.raises(UserError, match=r"^esmc_300m: .* hf download biohub/ESMC-300M here"):
        weights_verb.refuse_missing("esmc_300m", "scores")
    with pytest.raises(UserError, match=r"did you mean 'esmc_600m'\? There are esmc_300m"):
        weights_verb.name_of("esmc_60m", "scores")
    with pytest.raises(UserError, match="did you mean 'esm2_t33_650M_UR50D'"):
        weights_verb.name_of("650m", "scores")


def test_estimates_of_an_esm_c_are_of_the_numbers_in_the_file(esm_c, cache):
    found = converted(esm_c[1], cache)
    assert scores.weights_ahead(scores.Options(model=esm_c[1])).metadata == found.metadata
    num_bytes = sum(tensor.nbytes for tensor in load_file(found.path).values())
    assert scores.weights_mb(found) * 2**20 == pytest.approx(num_bytes, rel=0.01)


SHA256_OF_MILL = "3f3a506debdb8b9ed7631473a4fdc7cf7ad17fed5cbace68f2ef6929ea1125c4"
"""As it was converted before there were scores."""


def test_converted_weights_of_esm2_have_the_bytes_that_they_had(cache):
    assert weights_verb.convert("mill_t6_8M", cache).sha256 == SHA256_OF_MILL
    assert esm2.CHECKPOINTS.LAYOUT == "esm2-1"


# a run


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory):
    """Have the processes of the contract find few records and a cache of their own."""
    folder = tmp_path_factory.mktemp("scores")
    proteins = [protein[:16] for protein in demo_proteins(14)]
    rows = [f"p{n},{p},{p[4]}5A {p[1]}2C:{p[7]}8W" for n, p in enumerate(proteins)]
    (folder / "few.csv").write_text("\n".join(["id,sequence,variants", *rows, "x,MKT,K1A", ""]))
    with working_in(folder, FEATUREMILL_CACHE=folder / "cache"):
        yield folder


@pytest.mark.usefixtures("surroundings")
class TestScores(QuickWorkload):
    workload = "scores"
    inputs = ("few.csv",)
    options = MappingProxyType(EVERYTHING)

    def test_a_run_writes_a_row_a_variant_and_a_row_a_residue(self, tmp_path_factory):
        run = self._finished(tmp_path_factory)
        folder, rows = run.folder.root, run.table.to_pylist()
        assert main(["export", str(folder), "--to", "variant_scores", "position_scores"]) == 0
        found = pd.read_csv(folder / "variant_scores.tsv", sep="\t")
        kinds = [f"{kind}_marginal" for kind in ("wildtype", "masked", "mutant")]
        assert list(found) == ["id", "variant", *kinds, "read_as", "reason"]
        assert found["variant"].tolist() == found["read_as"].tolist()
        assert found["id"].tolist() == [row["id"] for row in rows for _ in row["variants"]]
        several = [row["variants"][1] for row in rows]
        assert all(":" in each["variant"] for each in several)
        for name in kinds:
            told = [each[name] for each in several]
            np.testing.assert_allclose(found[name].tolist()[1::2], told, rtol=1e-6)
        places = pd.read_csv(folder / "position_scores.tsv", sep="\t")
        assert list(places) == ["id", "position", "residue", "log_probability", "entropy"]
        assert places["position"].tolist() == [
            n for row in rows for n in range(1, row["length"] + 1)
        ]
        reason = "another residue stands there: K1A, and residue 1 of the protein is M"
        assert reason in (folder / "failed.tsv").read_text()

    def test_the_report_has_a_map_of_each_protein_and_its_extremes(self, tmp_path_factory):
        run = self._finished(tmp_path_factory)
        rows = run.table.to_pylist()
        found = facts.read(run.folder.root).of_workload
        assert [figure.title for figure in found] == [f"Scores of {row['id']}" for row in rows[:6]]
        assert "Only the first 6 proteins are drawn" in found[0].sentence
        for row, figure in zip(rows, found, strict=False):
            (bars,) = figure.panels  # two variants are no map
            drawn = {each["variant"]: each["score"] for each in bars.chart["data"]["values"]}
            assert drawn == {each["variant"]: each["wildtype_marginal"] for each in row["variants"]}


def test_variants_that_have_another_score_than_the_first_are_drawn_by_that():
    names = ["K2del", "K2_T3insG", None]
    scored = {"wildtype_marginal_mean_of_2": [None] * 3, "pseudo_ratio": [1.0, -1.0, None]}
    columns = {
        "variant": pa.array(["p.Lys2del", "K2_T3insG", "WT"]),
        **{name: pa.array(numbers, pa.float32()) for name, numbers in scored.items()},
        "read_as": pa.array(names, pa.string()),
        "DMS_score": pa.array([1.0, 2.0, 3.0]),
    }
    rows = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    whole = {"id": pa.array(["a"]), "length": pa.array([9])}
    whole["variants"] = pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), rows)
    (figure,) = heat_maps.figures(lambda _: iter([pa.RecordBatch.from_pydict(whole)]))
    assert "9 residues, 2 variants by pseudo_ratio. The highest score is +1.00 (K2del)" in (
        figure.sentence
    )


def test_a_heat_map_has_each_substitution_and_the_wild_type():
    scored = [
        heat_maps.Scored(f"{old}{place}{new}", ord(new) - place)
        for place, old in enumerate("AC" * 60, start=1)
        for new in AMINO_ACIDS
        if new != old
    ]
    protein = heat_maps.Protein("a", 120, "masked_marginal", scored)
    figure = heat_maps.figure(1, protein)
    assert "highest score is +88.00 (A1Y), the lowest -55.00 (C120A)" in figure.sentence
    first, second, ends = figure.panels
    assert (first.title, second.title) == ("Residues 1 to 100", "Residues 101 to 120")
    cells, wild_type = (layer["data"]["values"] for layer in second.chart["layer"])
    assert {(cell["position"], cell["residue"], cell["score"]) for cell in cells} == {
        (int(name[1:-1]), name[-1], score) for name, score in scored if int(name[1:-1]) > 100
    }
    assert {cell["position"]: cell["residue"] for cell in wild_type} == {
        place: "CA"[place % 2] for place in range(101, 121)
    }
    assert len(ends.chart["data"]["values"]) == 20
    few = heat_maps.figure(1, protein._replace(scored=scored[:300]))
    assert len(few.panels) == 1
