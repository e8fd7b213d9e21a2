"""Folders of encoders with random weights, as Hugging Face lays published ones out, and what
transformers computes for them, a sequence at a time with its own tokenizers."""

import itertools
import json
import random
from pathlib import Path
from typing import NamedTuple

import torch
from bench.peers import cosines, relative_l2
from safetensors.torch import save_file

from featuremill.base.devices import cpu
from featuremill.workload import plain_weights, weights
from featuremill.workload.compute import values_of
from featuremill.workloads import encoder
from featuremill.workloads.encoder import padding

CPU = cpu()
RESIDUES = "LAGVESIKRDTPNQFYMHCWXUBZO"  # ProtBERT's order
IUPAC = "ACGTRYSWKMBDHVN"
SIZES = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
T5_SIZES = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 3, "num_heads": 4}
T5_PIECES = ["<pad>", "</s>", "<unk>", *(f"▁{letter}" for letter in "ALGVSREDTIPKFQNYMHWCXBOUZ")]


class Kind(NamedTuple):
    """One way in which encoders are published."""

    model: str
    """transformers' class."""
    config: dict
    alphabet: str = "proteins"
    prefix: str = ""
    """Of names in its checkpoint."""
    spaced: int = 0
    """Letters to a word, where its authors have spaces put between letters or k-mers."""
    rare_as_x: bool = False


def kmers(k):
    return ["".join(letters) for letters in itertools.product("ACGT", repeat=k)]


def bert(size, **more):
    config = {"model_type": "bert", **SIZES, "intermediate_size": 96, "vocab_size": size}
    return config | {"max_position_embeddings": 512, "pad_token_id": 0} | more


def esm(size, **more):
    config = {"model_type": "esm", **SIZES, "intermediate_size": 256, "vocab_size": size}
    return config | {"pad_token_id": 1, "layer_norm_eps": 1e-5} | more


def t5(size, **more):
    return {"model_type": "t5", **T5_SIZES, "vocab_size": size, "pad_token_id": 0} | more


DNABERT_TOKENS = {k: ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *kmers(k)] for k in (3, 6)}
PROTBERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *RESIDUES]
ESM_TOKENS = [
    *("<cls>", "<pad>", "<eos>", "<unk>"),
    *"LAGVSERTIDPKQNFYMHWCXBUZO.-",
    *("<null_1>", "<mask>"),
]
NT_TOKENS = ["<unk>", "<pad>", "<mask>", "<cls>", *kmers(6), *"ATCGN"]
KINDS = {
    "dnabert1": Kind("Bert", bert(69), "nucleotides", "bert.", 3),
    "protbert": Kind("Bert", bert(30, max_position_embeddings=40000), "proteins", "bert.", 1, True),
    "nucleotide_transformer": Kind(
        "Esm",
        esm(4105, position_embedding_type="absolute", max_position_embeddings=1002,
            emb_layer_norm_before=False, token_dropout=False, mask_token_id=2),
        "nucleotides",
        "esm.",
    ),
    "esm1b": Kind(
        "Esm",
        esm(33, position_embedding_type="absolute", max_position_embeddings=1026,
            emb_layer_norm_before=True, token_dropout=True, mask_token_id=32),
        prefix="esm.",
    ),
    "esm2": Kind(
        "Esm",
        esm(33, position_embedding_type="rotary", max_position_embeddings=1026,
            emb_layer_norm_before=False, token_dropout=True, mask_token_id=32),
        prefix="esm.",
    ),
    "prott5": Kind(
        "T5Encoder", t5(128, feed_forward_proj="relu", n_positions=512), spaced=1, rare_as_x=True
    ),
    "prostt5": Kind(
        "T5Encoder", t5(150, feed_forward_proj="relu", n_positions=512), spaced=1, rare_as_x=True
    ),
    "ankh": Kind("T5Encoder", t5(144, feed_forward_proj="gated-gelu"), spaced=1),
    "modernbert": Kind(
        "ModernBert",
        {"model_type": "modernbert", **SIZES, "num_hidden_layers": 4, "intermediate_size": 96,
         "vocab_size": 200, "local_attention": 16, "global_attn_every_n_layers": 3,
         "max_position_embeddings": 1024, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2,
         "bos_token_id": 1, "eos_token_id": 2},
        "nucleotides",
        "model.",
    ),
}  # fmt: skip


