"""Causal networks in the workload encoder: each layer beside transformers' own, alone and in any
batch; texts as records."""

import functools
import json
import shutil
from types import MappingProxyType

import encoder_models
import numpy as np
import pandas as pd
import pytest
import torch
import transformers
import yaml
from decoder_models import NETWORKS, OTHERS, TEXTS, TRUE, WIDE, write
from encoder_models import all_layers
from encoder_models import write as write_encoder
from esm2_models import relative_l2
from living import Living
from programs import Desk, edit_json, write_fasta
from real_llm import smollm2
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, normalizers

from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.contract import WorkloadContract
from featuremill.workload import RecordFailed, find_workload
from featuremill.workload.compute import values_of
from featuremill.workloads import encoder
from featuremill.workloads.encoder import memory

CPU = cpu()
FP32_L2 = 1e-5


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return the folder of a kind of network, written when it is asked for."""
    made = {}

    def folder(name, **more):
        key = json.dumps([name, more])
        if key not in made:
            made[key] = write(tmp_path_factory.mktemp(name) / name, name, **more)
        return made[key]

    return folder


asked = functools.partial(encoder_models.asked, alphabet="texts")
loaded = functools.partial(encoder_models.loaded, alphabet="texts")


@pytest.fixture
def network(folders, tmp_path):
    """Return a copy of a network's folder, which a test may change."""
    return lambda name="llama": shutil.copytree(folders(name), tmp_path / "network")


def most_off(model, texts, expected):
    """Return the largest relative L2 of a layer, alone and in a batch."""
    states = [states for _, states in expected]
    found = (all_layers(model, texts, most_filling) for most_filling in (0.0, 1.0))
    return max(encoder_models.most_off(each, states) for each in found)


def far_in_bf16(folder, texts, expected, **options):
    """Return how far ours and transformers' last layers are from fp32, of each text."""
    ours = all_layers(loaded(folder, dtype="bf16", **options), texts, 1.0)
    others = [states for _, states in theirs(folder, texts, torch.bfloat16)]
    return [
        [float(relative_l2(each[-1].float(), exact[-1])) for each in pair]
        for *pair, (_, exact) in zip(ours, others, expected, strict=True)
    ]


