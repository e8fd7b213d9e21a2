"""Models whose layers are on several devices, of every workload with a network of transformers.

`Cards` stands in for GPUs; the tests for two real ones have the same names.
"""

import decoder_models
import encoder_models
import published_arithmetic
import pyarrow as pa
import pytest
import test_contacts
import test_scores
import torch
import transformers
from esm2_models import demo_proteins, relative_l2, save_fair_esm
from geneformer_models import cells_of, ensembl, some_counts, write_cells, write_genes, write_model
from programs import run_example
from test_mosaicbert import SMALL
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from featuremill.base import devices
from featuremill.base.errors import UserError, WorkloadError
from featuremill.workload import Weights, plain_weights, spread, weights
from featuremill.workload.compute import values_of
from featuremill.workloads import contacts, encoder, esm2, geneformer, llm_json, scores
from featuremill.workloads.encoder.mosaicbert import MosaicBert
from featuremill.workloads.esm2 import lanes
from featuremill.workloads.llm_json import engines

CPU = devices.cpu()
ONE = torch.device("cpu", 0)
GENES = [ensembl(number) for number in range(40)]
NEEDS_TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


# A CPU that refuses what two GPUs refuse. torch takes `cpu:1` for a device, but calls its tensors
# `cpu`. `Cards` notes the card of each tensor's memory, has tensors name it, and refuses what CUDA
# refuses: an operation on tensors of two cards, or of a card and the host. What is compared with
# values from within it has to be computed within it, too: some operations run in parts there.

ATEN = torch.ops.aten
COPIES = (ATEN._to_copy.default, ATEN.copy_.default, ATEN._has_compatible_shallow_copy_type.default)
TAKES_INDICES_OF_THE_HOST = (ATEN.index.Tensor, ATEN.index_put_.default)
HOST = None


class Cards(TorchDispatchMode):
    """Within it, a job with several devices has the cards `cpu:0`, `cpu:1` and so on, with as many
    free bytes as `free` says. A tensor without a card is on the host."""

    def __init__(self, monkeypatch, *free):
        super().__init__()
        self.devices = [torch.device("cpu", number) for number in range(len(free))]
        self.num_copies = 0
        """Tensors that went from one card to another."""
        self._cards, self._kept, self._names = {}, [], _Names(self)
        monkeypatch.setattr(spread, "places", lambda devices: self.devices[: len(devices)])
        monkeypatch.setattr(spread, "free_bytes", lambda device: free[device.index])
        read = transformers.PreTrainedModel.from_pretrained.__func__

        def from_pretrained(kind, *inputs, **named):
            """Read weights to the host without the modes, which keep some from being filled in."""
            self.__exit__(None, None, None)
            try:
                return read(kind, *inputs, **named)
            finally:
                self.__enter__()

        way = classmethod(from_pretrained)
        monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", way)

    @classmethod
    def _should_skip_dynamo(cls):  # to skip it is to import it: seconds
        return False

    def __enter__(self):
        self._names.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._names.__exit__(*error)

    def card(self, tensor):
        """Return the number of a tensor's card, or HOST."""
        return self._cards.get(tensor.untyped_storage()._cdata, HOST)

    def put(self, tensor, card):
        """Note the card of a tensor's memory, which is kept so that no other gets its address."""
        storage = tensor.untyped_storage()
        self._cards[storage._cdata] = card
        self._kept.append(storage)

    def __torch_dispatch__(self, operation, _, inputs=(), named=None):
        named = named or {}
        tensors = [one for one in tree_leaves((inputs, named)) if isinstance(one, torch.Tensor)]
        cards = {self.card(one) for one in tensors if one.ndim or self.card(one) is not HOST}
        if operation in TAKES_INDICES_OF_THE_HOST and len(cards) > 1:
            cards.discard(HOST)
        if len(cards) > 1 and operation not in COPIES:
            named_cards = " and ".join(sorted(map(str, cards)))
            raise RuntimeError(f"{operation}: tensors on cards {named_cards}")
        result = operation(*inputs, **named)
        card = self.card(inputs[0]) if operation in COPIES else next(iter(cards), HOST)
        if (device := named.get("device")) is not None:
            self.num_copies += None not in (card, device.index) and device.index != card
            card = device.index
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor):
                self.put(one, card)
        return result


