"""The networks of the workload scores beside ESM-2 and ESM C: each held against its authors' own
program, or their arithmetic on transformers' network."""

import gc
import itertools
import weakref

import numpy as np
import pytest
import torch
from bench.elders import (
    ALPHABET,
    SAPROT_RESIDUES,
    SAPROT_STRUCTURES,
    elder_log_probabilities,
    elder_of_hugging_face,
    fair_esm_of,
    of_residue,
    saprot,
    saprot_probabilities,
    saprot_score,
    save_elder,
)
from test_scores import AMINO_ACIDS, CPU, TOKENS, FairEsm, computed, converted, payload_of

import featuremill
from featuremill.base.errors import UserError
from featuremill.workload import weights as weights_verb
from featuremill.workload.compute import values_of
from featuremill.workloads import scores
from featuremill.workloads.scores import alphabets, ensemble, kin, sources

PROTEIN = "MKTAYIAKQRQISFVKSHFSRQ"
PROTEINS = [PROTEIN, "ACDEFGHIKLMXBNUOZ", "M", "MKTAYIAKQRQISFVKS"]
NAMES = ["K2C", "A4G:I6W", "M1A", "Q22Y"]


class Reference(FairEsm):
    """The same, of the networks before ESM-2."""

    def _log_softmax(self, sequence, masked=()):
        found = elder_log_probabilities(self.network, sequence, masked)
        return torch.nn.functional.pad(torch.as_tensor(found), (0, 0, 1, 1))  # for start and end


@pytest.fixture(scope="module", params=["esm1b.pt", "esm1v.pt", "1b folder", "1v folder"])
def elder(request, cache):
    """Return the reference of an ESM-1b or ESM-1v, and the option that gives ours its weights."""
    has_norm = "1b" in request.param
    if request.param.endswith(".pt"):
        path = save_elder(cache / f"{request.param[:5]}_t3.pt", has_norm=has_norm)
        return Reference(fair_esm_of(path)), str(path)
    folder = cache / request.param.replace(" ", "_")
    return Reference(elder_of_hugging_face(folder, has_norm=has_norm)), str(folder)


def test_an_esm_1_scores_variants_as_the_authors_script_does(elder, cache):
    reference, model = elder
    kinds = ["wildtype", "masked"]
    options = {"dtype": "fp32", "variants": "listed", "marginals": kinds}
    (row,) = computed(model, cache, [payload_of(PROTEIN, NAMES)], **options)
    off = 0.0
    for each in row["variants"]:
        for kind in kinds:
            expected = reference.marginal(kind, PROTEIN, each["variant"])
            off = max(off, abs(each[f"{kind}_marginal"] - expected))
    print(f"largest difference {off:.1e}")
    assert off < 1e-5


def test_an_esm_1_alone_and_in_a_batch_gives_the_log_probabilities_of_its_authors(elder, cache):
    reference, model = elder
    options = {"dtype": "fp32", "variants": "none", "log_probabilities": "wildtype"}
    payloads = [protein.encode() for protein in PROTEINS]
    together = computed(model, cache, payloads, **options)
    for protein, row in zip(PROTEINS, together, strict=True):
        expected = reference.every("wildtype", protein)[:, TOKENS]
        np.testing.assert_allclose(row["log_probabilities"], expected, atol=1e-5)
        (alone,) = computed(model, cache, [protein.encode()], **options)
        assert alone["log_probabilities"] == row["log_probabilities"]


def test_an_esm_1_has_positions_for_1022_residues(elder, cache):
    reference, model = elder
    options = {"dtype": "fp32", "variants": "none", "log_probabilities": "wildtype"}
    protein = ("MKTAYIAKQRQISFVKSHFSRQ" * 50)[:1030]
    (row,) = computed(model, cache, [protein.encode()], **options)
    expected = reference.every("wildtype", protein[:1022])[:, TOKENS]
    np.testing.assert_allclose(row["log_probabilities"], expected, atol=2e-5)
    for more in ({"long": "full"}, {"max_residues": 1023}):
        said = f"options.{next(iter(more))}: an ESM-1. has positions for 1,022"
        with pytest.raises(UserError, match=said):
            computed(model, cache, [b"M"], **more, **options)
    for long in ("full", "proteingym"):
        with pytest.raises(UserError, match=r"options.long: an ESM-1. has positions for 1,022"):
            scores.records([], scores.Options(model=model, long=long))
    scores.records([], scores.Options(model=model, long="proteingym", marginals="masked_additive"))


