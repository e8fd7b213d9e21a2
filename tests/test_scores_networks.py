"""The networks of the workload scores beside ESM-2 and ESM C: each held against its authors' own
program, or their arithmetic on transformers' network."""

import csv
import functools
import gc
import itertools
import random
import weakref
from pathlib import Path

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
from programs import write_fasta
from test_scores import AMINO_ACIDS, CPU, TOKENS, FairEsm, computed, converted, payload_of

import featuremill
from featuremill.base.errors import UserError
from featuremill.workload import weights as weights_verb
from featuremill.workload.compute import values_of
from featuremill.workloads import scores
from featuremill.workloads.scores import ensemble, sources

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
    for name in sources.ESM_1_NAMES:
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
    monkeypatch.setattr(scores, "free_memory_mb", lambda: 100)
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
        for name in ("esm1v_1", "esm1v_2", sources.ESM_1_NAMES[1])
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
        tokens = ensemble.own_tokens(
            np.array([0, ALPHABET.get_idx(residue), 2]), structure.encode()
        )
        place = SAPROT_RESIDUES.index(residue) * 21 + SAPROT_STRUCTURES.index(structure)
        assert tokens.tolist() == [0, 5 + place, 2]


# Whatever is asked, each number is that of its variant, its protein and its network: held against
# one slow pass of fair-esm's or transformers' network for each number.

KINDS = ("wildtype", "masked", "masked_additive", "mutant", "pseudo")
MASK = "mask"
COLUMNS = {
    **{kind: f"{kind}_marginal" for kind in KINDS[:4]},
    "pseudo": "pseudo_log_likelihood_ratio",
}


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Return three choices of networks: the option, the cache, and what computes each of them."""
    cache = tmp_path_factory.mktemp("cache")
    paths = [save_elder(cache / f"v{n}.pt", seed=n, has_norm=False) for n in (1, 2)]
    elders = [OfResidues(fair_esm_of(path)) for path in paths]
    (cache / "saprot").mkdir()
    network, _ = saprot(cache / "saprot")
    chosen = {
        "one": (str(paths[0]), elders[:1]),
        "two": ([str(path) for path in paths[::-1]], elders[::-1]),
        "saprot": (str(cache / "saprot"), [OfPairs(network)]),
    }
    return chosen, cache


class OfResidues:
    """Log-probabilities of the 33 tokens by fair-esm's network, of one sequence at a time."""

    def __init__(self, network):
        self.network = network
        self.rows = functools.lru_cache(None)(self._rows)

    def _rows(self, letters, _structure, has_first, has_last):
        tokens = [ALPHABET.mask_idx if a == MASK else ALPHABET.get_idx(a) for a in letters]
        return self.logs(tokens, has_first, has_last)

    @torch.inference_mode()
    def logs(self, tokens, has_first, has_last):
        given = torch.tensor([[0] * has_first + tokens + [2] * has_last])
        found = self.network(given)["logits"].log_softmax(-1)[0].double()
        return found[has_first : has_first + len(tokens)]

    def of(self, row, letter):
        return row[ALPHABET.get_idx(letter)].item()


class OfPairs(OfResidues):
    """Those of SaProt's 446 tokens by transformers' network."""

    def _rows(self, letters, structure, has_first, has_last):
        pairs = zip(letters, structure, strict=True)
        tokens = [self.first(a) + SAPROT_STRUCTURES.index(b) for a, b in pairs]
        return self.logs(tokens, has_first, has_last)

    def first(self, letter):
        return 5 + 21 * SAPROT_RESIDUES.index(letter if letter in AMINO_ACIDS else "#")

    def of(self, row, letter):
        start = self.first(letter)
        return row[start : start + 21].logsumexp(0).item()


