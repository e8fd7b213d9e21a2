"""The workload encoder against transformers, one sequence at a time; what it refuses and says."""

import contextlib
import json
import random
import shutil
from types import MappingProxyType, SimpleNamespace

import encoder_models
import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from encoder_models import (
    IUPAC,
    KINDS,
    NT_TOKENS,
    TRUE_SIZES,
    Reference,
    all_layers,
    dna,
    lowest_cosine,
    most_off,
    rows_of,
    write,
)
from esm2_models import ROOT, demo_proteins, relative_l2
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import (
    Desk,
    edit_json,
    fasta,
    printed_by,
    random_records,
    run_example,
    working_in,
    write_fasta,
)
from safetensors.torch import load_file, save_file

from featuremill.__main__ import main
from featuremill.base.devices import cpu
from featuremill.base.errors import UserError, WorkloadError
from featuremill.contract import WorkloadContract
from featuremill.workload import RecordFailed, weights
from featuremill.workload.compute import values_in_batches, values_of
from featuremill.workloads import encoder
from featuremill.workloads.encoder import architectures, loader, padding, vocabulary

pytestmark = pytest.mark.filterwarnings("ignore:The following device_map keys")
CPU = cpu()
FP32_L2, BF16_COSINE = 1e-5, 0.9995
SIXTH = {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12}
UNUSUAL = {"proteins": ["M", "MKUZOBX", "AC"], "nucleotides": ["ACGTNNACGTRYACGT", "ACG" * 5]}
LETTERS = {"proteins": "ACDEFGHIKLMNPQRSTVWYXUZOB", "nucleotides": IUPAC}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return the folder of a kind of encoder, written when it is asked for."""
    made = {}

    def folder(name):
        if name not in made:
            made[name] = write(tmp_path_factory.mktemp(name) / name, name)
        return made[name]

    return folder


def sequences(kind, count=6, longest=90):
    usual = dna(count, longest) if kind.alphabet == "nucleotides" else demo_proteins(count, longest)
    return [*(letters[:longest] for letters in usual), *UNUSUAL[kind.alphabet]]


def asked(folder, name, **options):
    """Return resolved options and the weights."""
    return encoder_models.asked(folder, **{"alphabet": KINDS[name].alphabet, **options})


def loaded(folder, name, **options):
    resolved, found = asked(folder, name, **options)
    return encoder.load(resolved, [CPU], found)


@pytest.mark.parametrize("name", KINDS)
def test_every_layer_is_that_of_transformers_alone_and_in_any_batch(folders, name):
    letters = sequences(KINDS[name])
    reference = Reference(folders(name), name)
    expected = [reference.hidden_states(text) for text in letters]
    words = loaded(folders(name), name).vocabulary
    for text in letters:
        assert words.tokens(text.encode()).tolist() == reference.ids(text), text
    exact = loaded(folders(name), name)
    for most_filling in (0.0, padding.MOST_FILLING, 1.0):
        assert most_off(all_layers(exact, letters, most_filling), expected) <= FP32_L2
    narrow = loaded(folders(name), name, dtype="bf16" if CPU.has_bf16 else "fp32")
    assert lowest_cosine(all_layers(narrow, letters, 1.0), expected) >= BF16_COSINE


def test_fp16_leaves_wide_what_it_cannot_hold_and_attention_is_always_ours(folders, copy):
    folder = copy("prott5")
    edit_config(folder, attn_implementation="eager", dtype="float16")
    model = loaded(folder, "prott5", dtype="fp16")
    parts = model.encoder.network.state_dict()
    kinds = {name.split(".")[-2]: tensor.dtype for name, tensor in parts.items()}
    assert kinds["wo"] == kinds["layer_norm"] == torch.float32 and kinds["wi"] == torch.float16
    assert "featuremill_t5" in model.backend
    letters = sequences(KINDS["prott5"], 3)
    exact = all_layers(loaded(folders("prott5"), "prott5"), letters, 1.0)
    assert most_off(all_layers(model, letters, 1.0), exact) <= 5e-3


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TRUE_SIZES)
def test_a_network_of_a_published_one_s_size_is_that_of_transformers(tmp_path, name):
    folder = write(tmp_path / name, name, k=6, **TRUE_SIZES[name])
    letters = sequences(KINDS[name], 2, 120)[:2]
    reference = Reference(folder, name)
    if name == "dnabert1":
        reference.kind = reference.kind._replace(spaced=6)
    expected = [reference.hidden_states(text) for text in letters]
    del reference
    for dtype in ("fp32", "bf16"):
        model = loaded(folder, name, dtype=dtype if CPU.has_bf16 else "fp32")
        found = all_layers(model, letters, 1.0)
        assert {len(states) for states in expected} == {model.encoder.num_layers + 1}
        is_close = most_off(found, expected) <= FP32_L2
        assert is_close if dtype == "fp32" else lowest_cosine(found, expected) >= BF16_COSINE


@pytest.mark.parametrize("name", KINDS)
def test_tokens_are_those_of_the_models_own_tokenizer(folders, name):
    kind = KINDS[name]
    reference = Reference(folders(name), name)
    words = loaded(folders(name), name).vocabulary
    drawn = random.Random(3)
    for length in (6, 7, 30, 200):
        common = "ACGT" if kind.alphabet == "nucleotides" else LETTERS["proteins"]
        for letters in (common, common * 9 + LETTERS[kind.alphabet]):
            text = "".join(drawn.choices(letters, k=length))
            assert words.tokens(text.encode()).tolist() == reference.ids(text), text


def test_the_nucleotide_transformers_tokens_are_those_of_its_readme(folders):
    words = vocabulary.load(folders("nucleotide_transformer"), "esm")
    found = [NT_TOKENS[id] for id in words.tokens(b"ACGTGTACNTGCACGGANCGACTAGTCTGA")]
    assert found == ["<cls>", "ACGTGT", "A", "C", "N", "TGCACG", "G", "A", "N", "CGACTA", "GTCTGA"]


@pytest.mark.parametrize("name", ["dnabert1", "protbert", "prott5", "nucleotide_transformer"])
def test_a_run_delivers_pools_and_tokens_of_the_layers_that_were_asked_for(folders, name):
    has_first = name != "prott5"
    pools = ["mean", "mean_all", "max", "std", *(["cls"] if has_first else [])]
    more = {"pool": pools, "layers": [-1, 1], "per_residue": True, "output_dtype": "float32"}
    model = loaded(folders(name), name, **more)
    letters = sequences(KINDS[name])
    values = values_of(encoder, model, [text.encode() for text in letters], 128)
    reference = Reference(folders(name), name)
    num_first, num_last = len(model.vocabulary.first), len(model.vocabulary.last)
    what = "residues" if name in ("protbert", "prott5") else "tokens"
    columns = [f"{column}_layer_{layer}" for layer in (1, 3) for column in (*pools, what)]
    assert values.schema.names == columns
    for text, row in zip(letters, values.to_pylist(), strict=True):
        states = reference.hidden_states(text)
        for layer in (1, 3):
            state = states[layer]
            own = state[num_first : len(state) - num_last]
            expected = {"mean": own.mean(0), "mean_all": state.mean(0), "cls": state[0], what: own}
            expected |= {"max": own.amax(0), "std": own.std(0, correction=0)}
            for column in (*pools, what):
                found = torch.tensor(row[f"{column}_layer_{layer}"])
                if not torch.equal(found, expected[column]):  # as of one token's deviation: 0
                    assert relative_l2(found, expected[column]) <= FP32_L2, (text, column)


def test_float16_is_what_residues_are_delivered_in(folders):
    model = loaded(folders("esm2"), "esm2", per_residue=True, pool="none")
    (column,) = values_of(encoder, model, [b"MKV", b"M"], 128).columns
    assert column.type.value_type.value_type == pa.float16()
    assert [len(row) for row in column] == [3, 1]


# Batches


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    most_tokens=st.integers(1, 300),
    most_filling=st.sampled_from([0.0, 1 / 16, 0.5]),
)
def test_groups_hold_every_sequence_once_within_their_bounds(lengths, most_tokens, most_filling):
    words = vocabulary.Vocabulary(lambda _: np.empty(0, np.int64), (7,), (8,), 0, 1, 1)
    given = [np.array([7, *range(10, 10 + length), 8]) for length in lengths]
    found = padding.groups(given, words, most_tokens, most_filling)
    assert sorted(place for group in found for place in group.places) == list(range(len(given)))
    for group in found:
        filling = np.zeros(1)
        if group.is_token_BT is not None:
            filling = ~group.is_token_BT.numpy()
            assert not group.tokens_BT.numpy()[filling].any()
        size = group.tokens_BT.numel()
        assert len(group.places) == 1 or (
            size <= most_tokens and filling.sum() <= most_filling * size
        )
        for row, place in enumerate(group.places):
            is_own = group.is_own_BT[row]
            assert group.tokens_BT[row, : len(given[place])].tolist() == given[place].tolist()
            assert group.tokens_BT[row, is_own].tolist() == given[place][1:-1].tolist()


def test_where_memory_runs_out_groups_get_smaller_and_values_stay(folders, monkeypatch):
    model = loaded(folders("esm1b"), "esm1b")
    payloads = [text.encode() for text in sequences(KINDS["esm1b"], 12)]
    warned, refused = [], []

    def computed():
        batches = values_in_batches(
            *(encoder, model, model.options, payloads, 4096),
            *(lambda row, reason: refused.append(reason), warned.append),
        )
        return {place: row for places, rows in batches
                for (place,), row in zip(places, rows.to_pylist(), strict=True)}  # fmt: skip

    expected = computed()
    real, sizes = loader.Encoder.hidden_states, []

    def hidden_states(self, tokens, is_token, wanted):
        if tokens.numel() > 256:
            raise torch.OutOfMemoryError("out of memory")
        sizes.append(tokens.numel())
        return real(self, tokens, is_token, wanted)

    monkeypatch.setattr(loader.Encoder, "hidden_states", hidden_states)
    monkeypatch.setattr(padding, "MOST_FILLING", 1.0)
    found = computed()
    assert not refused and len(warned) == 1 and "batch_tokens" in warned[0] and max(sizes) > 128
    for place, row in expected.items():
        for name, value in row.items():
            assert relative_l2(torch.tensor(found[place][name]), torch.tensor(value)) <= FP32_L2


@pytest.mark.parametrize("dtype", loader.BOUNDS)
def test_values_that_move_beside_a_longer_sequence_are_refused(folders, monkeypatch, dtype):
    """From the bound on, which values of one computation stay far below."""
    model = loaded(folders("esm1b"), "esm1b")
    short, long = loader.examples(model.vocabulary, "proteins")
    real, share = loader.Encoder.hidden_states, 0.0

    def moved(self, tokens, is_token, wanted):
        states = real(self, tokens, is_token, wanted)
        return {layer: state * (1 + share * (len(state) > 1)) for layer, state in states.items()}

    monkeypatch.setattr(loader.Encoder, "hidden_states", moved)
    for times, is_refused in ((0.5, False), (1.5, True), (float("nan"), True)):
        share = times * loader.BOUNDS[dtype]
        with pytest.raises(WorkloadError) if is_refused else contextlib.nullcontext():
            loader.check_padding(model.encoder, model.vocabulary, short, long, dtype)


# What a folder must be


@pytest.fixture
def copy(folders, tmp_path):
    def made(name):
        return shutil.copytree(folders(name), tmp_path / name)

    return made


def edit_config(folder, **changes):
    edit_json(folder / "config.json", **changes)


def edit_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def same_values(one, two, name):
    letters = [text.encode() for text in sequences(KINDS[name])]
    values = [values_of(encoder, loaded(folder, name), letters, 4096) for folder in (one, two)]
    return values[0].equals(values[1])


def as_pickle(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def in_parts(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts = {name: f"model-0000{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for part in set(parts.values()):
        chosen = {name: tensor for name, tensor in tensors.items() if parts[name] == part}
        save_file(chosen, folder / part)
    index = {"metadata": {}, "weight_map": parts}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def without_prefix(folder):
    prefix = KINDS[folder.name].prefix
    edit_tensors(folder, lambda tensors: rename(tensors, lambda name: name.removeprefix(prefix)))


def rename(tensors, change):
    for name in list(tensors):
        tensors[change(name)] = tensors.pop(name)


def with_old_names(folder):
    def old(name):
        return name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")

    def change(tensors):
        rename(tensors, old)
        tensors["bert.embeddings.position_ids"] = torch.arange(512)[None]
        tensors["bert.pooler.dense.weight"] = torch.zeros(64, 64)

    edit_tensors(folder, change)


def with_frequencies_in_each_layer(folder):
    def change(tensors):
        frequencies = tensors.pop("esm.rotary_embeddings.inv_freq")
        for number in range(3):
            name = f"esm.encoder.layer.{number}.attention.self.rotary_embeddings.inv_freq"
            tensors[name] = frequencies.clone()
        tensors["esm.embeddings.position_embeddings.weight"] = torch.zeros(1026, 64)

    edit_tensors(folder, change)


def with_a_decoder(folder):
    def change(tensors):
        del tensors["encoder.embed_tokens.weight"]
        tensors["decoder.block.0.layer.0.layer_norm.weight"] = torch.zeros(64)

    edit_tensors(folder, change)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dnabert1", as_pickle),
        ("dnabert1", in_parts),
        ("protbert", without_prefix),
        ("modernbert", without_prefix),
        ("dnabert1", with_old_names),
        ("esm2", with_frequencies_in_each_layer),
        ("prott5", with_a_decoder),
    ],
)
def test_a_checkpoint_may_be_laid_out_in_the_ways_there_are(folders, copy, name, change):
    folder = copy(name)
    change(folder)
    assert same_values(folder, folders(name), name)


@pytest.mark.parametrize("name", KINDS)
def test_what_transformers_itself_saves_can_be_read(folders, copy, name):
    folder = copy(name)
    (folder / "model.safetensors").unlink()
    Reference(folders(name), name).model.save_pretrained(folder)
    assert same_values(folder, folders(name), name)


def test_frequencies_of_the_checkpoint_count(folders, copy):
    folder = copy("esm2")

    edit_tensors(folder, lambda tensors: tensors["esm.rotary_embeddings.inv_freq"].mul_(1.01))
    assert not same_values(folder, folders("esm2"), "esm2")


def test_each_architecture_has_a_network():
    names = {known.name for known in architectures.KNOWN.values() if not known.is_causal}
    assert loader.BUILD.keys() == names | {architectures.GATED_ESM.name}
    assert loader.NAMED.keys() < loader.BUILD.keys()


def test_layers_with_other_frequencies_are_refused():
    facts = SimpleNamespace(architecture=architectures.ESM, max_tokens=1024)
    name = "esm.encoder.layer.{}.attention.self.rotary_embeddings.inv_freq"
    tensors = {name.format(number): torch.ones(8) for number in range(3)}
    assert len(loader._renamed("model", facts, tensors)) == 1
    tensors[name.format(2)] = torch.full((8,), 1.01)
    with pytest.raises(UserError, match="its layers differ in their rotary frequencies"):
        loader._renamed("model", facts, tensors)


def drop(name):
    return lambda tensors: tensors.pop(name)


def widen(name):
    return lambda tensors: tensors.update({name: torch.zeros(7, 9)})


ATTENTION = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (drop(ATTENTION), "missing: encoder.layer.1.attention.self.query.weight"),
        (widen(ATTENTION), r"encoder.layer.1.attention.self.query.weight \(7, 9\) for \(64, 64\)"),
        (widen("bert.encoder.layer.1.mlp.up.weight"), "unexpected: encoder.layer.1.mlp.up.weight"),
        (lambda t: rename(t, lambda name: name.replace("query", "Wq")), "and 3 more; unexpected: "),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_with_its_names(copy, change, part):
    folder = copy("dnabert1")
    edit_tensors(folder, change)
    with pytest.raises(UserError, match=part):
        loaded(folder, "dnabert1")


def test_a_mosaicbert_is_none_of_the_berts(copy):
    folder = copy("dnabert1")
    assert architectures.facts_of(folder).architecture.name == "bert"
    edit_config(folder, alibi_starting_size=512)
    facts = architectures.facts_of(folder)
    assert facts.architecture.name == "mosaicbert" and facts.max_tokens is None


def without(name):
    return lambda folder: (folder / name).unlink()


def a_part_missing(folder):
    in_parts(folder)
    (folder / "model-00001.safetensors").unlink()


def more_tokens_than_vectors(folder):
    with (folder / "vocab.txt").open("a") as file:
        file.write("A\n")


def with_config(**changes):
    return lambda folder: edit_config(folder, **changes)


def with_text(name, text):
    return lambda folder: (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (
            with_config(model_type="bart"),
            "'bart', no network whose tokens see those before them alo",
        ),
        (with_config(model_type="E1"), "'E1', and its network is in its authors' pack"),
        (with_config(model_type="esmc"), "'esmc', an ESM C, which is computed by work"),
        (with_config(model_type="vit"), "'vit', and known ones are bert, esm, t5"),
        (with_config(model_type=...), "names no model_type"),
        (with_config(is_decoder=True), "this is a decoder"),
        (with_config(hidden_size="64"), "hidden_size have to be whole numbers"),
        (with_config(num_attention_heads=5), "no bert can be made of it"),
        (with_text("config.json", "{"), "config.json: it cannot be read"),
        (without("config.json"), "config.json: there is no such file"),
        (without("model.safetensors"), "there are no weights in this folder"),
        (a_part_missing, "it names model-00001.safetensors, which is not there"),
        (with_text("model.safetensors", "<html>"), "cannot be read safely"),
        (
            with_text("model.safetensors", "version https://git-lfs.github.com/x"),
            "it is a git-lfs pointer, and the weights themselves were not fetched",
        ),
        (
            lambda f: edit_tensors(f, lambda t: rename(t, lambda name: f"module.{name}")),
            "are those of a DistributedDataParallel .* take the prefix off",
        ),
        (without("vocab.txt"), "there is no vocabulary"),
        (more_tokens_than_vectors, "its vocabulary has 70 tokens, and its network takes 69"),
        (
            with_text("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\nof\n"),
            "neither letters nor k-mers",
        ),
        (with_text("vocab.txt", "A\nC\n"), "has no token <pad> or"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(copy, change, part):
    folder = copy("dnabert1")
    change(folder)
    with pytest.raises(UserError, match=part):
        loaded(folder, "dnabert1")


def test_a_file_for_a_folder_is_refused(folders):
    with pytest.raises(UserError, match="give the folder that holds it"):
        asked(folders("esm2") / "model.safetensors", "esm2")


class Runs:
    def __reduce__(self):
        return print, ("this ran",)


def test_code_is_never_run(copy, capsys):
    folder = copy("dnabert1")
    code = "print('this ran')\nraise SystemExit(1)\n"
    (folder / "configuration_bert.py").write_text(code)
    (folder / "modeling_bert.py").write_text(code)
    names = {"AutoConfig": "configuration_bert.C", "AutoModel": "modeling_bert.M"}
    edit_config(folder, auto_map=names)
    loaded(folder, "dnabert1")
    (folder / "model.safetensors").unlink()
    torch.save({"a": Runs()}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="cannot be read safely"):
        loaded(folder, "dnabert1")
    assert "this ran" not in capsys.readouterr().out


# What is said of records


@pytest.fixture
def read(folders, tmp_path):
    """Return a function that reads sequences for a kind of encoder."""

    def read(name, *letters, **options):
        resolved, _ = asked(folders(name), name, **options)
        path = write_fasta(tmp_path / "in.fa", dict(enumerate(letters)))
        return list(encoder.records([path], resolved))

    return read


def test_letters_that_the_model_has_no_token_for_are_noted(read):
    found = read("dnabert1", "ACGTACGT", "ACGUACGN", "AC")
    unknown = "letters that are not in the model's vocabulary"
    assert [record.note for record in found] == ["", f"U read as T; {unknown}", ""]
    assert found[2].reason == "shorter than a token: 2 of 3 bases"
    for name, letters in (("nucleotide_transformer", "ACNG"), ("esm2", "MKUV")):
        (record,) = read(name, letters)
        assert record.note == ""
    found = read("prott5", "MKV", "MKUV", "MK-V")
    notes = ["", "U, Z, O and B read as X"]
    assert [record.note for record in found[:2]] == notes and unknown in found[2].note


def test_long_records_are_cut_refused_or_computed_whole(folders, read):
    letters = ["MKV" * 10, "MKV" * 11]
    _, cut = read("esm2", *letters, max_residues=30)
    assert cut.note == "longer than 30 residues, truncated"
    assert encoder.cost(cut.payload, asked(folders("esm2"), "esm2", max_residues=30)[0]) == 32
    _, refused = read("esm2", *letters, max_residues=30, long="refuse")
    assert refused.reason == "too long: 33 residues, at most 30" and not refused.payload
    whole = read("esm2", *letters, "MKV" * 341, long="full")
    beyond = "longer than the network was trained with (1,022)"
    assert [record.note for record in whole] == ["", "", beyond]
    assert read("esm2", letters[0], max_residues=30)[0].note == ""
    with pytest.raises(UserError, match="positions for 1,024 tokens only"):
        asked(folders("esm1b"), "esm1b", long="full")
    model = loaded(folders("esm2"), "esm2", max_residues=30)
    one, other = rows_of(model, [b"MKV" * 10, b"MKV" * 11], 512)
    assert one == other


def test_more_tokens_than_positions_fail_a_record(folders):
    model = loaded(folders("dnabert1"), "dnabert1", max_residues=600)
    with pytest.raises(RecordFailed, match="517 tokens, and the network has positions for 512"):
        encoder.prepare(model, [b"ACG" * 100, b"A" * 517], 4096)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        *(("dnabert1", 512), ("esm1b", 1022), ("esm2", 1022), ("nucleotide_transformer", 5994)),
        *(("protbert", 39998), ("prott5", None), ("ankh", None), ("modernbert", 4088)),
    ],
)
def test_the_longest_that_a_network_sees_by_default(folders, name, limit):
    assert asked(folders(name), name)[0].max_residues == limit


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("esm2", {"layers": 4}, "there is no layer 4 in a model of 3"),
        ("prott5", {"pool": "cls"}, "a t5 has no special token at the beginning"),
    ],
)
def test_options_that_a_network_cannot_meet_are_refused(folders, name, options, part):
    with pytest.raises(UserError, match=part):
        asked(folders(name), name, **options)


OTHER = {"proteins": "nucleotides", "nucleotides": "proteins"}


@pytest.mark.parametrize("name", KINDS)
def test_an_alphabet_that_is_not_the_network_s_is_refused(folders, name):
    alphabet = KINDS[name].alphabet
    asked(folders(name), name, alphabet=alphabet)
    with pytest.raises(UserError, match=f"options.alphabet: {OTHER[alphabet]}: .* set alphabet: "):
        asked(folders(name), name, alphabet=OTHER[alphabet])


@pytest.mark.parametrize("name", ["esm2", "esm1b", "protbert"])
def test_init_says_what_computes_an_esm2_faster(folders, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.fa").write_text(fasta(random_records(3)))
    model = str(folders(name))
    assert main(["init", "in.fa", "--workload", "encoder", "--model", model]) == 0
    faster = f"{model} is an ESM-2: workload: esm2 computes the same features"
    assert (faster in capsys.readouterr().err) == (name == "esm2")


def test_a_load_sees_that_filling_changes_values(folders, monkeypatch):
    real = loader.Encoder.hidden_states

    def sees_filling(self, tokens, is_token, wanted):
        return real(self, tokens, None, wanted)

    monkeypatch.setattr(loader.Encoder, "hidden_states", sees_filling)
    with pytest.raises(WorkloadError, match="other values beside a longer one"):
        loaded(folders("protbert"), "protbert")


@pytest.mark.skipif(not CPU.has_bf16, reason="this CPU has no bf16")
@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
def test_a_load_warns_where_bf16_moves_a_network_far(copy, caplog, stored):
    def change(factor):
        def changed(tensors):
            for name, tensor in tensors.items():
                sharper = factor if ".attention.self.query.weight" in name else 1
                tensors[name] = (tensor.float() * sharper).to(stored)

        return changed

    folder = copy("protbert")
    edit_tensors(folder, change(1))
    loaded(folder, "protbert", dtype="bf16")
    assert "further than ESM-2" not in caplog.text
    edit_tensors(folder, change(30))
    loaded(folder, "protbert", dtype="fp32")
    assert "further than ESM-2" not in caplog.text
    model = loaded(folder, "protbert", dtype="bf16")
    assert "bf16 moves this network further than ESM-2: of an example's tokens" in caplog.text
    tokens = torch.tensor(model.vocabulary.tokens(b"MKTAYIAKQRQISFVKSHFS" * 2))[None]
    exact = loaded(folder, "protbert", dtype="fp32").encoder.hidden_states(tokens, None, [3])[3]
    assert relative_l2(model.encoder.exact_TE, exact[0]) <= FP32_L2


# With everything around it


def test_the_audit_serves_it(folders, tmp_path, capsys):
    fasta = write_fasta(tmp_path / "few.fa", dict(enumerate(demo_proteins(6, 80))))
    config = tmp_path / "my.yaml"
    config.write_text(
        f"run: my\ninputs: {fasta}\nworkload: encoder\n"
        f"options: {{model: {folders('prott5')}, alphabet: proteins, pool: [mean, mean_all]}}\n"
    )
    words = ["audit", "--config", str(config), "--dtype", "bf16", "--device", "cpu", "--json"]
    if not CPU.has_bf16:
        pytest.skip("this CPU has no bf16")
    assert main(words) == 0
    (found,) = json.loads(capsys.readouterr().out)["dtypes"]
    names = [column["column"] for column in found["columns"]]
    assert names == ["mean_layer_3", "mean_all_layer_3", "residues_layer_3"]
    assert found["within"]


def test_special_tokens_are_read_without_the_library_and_held_against_it(copy):
    folder = copy("modernbert")
    path = folder / "tokenizer.json"
    told = json.loads(path.read_text())

    def load(**changes):
        path.write_text(json.dumps(told | changes))
        vocabulary.load.cache_clear()
        return vocabulary.load(folder, "modernbert")

    assert load().first == (1,)
    for processor, first, last in [
        ({"type": "Sequence", "processors": [told["post_processor"]]}, (1,), (2,)),
        ({"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]}, (1,), (2,)),
        (None, (), ()),
    ]:
        words = load(post_processor=processor)
        assert (words.first, words.last) == (first, last)
        assert len(words.tokens(b"ACGTACGT")) > len(first + last)
    with pytest.raises(UserError, match="in an unsupported way"):
        load(post_processor=told["post_processor"] | {"type": "Unknown"}).tokens(b"ACGT")
    told = {"model": {"vocab": 3}}
    with pytest.raises(UserError, match="not what the library tokenizers writes"):
        load()


def test_a_plan_needs_neither_torch_nor_the_libraries_of_the_model(folders):
    """It may be made in an environment that has none of them."""
    code = """
        import sys; from pathlib import Path
        from featuremill.workloads.encoder import architectures, vocabulary
        folder = Path(sys.argv[1])
        architectures.facts_of(folder), vocabulary.load(folder, 'modernbert')
        heavy = {'torch', 'transformers', 'tokenizers', 'safetensors'} & set(sys.modules)
        assert not heavy, heavy
    """
    printed_by(code, folders("modernbert"))


def test_the_example_that_is_shipped(tmp_path, monkeypatch):
    """docs/encoders.md types all of it; here is what its script writes and its config says."""
    script = ROOT / "config" / "examples" / "random_encoder.py"
    run_example("random_encoder", tmp_path / "random_encoder")
    assert "RANDOM" in script.read_text().splitlines()[0]
    told = yaml.safe_load((ROOT / "config" / "examples" / "encoder.yaml").read_text("utf-8"))
    monkeypatch.chdir(tmp_path)
    found = weights.weights_of(weights.convert(told["options"]["model"], workload="encoder"))
    resolved = encoder.resolve(encoder.Options.model_validate(told["options"]), CPU, found)
    model = encoder.load(resolved, [CPU], found)
    values = values_of(encoder, model, [b"MKV", b"MKVLA"], 4096)
    assert values.schema == encoder.schema(resolved, found) and values.num_rows == 2


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory, environment):
    """Let the contract's own processes find an encoder and few records."""
    folder = tmp_path_factory.mktemp("contract")
    write(folder / "protbert", "protbert")
    (folder / "few.fa").write_text(fasta(random_records(15)))
    with working_in(folder, **environment):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("surroundings")
