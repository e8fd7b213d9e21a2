"""The workload scores, held against fair-esm's own arithmetic (examples/variant-prediction)."""

import functools

import numpy as np
import pytest
import torch
from esm2_models import (
    ALPHABET,
    demo_proteins,
    fair_esm,
    fair_esm_bundled,
    save_fair_esm,
)

from featuremill.extract.compute import values_of
from featuremill.lease.devices import cpu
from featuremill.workload import weights as weights_verb
from featuremill.workloads import scores
from featuremill.workloads.scores import variants

CPU = cpu()
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
PROTEINS = ["MKTAYIAKQRQISFVKSHFSRQ", "ACDEFGHIKLMXBN", "M", *demo_proteins(2, 200)]


def random_network():
    """Return fair-esm's model with random weights, the head's too, and logits of a usual size."""
    network = fair_esm(3, 48, 3, seed=3)
    network.embed_tokens.weight *= 0.2
    for parameter in network.lm_head.parameters():
        parameter += torch.randn_like(parameter) * 0.2
    return network


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", params=["random", "bundled"])
def network(request, cache):
    """Return fair-esm's model, and the model option that gives ours the same weights."""
    if request.param == "bundled":
        return fair_esm_bundled(), "mill_t6_8M"
    model = random_network()
    return model, str(save_fair_esm(model, cache / "random.pt"))


def converted(model, cache):
    return weights_verb.weights_of(weights_verb.convert(model, cache, "scores"))


def computed(model, cache, payloads, budget=4096, **options):
    """Return the values of payloads as rows."""
    found = converted(model, cache)
    settled = scores.resolve(scores.Options(model=model, **options), CPU, found)
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
        masked = ()
        if kind == "masked":
            masked = tuple(int(part[1:-1]) - 1 for part in parts)
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
    model, name = network
    names = [variant if variant[0] != "Q" else "M1L:Q22Y" for variant in LISTED]
    payload = variants.payload_of(PROTEINS[0].encode(), names)
    (row,) = computed(name, cache, [payload], **EVERYTHING)
    assert [each["variant"] for each in row["variants"]] == names
    reference = FairEsm(model)
    for each in row["variants"]:
        assert len(each) == 4
        for kind in ("wildtype", "masked", "mutant"):
            expected = reference.marginal(kind, PROTEINS[0], each["variant"])
            assert each[f"{kind}_marginal"] == pytest.approx(expected, abs=1e-5)


def test_all_substitutions_are_scored_as_fair_esm_does(network, cache):
    model, name = network
    payloads = [protein.encode() for protein in PROTEINS[:4]]
    kinds = ["wildtype", "masked"]
    rows = computed(name, cache, payloads, dtype="fp32", marginals=kinds)
    reference = FairEsm(model)
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


def test_what_is_told_of_proteins_and_residues_is_of_fair_esm(network, cache):
    model, name = network
    chosen = PROTEINS[:4]
    payloads = [protein.encode() for protein in chosen]
    rows = computed(name, cache, payloads, **EVERYTHING)
    alone = {"variants": "none", "log_probabilities": "wildtype", "positions": "masked"}
    (other,) = computed(name, cache, payloads[:1], dtype="fp32", **alone)
    reference = FairEsm(model)
    tokens = [ALPHABET.get_idx(letter) for letter in AMINO_ACIDS]
    for protein, row in zip(chosen, rows, strict=True):
        for kind, source in (("pseudo", "masked"), ("one_pass", "wildtype")):
            every = reference.every(source, protein)
            own = [every[n, ALPHABET.get_idx(letter)] for n, letter in enumerate(protein)]
            total = float(np.sum(own, dtype=np.float64))
            assert row[f"{kind}_log_likelihood"] == pytest.approx(total, rel=1e-5)
            perplexity = np.exp(-total / len(protein))
            assert row[f"{kind}_perplexity"] == pytest.approx(perplexity, rel=1e-5)
        every = reference.every("masked", protein)[:, tokens]
        np.testing.assert_allclose(row["log_probabilities"], every, atol=1e-5)
        check_positions(row["positions"], protein, reference.every("wildtype", protein))
    every = reference.every("wildtype", chosen[0])[:, tokens]
    np.testing.assert_allclose(other["log_probabilities"], every, atol=1e-5)
    check_positions(other["positions"], chosen[0], reference.every("masked", chosen[0]))


def check_positions(found, protein, every):
    assert [each["position"] for each in found] == list(range(1, len(protein) + 1))
    assert "".join(each["residue"] for each in found) == protein
    for each, row in zip(found, every, strict=True):
        own = row[ALPHABET.get_idx(each["residue"])]
        assert each["log_probability"] == pytest.approx(own, abs=1e-5)
        of_20 = np.array([row[ALPHABET.get_idx(letter)] for letter in AMINO_ACIDS], np.float64)
        shares = np.exp(of_20) / np.exp(of_20).sum()
        assert each["entropy"] == pytest.approx(-(shares * np.log(shares)).sum(), abs=1e-5)