TRUE_SIZES = {
    "dnabert1": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                 "intermediate_size": 3072},
    "protbert": {"hidden_size": 1024, "num_hidden_layers": 30, "num_attention_heads": 16,
                 "intermediate_size": 4096},
    "nucleotide_transformer": {
        "hidden_size": 1280, "num_hidden_layers": 24, "num_attention_heads": 20,
        "intermediate_size": 5120},
    "esm1b": {"hidden_size": 1280, "num_hidden_layers": 33, "num_attention_heads": 20,
              "intermediate_size": 5120},
    "ankh": {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 48, "num_heads": 12},
}  # fmt: skip
"""Of published ones, as far as a test's memory goes: three times the weights, 650 M at most."""


def write(folder: Path, name: str, *, k=3, as_pickle=False, **sizes) -> Path:
    """Write the folder of a kind of encoder with random weights; `sizes` replace what is in its
    config, and `k` is DNABERT-1's."""
    kind = KINDS[name]
    folder.mkdir(parents=True, exist_ok=True)
    config = kind.config | sizes
    if name == "dnabert1":
        config["vocab_size"] = len(DNABERT_TOKENS[k])
    (folder / "config.json").write_text(json.dumps(config))
    write_vocabulary(folder, name, k)
    save(folder, network(kind, config).state_dict(), kind.prefix, as_pickle)
    return folder


def save(folder, state, prefix="", as_pickle=False):
    head = {"bert.": "cls.predictions.bias", "model.": "decoder.bias"}.get(prefix, "lm_head.bias")
    tensors = {f"{prefix}{key}": tensor.contiguous().clone() for key, tensor in state.items()}
    tensors[head] = torch.zeros(3)
    if as_pickle:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")


def network(kind, config, seed=0):
    """Return transformers' network with weights that make attention and norms count."""
    import transformers

    made = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    more = {} if kind.model in ("T5Encoder", "ModernBert") else {"add_pooling_layer": False}
    model = getattr(transformers, f"{kind.model}Model")(made, **more).eval()
    random_numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            numbers = torch.randn(tensor.shape, generator=random_numbers)
            if tensor.dim() == 1:
                tensor.copy_(0.1 * numbers + (1.0 if key.endswith("weight") else 0.0))
            elif "embed" in key or "bias" in key or key.startswith("shared"):
                tensor.copy_(numbers)
            else:
                tensor.copy_(numbers / tensor.shape[-1] ** 0.5)
                if key.endswith("SelfAttention.q.weight"):  # a T5 scales no scores
                    tensor /= config["d_kv"] ** 0.5
    return model


def write_vocabulary(folder, name, k):
    lines = {
        "dnabert1": DNABERT_TOKENS[k],
        "protbert": PROTBERT_TOKENS,
        "nucleotide_transformer": NT_TOKENS,
        "esm1b": ESM_TOKENS,
        "esm2": ESM_TOKENS,
    }
    if name in lines:
        (folder / "vocab.txt").write_text("\n".join(lines[name]) + "\n")
        if name == "nucleotide_transformer":
            (folder / "tokenizer_config.json").write_text('{"eos_token": null}')
    elif name == "prott5":
        write_spiece(folder / "spiece.model", T5_PIECES)
    elif name == "prostt5":
        write_spiece(
            folder / "spiece.model", [*T5_PIECES, *(f"▁{c}" for c in "acdefghiklmnpqrstvwy")]
        )
        (folder / "added_tokens.json").write_text('{"<fold2AA>": 148, "<AA2fold>": 149}')
    elif name == "ankh":
        t5_tokenizer().save(str(folder / "tokenizer.json"))
    else:
        bpe().save(str(folder / "tokenizer.json"))


def write_spiece(path, pieces):
    """Write a SentencePiece model of these pieces: the fields that matter, and others to skip."""

    def field(number, content):
        return bytes([number << 3 | 2, *varint(len(content))]) + content

    def varint(number):
        return [number] if number < 128 else [number & 127 | 128, *varint(number >> 7)]

    score = b"\x15\x00\x00\x80\xbf"  # field 2: the float -1
    found = b"".join(field(1, field(1, piece.encode()) + score + b"\x18\x01") for piece in pieces)
    path.write_bytes(found + field(2, field(3, b"x" * 200)))