def theirs(folder, texts, dtype=torch.float32):
    """Return the ids and the hidden states that transformers has of each text alone, by the plain
    sums."""
    words = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=dtype
    ).eval()
    found = []
    for text in texts:
        ids = words(text, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            states = model(input_ids=ids, output_hidden_states=True).hidden_states
        found.append((ids[0].tolist(), [state[0] for state in states]))
    return found


@pytest.mark.parametrize("name", [*NETWORKS, *(name for name in OTHERS if name != "xlm")])
def test_every_layer_is_that_of_transformers_alone_and_in_any_batch(folders, name):
    folder = folders(name, has_bos=name != "gpt2")
    expected = theirs(folder, TEXTS)
    model = loaded(folder)
    for text, (ids, _) in zip(TEXTS, expected, strict=True):
        assert model.vocabulary.tokens(text.encode()).tolist() == ids
    assert most_off(model, TEXTS, expected) <= FP32_L2
    if CPU.has_bf16:
        ours_off, theirs_off = np.median(far_in_bf16(folder, TEXTS, expected), axis=0)
        assert ours_off < theirs_off


# Texts as records


class TextDesk(Desk):
    """A desk with a network and a config for it."""

    def tabled(self, texts, name="texts.csv", column="text"):
        """Write a table of texts; return it, with their ids."""
        table = pd.DataFrame({"id": [f"t{n}" for n in range(len(texts))], column: texts})
        table.to_csv(self.folder / name, index=False)
        return table

    def run(self, *inputs, **options):
        chosen = {"model": "network", "alphabet": "texts", "dtype": "fp32"} | options
        config = {"run": "my", "inputs": inputs, "workload": "encoder", "options": chosen}
        (self.folder / "my.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(config))))
        self.type("featuremill", "run", "my.yaml", "-c", "1")

    def results(self, name="embeddings.parquet"):
        path = self.folder / "results/my" / name
        read = (
            pd.read_parquet
            if path.suffix == ".parquet"
            else functools.partial(pd.read_csv, sep="\t")
        )
        return read(path).set_index("id")


@pytest.fixture
def desk(tmp_path, environment, network):
    network()
    return TextDesk(tmp_path, environment)


def test_rows_and_files_of_text_get_the_vectors_of_their_tokens(desk):
    """Line breaks, letters of other languages and what looks like a payload's parts included."""
    texts = [*TEXTS, "line\nMKT\n1-3"]
    table = desk.tabled(texts, column="note")
    table.assign(id="p" + table["id"]).to_parquet(desk.folder / "texts.parquet")
    (desk.folder / "alone.txt").write_text("\ufeff" + texts[2], "utf-8")
    more = {"text_column": "note", "per_residue": True, "output_dtype": "float32"}
    inputs = "texts.csv", "texts.parquet", "alone.txt"
    desk.run(*inputs, pool=["mean", "last", "max", "std"], **more)
    found = desk.results()
    assert sorted(found.index) == sorted([*table["id"], *("p" + table["id"]), "alone"])
    expected = theirs(desk.folder / "network", texts)
    ids = {**dict(zip(table["id"], expected, strict=True)), "alone": expected[2]}
    ids |= {f"p{id}": of for id, of in zip(table["id"], expected, strict=True)}
    for id, (_, states) in ids.items():
        own = states[-1][1:].numpy()  # behind the token that begins
        ways = {"mean": own.mean(0), "last": own[-1], "max": own.max(0), "std": own.std(0)}
        for pool, vector in ways.items():
            ours = found.loc[id, f"{pool}_layer_3"]
            assert np.abs(ours - vector).max() <= FP32_L2 * np.abs(own).max(), (id, pool)
        assert relative_l2(np.stack(found.loc[id, "tokens_layer_3"]), own) <= FP32_L2


def test_a_text_of_more_tokens_is_cut_with_a_note_or_refused(desk):
    desk.tabled(["few", TEXTS[4], "  "])
    desk.run("texts.csv", max_tokens=12, pool="mean_all")
    notes, failed = (desk.results(f"{name}.tsv") for name in ("notes", "failed"))
    assert [*notes.index] == ["t1"] and "truncated" in notes["note"]["t1"]
    assert [*failed.index] == ["t2"] and "empty text" in failed["reason"]["t2"]
    words = transformers.PreTrainedTokenizerFast.from_pretrained(desk.folder / "network")
    model = transformers.AutoModel.from_pretrained(desk.folder / "network", dtype=torch.float32)
    ids = torch.tensor([words(TEXTS[4])["input_ids"][:12]])
    with torch.inference_mode():
        expected = model(input_ids=ids).last_hidden_state[0].mean(0)
    assert relative_l2(desk.results().loc["t1", "mean_all_layer_3"], expected) <= FP32_L2
    desk.run("texts.csv", max_tokens=12, long="refuse")
    assert "tokens, at most 12" in desk.results("failed.tsv").loc["t1", "reason"]


@pytest.mark.parametrize(
    ("text", "normalizer"),
    [
        ("\ufdfa\ufdfa", normalizers.NFKC()),  # 6 bytes, 66 tokens
        ("\u2603\u2603\u2603\u2603", normalizers.Prepend("_")),  # 12 bytes, 13 tokens
    ],
)
def test_a_text_of_more_tokens_than_bytes_is_cut_with_a_note(network, tmp_path, text, normalizer):
    """Library tokenizers may spell a letter as many, and put one before a text."""
    folder = normalized(network(), normalizer)
    words = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    num_tokens = len(words(text)["input_ids"])
    assert num_tokens > len(text.encode()) + 1
    (tmp_path / "a.txt").write_text(text, "utf-8")
    for most, is_cut in ((num_tokens - 1, True), (num_tokens, False)):
        options, _ = asked(folder, max_tokens=most)
        (record,) = encoder.records([tmp_path / "a.txt"], options)
        assert ("truncated" in record.note) == is_cut


def normalized(folder, normalizer):
    """Have a folder's tokenizer change texts first; return the folder."""
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    words.normalizer = normalizer
    words.save(str(folder / "tokenizer.json"))
    return folder


def test_a_text_without_a_token_fails_as_an_empty_one(network):
    model = loaded(normalized(network(), normalizers.Replace("\u200b", "")), pool="last")
    find_workload("encoder")  # and so its reasons are known
    with pytest.raises(RecordFailed) as failed:
        encoder.prepare(model, [b"few", "\u200b".encode()], 100)
    assert failed.value.kind.name == "empty_text" and "makes a token" in str(failed.value)


TABLE, PROTEIN = "id,text\na,b\n", ">a\nMKT\n"


@pytest.mark.parametrize(
    ("model", "options", "text", "words"),
    [
        ("llama", {"max_tokens": 1}, TABLE, "no token of a record beside the 1 special"),
        ("llama", {}, PROTEIN, "texts are read from tables"),
        ("llama", {"max_residues": 9}, TABLE, "max_residues has no effect"),
        ("llama", {"text_column": "note"}, TABLE, "there is no column 'note'"),
        ("gpt2", {"max_tokens": 9999}, TABLE, "positions for 256 tokens"),
        ("gpt2", {"long": "full"}, TABLE, "positions for 256 tokens"),
        ("gpt2", {"pool": "cls"}, TABLE, "no special token at the beginning"),
        ("protbert", {}, TABLE, "is of letters or k-mers"),
        ("llama", {"chat": True}, TABLE, "this model has no chat template"),
        ("llama", {"chat": True, "alphabet": "proteins"}, PROTEIN, "chat has no effect"),
        ("llama", {}, b"\xff\xfe\x00bad", "in.txt: this is no text in UTF-8"),
    ],
)
def test_what_has_no_meaning_is_refused_with_a_sentence(
    folders, tmp_path, model, options, text, words
):
    kind = "txt" if isinstance(text, bytes) else "fa" if text == PROTEIN else "csv"
    path = tmp_path / f"in.{kind}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    no_bos = {"has_bos": False} if model == "gpt2" else {}
    is_encoder = model == "protbert"
    folder = write_encoder(tmp_path / model, model) if is_encoder else folders(model, **no_bos)
    with pytest.raises((UserError, ValueError), match=words):
        list(encoder.records([path], asked(folder, **options)[0]))


def test_proteins_are_read_by_a_causal_network(desk):
    """Its limit is that of its tokens."""
    records = {"a": "WYVTSPQNMLKIHGFEDCAR" * 2, "b": "ACDEFGHIKL"}
    write_fasta(desk.folder / "in.fa", records)
    desk.run("in.fa", alphabet="proteins", max_tokens=10)
    ((ids, states),) = theirs(desk.folder / "network", [records["b"]])
    assert len(ids) <= 10
    mean = states[-1][1:].mean(0)
    assert relative_l2(desk.results().loc["b", "mean_layer_3"], mean) <= FP32_L2
    assert [*desk.results("notes.tsv").index] == ["a"]


# A chat template

CHAT = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> it is {{ strftime_now('%Y') }}\n{% endif %}"
)


def with_template(folder, template=CHAT):
    (folder / "chat_template.jinja").write_text(template)
    edit_json(folder / "tokenizer_config.json", bos_token="<|begin|>")
    return folder


def test_with_a_chat_template_a_text_has_the_tokens_that_transformers_has(desk):
    """Special tokens that a text spells stay text, and the year is always the same."""
    folder = with_template(desk.folder / "network")
    table = desk.tabled([*TEXTS, "a <|begin|> in it", "  spaces around\n"])
    more = {"pool": ["mean", "mean_all", "last", "max"], "output_dtype": "float32"}
    desk.run("texts.csv", chat=True, per_residue=True, **more)
    found = desk.results()
    words = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    template = CHAT.replace("{{ strftime_now('%Y') }}", "2025")
    before = len(words("<|begin|><|user|>\n", add_special_tokens=False)["input_ids"])
    behind = len(words("\n<|assistant|> it is 2025\n", add_special_tokens=False)["input_ids"])
    as_typed = {"tokenize": True, "add_generation_prompt": True, "sanitize_control_tokens": True}
    for id, text in zip(table["id"], table["text"], strict=True):
        message = [{"role": "user", "content": text.strip()}]
        ids = words.apply_chat_template(message, chat_template=template, **as_typed)["input_ids"]
        with torch.inference_mode():
            states = model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
        own = states[before : len(ids) - behind]
        assert words.decode(ids[before : len(ids) - behind]) == text.strip()
        expected = {"mean": own.mean(0), "mean_all": states.mean(0), "last": states[-1],
                    "max": own.max(0)}  # fmt: skip
        for pool, vector in expected.items():
            assert relative_l2(found.loc[id, f"{pool}_layer_3"], vector) <= FP32_L2, (id, pool)
        assert relative_l2(np.stack(found.loc[id, "tokens_layer_3"]), own) <= FP32_L2


def test_a_text_whose_tokens_are_also_the_template_s_is_refused_before_anything_is_computed(desk):
    with_template(desk.folder / "network", "DN{{ messages[0]['content'] }}")
    words = Tokenizer.from_file(str(desk.folder / "network/tokenizer.json"))
    assert words.encode("DNA x").tokens[1] == "DNA"
    desk.tabled(["A kinase " * 3, "a kinase"])
    desk.run("texts.csv", chat=True, max_tokens=60)
    failed = desk.results("failed.tsv")
    assert [*failed.index] == ["t0"]
    assert "no place in the chat template: a token is of the text" in failed["reason"]["t0"]


def test_a_long_text_is_cut_within_its_template(network):
    model = loaded(with_template(network()), chat=True, max_tokens=40, pool="last")
    batch = encoder.prepare(model, [b"DNA " * 90], 1000)
    (group,) = batch.groups
    words, ids = model.vocabulary, group.tokens_BT[0].tolist()
    assert len(ids) == 40 and batch.num_own == [40 - words.num_special]
    assert ids[: len(words.first)] == list(words.first)
    assert ids[-len(words.last) :] == list(words.last)


def test_where_letters_of_a_message_are_is_told_of_its_own_tokens(network):
    options, found = asked(with_template(network()), chat=True)
    payload = "  Größe ≥ 3\n".encode()
    told = [payload[each].decode() for each in encoder.spans(payload, options, found)]
    assert "".join(told) == "Größe ≥ 3"


# Folders as they are published


def test_a_gemma_3_that_also_takes_images_gives_its_text_s_network(folders, network):
    plain, both = folders("gemma3_text"), network("gemma3_text")
    config = json.loads((plain / "config.json").read_text())
    (both / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": config}))

    def with_images(tensors):
        for name in [*tensors]:
            tensors[f"language_model.{name}"] = tensors.pop(name)
        tensors["vision_tower.patch.weight"] = torch.zeros(3)

    changed(both, with_images)
    ours, expected = (all_layers(loaded(each), TEXTS[:2], 1.0) for each in (both, plain))
    for one, other in zip(ours, expected, strict=True):
        assert all(map(torch.equal, one, other))


@pytest.mark.parametrize(
    ("name", "more"),
    [("gpt2", ("h.0.attn.bias", "h.1.attn.masked_bias")),
     ("llama", ("model.layers.0.self_attn.rotary_emb.inv_freq",)),
     ("gpt_neox", ("gpt_neox.layers.0.attention.rotary_emb.inv_freq",
                   "gpt_neox.layers.0.attention.bias"))],
)  # fmt: skip
def test_tables_of_older_releases_are_passed_over(network, name, more):
    folder = network(name)
    save_file({each: torch.zeros(3) for each in more}, folder / "old.safetensors")
    index = folder / "model.safetensors.index.json"
    parts = json.loads(index.read_text())["weight_map"] | dict.fromkeys(more, "old.safetensors")
    edit_json(index, weight_map=parts)
    loaded(folder)


def test_a_rotation_by_the_longest_of_a_batch_never_sees_more_than_it_was_trained_with(folders):
    """Else a short text had other values beside a long one."""
    resolved, _ = asked(folders("phi3"))
    assert resolved.max_tokens == 256
    with pytest.raises(UserError, match="positions for 256 tokens"):
        asked(folders("phi3"), long="full")
    assert asked(folders("llama"))[0].max_tokens == 512
    assert asked(folders("llama"), long="full")[0].max_tokens is None


def test_quantised_weights_are_refused(network):
    folder = network()
    edit_json(folder / "config.json", quantization_config={"bits": 4})
    with pytest.raises(UserError, match="its weights are quantised"):
        asked(folder)


# Networks that transformers tells of


def changed(folder, change):
    """Have other tensors in a folder, in one file."""
    tensors = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
        path.unlink()
    (folder / "model.safetensors.index.json").unlink()
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


EXPERT = "model.layers.1.block_sparse_moe.experts.2.w1.weight"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("olmo2", lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "missing: model.layers.1"),
        ("olmo2", lambda t: t.update({"model.layers.3.x": torch.zeros(3)}), "unexpected: model"),
        ("olmo2", lambda t: t.update({"model.norm.weight": torch.zeros(3)}), r"weight \(3,\) for"),
        ("mixtral", lambda t: t.pop(EXPERT), "experts that do not become one"),
        ("mixtral", lambda t: t.update({EXPERT: torch.zeros(3, 4)}), "experts that do not become"),
    ],
)
def test_weights_that_are_not_those_of_the_network_are_refused(network, name, change, words):
    folder = network(name)
    changed(folder, change)
    with pytest.raises(UserError, match=f"its weights are not those of the {name} .*{words}"):
        loaded(folder)


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("xlm", {}, "a token sees those behind it"),
        ("falcon", {"alibi": True}, "the plain sums give other values"),
        ("opt", {"word_embed_proj_dim": 32}, "layer 3 has 32 numbers a token"),
    ],
)
def test_a_network_that_does_not_prove_itself_is_refused(folders, name, more, words):
    """transformers' own sums add Falcon's slopes twice, and torch's attention once."""
    with pytest.raises(UserError, match=f"this {name} is not computed here, as {words}"):
        loaded(folders(name, **more))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"architectures": ["RobertaForMaskedLM"]}, "saved as RobertaForMaskedLM, which is no"),
        ({"is_decoder": False}, "no network whose tokens see those before them alone"),
        ({"model_type": "emu3"}, "a network of more than texts"),
        ({"num_hidden_layers": "two"}, "and transformers cannot read it"),
    ],
)
def test_a_network_that_is_not_causal_is_refused_by_its_config(tmp_path, more, words):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "roberta"} | more))
    with pytest.raises(UserError, match=f"its model_type is '.*', {words}"):
        encoder.options_of_model(str(tmp_path))


