"""Results on their way to the host: what they pin there, and what pooling copies, in bytes.

Pinned memory is ordinary memory here, or none at all (tensors of torch's device `meta`).
"""

from itertools import product

import pytest
import torch
from torch.overrides import TorchFunctionMode

from featuremill.workloads import esm2
from featuremill.workloads.esm2 import pooling, tokens, transfer
from featuremill.workloads.esm2.kernels import reference

ROWS, WIDTH_3B, LAYERS_3B = 16_896, 2560, 37
"""Rows of a batch on an H200, and the states of the 3B model."""
FULL_BATCHES = (16_000, 16_600, 16_890)
"""Residues in batches of so many rows."""


class Pinned:
    """Counts what is asked of torch's pinned memory."""

    def __init__(self, device):
        self.asked = []
        self.device = device

    def __call__(self, num_bytes):
        self.asked.append(num_bytes)
        return torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)


def rounded(number):
    """What torch makes of an allocation (pytorch#95823)."""
    return 1 << (number - 1).bit_length()


@pytest.fixture
def pinned(monkeypatch):
    def put(device):
        counted = Pinned(device)
        monkeypatch.setattr(transfer, "_pinned", counted)
        return counted

    return put


def of_a_batch(num_residues, options, num_layers, width, num_proteins=48):
    """Return a batch's values without their numbers, and slabs for them."""
    shapes = [((num_proteins, width), torch.float32)] * len(options.pools)
    shapes += [((num_residues, width), torch.float16)] * options.per_residue
    tensors = [torch.empty(s, dtype=t, device="meta") for s, t in shapes * num_layers]
    layer_bytes = pooling.bytes_of_layer(ROWS, num_proteins, width, options)
    return tensors, transfer.Slabs(layer_bytes, num_layers)


@pytest.mark.parametrize("pool", ["none", "mean"])
def test_all_layers_of_3b_per_residue_pin_little_more_than_they_are(pinned, pool):
    """Before, each tensor was an allocation: 37 of 81 to 82 MiB, each rounded up to 128."""
    options = esm2.Options(pool=pool, per_residue=True)
    cached = set()
    for num_residues in FULL_BATCHES:
        counted = pinned("meta")
        tensors, slabs = of_a_batch(num_residues, options, LAYERS_3B, WIDTH_3B)
        copies = [slabs.cut(tensor) for tensor in tensors]
        assert [(c.shape, c.dtype) for c in copies] == [(t.shape, t.dtype) for t in tensors]
        needed = sum(tensor.nbytes for tensor in tensors)
        assert sum(map(rounded, (tensor.nbytes for tensor in tensors))) > 1.5 * needed
        assert all(size == rounded(size) for size in counted.asked)
        assert needed <= sum(counted.asked) < 1.1 * needed
        cached |= set(counted.asked)
    assert len(cached) <= 5, "the sizes that torch keeps are those of any full batch"


def test_few_values_pin_what_one_allocation_would(pinned):
    for asked in ({}, {"per_residue": True}, {"pool": "bos", "per_residue": True}):
        options = esm2.Options(**asked)
        counted = pinned("meta")
        tensors, slabs = of_a_batch(16_600, options, 1, 1280)
        for tensor in tensors:
            slabs.cut(tensor)
        assert counted.asked == [rounded(pooling.bytes_of_layer(ROWS, 48, 1280, options))]


def test_a_protein_longer_than_a_batch_has_its_memory(pinned):
    counted = pinned("meta")
    tensors, slabs = of_a_batch(40_000, esm2.Options(pool="none", per_residue=True), 3, 1280)
    for tensor in tensors:
        assert slabs.cut(tensor).shape == tensor.shape
    assert counted.asked == [2**27] * 3


def test_what_is_cut_from_a_slab_never_overlaps(pinned):
    counted = pinned("cpu")
    slabs = transfer.Slabs(5_000, 9)
    shapes = [(1, 3), (7, 11), (50, 20), (1, 1), (13, 13)]
    kinds = product(range(9), shapes, (torch.float32, torch.float16))
    sources = [torch.randn(shape).to(dtype) for _, shape, dtype in kinds]
    copies = [slabs.cut(source).copy_(source) for source in sources]
    for copy, source in zip(copies, sources, strict=True):
        assert torch.equal(copy, source)
        assert copy.numpy().ctypes.data % copy.element_size() == 0
    assert len(counted.asked) < len(sources) / 3


class Made(TorchFunctionMode):
    """Adds up the bytes of what operations return that is not a view of what they were given."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_function__(self, operation, types, given=(), more=None):
        result = operation(*given, **(more or {}))
        if isinstance(result, torch.Tensor) and result._base is None:
            self.bytes += result.nbytes
        return result


@pytest.mark.parametrize("cut", [{"long": "truncate"}, {"long": "chunk", "chunk_overlap": 20}])
def test_bos_copies_the_rows_asked_for_and_not_the_state(cut):
    options = esm2.Options(pool="bos", max_residues=100, **cut)
    windows = [tokens.windows(length, options) for length in (250, 80, 97)]
    places = pooling.places(windows)
    num_rows = sum(end - start + 2 for each in windows for start, end in each)
    hidden_TD = torch.randn(num_rows, 64)
    with Made() as made:
        (bos_ND,) = pooling.tensors_of_layer(hidden_TD, places, options, reference.mean_rows)
    row_bytes = hidden_TD[0].nbytes
    num_windows = sum(map(len, windows))
    # A row a window, its mean a protein (and that once more, as the means are put together).
    assert 0 < made.bytes <= (num_windows + 3 * len(windows)) * row_bytes < hidden_TD.nbytes / 10
    first = hidden_TD[places.bos_W[: len(windows[0])]].mean(0)
    assert torch.equal(bos_ND[0], first)


def test_a_batch_expects_what_it_brings(monkeypatch):
    """The slabs of a batch are made for the values that its layers yield."""
    given = []
    monkeypatch.setattr(transfer, "Slabs", lambda *sizes: given.append(sizes))
    network = esm2_of(layers=(0, 1), pool=("mean", "bos"), per_residue=True)
    batch = esm2.prepare(network, [b"MKVLAAGIVGL", b"MKV"], 64)
    values = esm2.run(network, batch).transfer.wait()
    ((layer_bytes, num_layers),) = given
    filling = len(batch.pack.tokens_T) - sum(batch.places.lengths)
    assert num_layers == 2
    of_filling = filling * network.encoder.width * torch.float16.itemsize
    assert 2 * layer_bytes == sum(value.nbytes for value in values) + 2 * of_filling


def esm2_of(**options):
    class Network:
        width = 8
        device = torch.device("cpu")
        mean_rows = staticmethod(reference.mean_rows)

        def representations(self, pack, layers):
            for layer in layers:
                yield layer, torch.ones(len(pack.tokens_T), self.width)

    return esm2.Model(Network(), esm2.Options(**options), "")
