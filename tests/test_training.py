"""The scripts that train the bundled model: data, batches, network, schedule, resume."""

import json
import os
import subprocess
import sys
from pathlib import Path

import forks
import numpy as np
import pytest
import torch
from esm2_models import ALPHABET, demo_proteins, fair_esm
from programs import python, wait_for
from safetensors import safe_open
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]
SHAPE = (2, 32, 4)


with pytest.MonkeyPatch.context() as patch:  # they import each other as scripts do
    patch.syspath_prepend(str(ROOT / "training"))
    import perplexity
    import prepare
    import probes
    import shards
    import train
    from batches import Cursor, Sampler
    from network import Network, Shape, save
    from options import parse_arguments


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder as prepare.py makes it: 60 clusters of one or two, and validation proteins."""
    folder = tmp_path_factory.mktemp("work")
    proteins = demo_proteins(140, longest=400)
    clusters = [proteins[i : i + 1 + i % 2] for i in range(60)]
    shards.write(folder / "shards", "train", clusters)
    shards.write(folder / "shards", "valid", [[protein] for protein in proteins[100:]])
    return folder


def test_shards_keep_every_residue(work, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_RESIDUES", 1001)
    clusters = [["MKV", "ACDEFGHIKLMNPQRSTVWYXBUZO" * 41], ["GJ"]]
    shards.write(tmp_path, "some", clusters)
    assert len(list(tmp_path.glob("some-[0-9][0-9].npy"))) == 2
    found = shards.read(tmp_path, "some")
    letters = "".join(ALPHABET.get_tok(token)[0] for token in found.tokens_S)
    assert letters == "<MKV<" + "<" + clusters[0][1] + "<" + "<GX<"
    assert found.tokens_S[0] == ALPHABET.cls_idx and found.tokens_S[4] == ALPHABET.eos_idx
    assert found.lengths_N.tolist() == [5, 1027, 4]
    assert found.cluster_sizes_C.tolist() == [2, 1]


def test_little_room_costs_relatives_not_families():
    clusters = {"A" * 80: ["A" * 80, "C" * 80, "D" * 80], "E" * 80: ["F" * 80], "G" * 80: []}
    chosen = shards.choose(clusters, num_bytes=3 * 50)
    assert sorted(map(len, chosen)) == [1, 2] and ["F" * 80] in chosen
    assert next(members for members in chosen if len(members) == 2)[0] == "A" * 80
    assert shards.choose(clusters, num_bytes=10**6) == shards.choose(clusters, num_bytes=200)


def test_no_cluster_is_in_two_splits(tmp_path):
    draws = [prepare.draw(protein[::-1]) for protein in demo_proteins(400)]
    assert 0.4 < np.mean(draws) < 0.6 and len(set(draws)) == 400
    drawn = {"test": 0.0, "valid": prepare.TEST, "train": prepare.TEST + prepare.VALID}
    for split, value in drawn.items():
        for has_swiss_prot in (True, False):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(prepare, "draw", lambda _, value=value: value)
                found = prepare.split_of("A", has_swiss_prot)
            assert found == (split if has_swiss_prot or split != "train" else "probe")


def test_masking_is_that_of_the_paper(work):
    proteins = shards.read(work / "shards", "train")
    sampler, cursor = Sampler(proteins, 7), Cursor()
    made = [sampler.batch(cursor, 16, 128) for _ in range(12)]
    kinds = np.zeros(3)
    for batch in made:
        known = batch.targets_M >= 0
        positions, targets = batch.positions_M[known], batch.targets_M[known]
        seen = batch.tokens_BT.reshape(-1)[positions]
        assert len(set(positions)) == len(positions)
        assert np.isin(targets, shards.AMINO_ACID_TOKENS).all()
        kinds += [(seen == shards.MASK).sum(), 0, (seen == targets).sum()]
        kinds[1] += ((seen != shards.MASK) & (seen != targets)).sum()
        residues = np.isin(batch.tokens_BT, [*shards.AMINO_ACID_TOKENS, shards.MASK]).sum()
        assert abs(len(positions) - 0.15 * residues) <= 0.5
    share = kinds / kinds.sum()
    assert np.allclose(share, [0.8, 0.1 * 19 / 20, 0.1 + 0.1 / 20], atol=0.02), share


def test_rows_hold_crops_of_proteins_and_token_dropout_counts_each_alone(work):
    proteins = shards.read(work / "shards", "train")
    whole = bytes(proteins.tokens_S)
    tokens_BT, crops_BT = Sampler(proteins, 1).rows(Cursor(), 30, 512, np.random.default_rng(0))
    ends = 0
    for tokens, crops in zip(tokens_BT, crops_BT, strict=True):
        for crop in set(crops) - {512}:
            piece = tokens[crops == crop]
            assert bytes(piece.astype(np.uint8)) in whole and len(piece) >= 32
            ends += shards.EOS in piece
        assert (tokens[crops == 512] == shards.PAD).all() and (crops == 512).sum() < 32
    assert ends > 30
    cursor = Cursor()
    batch = Sampler(proteins, 1).batch(cursor, 30, 512)
    crop = batch.crops_BT[3] == 0
    masks = (batch.tokens_BT[3][crop] == shards.MASK).mean()
    assert np.allclose(batch.scale_BT[3][crop], 0.88 / (1 - masks))
    again = Sampler(proteins, 1).batch(Cursor(), 30, 512)
    assert all((one == other).all() for one, other in zip(batch, again, strict=True))
    # A walk of as many items as there are clusters meets each once.
    sampler = Sampler(proteins, 1)
    assert len({sampler.protein(item) for item in range(60)}) == 60


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch
def test_the_network_compiles_as_a_whole(work):
    batch = Sampler(shards.read(work / "shards", "train"), 7).batch(Cursor(), 4, 64)
    *inputs, targets = map(torch.from_numpy, batch)
    network = Network(Shape(*SHAPE), torch.float32, 3)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True, dynamic=False)
    gradients = []
    for forward in (network, compiled):
        loss = torch.nn.functional.cross_entropy(forward(*inputs), targets)
        gradients.append(torch.autograd.grad(loss, list(network.parameters())))
    for eager, whole in zip(*gradients, strict=True):
        torch.testing.assert_close(eager, whole, atol=1e-6, rtol=1e-4)


def test_the_network_is_fair_esms(tmp_path):
    network = Network(Shape(*SHAPE), torch.float32, 3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    save(network, tmp_path / "n.safetensors", {"b": "1", "a": "2"})
    first = (tmp_path / "n.safetensors").read_bytes()
    save(network, tmp_path / "n.safetensors", {"a": "2", "b": "1"})
    assert (tmp_path / "n.safetensors").read_bytes() == first
    with safe_open(tmp_path / "n.safetensors", "pt") as file:
        assert file.metadata() == {"a": "2", "b": "1"}
    stored = load_file(tmp_path / "n.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    network.load_state_dict({name: tensor.float() for name, tensor in stored.items()})
    reference = fair_esm(*SHAPE, stored)
    tokens = torch.randint(4, 24, (1, 40), generator=torch.Generator().manual_seed(0))
    tokens[0, [3, 9, 30]] = shards.MASK
    expected = [reference(part)["logits"][0] for part in (tokens[:, :25], tokens[:, 25:])]
    scale = torch.full((1, 40), 0.88 / (1 - 2 / 25))
    scale[:, 25:] = 0.88 / (1 - 1 / 15)
    crops = (torch.arange(40) >= 25).long()[None]
    found = network(tokens, scale, crops, torch.arange(40))
    torch.testing.assert_close(found, torch.cat(expected), atol=2e-5, rtol=0)


def words_of(work, state, *options):
    """Return the words of a command line for train.py, after its name."""
    command = [str(work), str(state.with_suffix(".safetensors")), "--state", str(state)]
    command += ["--shape", *map(str, SHAPE), "--batch-tokens", "512", "--warmup", "5"]
    command += ["--lengths", "64", "128", "--log-every", "5", "--learning-rate", "0.01"]
    return [*command, *options]


def run(work, state, *options):
    """Run train.py as a person would; return (progress, rows of the loss curve, weights)."""
    output = state.with_suffix(".safetensors")
    found = python(ROOT / "training/train.py", *words_of(work, state, *options), check=True)
    curve = [json.loads(line) for line in (state / "loss.jsonl").read_text().splitlines()]
    weights = output.read_bytes() if output.exists() else b""
    return json.loads(found.stdout), curve, weights


@pytest.mark.slow
def test_the_loss_falls_and_a_resumed_run_is_the_same_to_the_bit(work, tmp_path, capsys):
    decay = ["--decay-from", "30", "--decay-steps", "20"]
    progress, curve, weights = run(work, tmp_path / "one", *decay)
    assert progress["cursor"]["step"] == 50 and progress["tokens"] == 50 * 512
    losses = [row["loss"] for row in curve if "loss" in row]
    assert losses[0] > 3.2 and losses[-1] < 2.95, losses
    assert [row["length"] for row in curve if row["step"] in (25, 45)] == [64, 128]
    rates = {row["step"]: row["rate"] for row in curve if "rate" in row}
    assert (rates[5], rates[30], rates[40], rates[50]) == (1.0, 1.0, 0.5, 0.0)
    assert 15 < curve[-1]["valid_perplexity"] < 25
    # The same once more, from where the decay began; the curve is the same too.
    again = ["--resume-from", str(tmp_path / "one" / "plateau.pt"), *decay]
    _, resumed, same = run(work, tmp_path / "two", *again)
    assert same == weights
    assert [row | {"seconds": 0} for row in resumed] == [row | {"seconds": 0} for row in curve]
    # And ended earlier: without a word about where the decay begins, here and now.
    ended = ["--resume-from", str(tmp_path / "one" / "plateau.pt"), "--decay-steps", "5"]
    progress, _, other = run(work, tmp_path / "three", *ended)
    assert progress["cursor"]["step"] == 35 and progress["decay_from"] == 30 and other != weights
    # What would mix two runs, or begin one over another, is refused with a sentence.
    for options, words in {
        ("--decay-steps", "5"): "one/checkpoint.pt is there: --resume continues that run",
        ("--resume", "--seed", "1"): "is of a run with seed 0, not 1; name another --state",
        ("--resume", "--decay-steps", "5"): "the decay began at step 30, of 20 steps",
        ("--decay-from", "5"): "--decay-from needs --decay-steps",
    }.items():
        with pytest.raises(SystemExit) as refused:
            train.begin(parse_arguments("", words_of(work, tmp_path / "one", *options)))
        assert refused.value.code == 2 and words in capsys.readouterr().err
    # A run that is over writes the same weights again.
    (tmp_path / "one.safetensors").unlink()
    assert run(work, tmp_path / "one", "--resume", *decay)[2] == weights


def test_a_run_that_is_stopped_keeps_its_state(work, tmp_path):
    code = "import runpy; runpy.run_path('training/train.py', run_name='__main__')"
    command = [sys.executable, "-c", code, str(work), str(tmp_path / "w")]
    command += ["--state", str(tmp_path), "--shape", *map(str, SHAPE), "--batch-tokens", "512"]
    command += ["--lengths", "64", "--log-every", "1"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "training")}
    pipe = {"stdout": subprocess.PIPE, "text": True}
    losses = tmp_path / "loss.jsonl"
    with forks.ForkedText(command, cwd=ROOT, env=variables, **pipe) as process:
        wait_for(lambda: process.poll() or (losses.exists() and losses.stat().st_size))
        process.terminate()
        progress = json.loads(process.communicate()[0])
    assert process.returncode == 1 and not (tmp_path / "w").exists()
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["progress"]
    assert saved == progress and saved["cursor"]["step"] > 0 and saved["decay_from"] is None


def test_perplexity_is_that_of_fair_esms_logits(tmp_path):
    sizes = dict(zip(("num_layers", "embed_dim", "attention_heads"), map(str, SHAPE), strict=True))
    save(Network(Shape(*SHAPE), torch.float32, 3), tmp_path / "n.safetensors", sizes)
    network = perplexity.load(tmp_path / "n.safetensors", torch.float32)
    reference = fair_esm(*SHAPE, load_file(tmp_path / "n.safetensors"))
    sequences = ["MKVXLA" * 5, demo_proteins(1)[0], "ACDEFGHIKLMNPQRSTVWY"]
    random = np.random.default_rng(0)
    masks = [perplexity.mask(sequence, random) for sequence in sequences]
    found = perplexity.cross_entropies(network, sequences, masks)
    for sequence, positions, losses in zip(sequences, masks, found, strict=True):
        assert "X" not in {sequence[position] for position in positions}
        tokens = torch.tensor(ALPHABET.encode("<cls>" + sequence + "<eos>"))
        masked = tokens.clone()
        masked[positions + 1] = ALPHABET.mask_idx
        logits = reference(masked[None])["logits"][0].log_softmax(-1)
        expected = [-logits[p + 1, tokens[p + 1]].item() for p in positions]
        np.testing.assert_allclose(losses, expected, atol=2e-5)
    shares = perplexity.frequencies(sequences)
    simple = perplexity.baselines(sequences, masks, shares)
    text = "".join(sequences).replace("X", "")
    share = text.count(sequences[0][masks[0][0]]) / len(text)
    assert np.isclose(simple["unigram"][0][0], -np.log(share))
    estimate = perplexity.perplexity(simple["unigram"])
    assert np.isclose(estimate.value, np.exp(np.concatenate(simple["unigram"]).mean()))
    assert estimate.low <= estimate.value <= estimate.high


def test_figures_of_probes_are_what_they_are_called():
    random = np.random.default_rng(0)
    scores, positive = random.integers(0, 9, 200) / 3, random.random(200) < 0.3
    pairs = scores[positive][:, None] - scores[~positive]
    assert np.isclose(probes.pooled_auc(scores, positive), ((pairs > 0) + (pairs == 0) / 2).mean())
    assert np.isclose(probes.macro_f1(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 2])), 7 / 9)
    groups = random.integers(0, 40, 500).astype(str)
    folds = probes.folds_of(groups, 5, 0)
    assert all(len(set(folds[groups == group])) == 1 for group in groups)
    assert np.bincount(folds).min() > 60


@pytest.mark.slow
def test_a_probe_finds_kingdoms_and_is_not_fooled_by_genera():
    random = np.random.default_rng(1)
    genera = random.integers(0, 60, 600)
    kingdoms = np.array(["Archaea", "Bacteria", "Viruses"])[genera % 3]
    noise = random.normal(size=(600, 5))
    informative = np.column_stack((noise, genera % 3 == 2, genera % 3 == 1)) + noise[:, :1] / 9
    found = probes.Probes(informative, kingdoms, genera).figures()
    assert found["kingdom"].low > 0.97 and found["viral"].low > 0.99
    # Features that tell genera apart and nothing else say nothing about a genus never seen.
    fingerprints = random.normal(size=(60, 80))[genera]
    fooled = probes.Probes(fingerprints, kingdoms, genera)
    found = fooled.figures()
    assert found["kingdom"].value < 0.55 and found["viral"].low < 0.5 < found["viral"].high
    # The gain of features over themselves is nothing; over worse ones it is all of the difference.
    assert set(fooled.gain(fooled)["viral"]) == {0.0}
    told = probes.Probes(informative, kingdoms, genera)
    gain = told.gain(fooled)["kingdom"]
    assert np.isclose(gain.value, told.figures()["kingdom"].value - found["kingdom"].value)
    assert 0.3 < gain.low < gain.value < gain.high