def test_a_network_ends_where_its_positions_may(folders):
    """A table ends, and a rotation or a slope does not."""
    for name in ("gptj", "opt"):
        assert asked(folders(name))[0].max_tokens == 256
        with pytest.raises(UserError, match="positions for 256 tokens"):
            asked(folders(name), long="full")
    for name in ("olmo2", "bloom", "mamba"):
        assert asked(folders(name), long="full")[0].max_tokens is None


def test_numbers_that_json_has_not_are_read_from_a_config(folders):
    """transformers writes the infinite one of a Bamba as an object."""
    folder = folders("bamba")
    assert "__float__" in (folder / "config.json").read_text()
    assert asked(folder)[0].max_tokens == 512


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TRUE)
def test_a_network_of_a_published_one_s_width_is_that_of_transformers(tmp_path, name):
    """Two layers, in sharded files: 2 GB of numbers at most, which live twice."""
    layers = {"n_layer" if name == "gpt2" else "num_hidden_layers": 2}
    folder = write(tmp_path / name, name, spread=0.02, shard="100MB", **TRUE[name], **layers)
    assert len([*folder.glob("*.safetensors")]) > 1
    texts = TEXTS[:4]
    expected = theirs(folder, texts)
    far = most_off(loaded(folder), texts, expected)
    print(f"{name}: relative L2 {far:.1e} at most")
    shutil.rmtree(folder)
    assert far <= FP32_L2


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_published_network_is_that_of_transformers(tmp_path):
    """SmolLM2-135M-Instruct: its own tokens, 30 layers, 3 heads of keys for 9 of queries."""
    folder = smollm2(tmp_path)
    texts = [*TEXTS, "Gene therapy of haemophilia B with a vector of AAV8. " * 12]
    expected = theirs(folder, texts)
    model = loaded(folder, max_tokens=2048)
    for text, (ids, _) in zip(texts, expected, strict=True):
        assert model.vocabulary.tokens(text.encode()).tolist() == ids
    far = most_off(model, texts, expected)
    assert far <= FP32_L2
    last = far_in_bf16(folder, texts, expected, max_tokens=2048)
    print(f"fp32: relative L2 {far:.1e} at most; bf16, ours and transformers' by text: {last}")
    assert all(ours < others for ours, others in last)