def test_names_of_esm_1_are_known_before_there_are_files():
    for name in kin.ESM_1_NAMES:
        assert weights_verb.json_of(name, "scores") == f"weights/{name}-lm_head.json"
        assert weights_verb.json_of(f"facebook/{name}", "scores").endswith(f"{name}-lm_head.json")
        ahead = scores.weights_ahead(scores.Options(model=name))
        assert ahead.metadata["architecture"] == name[:5]
    place = sources.locate("esm1v_t33_650M_UR90S_3")
    assert place.location.endswith("/esm1v_t33_650M_UR90S_3.pt") and place.kind == "published"
    for typed, name in (("esm1b", "esm1b_t33_650M_UR50S"), ("ESM-1v", "esm1v_t33_650M_UR90S_1")):
        with pytest.raises(UserError, match=rf"did you mean '{name}'\? There are esm1b"):
            weights_verb.name_of(typed, "scores")


def test_an_esm_1_that_is_another_network_is_refused(cache, tmp_path):
    path = save_elder(tmp_path / "esm1v_t3.pt")
    kept = torch.load(path, weights_only=False)
    for arch, dropout, said in (
        ("protein_bert_base", True, "its arch is 'protein_bert_base', and not 'roberta_large"),
        ("roberta_large", False, "its settings have token_dropout False"),
    ):
        kept["args"].arch, kept["args"].token_dropout = arch, dropout
        torch.save(kept, path)
        with pytest.raises(UserError, match=said):
            converted(str(path), cache)


# ensembles


@pytest.fixture(scope="module")
def five(cache):
    """Return paths of ESM-1v of one shape and their references."""
    paths = [
        save_elder(cache / f"esm1v_t33_650M_UR90S_{seed}.pt", seed=seed, has_norm=False)
        for seed in range(1, 6)
    ]
    return [str(path) for path in paths], [Reference(fair_esm_of(path)) for path in paths]


def test_an_ensemble_has_the_scores_of_each_network_and_their_mean(five, cache):
    paths, references = five
    kinds = ["wildtype", "masked"]
    options = {"dtype": "fp32", "variants": "listed", "marginals": kinds, "likelihood": "pseudo"}
    payloads = [payload_of(PROTEIN, NAMES), payload_of(PROTEINS[3], NAMES[:2])]
    rows = computed(paths, cache, payloads, **options)
    names = [f"esm1v_t33_650M_UR90S_{seed}" for seed in range(1, 6)]
    for protein, row in zip((PROTEIN, PROTEINS[3]), rows, strict=True):
        for each in row["variants"]:
            columns = [name for name in each if "marginal" in name]
            assert columns == [
                f"{kind}_marginal_{which}" for kind in kinds for which in ("mean_of_5", *names)
            ]
            for kind in kinds:
                expected = [r.marginal(kind, protein, each["variant"]) for r in references]
                found = [each[f"{kind}_marginal_{name}"] for name in names]
                np.testing.assert_allclose(found, expected, atol=1e-5)
                mean = each[f"{kind}_marginal_mean_of_5"]
                assert mean == pytest.approx(np.mean(expected), abs=1e-5)
        likelihoods = [row[f"pseudo_log_likelihood_{name}"] for name in names]
        assert row["pseudo_log_likelihood_mean_of_5"] == pytest.approx(np.mean(likelihoods))
        assert "pseudo_perplexity_mean_of_5" not in row
    (alone,) = computed(paths[2], cache, payloads[:1], **options)
    one = [each["masked_marginal"] for each in alone["variants"]]
    assert one == [each[f"masked_marginal_{names[2]}"] for each in rows[0]["variants"]]


def test_networks_that_do_not_fit_together_are_loaded_one_at_a_time(
    five, cache, monkeypatch, caplog
):
    paths, _ = five
    options = {"dtype": "fp32", "variants": "none", "likelihood": "one_pass"}
    payloads = [protein.encode() for protein in PROTEINS]
    with caplog.at_level("INFO", "featuremill.scores"):
        together = computed(paths, cache, payloads, **options)
    assert "5 networks, all loaded at a time: about" in caplog.text
    monkeypatch.setattr(ensemble, "free_memory_mb", lambda: 100)
    load, before = ensemble.Networks._load, []

    def alone(networks, number):
        gc.collect()
        assert not any(known() for known in before), "two are loaded"
        found = load(networks, number)
        before.append(weakref.ref(found.encoder))
        return found

    monkeypatch.setattr(ensemble.Networks, "_load", alone)
    apart = computed(paths, cache, payloads, budget=60, **options)
    assert "5 networks, one loaded at a time: about" in caplog.text
    assert apart == together
    assert len(before) > 5


