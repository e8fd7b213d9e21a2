"""Silhouette and kNN purity of labelled vectors, against their definitions, written out."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featuremill.steps.maps import plane as module
from featuremill.steps.maps.plane import agreement


def silhouette_of(vectors, labels):
    found = []
    for place, (vector, label) in enumerate(zip(vectors, labels, strict=True)):
        distances = {}
        for other, (another, its) in enumerate(zip(vectors, labels, strict=True)):
            if other != place:
                distances.setdefault(its, []).append(math.dist(vector, another))
        own = distances.pop(label, [])
        if not own:
            found.append(0.0)
            continue
        a, b = sum(own) / len(own), min(sum(d) / len(d) for d in distances.values())
        found.append((b - a) / max(a, b))
    return sum(found) / len(found)


def purity_of(vectors, labels, num_neighbours):
    shares = []
    for place, vector in enumerate(vectors):
        others = [other for other in range(len(vectors)) if other != place]
        others.sort(key=lambda other: math.dist(vector, vectors[other]))
        nearest = others[:num_neighbours]
        shares.append(sum(labels[other] == labels[place] for other in nearest) / num_neighbours)
    return sum(shares) / len(shares)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(4, 40),
    st.lists(st.sampled_from(["a", "b", "c", None]), min_size=40, max_size=40),
)
def test_it_is_what_the_definitions_say(seed, num_records, labels):
    labels = [*labels[: num_records - 3], "a", "b", "b"]
    vectors = np.random.default_rng(seed).normal(3, 1, (num_records, 5)).astype(np.float32)
    module_rows, module.ROWS = module.ROWS, 7  # several pieces
    try:
        found = agreement(vectors, labels)
    finally:
        module.ROWS = module_rows
    known = [place for place, label in enumerate(labels) if label is not None]
    chosen = vectors[known].tolist(), [labels[place] for place in known]
    assert (found.num_records, found.num_labels) == (len(known), len(set(chosen[1])))
    assert found.num_neighbours == min(10, len(known) - 1)
    assert found.silhouette == pytest.approx(silhouette_of(*chosen), abs=1e-9)
    assert found.purity == pytest.approx(purity_of(*chosen, found.num_neighbours), abs=1e-12)
    # With all others as neighbours, purity is that by chance.
    assert found.chance == pytest.approx(purity_of(*chosen, len(known) - 1), abs=1e-12)


def test_what_cannot_be_told_is_not_told():
    vectors = np.eye(4, dtype=np.float32)
    assert agreement(vectors, ["a"] * 4) is None
    assert agreement(vectors, [None, "a", "b", None]) is None
    same = agreement(np.ones((4, 3), np.float32), ["a", "a", "b", "b"])
    assert same.silhouette == 0


def test_of_many_records_some_at_even_distances_count(monkeypatch):
    monkeypatch.setattr(module, "MOST_COMPARED", 20)
    vectors = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    labels = [None if n % 2 else "ab"[n % 4 // 2] for n in range(100)]
    places = np.flatnonzero([label is not None for label in labels])
    few = places[np.linspace(0, 49, 20).round().astype(int)]
    found = agreement(vectors, labels)
    assert found == agreement(vectors[few], [labels[place] for place in few])
    assert found.num_records == 20