class _Names(TorchFunctionMode):
    """Has tensors name their card, and puts those on the host that go there."""

    def __init__(self, cards):
        super().__init__()
        self._cards = cards

    def __torch_function__(self, function, _, inputs=(), named=None):
        named = named or {}
        if function == torch.Tensor.device.__get__:
            card = self._cards.card(inputs[0])
            return torch.device("cpu") if card is HOST else torch.device("cpu", card)
        if function is torch.Tensor.cpu:
            copy = inputs[0].clone()
            self._cards.put(copy, HOST)
            return copy
        result = function(*inputs, **named)
        if function is torch.tensor and named.get("device") is not None:
            self._cards.put(result, named["device"].index)
        return result


@pytest.fixture
def cards(monkeypatch):
    """Return a function that has two cards with so much free memory."""
    return lambda *free: Cards(monkeypatch, *(free or (10**6, 10**6)))


# How layers are dealt


@pytest.mark.parametrize("sizes, free, counts", [
    ([1] * 6, [5, 5], [3, 3]),
    ([1] * 33, [80_000, 79_000], [17, 16]),
    ([1] * 6, [10, 20], [2, 4]),
    ([1] * 6, [1, 99], [0, 6]),
    ([1] * 5, [3, 3, 3], [2, 1, 2]),
    ([1] * 2, [7] * 4, [0, 1, 0, 1]),
    ([9, 1, 1, 1, 1, 1, 1, 1, 1, 1], [9, 9], [1, 9]),
    ([3, 3, 3], [9], [3]),
])  # fmt: skip
def test_a_device_gets_the_share_of_bytes_that_it_has_of_free_memory(cards, sizes, free, counts):
    dealt = spread.dealt(sizes, cards(*free).devices)
    assert [len(numbers) for numbers in dealt] == counts
    assert [number for numbers in dealt for number in numbers] == [*range(len(sizes))]


def test_free_is_also_what_torch_keeps_of_tensors_that_are_gone(monkeypatch):
    told = {"mem_get_info": (4, 99), "memory_reserved": 8, "memory_allocated": 2}
    for name, value in told.items():
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    assert spread.free_bytes(torch.device("cuda", 1)) == 10


class Blocks(torch.nn.Module):
    """A network with a table, layers, and a product behind them; layers get what is added."""

    def __init__(self, *layers):
        super().__init__()
        self.table = torch.nn.Embedding(5, 4)
        self.layers = torch.nn.ModuleList(layers)
        self.head = torch.nn.Linear(4, 4)
        self.register_buffer("added", torch.ones(4))

    def forward(self, tokens):
        hidden = self.table(tokens)
        for layer in self.layers:
            hidden = layer(hidden, added=self.added)
        return self.head(hidden)


class Block(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 4)

    def forward(self, hidden, added):
        return super().forward(hidden) + added


def blocks(number):
    torch.manual_seed(0)
    return Blocks(*(Block() for _ in range(number)))


@torch.inference_mode()
def test_the_rest_of_a_network_is_on_the_first_device_and_names_stay(cards):
    network, tokens = blocks(3), torch.arange(5)
    names, expected = [*network.state_dict()], network(tokens)
    with cards(1, 2) as both:
        copies = spread.over(network, 3, both.devices)
        assert copies is spread.DIRECT and [*network.state_dict()] == names
        assert [both.card(layer.weight) for layer in network.layers] == [0, 1, 1]
        assert both.card(network.table.weight) == both.card(network.head.weight) == 0
        both.num_copies = 0
        assert torch.equal(network(tokens.to(ONE)).cpu(), expected)
    assert both.num_copies == 3, "there and back, and what is added once for both layers"


@torch.inference_mode()
@pytest.mark.parametrize(("free", "on"), [((1,), [0, 0, None]), ((1, 1), [0, 1, None])])
def test_layers_behind_those_of_the_gpus_are_on_the_host(cards, free, on):
    network, tokens = blocks(3), torch.arange(5)
    expected = network(tokens)
    with cards(*free) as several:
        spread.over(network, 3, several.devices, gpu_layers=2)
        assert [several.card(layer.weight) for layer in network.layers] == on
        found = network(tokens.to(ONE))
        assert several.card(found) == 0 and torch.equal(found.cpu(), expected)
    whole = blocks(3)
    assert spread.over(whole, 3, [torch.device("cpu")], gpu_layers=1) is spread.DIRECT