def test_an_ensemble_costs_as_many_networks(five, cache):
    paths, _ = five
    one, all_five = scores.Options(model=paths[0]), scores.Options(model=paths)
    assert scores.cost(b"MKT", all_five) == 5 * scores.cost(b"MKT", one)
    assert scores.batch_cost(all_five, CPU) == 5 * scores.batch_cost(one, CPU)
    ahead, found = scores.weights_ahead(all_five), converted(all_five.model, cache)
    assert ahead.metadata == found.metadata
    assert ahead.name == found.name
    alone = scores.weights_ahead(one)
    assert scores.weights_mb(ahead) == pytest.approx(5 * scores.weights_mb(alone))
    settled = scores.resolve(all_five, CPU, ahead)
    more = scores.memory_mb(settled, CPU, ahead, 4096) - scores.memory_mb(
        scores.resolve(one, CPU, alone), CPU, alone, 4096
    )
    assert more >= 4 * scores.weights_mb(alone) * 0.9
    assert "5 networks take 5 times the passes of one" in scores.caution(all_five)


def test_an_ensemble_is_of_networks_of_one_kind(five, cache, tmp_path):
    paths, _ = five
    other = save_elder(tmp_path / "esm1b_t4.pt", layers=4)
    said = r"has architecture esm1v, and .* esm1b; the mean of scores"
    with pytest.raises(UserError, match=said):
        converted(scores.Options(model=[paths[0], str(other)]).model, cache)
    with pytest.raises(ValueError, match="stands twice; drop one"):
        scores.Options(model=[paths[0], paths[0]])
    with pytest.raises(ValueError, match="positions are of one network"):
        scores.Options(model=paths, positions="wildtype")
    with pytest.raises(UserError, match=r"it is not on this machine, and stands beside files"):
        sources.locate(scores.Options(model=[paths[0], "esm1b_t33_650M_UR50S"]).model)


def test_a_network_twice_under_two_names_is_refused(cache, tmp_path):
    one, other, published = (
        str(save_elder(tmp_path / f"{name}.pt", seed=3, has_norm=False))
        for name in ("esm1v_1", "esm1v_2", kin.ESM_1_NAMES[1])
    )
    for paths in ([one, other], [published, one]):
        model = scores.Options(model=paths).model
        with pytest.raises(UserError, match="the same network stands twice among the models"):
            converted(model, cache)


def test_an_ensemble_in_another_order_has_the_same_scores(five, cache):
    paths, _ = five
    options = {"dtype": "fp32", "variants": "listed", "marginals": ["masked", "pseudo"]}
    payload = payload_of(PROTEIN[:6], ["K2C", "K2_T3insG"])
    one, other = (
        computed(given, cache, [payload], **options) for given in (paths[:3], paths[2::-1])
    )
    assert one == other  # rows by the names of their columns
    assert list(one[0]["variants"][0]) != list(other[0]["variants"][0])


def test_an_esm_1_that_is_scored_in_windows_of_proteingym_is_audited_in_windows(five, cache):
    found = converted(five[0][0], cache)
    given = {"marginals": "masked_additive", "long": "proteingym", "max_residues": 8}
    settled = scores.resolve(scores.Options(model=five[0][0], **given), CPU, found)
    audited = scores.resolve(scores.audited(settled, "fp32"), CPU, found)
    loaded = scores.load(audited, [CPU], found)
    (row,) = values_of(scores, loaded, [PROTEIN.encode()], 4096).to_pylist()
    assert len(row["log_probabilities"]) == scores.num_vectors(PROTEIN.encode(), audited) == 22


def test_another_file_of_an_ensemble_is_noticed(cache, tmp_path):
    paths = [save_elder(tmp_path / f"esm1v_{n}.pt", seed=n, has_norm=False) for n in (1, 2)]
    model = scores.Options(model=[str(path) for path in paths]).model
    before, sha256 = weights_verb.json_of(model, "scores"), converted(model, cache).sha256
    assert weights_verb.json_of(model, "scores") == before
    save_elder(paths[1], seed=9, has_norm=False)
    assert weights_verb.json_of(model, "scores") != before
    assert converted(model, cache).sha256 != sha256