class Slow:
    """The scores of one protein by one network, pass by pass, by their definitions."""

    def __init__(self, network, letters, structure, long, limit):
        self.network, self.long, self.limit = network, long, limit
        keep = limit if long == "truncate" else len(letters)
        self.letters, self.structure = letters[:keep], structure[:keep]

    def width(self, length):
        return length if self.long in ("full", "proteingym") else min(length, self.limit)

    def read(self, letters, structure, start, stop, place, has_first=True, has_last=True):
        window = tuple(letters[start:stop])
        rows = self.network.rows(window, tuple(structure[start:stop]), has_first, has_last)
        return rows[place - start]

    def around(self, places, length):
        width = self.width(length)
        start = min(max(0, (places[0] + places[-1] + 1 - width) // 2), length - width)
        return start, start + width

    def masked(self, letters, structure, places, place):
        letters, length = [*letters], len(letters)
        for each in places:
            letters[each] = MASK
        if self.long == "proteingym" and length > self.limit:
            size = self.limit + 2  # of tokens, with one before the residues and one behind them
            first = min(max(0, place + 1 - size // 2), length + 2 - size)
            has_first, has_last = first == 0, first + size == length + 2
            start, stop = max(0, first - 1), min(length, first + size - 1)
            return self.read(letters, structure, start, stop, place, has_first, has_last)
        return self.read(letters, structure, *self.around(places, length), place)

    def wildtype(self, place):
        length = len(self.letters)
        width = self.width(length)
        starts = [*range(0, length - width, max(1, width // 2)), length - width]
        start = min(starts, key=lambda each: abs(each + width / 2 - place - 0.5))
        return self.read(self.letters, self.structure, start, start + width, place)

    def pseudo(self, letters, structure):
        return sum(
            self.network.of(self.masked(letters, structure, [place], place), letter)
            for place, letter in enumerate(letters)
        )

    def marginal(self, kind, variant):
        """Return a score of `variant`: edits (start, stop, letters) in order."""
        if kind == "pseudo":
            letters, structure, place = "", "", 0
            for start, stop, new in variant:
                letters += self.letters[place:start] + new
                kept = self.structure[start:stop] if stop - start == len(new) else "#" * len(new)
                structure += self.structure[place:start] + kept
                place = stop
            letters, structure = letters + self.letters[place:], structure + self.structure[place:]
            return self.pseudo(letters, structure) - self.pseudo(self.letters, self.structure)
        if any(stop - start != len(new) for start, stop, new in variant):
            return None
        places, score = [start for start, _, _ in variant], 0.0
        for place, _, new in variant:
            if kind == "wildtype":
                row = self.wildtype(place)
            elif kind == "mutant":
                letters = [*self.letters]
                for each, _, letter in variant:
                    letters[each] = letter
                around = self.around(places, len(letters))
                row = self.read(letters, self.structure, *around, place)
            else:
                hidden = places if kind == "masked" else [place]
                row = self.masked(self.letters, self.structure, hidden, place)
            score += self.network.of(row, new) - self.network.of(row, self.letters[place])
        return score


def written(variant, letters, first):
    """Return a variant as a table has it, in any order of its edits."""

    def at(place):
        return f"{letters[place]}{place + first}"

    parts = []
    for start, stop, new in variant:
        if start == stop == 0:
            parts.append(f"{at(0)}delins{new}{letters[0]}")
        elif start == stop == len(letters):
            parts.append(f"{at(start - 1)}delins{letters[-1]}{new}")
        elif start == stop:
            parts.append(f"{at(start - 1)}_{at(start)}ins{new}")
        elif stop - start == len(new) == 1:
            parts.append(f"{at(start)}{new}")
        else:
            span = at(start) if stop - start == 1 else f"{at(start)}_{at(stop - 1)}"
            parts.append(f"{span}del")
    random.shuffle(parts)
    return ":".join(parts)


def drawn(generator, letters, keep, has_indels):
    """Return a variant of the first `keep` residues, its edits apart from each other."""
    places = sorted(generator.sample(range(keep), min(keep, generator.choice([1, 1, 2, 3]))))
    found = []
    for place in places:
        new = generator.choice(AMINO_ACIDS.replace(letters[place], ""))
        kind = generator.choice(["new", "new", "del", "ins"]) if has_indels else "new"
        if kind == "del" and keep - len(found) > len(places) + 1:
            found.append((place, place + 1, ""))
        elif kind == "ins" and place and place + 1 not in places and place - 1 not in places:
            at = len(letters) if place == len(letters) - 1 and generator.random() < 0.5 else place
            found.append((at, at, generator.choice([new, new + "WG"])))
        elif kind == "ins" and place == 0 and 1 not in places:
            found.append((0, 0, new))
        else:
            found.append((place, place + 1, new))
    return tuple(found)


FAST = 12


@pytest.mark.parametrize(
    "seed", [*range(FAST), *(pytest.param(n, marks=pytest.mark.slow) for n in range(FAST, 96))]
)
def test_every_number_is_that_of_its_variant_its_protein_and_its_network(
    networks, tmp_path, monkeypatch, seed
):
    monkeypatch.chdir(tmp_path)
    generator = random.Random(seed)
    random.seed(seed)
    chosen, cache = networks
    which = [*chosen][seed % 3]
    model, references = chosen[which]
    long = ["truncate", "full", "chunk", "proteingym"][seed // 3 % 4]
    if which != "saprot" and long == "full":
        long = "chunk"
    limit = generator.randint(4, 7)
    allowed = [k for k in KINDS if long != "proteingym" or k not in ("masked", "mutant")]
    if which != "saprot" and long == "proteingym":
        allowed.remove("wildtype")
    kinds = generator.sample(allowed, generator.randint(1, len(allowed)))
    listed = seed % 4 != 3
    proteins = {
        f"p{n}": f"M{''.join(generator.choices(AMINO_ACIDS + 'X', k=generator.randint(3, 9)))}Q"
        for n in range(3 if listed else 1)
    }
    if not listed:
        proteins, limit = {"p0": proteins["p0"][:4]}, limit - 3
    structures = {
        id: "".join(generator.choices(SAPROT_STRUCTURES, k=len(p))) for id, p in proteins.items()
    }
    options = {"dtype": "fp32", "marginals": kinds, "long": long, "likelihood": "pseudo"}
    options["log_probabilities"] = generator.choice(
        ["masked", "wildtype"] if "wildtype" in allowed else ["masked"]
    )
    if long != "full":
        options["max_residues"] = limit
    write_fasta(Path("in.fa"), proteins)
    if which == "saprot":
        structures["p0"] = "#" * len(proteins["p0"])  # as without one, which the file leaves out
        known = {id: structures[id] for id in [*structures][1:] or ["p0"]}
        write_fasta(Path("3di.fa"), known)
        options["structures"] = "3di.fa"
    wanted = {id: [] for id in proteins}
    if listed:
        first = generator.choice([1, 24])
        options |= {"variants": "listed", "variants_file": "v.csv", "first_residue": first}
        rows = []
        for id, protein in proteins.items():
            keep = min(limit, len(protein)) if long == "truncate" else len(protein)
            some = [drawn(generator, protein, keep, "pseudo" in kinds) for _ in range(5)]
            some = [*some, some[0], None]
            rows += [(id, written(v, protein, first) if v else "WT", v) for v in some]
        generator.shuffle(rows)
        with Path("v.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["id", "mutant", "number"])
            table.writerows([id, text, n] for n, (id, text, _) in enumerate(rows))
        for n, (id, _, variant) in enumerate(rows):
            wanted[id].append((str(n), variant))
    else:
        for place, old in enumerate(proteins["p0"][: limit if long == "truncate" else None]):
            news = AMINO_ACIDS.replace(old, "") if old in AMINO_ACIDS else ""
            wanted["p0"] += [(f"{old}{place + 1}{new}", ((place, place + 1, new),)) for new in news]
    asked = scores.Options(model=model, **options)
    records = list(scores.records([tmp_path / "in.fa"], asked))
    kept = [record for record in records if not record.reason]
    assert len(kept) == len(proteins)
    found = computed(model, cache, [record.payload for record in kept], 60, **options)
    resolved = [name for name in found[0] if name.startswith("pseudo_log_likelihood")]
    suffixes = [name.removeprefix("pseudo_log_likelihood") for name in resolved]
    suffixes = suffixes[: len(references)]  # the mean stands last
    num_scores = 0
    for record, row in zip(kept, found, strict=True):
        protein, structure = proteins[record.id], structures[record.id]
        slow = [Slow(each, protein, structure, long, limit) for each in references]
        for suffix, one in zip(suffixes, slow, strict=True):
            total = one.pseudo(one.letters, one.structure)
            assert row[f"pseudo_log_likelihood{suffix}"] == pytest.approx(total, abs=1e-4)
            for place, numbers in enumerate(row[f"log_probabilities{suffix}"]):
                if options["log_probabilities"] == "wildtype":
                    there = one.wildtype(place)
                else:
                    there = one.masked(one.letters, one.structure, [place], place)
                expected = [one.network.of(there, letter) for letter in AMINO_ACIDS]
                np.testing.assert_allclose(numbers, expected, atol=5e-5)
            assert place == len(one.letters) - 1
        assert len(row["variants"]) == len(wanted[record.id])
        for each, (key, variant) in zip(row["variants"], wanted[record.id], strict=True):
            assert each["number" if listed else "variant"] == key
            for kind in kinds:
                told = [each[f"{COLUMNS[kind]}{suffix}"] for suffix in suffixes]
                expected = [None] * len(slow)
                if variant and not (listed and each["reason"]):
                    expected = [one.marginal(kind, variant) for one in slow]
                if variant and listed and each["reason"]:
                    assert each["reason"].startswith("substitutions farther apart")
                    assert variant[-1][0] - variant[0][0] >= limit
                if None in expected:
                    assert told == expected
                else:
                    num_scores += 1
                    np.testing.assert_allclose(told, expected, atol=5e-5, err_msg=f"{each} {kind}")
                    if len(slow) > 1:
                        mean = each[f"{COLUMNS[kind]}_mean_of_2"]
                        assert mean == pytest.approx(np.mean(expected), abs=5e-5)
    assert num_scores > 3