@torch.inference_mode()
def test_what_layers_share_is_copied_anew_in_each_pass(cards):
    network, tokens = blocks(3), torch.arange(5)
    expected = []
    for added in (1.0, 2.0):
        network.added.fill_(added)
        expected.append(network(tokens))
    with cards() as both:
        spread.over(network, 3, both.devices)
        for added, values in zip((1.0, 2.0), expected, strict=True):
            network.added.fill_(added)
            assert torch.equal(network(tokens.to(ONE)).cpu(), values)


@torch.inference_mode()
def test_a_layer_that_is_left_on_another_card_is_noticed(cards, monkeypatch):
    """What these tests stand on."""
    network = blocks(3)
    monkeypatch.setattr(spread, "_bring_inputs", lambda *_: None)
    with cards() as both:
        spread.over(network, 3, both.devices)
        with pytest.raises(RuntimeError, match="tensors on cards 0 and 1"):
            network(torch.arange(5).to(ONE))


@torch.inference_mode()
def test_each_layer_is_computed_where_its_device_is_the_current_one(cards, monkeypatch):
    """Triton launches on the current device, whatever device its tensors are on."""
    current, seen = [], []
    monkeypatch.setattr(spread, "_make_current", lambda device: current.append(device.index))
    real = Block.forward
    monkeypatch.setattr(
        Block, "forward", lambda *a, **k: (seen.append(current[-1]), real(*a, **k))[1]
    )
    network = blocks(3)
    with cards(1, 2) as both:
        spread.over(network, 3, both.devices)
        for _ in range(2):
            network(torch.arange(5).to(ONE))
    assert seen == [0, 1, 1] * 2 and current[-1] == 0


def test_a_network_without_a_list_of_its_layers_is_refused(cards):
    with cards() as both, pytest.raises(UserError, match="a Blocks has no list of its 4 layers"):
        spread.over(blocks(3), 4, both.devices)


def test_layers_that_share_weights_are_refused(cards):
    one = Block()
    shared = Blocks(one, Block(), one)
    with cards() as both, pytest.raises(UserError, match="share weights, so they cannot be on two"):
        spread.over(shared, 3, both.devices)


def test_two_mig_slices_are_refused():
    slices = [devices.Device("cuda", f"MIG-{n}", "a slice", has_bf16=True) for n in (1, 2)]
    with pytest.raises(UserError, match="a process can use one MIG slice only"):
        spread.places(slices)


@torch.inference_mode()
def test_copies_that_arrive_wrong_go_through_the_host(cards, monkeypatch, caplog):
    """As on a machine whose IOMMU is in the way: other numbers arrive, and nobody says so."""
    bad = spread.Copies("direct", lambda tensor, _: torch.zeros_like(tensor))
    network, tokens = blocks(3), torch.arange(5)
    expected = network(tokens)
    good = spread.ways()[1]
    monkeypatch.setattr(spread, "ways", lambda: [bad, good])
    with cards() as both:
        copies = spread.over(network, 3, both.devices)
        assert torch.equal(network(tokens.to(ONE)).cpu(), expected)
    assert copies.noted == "; copies between GPUs: through the host"
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "524,288 numbers arrive wrong" in record.getMessage()
    monkeypatch.setattr(spread, "ways", lambda: [bad])
    with both, pytest.raises(WorkloadError, match="arrive wrong by every method"):
        spread.over(blocks(3), 3, both.devices)


TWO, BESIDE_THE_HOST = (10**6, 10**6), (10**6,)
"""Free memory of cards; beside one, the host has all layers but the first."""


def in_parts(cards, free, modules_of, workload, options, found, payloads, budget=100):
    """Return the values of a whole model and of one in parts, that model, and the cards of each of
    its modules."""
    with cards(*free) as several:
        whole = values_of(workload, workload.load(options, [CPU], found), payloads, budget)
        more = {"gpu_layers": 1} if free == BESIDE_THE_HOST else {}
        model = workload.load(options.model_copy(update=more), [CPU] * len(free), found)
        parts = values_of(workload, model, payloads, budget)
        on = [{several.card(one) for one in each.parameters()} for each in modules_of(model)]
    return whole, parts, model, on