def t5_tokenizer():
    """Return a tokenizer whose words are residues, with T5's end."""
    from transformers import T5Tokenizer

    return T5Tokenizer(vocab=[(piece, -1.0) for piece in T5_PIECES], extra_ids=0)._tokenizer


def bpe():
    """Return a learned vocabulary of bases, with BERT's special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(dna(30, 300, seed=1), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def dna(count, longest, seed=0):
    drawn = random.Random(seed)
    return ["".join(drawn.choices("ACGT", k=drawn.randint(12, longest))) for _ in range(count)]


class Reference:
    """transformers on a folder: one sequence after the other, without filling."""

    def __init__(self, folder, name):
        import transformers

        self.kind, self.name, self.folder = KINDS[name], name, folder
        more = (
            {} if self.kind.model in ("T5Encoder", "ModernBert") else {"add_pooling_layer": False}
        )
        model = getattr(transformers, f"{self.kind.model}Model")
        self.model = model.from_pretrained(folder, **more).float().eval()
        self._tokenizer = self._made(transformers)

    def _made(self, transformers):
        vocabulary = str(self.folder / "vocab.txt")
        if self.kind.model == "Bert":
            return transformers.BertTokenizer(vocabulary, do_lower_case=False)
        if self.kind.model == "Esm":
            more = {"eos_token": None} if self.name == "nucleotide_transformer" else {}
            return transformers.EsmTokenizer(vocabulary, **more)
        if self.name == "modernbert":
            return transformers.PreTrainedTokenizerFast(tokenizer_object=bpe())
        return transformers.PreTrainedTokenizerFast(tokenizer_object=t5_tokenizer())

    def ids(self, letters):
        text = letters.translate(str.maketrans("UZOB", "XXXX")) if self.kind.rare_as_x else letters
        if k := self.kind.spaced:
            text = " ".join(text[i : i + k] for i in range(len(text) + 1 - k))
        ids = self._tokenizer(text)["input_ids"]
        return [149, *ids] if self.name == "prostt5" else ids

    @torch.inference_mode()
    def hidden_states(self, letters):
        """Return hidden_TE of all layers."""
        ids = torch.tensor([self.ids(letters)])
        return [state[0] for state in self.model(ids, output_hidden_states=True).hidden_states]


def all_layers(model, letters, most_filling):
    """Return hidden_TE of each layer of each sequence, computed in groups."""
    tokens = [model.vocabulary.tokens(text.encode()) for text in letters]
    layers = range(model.encoder.num_layers + 1)
    found = {}
    for group in padding.groups(tokens, model.vocabulary, 4096, most_filling):
        hidden = model.encoder.hidden_states(group.tokens_BT, group.is_token_BT, layers)
        for row, place in enumerate(group.places):
            found[place] = [hidden[layer][row, : len(tokens[place])] for layer in layers]
    return [found[place] for place in range(len(letters))]


def asked(folder, **options):
    """Return resolved options of the workload, in fp32 on a CPU, and the weights."""
    given = {"model": str(folder), "alphabet": "proteins", "dtype": "fp32"} | options
    found = weights.weights_of(plain_weights.look(str(folder), True, 1))
    return encoder.resolve(encoder.Options.model_validate(given), CPU, found), found


def loaded(folder, **options):
    resolved, found = asked(folder, **options)
    return encoder.load(resolved, [CPU], found)


def rows_of(model, payloads, budget=4096):
    """Return the values of payloads, as they are in batches of that budget."""
    return values_of(encoder, model, payloads, budget).to_pylist()


def layers_of(found, expected):
    """Yield each layer of each sequence, ours and theirs."""
    for ours, theirs in zip(found, expected, strict=True):
        yield from zip(ours, theirs, strict=True)


def most_off(found, expected):
    """Return the largest relative L2 of a layer."""
    return max(float(relative_l2(*pair)) for pair in layers_of(found, expected))


def lowest_cosine(found, expected):
    return min(float(cosines(*pair).min()) for pair in layers_of(found, expected))