class TestTheContract(WorkloadContract):
    workload = "encoder"
    inputs = ("few.fa",)
    options = MappingProxyType(
        {"model": "protbert", "alphabet": "proteins", "pool": ["mean", "cls"], "layers": [1, -1],
         "per_residue": True, "output_dtype": "float32", "dtype": "fp32"}
    )  # fmt: skip
    tolerance = 1e-5


# What it takes


def test_its_memory_is_told_before_anything_is_hashed(folders):
    options = encoder.Options(model=str(folders("prott5")), alphabet="proteins", dtype="fp32")
    ahead = encoder.weights_ahead(options)
    resolved, found = asked(folders("prott5"), "prott5")
    assert encoder.resolve(options, CPU, ahead) == resolved and ahead.sha256 == ""
    file_mb = (folders("prott5") / "model.safetensors").stat().st_size / 2**20
    assert encoder.weights_mb(ahead) == pytest.approx(file_mb, rel=0.15)
    small, large = (encoder.memory_mb(resolved, CPU, ahead, cost) for cost in (512, 8192))
    assert small < large == encoder.memory_mb(resolved, CPU, found, 8192)


def test_a_run_is_estimated_before_its_weights_are_hashed(folders, tmp_path, environment):
    (tmp_path / "few.fa").write_text(fasta(random_records(5)))
    options = {"model": str(folders("protbert")), "alphabet": "proteins", "batch_tokens": 100}
    config = {"inputs": "few.fa", "workload": "encoder", "options": options, "outputs": "parquet"}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config | {"device": "cpu"}))
    asked = ("featuremill", "estimate", "c.yaml", "--tokens-per-second", "1000", "--json")
    found = json.loads(Desk(tmp_path, environment).type(*asked).out)
    assert found["device_mb"] > 100


PEAK = """
import sys
from pathlib import Path
from featuremill.base import this_process
from featuremill.workload.compute import values_of
from featuremill.base.devices import cpu
from featuremill.workloads import encoder

folder, dtype, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = encoder.Options(model=folder, alphabet="proteins", dtype=dtype)
found = encoder.weights_ahead(options)
options = encoder.resolve(options, cpu(), found)
model = encoder.load(options, [cpu()], found)
values_of(encoder, model, [b"MKVLAAGIVG" * 51 for _ in range(tokens // 512)], tokens)
print(this_process.peak_of_process_mb(), encoder.memory_mb(options, cpu(), found, tokens))
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("protbert", {**SIXTH, "intermediate_size": 3072}),
        ("ankh", {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 6, "num_heads": 12}),
    ],
)
def test_its_memory_is_within_30_per_cent_of_the_measured_peak(tmp_path, name, sizes, dtype):
    folder = write(tmp_path / name, name, **sizes)
    for tokens in (512, 4096):
        measured, estimated = map(int, printed_by(PEAK, folder, dtype, tokens).split())
        assert estimated == pytest.approx(measured, rel=0.3)