def on_one_and_on_two_gpus(workload, options, found, payloads, budget=100):
    """Return the values of a model on one GPU and on two."""
    first, second = devices.cuda_devices()[:2]
    return [
        values_of(workload, workload.load(options, given, found), payloads, budget)
        for given in ([first], [first, second])
    ]


# ESM-2, and what loads through it


def proteins_of(name, folder, monkeypatch):
    """Return a workload, resolved options, weights and payloads; all operations are torch's, in
    this thread, where `Cards` sees them."""
    monkeypatch.setattr(lanes, "each", lambda compute, pieces: [*map(compute, pieces)] and None)
    monkeypatch.setenv("FEATUREMILL_WITHOUT", "onednn,llvm")
    if name == "scores of ESM C":
        test_scores.esmc_model(3, 128, 256).save_pretrained(folder / "c")
        model = str(folder / "c")
    elif name == "contacts":
        model = str(test_contacts.save(test_contacts.random_network(), folder / "random.pt"))
    else:
        model = str(save_fair_esm(test_scores.random_network(), folder / "random.pt"))
    workload, more = {
        "esm2": (esm2, {"layers": [0, 1, 3], "pool": ["mean", "max", "bos"], "per_residue": True}),
        "contacts": (contacts, {}),
    }.get(name, (scores, {"marginals": ["wildtype", "masked"], "log_probabilities": "masked"}))
    kind = workload.__name__.rpartition(".")[2]
    found = weights.weights_of(weights.convert(model, folder, kind))
    options = workload.Options.model_validate({"model": model, "dtype": "fp32"} | more)
    payloads = [each.encode() for each in demo_proteins(2, 40)]
    return workload, workload.resolve(options, CPU, found), found, payloads


@pytest.mark.parametrize("free", [(9, 9), (5, 1, 5)])
@pytest.mark.parametrize("name", ["esm2", "contacts", "scores", "scores of ESM C"])
def test_what_loads_through_esm2_has_the_same_bits(tmp_path, cards, monkeypatch, name, free):
    workload, options, found, payloads = proteins_of(name, tmp_path, monkeypatch)
    with cards(*free) as several:
        one, more = (
            values_of(workload, workload.load(options, [CPU] * count, found), payloads, 4096)
            for count in (1, len(free))
        )
        assert several.num_copies > 0
    assert repr(more.to_pylist()) == repr(one.to_pylist())


@pytest.mark.gpu
@NEEDS_TWO
@pytest.mark.parametrize("name", ["esm2", "contacts", "scores", "scores of ESM C"])
def test_what_loads_through_esm2_is_that_of_one_gpu(tmp_path, monkeypatch, name):
    workload, options, found, payloads = proteins_of(name, tmp_path, monkeypatch)
    monkeypatch.delenv("FEATUREMILL_WITHOUT")
    one, two = on_one_and_on_two_gpus(workload, options, found, payloads)
    assert repr(two.to_pylist()) == repr(one.to_pylist())


# Encoders


def weights_of(folder):
    return weights.weights_of(plain_weights.look(str(folder), True, 1))


def encoders(name, folder):
    """Return options, weights and payloads for a kind of encoder."""
    given = {"layers": [0, 1, -1], "pool": ["mean", "max"], "per_residue": True}
    texts = demo_proteins(3, 60)
    if name in encoder_models.KINDS:
        given["alphabet"] = encoder_models.KINDS[name].alphabet
        encoder_models.write(folder, name)
        if given["alphabet"] == "nucleotides":
            texts = encoder_models.dna(3, 60)
    elif name in ("amplify", "glm2"):
        given["alphabet"] = "proteins"
        published_arithmetic.write(folder, name)
    else:
        given["alphabet"], texts = "texts", ["The protein folds.", "x", "DNA " * 12]
        decoder_models.write(folder, name)
    options = encoder.Options.model_validate({"model": str(folder), **given, "dtype": "fp32"})
    return options, [text.encode() for text in texts]