# What it takes

TOKENS, LONGEST = 2048, 512
SHAPE = {**WIDE, "max_position_embeddings": TOKENS}
SHAPES = {
    "llama": SHAPE,
    "gemma2": SHAPE,
    "gpt2": {"n_embd": 256, "n_layer": 4, "n_head": 8, "n_positions": 1024},
    "olmo2": SHAPE,
    "mixtral": SHAPE,
    "bloom": {"hidden_size": 256, "n_layer": 4, "n_head": 8},
    "mamba": {"hidden_size": 256, "num_hidden_layers": 4, "state_size": 16},
}


BF16 = pytest.mark.skipif(not CPU.has_bf16, reason="this CPU has no bf16 instructions")


@pytest.mark.parametrize("dtype", ["fp32", pytest.param("bf16", marks=BF16)])
@pytest.mark.parametrize("name", SHAPES)
def test_the_estimate_is_within_30_per_cent_of_what_lives_at_once(tmp_path, name, dtype):
    """Of texts that are all as long as a text may be. Scores that are bent are all laid out."""
    folder = write(tmp_path / name, name, **SHAPES[name])
    options = encoder.Options(
        model=str(folder), alphabet="texts", dtype=dtype, batch_tokens=TOKENS, max_tokens=LONGEST
    )
    ahead = encoder.weights_ahead(options)
    options = encoder.resolve(options, CPU, ahead)
    model = encoder.load(options, [CPU], ahead)
    (made,) = (each for each in vars(model.encoder).values() if isinstance(each, torch.nn.Module))
    held = sum(each.nbytes for each in made.parameters())
    if dtype == "bf16":  # pages of the file, which is in fp32, are read beside
        held += memory.size_of(ahead).file_bytes
    texts = [f"{number}{'0 ' * LONGEST}".encode() for number in range(TOKENS // LONGEST)]
    with Living() as living:
        values_of(encoder, model, texts, TOKENS)
    estimated = encoder.memory_mb(options, CPU, ahead, TOKENS) - memory.CPU_PROCESS_MB
    assert estimated == pytest.approx((held + living.peak) / 2**20, rel=0.3)


@pytest.mark.slow
@pytest.mark.usefixtures("in_folder")
class TestTheContract(WorkloadContract):
    workload = "encoder"
    inputs = ("texts.csv",)
    options = MappingProxyType(
        {"model": "llama", "alphabet": "texts", "pool": ["mean", "last"], "layers": [1, -1],
         "per_residue": True, "output_dtype": "float32", "dtype": "fp32"}
    )  # fmt: skip
    tolerance = 1e-5

    @pytest.fixture
    def in_folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write(tmp_path / "llama", "llama")
        texts = [f"{text} {n}" for n, text in enumerate(TEXTS * 3)]
        TextDesk(tmp_path, {}).tabled(texts)