def test_an_ensemble_is_computed_in_memory(five, tmp_path, monkeypatch):
    monkeypatch.setenv("FEATUREMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    given = {"model": five[0][:2], "dtype": "fp32"}
    with pytest.warns(UserWarning, match="2 networks take 2 times the passes of one"):
        table = featuremill.compute({"a": PROTEIN, "b": "MKT"}, "scores", given)
    first = table.loc["b", "variants"][0]
    names = ("mean_of_2", *(f"esm1v_t33_650M_UR90S_{seed}" for seed in (1, 2)))
    assert list(first) == ["variant", *(f"wildtype_marginal_{name}" for name in names)]
    expected = [reference.marginal("wildtype", "MKT", "M1A") for reference in five[1][:2]]
    assert first["wildtype_marginal_mean_of_2"] == pytest.approx(np.mean(expected), abs=1e-5)


# SaProt


@pytest.fixture(scope="module")
def pairs(cache):
    """Return a SaProt, its tokenizer and its folder."""
    folder = cache / "saprot"
    folder.mkdir()
    return *saprot(folder), str(folder)


STRUCTURE = "dpvqacdpv#acdpvqacdp#q"
BOTH = f"{PROTEIN}\t{STRUCTURE}"


def log_of(shares, letter, other=None):
    """Return the log-probability of a residue in SaProt's tokens, less that of another one."""
    share = of_residue(shares, letter)
    return float(torch.log(share if other is None else share / of_residue(shares, other)))


def test_saprot_scores_variants_as_its_authors_do(pairs, cache):
    network, tokenizer, folder = pairs
    assert len(STRUCTURE) == len(PROTEIN)
    options = {"dtype": "fp32", "variants": "listed", "marginals": "masked"}
    off = 0.0
    for structure in (STRUCTURE, "#" * len(PROTEIN)):
        combined = "".join(map("".join, zip(PROTEIN, structure, strict=True)))
        payload = payload_of(f"{PROTEIN}\t{structure}", NAMES)
        (row,) = computed(folder, cache, [payload], **options)
        for each in row["variants"]:
            expected = saprot_score(network, tokenizer, combined, each["variant"])
            off = max(off, abs(each["masked_marginal"] - expected))
    print(f"largest difference {off:.1e}")
    assert off < 1e-5
    (bare,) = computed(folder, cache, [payload_of(PROTEIN, NAMES)], **options)
    assert bare["variants"] == row["variants"]  # no structure is # for each residue


INSERTED = {  # by the sequence and the structure that it makes
    "K2_T3insGW": ("MKGWTAYI", "dp##vqac"),
    "T3_A4delinsTGA": ("MKTGAYI", "dpv#qac"),
    "M1delinsAM": ("AMKTAYI", "#dpvqac"),
    "I6delinsIGG": ("MKTAYIGG", "dpvqac##"),
    "K2_A4delinsVW": ("MVWYI", "d##ac"),
    "K2C:A4del": ("MCTYI", "dpvac"),
}


def test_saprot_reads_inserted_residues_without_and_all_others_with_their_structure(pairs, cache):
    network, tokenizer, folder = pairs

    def pseudo(letters, structure):
        total = 0.0
        for place, letter in enumerate(letters):
            tokens = list(map("".join, zip(letters, structure, strict=True)))
            tokens[place] = f"#{structure[place]}"
            shares = saprot_probabilities(network, tokenizer, tokens)
            total += log_of(shares[place + 1], letter)
        return total

    options = {"dtype": "fp32", "variants": "listed", "marginals": "pseudo"}
    payload = payload_of(b"MKTAYI\tdpvqac", list(INSERTED))
    (row,) = computed(folder, cache, [payload], **options)
    for each, made in zip(row["variants"], INSERTED.values(), strict=True):
        expected = pseudo(*made) - pseudo("MKTAYI", "dpvqac")
        assert each["pseudo_log_likelihood_ratio"] == pytest.approx(expected, abs=2e-5), made


def test_odd_letters_are_residues_that_saprot_does_not_know(pairs, cache):
    network, tokenizer, folder = pairs
    protein, structure = "MKXUOBZ-.AC", "dpvqacdpvqh"  # Ch has the number of ESM-2's mask
    options = {"dtype": "fp32", "variants": "none", "log_probabilities": "wildtype"}
    (row,) = computed(folder, cache, [f"{protein}\t{structure}".encode()], **options)
    tokens = [(a if a in AMINO_ACIDS else "#") + b for a, b in zip(protein, structure, strict=True)]
    shares = saprot_probabilities(network, tokenizer, tokens)
    shares = shares[1 : 1 + len(protein)]
    expected = [[log_of(each, letter) for letter in AMINO_ACIDS] for each in shares]
    np.testing.assert_allclose(row["log_probabilities"], expected, atol=1e-5)
    payloads = [f"{protein[:n]}\t{structure[:n]}".encode() for n in (1, 3, 11, 7)]
    together = computed(folder, cache, payloads, **options)
    alone = [computed(folder, cache, [payload], **options)[0] for payload in payloads]
    assert together == alone


def test_every_pair_of_letters_is_the_token_of_its_authors():
    for residue, structure in itertools.product(AMINO_ACIDS, SAPROT_STRUCTURES):
        tokens = alphabets.own_tokens(
            np.array([0, ALPHABET.get_idx(residue), 2]), structure.encode()
        )
        place = SAPROT_RESIDUES.index(residue) * 21 + SAPROT_STRUCTURES.index(structure)
        assert tokens.tolist() == [0, 5 + place, 2]