SLOW = [
    *("dnabert1", "nucleotide_transformer", "ankh", "amplify", "mistral", "qwen3", "gemma3_text"),
    *("phi3", "gpt_neox", "bloom", "falcon", "opt", "mixtral", "mamba", "bamba"),
    *("recurrent_gemma", "jamba", "qwen3_moe", "gpt_oss"),
]
KINDS = ("protbert", "esm1b", "esm2", "prott5", "modernbert", "glm2", "llama", "gemma2", "gpt2")


@pytest.mark.parametrize(
    ("name", "free"),
    [
        *((name, TWO) for name in KINDS),
        *((name, BESIDE_THE_HOST) for name in ("protbert", "prott5", "glm2", "llama")),
        *(pytest.param(name, TWO, marks=pytest.mark.slow) for name in SLOW),
    ],
)
def test_an_encoder_in_parts_has_the_same_bits(tmp_path, cards, name, free):
    options, payloads = encoders(name, tmp_path / name)
    found = weights_of(tmp_path / name)

    def layers_of(model):
        return spread._layers(model.encoder.network, model.encoder.num_layers)

    options = encoder.resolve(options, CPU, found)
    given = encoder, options, found, payloads
    whole, parts, _, on = in_parts(cards, free, layers_of, *given)
    if free == TWO:
        assert on[0] == {0} and on[-1] == {1}
    else:
        assert on == [{0}, *[{None}] * (len(on) - 1)] and len(on) > 1
    assert parts.equals(whole)


@torch.inference_mode()
def test_a_mosaicbert_on_two_devices_has_the_same_bits(cards):
    torch.manual_seed(0)
    network = MosaicBert(SMALL).eval()
    tokens = torch.randint(5, 50, (2, 9))
    is_token = torch.arange(9) < torch.tensor([[9], [5]])
    expected = network(tokens, is_token)
    with cards() as both:
        spread.over(network, 3, both.devices)
        both.num_copies = 0
        found = network(tokens.to(ONE), is_token.to(ONE))
    assert both.num_copies == 3, "the states there and back; what is added to scores once"
    assert [both.card(each) for each in found] == [0, 0, 1, 0]
    assert all(map(torch.equal, found, expected))


def most_off(one, other):
    """Return the largest relative L2 of the columns of vectors."""
    off = []
    for name in one.schema.names:
        flat = [batch[name] for batch in (one, other)]
        while not pa.types.is_floating(flat[0].type):
            flat = [column.flatten() for column in flat]
        off.append(relative_l2(*(torch.tensor(column.to_numpy(False)).float() for column in flat)))
    return max(off)


@pytest.mark.gpu
@NEEDS_TWO
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["prott5", "esm2", "llama"])
def test_an_encoder_on_two_gpus_is_that_on_one(tmp_path, name, dtype):
    options, payloads = encoders(name, tmp_path / name)
    found, (first, second) = weights_of(tmp_path / name), devices.cuda_devices()[:2]
    options = encoder.resolve(options.model_copy(update={"dtype": dtype}), first, found)
    models = [encoder.load(options, given, found) for given in ([first], [first, second])]
    assert {one.device.index for one in models[1].encoder.network.parameters()} == {0, 1}
    whole, parts = (values_of(encoder, model, payloads, 100) for model in models)
    assert most_off(whole, parts) <= 1e-5


# Geneformer


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """Return options of a Geneformer V1 and the payloads of a cell of `more` options."""
    folder = tmp_path_factory.mktemp("cells")
    write_model(folder / "model", 2 + len(GENES), "V1")
    given = {"model": str(folder / "model"), **write_genes(folder, GENES, "V1"), "dtype": "fp32"}
    write_cells(folder / "cells.h5ad", cells_of(some_counts(3, len(GENES)), GENES))

    def cell(**more):
        found = weights_of(folder / "model")
        options = geneformer.Options.model_validate(given | more)
        payloads = [one.payload for one in geneformer.records([folder / "cells.h5ad"], options)]
        return geneformer.resolve(options, CPU, found), payloads, found

    return cell


CELLS = [
    {"layers": [0, 1, -1], "gene_vectors": True},
    {"perturb": "delete", "genes": GENES[10:], "gene_shifts": True},
]


