"""sae: a batch's vectors follow from seed and step, whoever computes them; what is written is what
SAELens reads; and a training goes on from where it was, or says in one sentence why not."""

import itertools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import venv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import PLUGINS, ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Desk, Verbs, is_running, python, ran, sentence_of, wait_for
from safetensors.torch import load_file

from featuremill import __main__, features
from featuremill.base.devices import Device
from featuremill.base.errors import UserError
from featuremill.config.project import runs_of
from featuremill.steps.autoencoders import (
    card,
    encode,
    measured,
    network,
    train,
    training,
)
from featuremill.steps.autoencoders import page as sae_page
from featuremill.steps.autoencoders import vectors as training_vectors
from featuremill.steps.autoencoders.encode import Encoder
from featuremill.steps.autoencoders.ranks import Ranks
from featuremill.steps.autoencoders.texts import names_of
from featuremill.steps.autoencoders.training import Trainer
from featuremill.steps.autoencoders.vectors import Chosen, is_held_out
from featuremill.store.formats import RECORD
from featuremill.store.records import SCHEMA
from featuremill.store.results import Results

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(PLUGINS))
    from featuremill_residues import WIDTH, vectors_of
SMALL = ["--features", "48", "--k", "4", "--batch", "64", "--steps", "30", "--held-out", "0.2"]


pytestmark = pytest.mark.usefixtures("no_handlers")


def proteins(count, seed=0):
    rng, letters = np.random.default_rng(seed), list("ACDEFGHIKLMNPQRSTVY")
    drawn = ("".join(rng.choice(letters, rng.integers(5, 60))) for _ in range(count))
    return [(f"p{seed}.{n}", sequence) for n, sequence in enumerate(drawn)]


def computed(folder, environment, records, **options):
    return Verbs(folder, environment).merged(records, "residues", options, cost=25)


GOOD = [*proteins(60), ("again", proteins(1)[0][1])]
RECORDS = [*GOOD, ("fails", "MKWL"), ("bad", "MK1")]


@pytest.fixture(scope="module")
def run(tmp_path_factory, environment):
    """Return a finished run of several parts: equal sequences, one that failed, one refused."""
    root = computed(tmp_path_factory.mktemp("run"), environment, RECORDS)
    assert len(Results(root).find_plan().shards) > 1
    return root


def sae(*words, status=0):
    assert __main__.main(["sae", *map(str, words)]) == status


def refusal(capfd, *words, status=2):
    """Return the one sentence that the verb ends with."""
    return sentence_of(capfd, "sae", *words, status=status)


# ---- which vectors a step takes ----


@given(num=st.integers(1, 1000), seed=st.integers(0, 2**40), cut=st.integers(30, 500))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_an_epoch_has_each_vector_once_however_it_is_asked_for(num, seed, cut):
    with pytest.MonkeyPatch.context() as patch:  # so that there are blocks and windows
        patch.setattr(training_vectors, "BLOCK", 16)
        patch.setattr(training_vectors, "WINDOW", 128)
        of = training_vectors.Order(num, seed)
        whole = of.vectors(0, 2 * num)
        pieces = [of.vectors(at, min(cut, 2 * num - at)) for at in range(0, 2 * num, cut)]
    assert np.array_equal(np.concatenate(pieces), whole)
    for epoch in (whole[:num], whole[num:]):
        assert np.array_equal(np.sort(epoch), np.arange(num))
    if num > 20:
        assert not np.array_equal(whole[:num], whole[num:])


