"""Whatever is asked of the workload scores, each number is that of its variant, its protein and its
network: held against one slow pass of fair-esm's or transformers' network for each number."""

import csv
import functools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.elders import (
    ALPHABET,
    SAPROT_RESIDUES,
    SAPROT_STRUCTURES,
    fair_esm_of,
    saprot,
    save_elder,
)
from programs import write_fasta
from test_scores import AMINO_ACIDS, computed

from featuremill.workloads import scores

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