@pytest.mark.parametrize("more", CELLS)
@pytest.mark.parametrize(("free", "last"), [(TWO, 1), (BESIDE_THE_HOST, None)])
def test_a_geneformer_in_parts_has_the_same_bits(cells, cards, more, free, last):
    options, payloads, found = cells(**more)
    given = geneformer, options, found, payloads
    whole, parts, _, on = in_parts(cards, free, lambda model: [model.network.network], *given)
    assert on == [{0, last}]
    assert repr(parts.to_pylist()) == repr(whole.to_pylist()), "a NaN is not equal to itself"
    assert "'cosine': 0.9" in repr(whole.to_pylist()) or "perturb" not in more


@pytest.mark.gpu
@NEEDS_TWO
def test_a_geneformer_on_two_gpus_is_that_on_one(cells):
    options, payloads, found = cells(layers=[0, -1])
    assert most_off(*on_one_and_on_two_gpus(geneformer, options, found, payloads)) <= 1e-5


# Language models


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Return the folder that the example's script writes."""
    folder = tmp_path_factory.mktemp("example")
    run_example("llm_json", folder)
    return folder


def rows(example, device=CPU, **more):
    """Return resolved options, weights and payloads of the example."""
    given = {"model": "model", "prompt": "prompt.jinja", "json_schema": "schema.json"}
    given = {name: str(example / path) for name, path in given.items()}
    options = llm_json.Options.model_validate({**given, "dtype": "fp32", "max_tokens": 60} | more)
    payloads = [one.payload for one in llm_json.records([example / "notes.csv"], options)]
    found = Weights("model", example / "model", "", {})
    return llm_json.resolve(options, device, found), payloads[:4], found


def test_layers_on_the_host_take_no_memory_of_a_gpu(example):
    gpu = devices.Device("cuda", "", "a GPU", True, 0, 16_000, 40)
    needs = []
    for number in (None, 1):
        options, _, found = rows(example, gpu, batch_rows=64, gpu_layers=number)
        needs.append(llm_json.memory_mb(options, gpu, found, 0))
    assert needs[1] < needs[0]


@pytest.mark.parametrize("batch_rows", [1, 3])
@pytest.mark.parametrize(("free", "last"), [(TWO, 1), (BESIDE_THE_HOST, None)])
def test_a_language_model_in_parts_gives_the_same_replies(example, cards, batch_rows, free, last):
    """One row after another, and several at once, whose keys and values lie with their layers."""
    options, payloads, found = rows(example, batch_rows=batch_rows)
    given = llm_json, options, found, payloads, 10**6
    whole, parts, model, on = in_parts(cards, free, lambda made: [made.engine._network], *given)
    assert model.engine._has_one_row is (batch_rows == 1)
    assert on == [{0, last}]
    assert parts.equals(whole) and "stop" in whole["finish"].to_pylist()


def test_the_fullest_device_decides_how_many_rows_there_are(example, monkeypatch):
    options, _, found = rows(example)
    engine = llm_json.load(options, [CPU], found).engine
    (token_bytes,) = engine._token_bytes.values()
    engine._device = torch.device("cuda", 0)
    engine._token_bytes = {torch.device("cuda", n): token_bytes for n in (0, 1)}
    free = {0: 40 * token_bytes, 1: 20 * token_bytes}
    monkeypatch.setattr(engines, "free_bytes", lambda device: free[device.index])
    assert engine._most_rows(2) == 6
    engine._token_bytes[spread.HOST] = token_bytes
    assert engine._most_rows(2) == 6, "the host is no GPU"


@pytest.mark.parametrize("more, spreads", [
    ({}, True), ({"engine": "vllm"}, True), ({"quantize": "4bit"}, False),
])  # fmt: skip
def test_a_quantised_language_model_stays_on_one_gpu(example, more, spreads):
    assert llm_json.spreads(llm_json.Options.model_validate({
        "model": str(example / "model"), "prompt": "a", "json_schema": "b", **more,
    })) is spreads  # fmt: skip


@pytest.mark.gpu
@NEEDS_TWO
def test_a_language_model_on_two_gpus_replies_what_it_does_on_one(example):
    options, payloads, found = rows(example, devices.cuda_devices()[0])
    one, two = on_one_and_on_two_gpus(llm_json, options, found, payloads, 10**6)
    assert one.equals(two)