def test_orders_differ_by_seed_and_mix_what_stands_together():
    first, other = (training_vectors.Order(100_000, seed).vectors(0, 4096) for seed in (0, 1))
    assert len(set(first) & set(other)) < 400
    assert len(set(first // training_vectors.BLOCK)) > 300  # of 391 blocks
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.1


# ---- what is read ----


def test_chosen_vectors_are_numbered_through(run):
    of_residues = features.open_parts(run, "residues")
    rows = np.flatnonzero(of_residues.num_of_row)
    found, _ = of_residues.of_rows(rows)
    chosen = Chosen(of_residues, np.ones(len(of_residues.num_of_row), bool))
    assert (len(chosen), chosen.num_records) == (len(found), 60)
    some = np.random.default_rng(0).permutation(len(chosen))[:500]
    np.testing.assert_array_equal(chosen.take(some), found[some])
    one = np.arange(len(of_residues.num_of_row)) == rows[7]
    alone = Chosen(of_residues, one)
    its_vectors = of_residues.of_rows(rows[7:8])[0]
    np.testing.assert_array_equal(alone.take(np.arange(len(alone))), its_vectors)


def test_who_is_held_out_hangs_on_the_record_and_the_seed_alone(run, tmp_path, environment):
    other = computed(tmp_path, environment, [*proteins(9, seed=3), *RECORDS[:30]])

    def held_out(root, seed):
        encoder = features.open_parts(root, "mean")
        is_one = is_held_out(encoder, 0.3, seed)
        return {bytes(row) for row in encoder.of_rows(np.flatnonzero(is_one))[0]}

    vectors = (vectors_of(text.encode()).astype(np.float32) for _, text in RECORDS[:30])
    common = {of_one.mean(0).tobytes() for of_one in vectors}
    assert held_out(run, 0) & common == held_out(other, 0) & common
    assert 3 < len(held_out(run, 0) & common) < 17
    assert held_out(run, 0) != held_out(run, 1)


# ---- steps ----


TOP4 = network.Form("topk", 4)
KINDS = {
    "topk": {},
    "relu": {"kind": "relu", "k": None, "sparsity": 0.5},
    "jumprelu": {"kind": "jumprelu", "k": None, "sparsity": 0.3, "bandwidth": 0.5},
}


class Together(Ranks):
    """Ranks that are threads of this process, with a queue from each to each."""

    def __init__(self, number, count, queues):
        self.number, self.count, self.device = number, count, torch.device("cpu")
        self._queues = queues

    def _send(self, ours, rank):
        self._queues[self.number, rank].put(ours.clone())

    def _receive(self, theirs, rank):
        theirs.copy_(self._queues[rank, self.number].get(timeout=60))

    def _exchange(self, ours, theirs, rank):
        self._send(ours, rank)
        self._receive(theirs, rank)

    def _share(self, ours):
        if self.number:
            self._receive(ours, 0)
        else:
            for rank in range(1, self.count):
                self._send(ours, rank)


def options_of(**more):
    usual = {"features": 48, "k": 4, "batch": 64, "steps": 30, "held_out": 0.2}
    usual |= {"seed": 0, "learning_rate": 3e-3, "dead_after": 5, "dtype": "fp32"}
    return card.Options(**usual | more)


def trainers(run, count, **more):
    vectors = features.open_parts(run, "residues")
    options = options_of(**more)
    chosen = Chosen(vectors, ~is_held_out(vectors, options.held_out, options.seed))
    queues = {pair: queue.SimpleQueue() for pair in itertools.product(range(count), repeat=2)}
    found = [Trainer(options, chosen, WIDTH, Together(n, count, queues)) for n in range(count)]
    for trainer in found:
        trainer.begin()
    return found


def take_all(found):
    """Let all ranks take their steps; return the lines that each has for training.jsonl."""
    rows = [[] for _ in found]

    def work(number):
        torch.set_num_threads(1)
        rows[number] += [row for row in found[number].run() if row]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rows


@pytest.fixture
def no_signals(monkeypatch):
    monkeypatch.setattr(training.signal, "signal", lambda *_: None)  # only the main thread may


@pytest.mark.parametrize(
    ("kind", "dtype", "counts"),
    [
        ("topk", "fp32", (1, 3, 8)),
        ("topk", "bf16", (1, 2)),
        ("relu", "fp32", (1, 4, 5)),
        ("jumprelu", "fp32", (1, 4, 7)),
        ("jumprelu", "bf16", (1, 2)),
        pytest.param("topk", "fp32", (1, 2, 4, 6), marks=pytest.mark.slow),
        pytest.param("relu", "fp32", (1, 2, 8), marks=pytest.mark.slow),
        pytest.param("jumprelu", "fp32", (1, 2, 8), marks=pytest.mark.slow),
    ],
)
def test_any_number_of_ranks_computes_the_same_bits(
    run, no_signals, monkeypatch, kind, dtype, counts
):
    monkeypatch.setattr(training, "LOG_STEPS", 10)
    bits, lines = [], []
    for count in counts:
        found = trainers(run, count, dtype=dtype, dead_after=1, **{"k": 2, **KINDS[kind]})
        rows = take_all(found)
        bits += [{n: t.numpy().tobytes() for n, t in each.finished().items()} for each in found]
        untimed = ("seconds", "seconds_left", "ranks")
        lines += [[{k: v for k, v in row.items() if k not in untimed} for row in r] for r in rows]
    assert all(one == bits[0] for one in bits)
    assert all(one == lines[0] for one in lines) and len(lines[0]) == 3
    assert lines[0][0]["loss"] > lines[0][-1]["loss"]
    if kind == "topk":
        assert 0 < lines[0][-1]["dead"] < 1, "no dead feature: the auxiliary loss was not tried"


@pytest.mark.parametrize("num_dead", [0, 2, 30])
def test_a_step_is_the_gradient_of_the_whole_batch(run, num_dead):
    """By autograd over the batch at once, and Adam as torch has it. Dead features share out the
    error that is left among the strongest of them (Gao et al., A.2)."""
    (trainer,) = trainers(run, 1, dead_after=1000)
    trainer.since_active[:num_dead] = 1000
    tensors = {name: value.clone().requires_grad_() for name, value in trainer.tensors.items()}
    x = torch.cat([trainer._read(0, number) for number in range(8)])
    left = x - network.rebuilt(tensors, network.features(tensors, x, TOP4))
    loss = left.square().sum() / x.numel()
    if num_dead:
        dead = network.pre_activations(tensors, x)[:, :num_dead]
        least = dead.topk(min(num_dead, WIDTH // 2), sorted=True).values[:, -1:]
        rebuilt = dead.where(dead >= least, 0) @ tensors["W_dec"][:num_dead]
        share = min(1, num_dead / (WIDTH // 2)) / 32
        loss = loss + share * (rebuilt - left.detach()).square().sum() / x.numel()
    loss.backward()
    weights, gradient = tensors["W_dec"].detach(), tensors["W_dec"].grad
    gradient -= (gradient * weights).sum(1, keepdim=True) * weights
    optimizer = torch.optim.Adam(tensors.values(), 3e-3, (0.9, 0.999), 6.25e-10)
    optimizer.step()
    next(trainer.run())
    rebuilt = tensors["W_dec"] / tensors["W_dec"].norm(dim=1, keepdim=True)
    assert torch.allclose(trainer.tensors["W_dec"], rebuilt, atol=1e-4)
    torch.testing.assert_close(trainer.window.scalars[2], loss.item(), rtol=1e-5, atol=0)


def test_a_relu_minimises_the_squared_error_and_the_sum_of_its_features(run):
    """As StandardTrainingSAE of SAELens: the mean over vectors of both, here divided by their
    width; in the first step with a fraction of the weight."""
    (trainer,) = trainers(run, 1, **KINDS["relu"], steps=100)
    tensors = {name: value.clone().requires_grad_() for name, value in trainer.tensors.items()}
    x = torch.cat([trainer._read(0, number) for number in range(8)])
    z = torch.relu((x - tensors["b_dec"]) @ tensors["W_enc"] + tensors["b_enc"])
    error = (z @ tensors["W_dec"] + tensors["b_dec"] - x).square().sum(1)
    norms = tensors["W_dec"].norm(dim=1)
    loss = (error + 0.5 / 5 * (z * norms).sum(1)).mean() / WIDTH
    loss.backward()
    trainer._slices = lambda: range(8)
    for number in range(8):
        trainer._add_slice(number, trainer._read(0, number))
    found = trainer._buffers[0].parts
    torch.testing.assert_close(found["scalars"][2], loss.detach(), rtol=1e-5, atol=0)
    for name in ("W_enc", "b_enc", "b_dec"):
        torch.testing.assert_close(found[name], tensors[name].grad, rtol=1e-4, atol=1e-7)


def test_a_threshold_moves_by_the_numbers_within_half_a_bandwidth_of_it():
    """By equations 11 and 12 of arXiv:2407.14435, with a rectangle as kernel, in plain NumPy."""
    rng = np.random.default_rng(0)
    pre, threshold = rng.normal(0.3, 1, (500, 6)), np.linspace(0, 0.8, 6)
    towards, weight, bandwidth = rng.normal(size=(500, 6)), 0.7, 0.4
    tensors = {"threshold": torch.tensor(threshold, requires_grad=True)}
    numbers = torch.tensor(pre, requires_grad=True)
    z, count = network.penalised(tensors, numbers, network.Form("jumprelu"), bandwidth)
    assert np.array_equal(z.detach().numpy(), np.where(pre > threshold, pre, 0))
    assert count.item() == np.count_nonzero(pre > threshold)
    ((z * torch.tensor(towards)).sum() + weight * count).backward()
    near = np.abs(pre - threshold) < bandwidth / 2
    slopes = -(near * (threshold * towards + weight)).sum(0) / bandwidth
    np.testing.assert_allclose(tensors["threshold"].grad.numpy(), slopes, rtol=1e-5)
    np.testing.assert_allclose(numbers.grad.numpy(), towards * (pre > threshold))


class MadeUp:
    """Vectors that are sums of three of sixteen directions, with weights between 1 and 2."""

    def __init__(self):
        rng = np.random.default_rng(0)
        directions = rng.normal(size=(16, 20))
        self.directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
        chosen = np.argsort(rng.random((4000, 16)), 1)[:, :3]
        weights = np.zeros((4000, 16))
        np.put_along_axis(weights, chosen, rng.uniform(1, 2, chosen.shape), 1)
        self.x = (weights @ self.directions).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def take(self, numbers):
        return self.x[numbers]


@pytest.mark.parametrize("kind", ["relu", "jumprelu"])
def test_of_made_up_vectors_few_features_are_active_and_leave_little_unexplained(kind):
    torch.set_num_threads(1)
    made = MadeUp()
    sizes = {"features": 24, "steps": 250, "learning_rate": 1e-2}
    options = options_of(**KINDS[kind] | {"sparsity": 1.0} | sizes)
    trainer = Trainer(options, made, 20, Together(0, 1, {}))
    trainer.begin()
    first, *_, last = (row for row in trainer.run() if row)
    weights = trainer.finished()["W_dec"].numpy()
    found = ((made.directions @ weights.T).max(1) > 0.9).sum()
    said = f"loss {first['loss']:.3f} to {last['loss']:.3f}, L0 {first['l0']:.1f} to "
    said += f"{last['l0']:.1f}, FVU {last['fvu']:.3f}, {found} of 16 directions"
    assert last["loss"] < 0.7 * first["loss"], said
    assert 2 < last["l0"] < 6 < first["l0"] and last["fvu"] < 0.15, said
    assert found >= 10, said
    if kind == "jumprelu":
        assert trainer.tensors["threshold"].min() >= 0
        assert trainer.tensors["threshold"].median() > 5 * network.FIRST_THRESHOLD, said


def test_the_rate_rises_for_a_fiftieth_of_the_steps_and_falls_in_the_last_fifth(run):
    (trainer,) = trainers(run, 1, steps=100)
    shares = [trainer._share_of_rate() for trainer.step in range(100)]
    assert shares == pytest.approx([0.5] + [1.0] * 80 + [left / 20 for left in range(19, 0, -1)])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_stored_takes_vectors_as_the_run_has_them(run, kind):
    (trainer,) = trainers(run, 1, **KINDS[kind])
    list(trainer.run())
    x = trainer._read(0, 0)
    form = network.Form(kind, 4)
    before = network.features(trainer.tensors, x, form)
    after = network.features(trainer.finished(), x / trainer.scale, form)
    assert trainer.scale != 1 and trainer.tensors["b_enc"].any() and before.any()
    assert torch.equal(before > 0, after > 0)
    torch.testing.assert_close(after * trainer.scale, before, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("step", [1, 23])
def test_a_training_goes_on_from_a_checkpoint_as_if_nothing_had_been(run, tmp_path, step):
    torch.set_num_threads(1)
    (undisturbed,) = trainers(run, 1, k=1, dead_after=10)
    *_, undisturbed_row = (row for row in undisturbed.run() if row)
    (first,), (second,) = trainers(run, 1, k=1, dead_after=10), trainers(run, 1, k=1, dead_after=10)
    for _ in first.run():
        if first.step == step:
            first.save(tmp_path / card.CHECKPOINT, {"k": 4})
            break
    assert step == 1 or first.since_active.max() >= 10
    second.load(tmp_path, {"k": 4})
    *_, row = (row for row in second.run() if row)
    for name, tensor in undisturbed.finished().items():
        assert torch.equal(second.finished()[name], tensor), name
    assert row["step"] == 30
    figures = ("loss", "fvu", "l0", "dead")
    told = [{key: one[key] for key in figures} for one in (undisturbed_row, row)]
    assert told[0] == told[1], "the line is of all steps since the one before"


def test_the_line_of_a_training_has_the_fraction_of_the_variance_about_the_mean(run):
    """By NumPy over the vectors of its steps, which lie far from 0 on one side."""
    (trainer,) = trainers(run, 1, steps=1)
    x = torch.cat([trainer._read(0, number) for number in range(8)]).double().numpy()
    features_BM = network.features(trainer.tensors, torch.from_numpy(x).float(), TOP4)
    error = x - network.rebuilt(trainer.tensors, features_BM).detach().double().numpy()
    trainer._center -= 3.0
    (row,) = trainer.run()
    variance = np.square(x - x.mean(0)).sum()
    assert row["fvu"] == pytest.approx(np.square(error).sum() / variance, rel=1e-4)


# ---- the verb ----


@pytest.fixture(scope="module")
def trained(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saes") / "small"
    sae("train", run, "--vectors", "residues", *SMALL, "--device", "cpu", "--output", folder)
    return folder


def test_a_training_writes_what_saelens_reads_and_says_what_it_was_made_of(run, trained, capsys):
    names = {path.name for path in trained.iterdir()}
    assert names == {RECORD, card.LOCK, card.TRAINING, card.CARD, card.CONFIG, card.WEIGHTS}
    config = json.loads((trained / "cfg.json").read_text())
    assert (config["architecture"], config["k"]) == ("topk", 4)
    assert (config["d_in"], config["d_sae"]) == (WIDTH, 48)
    shapes = {name: tuple(t.shape) for name, t in load_file(trained / card.WEIGHTS).items()}
    assert shapes == network.sizes(WIDTH, 48)
    told = json.loads((trained / "sae.json").read_text())
    assert told["source"]["recipe"] == Results(run).find_plan().recipe
    assert told["options"]["seed"] == 0 and told["versions"]["torch"] == torch.__version__
    vectors = features.open_parts(run, "residues")
    held_out = is_held_out(vectors, 0.2, 0)
    num_vectors = vectors.num_of_row * ~held_out
    counts = {"records": np.count_nonzero(num_vectors), "vectors": num_vectors.sum()}
    counts["held_out"] = np.count_nonzero(held_out & (vectors.num_of_row > 0))
    assert told["counts"] == counts
    assert 0 < told["counts"]["held_out"] < 60
    *_, row = map(json.loads, (trained / "training.jsonl").read_text().splitlines())
    assert row["step"] == 30 and 0 < row["fvu"] < 1 and row["ranks"] == 1
    capsys.readouterr()
    assert __main__.main(["sae", "watch", str(trained), "--once"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("step 30 of 30 · loss ") and said.endswith(" % dead · done\n")
    assert __main__.main(["sae", "watch", str(trained), "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == row


def test_trained_once_more_it_is_there_already_and_elsewhere_the_same_bytes(
    run, trained, tmp_path, capfd
):
    words = ["train", run, "--vectors", "residues", *SMALL, "--device", "cpu", "--output"]
    sae(*words, trained)
    assert "is trained already" in capfd.readouterr().err
    sae(*words, tmp_path / "again")
    assert (tmp_path / "again" / card.WEIGHTS).read_bytes() == (trained / card.WEIGHTS).read_bytes()


def forward(trained, x, k=4):
    """Return features and what they come back as, by plain NumPy in float64."""
    t = {name: v.astype(np.float64) for name, v in weights(trained).items()}
    pre = (x - t["b_dec"]) @ t["W_enc"] + t["b_enc"]
    kth = np.sort(pre, 1)[:, -k][:, None]
    z = np.where(pre >= kth, np.maximum(pre, 0), 0)
    return z, z @ t["W_dec"] + t["b_dec"]


def test_encode_writes_the_active_features_of_each_record_in_the_order_of_the_input(
    run, trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(encode, "BLOCK_NUMBERS", 48 * 40)  # many blocks
    output = tmp_path / "active.parquet"
    sae("encode", run, "--sae", trained, "--output", output)
    table = pq.read_table(output)
    element = table.schema.field("features").type.value_type
    assert [(f.name, str(f.type)) for f in element] == [("feature", "int32"), ("value", "float")]
    assert table["id"].to_pylist() == [id for id, _ in GOOD]
    for (_, text), found in zip(GOOD, table["features"].to_pylist(), strict=True):
        z, _ = forward(trained, vectors_of(text.encode()).astype(np.float64))
        highest = z.max(0)
        assert [entry["feature"] for entry in found] == np.flatnonzero(highest).tolist()
        values = [entry["value"] for entry in found]
        np.testing.assert_allclose(values, highest[highest > 0], rtol=1e-4)


def test_a_few_vectors_that_make_most_of_the_variance_are_told_apart():
    """The figures are those of NumPy, over all vectors and over those that are not far."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(330, 8))
    x[::33] *= 1000
    x += 50
    back = x + generator.normal(size=x.shape) * np.where(np.arange(330) % 33, 1, 0)[:, None]
    sums = measured._Sums(8, 4)
    for some in np.array_split(np.arange(330), 4):
        sums.add(*map(torch.from_numpy, (x[some], x[some] - back[some])))
    held, near = sums.held(), x[np.arange(330) % 33 > 0]
    error = np.square(x - back).sum()
    assert held.num_far == 10 and held.vectors == 330 and held.is_of_few
    assert held.fvu == pytest.approx(error / np.square(x - x.mean(0)).sum()) and held.fvu < 1e-4
    expected = error / np.square(near - near.mean(0)).sum()
    assert held.fvu_near == pytest.approx(expected) and held.fvu_near > 0.9
    text = sae_page.of_few(held)
    assert "10 of 330 are more than 4 times" in text and f"others is {expected:.4f}" in text
    even = measured._Sums(8, 4)
    even.add(*map(torch.from_numpy, (near, near)))
    assert not even.held().is_of_few and sae_page.of_few(even.held()) == ""
    assert even.held().fvu == pytest.approx(even.held().fvu_near, rel=1e-6)


@pytest.mark.parametrize("size", [1, 4, 40])
def test_of_records_that_are_equally_strong_the_first_ids_are_shown(size):
    """In whatever order, and blocks, a run has them."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 3, (40, 2)).astype(np.float32)
    ids = np.array([f"p{number}" for number in range(40)], object)
    found = []
    for rows_now in (np.arange(40), rng.permutation(40)):
        strongest = tuple(np.zeros((2, 0), kind) for kind in (np.float32, object, np.int32))
        for first in range(0, 40, size):
            rows = rows_now[first : first + size]
            block = SimpleNamespace(
                ids=list(ids[rows]),
                highest=lambda _, rows=rows: values[rows],
                where=lambda highest, rows=rows: np.stack([rows, rows], 1).astype(np.int32),
            )
            strongest = measured._strongest(strongest, block, 2)
        found.append(strongest)
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)
    expected = sorted(range(40), key=lambda row: (-values[row, 0], ids[row]))
    assert list(found[0][2][0]) == expected[: measured.MOST_RECORDS]


def test_the_report_judges_by_records_that_training_did_not_see(run, trained, tmp_path, capfd):
    page = tmp_path / "page.html"
    sae("report", run, "--sae", trained, "--output", page)
    assert "held-out vectors: FVU 0." in capfd.readouterr().err
    held, _ = measured.measure(Encoder(run, trained, False, 1))
    vectors = features.open_parts(run, "residues")
    rows = np.flatnonzero(is_held_out(vectors, 0.2, 0) & (vectors.num_of_row > 0))
    x = vectors.of_rows(rows)[0].astype(np.float64)
    z, back = forward(trained, x)
    fvu = np.square(x - back).sum() / np.square(x - x.mean(0)).sum()
    # "again" is the same record as p0: where that is held out, it counts twice.
    assert held.vectors >= len(x)
    assert held.dead == pytest.approx(1 - (z > 0).any(0).mean(), abs=0.03)
    assert held.records - len(rows) in (0, 1) and 0 < len(rows) < 30
    assert held.fvu == pytest.approx(fvu, rel=0.05) and held.l0 == pytest.approx(4, abs=0.3)
    text = page.read_text()
    table = pd.read_csv(tmp_path / "features.tsv", sep="\t")
    best = table[(table["feature"] == table["feature"].iloc[0]) & (table["rank"] == 1)]
    assert text.count("<summary>") == 2 and "more</summary>" in text, "rows beyond 30 are folded"
    assert ("of the features are dead" in text) == (held.dead >= sae_page.MANY_DEAD)
    assert "Train with fewer --features" in sae_page._dead_advice(0.756, 512, 811)
    assert sae_page._dead_advice(0.01, 512, 811) == ""
    assert table.columns[-1] == "description" and "Words in common" in text
    assert best["id"].item() in text and "http-equiv" in text and 'src="http' not in text
    of_all = [forward(trained, vectors_of(sequence.encode()))[0] for _, sequence in GOOD]
    strongest = max(z[:, best["feature"].item()].max() for z in of_all)
    assert best["value"].item() == pytest.approx(strongest, rel=1e-4)


def test_the_report_shows_residues_in_their_sequence(run, trained, tmp_path):
    sae("report", run, "--sae", trained, "--output", tmp_path / "page.html")
    table = pd.read_csv(tmp_path / "features.tsv", sep="\t", keep_default_na=False)
    sequences = dict(RECORDS)
    for row in table[::9].itertuples():
        z, _ = forward(trained, vectors_of(sequences[row.id].encode()).astype(np.float64))
        of_feature = z[:, row.feature]
        assert of_feature[row.place - 1] == pytest.approx(of_feature.max(), rel=1e-4)
        at = row.place - 1
        assert row.at == sequences[row.id][at]
        assert row.before == sequences[row.id][max(0, at - 12) : at]
        assert row.behind == sequences[row.id][at + 1 : at + 13]
    first = table.iloc[0]
    shown = f"{first['before']}<mark>{first['at']}</mark>{first['behind']}"
    assert shown in (tmp_path / "page.html").read_text()


def test_words_that_the_strongest_records_share_are_named_where_they_are_rare_elsewhere(tmp_path):
    texts = [f"Protein L{n} ribosomal OS=Coli" for n in range(5)] + ["Some protein"] * 45
    texts[4] = "Protein kinase OS=Coli"
    rows = [{"id": f"r{n}", "description": text} for n, text in enumerate(texts)]
    rows.append({"id": "none", "description": None})
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), tmp_path / "records.parquet")
    asked = [["r0", "r1", "r2", "r3", "r4"], ["r0", "r10", "r11"], ["none"], []]
    found = names_of(tmp_path / "records.parquet", asked)
    assert found.words_M == [["coli", "ribosomal"], [], [], []]  # all have "protein"
    assert found.descriptions["r4"] == texts[4] and found.descriptions["none"] == ""
    assert set(found.descriptions) == {"r0", "r1", "r2", "r3", "r4", "r10", "r11", "none"}


def test_the_estimate_counts_what_is_there_at_once():
    of = train.needed(options_of(features=16384, batch=4096), 1280, 1)
    parameters = 2 * 1280 * 16384 + 16384 + 1280
    assert of.weights == 4 * parameters and of.checkpoint == 12 * parameters
    assert of.device > 4 * 7 * parameters
    more = [train.needed(options_of(features=16384), 1280, n).device for n in (1, 2, 4, 8)]
    assert more[0] >= more[1] >= more[2] == more[3]


# ---- what cannot be ----


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--vectors residues --k 49", "--k 49: of 48 features at least 1 and at most all can be "
         "active; give a smaller --k, or more --features."),
        ("--vectors residues --batch 60",
         "--batch 60: a batch is computed in 8 equal slices; give a multiple of 8."),
        ("--vectors residues --gpus 9", "--gpus 9: a batch is computed in 8 equal slices, which 1 "
         "to 8 devices can share; give one of these numbers."),
        ("--vectors residues --gpus 2 --devices 0",
         "--gpus 2: --devices 0 names fewer; name as many."),
        ("--vectors residues --devices 0", "--devices 0: --device cpu takes no GPU; drop one."),
        ("--vectors residue",
         "RUN: there is no column 'residue' of vectors; it has mean, residues."),
        ("", "RUN: it has several columns; choose one of mean, residues with --vectors."),
        ("--vectors mean --held-out 1", "--held-out 1.0: give a share from 0 to below 1."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence(run, tmp_path, capfd, words, sentence):
    more = [*SMALL, *words.split(), "--device", "cpu", "--output", tmp_path / "s"]
    said = refusal(capfd, "train", run, *more)
    assert said.replace(str(run), "RUN") == sentence
    assert not (tmp_path / "s" / card.TRAINING).exists()


def test_a_run_that_is_not_whole_is_refused(run, tmp_path, capfd):
    copy, output = shutil.copytree(run, tmp_path / "results" / "test"), tmp_path / "s"
    words = ["train", copy, "--vectors", "mean", *SMALL, "--device", "cpu", "--output", output]
    part = next((copy / "store" / "parts").rglob("*.arrows"))
    whole = part.read_bytes()
    damaged = bytearray(whole)
    damaged[-3000] ^= 1
    part.write_bytes(damaged)
    said = refusal(capfd, *words, status=4)
    assert said.startswith(f"{part}: its bytes are not those that the results were made of; ")
    part.unlink()
    assert refusal(capfd, *words).startswith(f"{part}: this part of the run was removed, ")
    part.write_bytes(whole)
    (copy / "manifest.json").unlink()
    said = refusal(capfd, *words)
    assert said.startswith(f"{copy}: there are no complete results of this run yet; ")
    said = refusal(capfd, "train", tmp_path, *words[2:])
    assert said == f"{tmp_path}: this is no run's folder; name one, such as results/demo."


def test_anothers_folder_or_checkpoint_is_refused(run, trained, tmp_path, capfd):
    words = ["train", run, "--vectors", "residues", *SMALL, "--device", "cpu"]
    said = refusal(capfd, *words, "--seed", "1", "--output", trained)
    other = f"{trained}: the autoencoder there is of another training (seed 0 and not 1)"
    assert said == f"{other}; name another --output, or delete this folder."
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").touch()
    said = refusal(capfd, *words, "--output", tmp_path / "notes")
    assert "holds 'a.txt', which is of no autoencoder" in said
    (trainer,) = trainers(run, 1)
    next(trainer.run())
    (tmp_path / "s").mkdir()
    trainer.save(tmp_path / "s" / card.CHECKPOINT, {"seed": 7})
    said = refusal(capfd, *words, "--output", tmp_path / "s")
    assert said.startswith(f"{tmp_path / 's'}: the checkpoint there is of another training (")
    source = train.source_of(features.open_parts(run, "residues"))
    of_other_vectors = card.identity(options_of(), source.model_copy(update={"parts": "e5"}))
    trainer.save(tmp_path / "s" / card.CHECKPOINT, of_other_vectors)
    assert f"parts e5 and not {source.parts}" in refusal(capfd, *words, "--output", tmp_path / "s")
    (tmp_path / "s" / card.CHECKPOINT).write_bytes(b"nothing")
    said = refusal(capfd, *words, "--output", tmp_path / "s")
    assert said.endswith("this is no checkpoint of a training; delete it to begin anew.")


def test_encode_takes_vectors_of_the_same_recipe_only(trained, tmp_path, environment, capfd):
    other = computed(tmp_path, environment, proteins(5), shift=0.6)
    words = ["encode", other, "--sae", trained, "--output", tmp_path / "a.parquet"]
    assert "was trained on" in refusal(capfd, *words)
    sae(*words, "--any-recipe")
    assert refusal(capfd, *words[:-1], tmp_path / "a.tsv").endswith("give a name that ends so.")
    said = refusal(capfd, "encode", other, "--sae", tmp_path, *words[4:])
    assert said.startswith(f"{tmp_path}: there is no trained autoencoder here")


# ---- real processes ----

LONGER = ["--features", "128", "--k", "8", "--batch", "128", "--steps", "200"]
LONGER += ["--vectors", "residues", "--device", "cpu", "--held-out", "0.2"]


class Training:
    """A training in processes of its own."""

    def __init__(self, run, environment, output, ranks, minutes=0.0):
        words = ["sae", "train", run, *LONGER, "--gpus", ranks, "--output", output]
        words += ["--checkpoint-minutes", minutes]
        self.output = output
        desk = Desk(output.parent, environment)
        desk.is_forked = False
        self.process = desk.start("featuremill", *words)

    def end(self):
        """Return the exit status, and what it said."""
        _, said = self.process.communicate(timeout=500)
        return self.process.returncode, said

    def step(self):
        path = self.output / card.CHECKPOINT
        return training.metadata_of(path)["step"] if path.exists() else 0

    def wait_for(self, step):
        wait_for(lambda: self.step() >= step or self.process.poll() is not None)

    def rank(self, number):
        """Return the pid of a rank."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next(one.pid for one in children if one.environ().get("RANK") == str(number))


def weights(folder):
    return {name: t.numpy() for name, t in load_file(folder / card.WEIGHTS).items()}


def compare(folder, undisturbed, note=""):
    for name, found in weights(folder).items():
        np.testing.assert_allclose(found, undisturbed[name], atol=1e-6, rtol=0, err_msg=note)


@pytest.fixture(scope="module")
def undisturbed(run, environment, tmp_path_factory):
    output = tmp_path_factory.mktemp("undisturbed") / "sae"
    assert Training(run, environment, output, 1).end()[0] == 0
    return weights(output)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_gloo_ranks_agree_with_one_after_200_steps(run, environment, undisturbed, tmp_path, ranks):
    assert Training(run, environment, tmp_path / "sae", ranks).end()[0] == 0
    compare(tmp_path / "sae", undisturbed)


@pytest.mark.slow
def test_killed_five_times_and_gone_on_with_by_other_numbers(
    run, environment, undisturbed, tmp_path
):
    output = tmp_path / "sae"
    steps = sorted(np.random.default_rng().integers(5, 180, 5).tolist())
    for number, step in enumerate(steps):
        ranks = (2, 1, 3)[number % 3]
        going = Training(run, environment, output, ranks)
        going.wait_for(step)
        pids = [going.rank(n) for n in range(ranks)] if ranks > 1 else []
        os.kill(going.process.pid, signal.SIGKILL)
        going.end()
        wait_for(lambda left=pids: not any(map(is_running, left)))
    assert Training(run, environment, output, 2).end()[0] == 0
    compare(output, undisturbed, f"{steps}")
    lines = (output / card.TRAINING).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(10, 201, 10))


@pytest.mark.slow
def test_a_rank_that_dies_ends_all_with_one_sentence(run, environment, undisturbed, tmp_path):
    output = tmp_path / "sae"
    going = Training(run, environment, output, 2)
    going.wait_for(20)
    pids = [going.rank(0), going.rank(1)]
    os.kill(pids[1], signal.SIGKILL)
    status, said = going.end()
    assert status == 1 and not any(map(is_running, pids))
    (line,) = (line for line in said.splitlines() if "vectors" not in line)
    assert line.partition("error: ")[2] == (
        "rank 1 of 2 was killed (SIGKILL), which ended the others, too; continue from "
        f"{output} with the same command, with another --gpus if need be."
    )
    assert Training(run, environment, output, 1).end()[0] == 0
    compare(output, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_at_sigterm_all_stop_after_the_same_step_with_a_checkpoint(
    run, environment, undisturbed, tmp_path, ranks
):
    output = tmp_path / "sae"
    going = Training(run, environment, output, ranks, minutes=1e6)
    wait_for(lambda: (output / card.TRAINING).exists() and (output / card.TRAINING).read_text())
    going.process.terminate()
    status, said = going.end()
    assert status == 128 + signal.SIGTERM and "stopped after step " in said
    assert "error" not in said and "Traceback" not in said
    assert 10 <= going.step() < 200
    assert Training(run, environment, output, 2).end()[0] == 0
    compare(output, undisturbed)


@pytest.mark.slow
def test_a_second_training_in_one_folder_is_refused(run, environment, tmp_path):
    first = Training(run, environment, tmp_path / "sae", 1)
    first.wait_for(3)
    status, said = Training(run, environment, tmp_path / "sae", 1).end()
    assert status == 2 and "another process trains there; " in said
    first.process.kill()
    first.end()


def test_a_config_with_autoencoders_trains_them(tmp_path, monkeypatch, environment):
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    config = Path("config/examples/autoencoders.yaml")
    runs = runs_of(config)
    (made,) = runs.steps
    assert runs.folders == [Path("results/residues")]
    assert made.files[-1] == "results/residues/autoencoders/residues/report.html"
    said = Desk(tmp_path, environment).type("featuremill", "run", config, "-n").text
    assert re.search(r"autoencoders_train +1", said), said


def test_a_training_that_no_gpu_has_room_for_is_refused(tmp_path):
    asked = SimpleNamespace(output=Path("saes/a"))
    small, large, host = (Device("cuda", "", "a GPU", True, memory_mb=n) for n in (1024, 4096, 0))
    train._refuse_too_large(asked, 2**30, [small, large])
    train._refuse_too_large(asked, 2**40, [host])
    with pytest.raises(UserError, match=r"^saes/a: this training takes 2\.1 GB of each"):
        train._refuse_too_large(asked, 2**31, [large, small])


def test_few_vectors_are_warned_of():
    assert train.few_vectors(5120, 512) == ""
    said = train.few_vectors(811, 512)
    assert said.startswith("811 vectors for 512 features: with fewer than 10")


PLACE = "results/residues/autoencoders/residues"


@pytest.fixture(scope="module")
def example(tmp_path_factory, environment):
    """Return a folder in which config/examples/autoencoders.yaml was computed."""
    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(ROOT / "config", folder / "config")
    words = ("-m", "featuremill", "run", "config/examples/autoencoders.yaml", "--cores", "2")
    python(*words, cwd=folder, env=environment, check=True)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_on_the_demos_residues_it_leaves_less_unexplained_than_as_many_components(example):
    held, _ = measured.measure(Encoder(example / "results/residues", example / PLACE, False, 2))
    vectors = features.open_parts(example / "results/residues")
    held_out = is_held_out(vectors, 0.05, 0)
    of = (np.flatnonzero(chosen) for chosen in (~held_out, held_out))
    x, y = (vectors.of_rows(rows)[0].astype(np.float64) for rows in of)
    _, components = np.linalg.eigh(np.cov((x - x.mean(0)).T))

    def left_by(number):
        first = components[:, -number:]
        left = (y - x.mean(0)) - (y - x.mean(0)) @ first @ first.T
        return np.square(left).sum() / np.square(y - y.mean(0)).sum()

    assert held.vectors == len(y)
    print(f"FVU {held.fvu:.3f}; of 32 components {left_by(32):.3f}, of 64 {left_by(64):.3f}")
    assert left_by(64) < held.fvu < left_by(32)
    assert (example / PLACE / "report.html").exists()


PEAK = """
import sys
from featuremill import __main__, features
from featuremill.config.project import runs_of
from featuremill.base.this_process import peak_of_process_mb
assert __main__.main(sys.argv[1:]) == 0
print(peak_of_process_mb())
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shape", [(512, 512), (8192, 4096), (32768, 4096)])
def test_the_estimate_is_within_a_quarter_of_the_peak(
    example, environment, tmp_path, capsys, shape
):
    run, (features, batch) = example / "results/residues", shape
    words = [run, "--features", features, "--batch", batch, "--steps", 3]
    train = ["sae", "train", *words, "--device", "cpu", "--output", tmp_path / "sae"]
    done = python("-c", PEAK, *train, env=environment, check=True)
    capsys.readouterr()
    sae("estimate", *words, "--json")
    told = json.loads(capsys.readouterr().out)
    needed, peak = told["host_with_cpu"] + told["mapped"], int(done.stdout) * 2**20
    assert 0.75 < needed / peak < 1.25, (needed, peak)


SAELENS = """
import sys
import numpy as np, torch
from sae_lens import SAE
torch.set_num_threads(1)
for folder in sys.argv[1:]:
    made = SAE.load_from_disk(folder)
    found = made.encode(torch.from_numpy(np.load("x.npy"))).detach().numpy()
    np.save(f"{made.cfg.architecture()}.npy", found)
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_saelens_loads_the_folder_and_encodes_to_the_same_bits(run, trained, tmp_path, environment):
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", f"torch=={torch.__version__}"]
    clean = {key: value for key, value in environment.items() if key != "PYTHONPATH"}
    got = ran(*pip, "sae-lens==6.54.0", env=clean)
    if got.returncode:
        pytest.skip(f"sae-lens cannot be had here: {got.stderr.splitlines()[-1:]}")
    torch.set_num_threads(1)
    vectors = features.open_parts(run, "residues")
    x, _ = vectors.of_rows(np.flatnonzero(vectors.num_of_row))
    np.save(tmp_path / "x.npy", x)
    folders = {"topk": trained}
    for kind in ("relu", "jumprelu"):
        words = [*SMALL[:2], *SMALL[4:], "--kind", kind, "--device", "cpu"]
        folders[kind] = tmp_path / kind
        sae("train", run, "--vectors", "residues", *words, "--output", folders[kind])
    words = [python, "-c", SAELENS, *map(str, folders.values())]
    subprocess.run(words, cwd=tmp_path, env=clean, check=True)
    for kind, folder in folders.items():
        made, tensors = card.read(folder)
        form = network.Form(kind, made.options.k or 0)
        ours = network.features(tensors, torch.from_numpy(x), form).numpy()
        theirs = np.load(tmp_path / f"{card.ARCHITECTURES[kind]}.npy")
        assert ours.any() and ours.tobytes() == theirs.tobytes(), kind
