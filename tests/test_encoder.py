"""The encoder's parts one by one: products, attention, packs, places, and layers over devices."""

import os
import random
import subprocess
import sys
import threading
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from esm2_models import demo_proteins, fair_esm, save_fair_esm
from programs import printed_by

from featuremill.base.devices import cpu
from featuremill.workload import weights
from featuremill.workload.compute import values_of
from featuremill.workload.spread import on_device
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import attention, lanes, matmul, packing, pooling
from featuremill.workloads.esm2.encoder import Encoder
from featuremill.workloads.esm2.kernels import reference
from featuremill.workloads.esm2.stages import Stage
from featuremill.workloads.esm2.tokens import tokenize, windows

CPU = cpu()
HOST = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
NUM_THREADS = (1, 2, 3)


@pytest.fixture(autouse=True)
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(2)


@pytest.fixture(scope="module")
def found(cache):
    """The weights of a small random network of 5 layers."""
    path = save_fair_esm(fair_esm(5, 48, 3), cache / "random5.pt")
    return weights.weights_of(weights.convert(str(path), cache))


# Products.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs, outputs", [(128, 384), (320, 1280), (480, 480), (1920, 480)])
def test_products_of_onednn_are_those_of_torch(dtype, inputs, outputs):
    if dtype == torch.bfloat16 and not CPU.has_bf16:
        pytest.skip("this CPU has no bf16 instructions")
    weight, bias = torch.randn(outputs, inputs) * inputs**-0.5, torch.randn(outputs)
    rows = torch.randn(96, inputs).to(dtype)
    exact = F.linear(rows.double(), weight.to(dtype).double(), bias.to(dtype).double())
    for form in (matmul.Plain, matmul.OneDnn):
        product = form(weight.to(dtype), bias.to(dtype))
        bound = {"rtol": 1e-2, "atol": 2e-2} if dtype != torch.float32 else {"atol": 1e-5}
        assert torch.allclose(product(rows).double(), exact, **bound)
        assert torch.allclose(product.gelu(rows).double(), F.gelu(exact), **bound)


def test_the_product_follows_device_and_dtype(monkeypatch):
    cuda = torch.device("cuda", 0)
    names = [form.__name__ for form in matmul.forms(cuda, torch.float16)]
    assert names == ["Adding", "AddingApart", "Plain", "Apart"]
    assert matmul.forms(cuda, torch.float32) == [matmul.Plain]
    assert issubclass(matmul.forms(HOST, torch.float32)[0], matmul.OneDnn)
    with monkeypatch.context() as without:
        without.setattr(torch.backends.mkldnn, "enabled", False)
        assert matmul.forms(HOST, torch.float32) == [matmul.Plain]
    # What a CPU does not multiply in hardware is left to torch.
    product = matmul.forms(HOST, torch.float16)[0](torch.ones(4, 4).half(), torch.ones(4).half())
    assert product(torch.ones(64, 4).half()).tolist() == [[5.0] * 4] * 64


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs, outputs", [(128, 512), (512, 128), (480, 1440), (640, 2560)])
def test_a_row_of_a_product_has_the_same_bits_in_any_batch(dtype, inputs, outputs):
    """Whatever the other rows are, and on any number of threads; with AMX in a block, by one."""
    form = matmul.forms(HOST, dtype)[0]
    if not issubclass(form, matmul.OneDnn):
        pytest.skip("this CPU has no bf16 instructions")
    rows = torch.randn(4096, inputs).to(dtype)
    weight, bias = torch.randn(outputs, inputs) * inputs**-0.5, torch.randn(outputs)
    product = form(weight.to(dtype), bias.to(dtype))
    is_amx = issubclass(form, matmul.OneDnnAmx)
    rows = rows[: product.ROWS] if is_amx else rows
    torch.set_num_threads(1 if is_amx else 2)
    expected, activated = product(rows), product.gelu(rows)
    for num_threads in (1,) if is_amx else NUM_THREADS:
        torch.set_num_threads(num_threads)
        for count in (64, 80, 112, 272, len(rows)):
            start = random.Random(count).randrange(len(rows) + 1 - count)
            part = rows[start : start + count].clone()
            assert torch.equal(product(part), expected[start : start + count])
            assert torch.equal(product.gelu(part), activated[start : start + count])


# Attention.


def exact_attention(qkv_3HLd):
    query, key, value = qkv_3HLd.double()
    scores = query @ key.transpose(1, 2) * query.shape[-1] ** -0.5
    return scores.softmax(-1) @ value


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_attention_stays_within_each_sequence(dtype, bound):
    lengths = [3, 40, 255, 256, 257, 300, 1]
    pack = packing.pack([np.full(length, 5) for length in lengths])
    qkv_T3Hd = (torch.randn(len(pack.tokens_T), 3, 4, 24) * 2).to(dtype)
    *compiled, last = attention.backends(HOST, dtype, 4, 24)
    assert last.name == "sdpa flash_attention per sequence"
    has_code = matmul.instructions(dtype) != "sse"
    isas = [matmul.instructions(dtype)] * has_code
    assert [way.name.rpartition(" ")[2] for way in compiled] == isas
    for backend in (*compiled, last):
        context_THd = backend.attend(qkv_T3Hd, pack)
        for start, end in pairwise(pack.bounds):
            expected = exact_attention(qkv_T3Hd[start:end].permute(1, 2, 0, 3)).transpose(0, 1)
            found = context_THd[start:end].double()
            assert torch.allclose(found, expected, rtol=bound, atol=bound)
        assert not context_THd[pack.bounds[-1] :].any()


def test_heads_shared_out_to_lanes_have_the_bits_of_heads_together():
    """Of one protein the heads are shared out, of many they stay together."""
    for dtype in DTYPES:
        qkv_T3Hd = torch.randn(64 * 13, 3, 20, 16).to(dtype)
        for backend in attention.backends(HOST, dtype, 20, 16):
            alone = backend.attend(qkv_T3Hd[:64], packing.pack([np.full(64, 5)]))
            many = backend.attend(qkv_T3Hd, packing.pack(13 * [np.full(64, 5)]))
            assert torch.equal(alone, many[:64])


# Lanes.


def test_lanes_compute_every_piece_by_one_thread_each():
    def compute(piece):
        assert torch.is_inference_mode_enabled()
        seen.append((piece, torch.get_num_threads()))

    for num_threads in NUM_THREADS:
        torch.set_num_threads(num_threads)
        seen = []
        lanes.each(compute, range(20))
        assert sorted(seen) == [(piece, 1) for piece in range(20)]
        assert lanes.number() == num_threads
    with pytest.raises(ZeroDivisionError):
        lanes.each(lambda piece: 1 // piece, [1, 0, 1, 1, 1, 1])


@pytest.mark.parametrize("num_threads", NUM_THREADS)
def test_lanes_keep_their_threads_until_a_piece_raises(num_threads):
    """What a library keeps of an error for as long as the thread lives must not meet later pieces
    (tests/test_memory.py has the one that does)."""

    def threads():
        everyone_there = threading.Barrier(num_threads, timeout=60)
        seen = []

        def compute(_):
            seen.append(threading.get_native_id())
            everyone_there.wait()

        lanes.each(compute, range(num_threads))
        return set(seen)

    torch.set_num_threads(num_threads)
    before = threads()
    assert len(before) == num_threads and threads() == before
    with pytest.raises(ZeroDivisionError):
        lanes.each(lambda piece: 1 // piece, [0])
    assert threads().isdisjoint(before)


def test_blocks_cover_all_rows_and_none_is_small():
    for num_rows in range(64, 3000, 16):
        for most in (512, *(packing.shares(num_rows, count) for count in (1, 2, 3, 16))):
            blocks = packing.blocks(num_rows, most)
            rows = [row for block in blocks for row in range(num_rows)[block]]
            assert rows == list(range(num_rows))
            sizes = [block.stop - block.start for block in blocks]
            assert min(sizes) >= packing.MIN_ROWS and max(sizes) <= most


def test_a_tensor_of_a_block_stays_below_what_glibc_maps_afresh():
    for row_bytes in (4096, 5120, 20480):
        most = packing.below(2**25, row_bytes)
        assert most * row_bytes < 2**25 <= (most + packing.ROW_MULTIPLE) * row_bytes


@pytest.mark.parametrize(
    "most, left",
    [("AVX512_CORE_BF16", "avx512_bf16"), ("AVX512_CORE", "avx512"), ("AVX2", "torch")],
)
def test_what_the_cpu_has_decides_and_each_way_is_right(found, most, left):
    """In processes that forbid oneDNN the later instructions: what a model's load leaves standing
    has proved itself, and its name says what it is."""
    code = (
        "import sys, torch; from featuremill.workloads.esm2.encoder import Encoder\n"
        "from pathlib import Path; path, facts = Path(sys.argv[1]), eval(sys.argv[2])\n"
        "for dtype in (torch.float32, torch.bfloat16):\n"
        "    print(Encoder(path, facts, [torch.device('cpu')], dtype).backend)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(found.path), repr(dict(found.metadata))],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": most},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    wide, narrow = done.stdout.splitlines()
    isa = "avx512" if most.startswith("AVX512") else "avx2"
    if matmul.instructions(torch.bfloat16) == "amx":
        assert f"products: onednn-{isa};" in wide
        assert f"products: {'onednn-' * (left != 'torch')}{left};" in narrow
        assert f", {isa if left == 'torch' else left}; products" in narrow
        for backend in (wide, narrow):
            assert backend.endswith(f"{isa}") and backend.count("llvm ") == 2


def test_calls_that_only_cuda_carries_out_fit_torch():
    """On the meta device torch checks arguments and returns shapes, and computes nothing."""
    pack = packing.pack([np.full(30, 5), np.full(9, 5)], 256, torch.device("cuda", 0))
    pack = on_device(pack, torch.device("meta"))
    qkv_T3Hd = torch.empty(256, 3, 20, 64, device="meta", dtype=torch.bfloat16)
    more = {"num_splits": 1} if attention._takes("num_splits") else {}
    context_THd = attention.attend_varlen(qkv_T3Hd, pack, **more)
    assert (context_THd.shape, context_THd.dtype) == ((256, 20, 64), torch.bfloat16)
    weight = torch.empty(640, 1280, device="meta", dtype=torch.bfloat16)
    product = matmul.Plain(weight, weight[:, 0].clone())
    assert product.gelu(context_THd.flatten(1)).shape == (256, 640)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_has_the_same_bits_on_any_number_of_threads(dtype):
    pack = packing.pack([np.full(length, 5) for length in (3, 30, 250, 256, 257, 700)])
    qkv_T3Hd = torch.randn(len(pack.tokens_T), 3, 20, 16).to(dtype)
    for backend in attention.backends(HOST, dtype, 20, 16):
        expected = backend.attend(qkv_T3Hd, pack)
        for num_threads in NUM_THREADS:
            torch.set_num_threads(num_threads)
            assert torch.equal(backend.attend(qkv_T3Hd, pack), expected)


# Packs.


def test_every_batch_has_as_many_rows_on_cuda_as_a_full_one():
    cuda = torch.device("cuda", 0)
    full = 128 * 132
    for num_tokens in (3, 5000, full):
        assert packing.num_rows(num_tokens, full, cuda) == full
    assert packing.num_rows(full + 1, full, cuda) == full + 128
    assert packing.num_rows(500, 1000, cuda) == 1024
    assert packing.num_rows(3, full, HOST) == 64
    assert packing.num_rows(65, full, HOST) == 80


@pytest.mark.parametrize("lengths, ends", [
    ([20, 5], [20, 25, *range(45, 256, 20), 256]),
    ([1, 200, 3], [1, 201, 204, 256]),
    ([300], [300, 384]),
    ([500, 11], [500, 511, 512]),
    ([128, 128], [128, 256]),
])  # fmt: skip
def test_a_kernel_for_all_sequences_leaves_no_row_of_the_filling_out(lengths, ends):
    """To it the filling is sequences too, none of them longer than the longest that is real."""
    pack = packing.pack([np.full(n, 5) for n in lengths], 256, torch.device("cuda", 0))
    assert pack.cu_seqlens.tolist() == [0, *ends] and pack.cu_seqlens.dtype == torch.int32
    assert len(pack.tokens_T) == ends[-1] and pack.bounds[-1] == sum(lengths)
    assert pack.cu_seqlens.diff().max() == pack.longest == max(lengths)
    sizes = [end - start for start, end, _ in pack.pieces_N3.tolist()]
    assert sizes == sorted(sizes, reverse=True) and pack.pieces_N3.dtype == torch.int32
    rows = []
    for start, end, first in pack.pieces_N3.tolist():
        assert 0 <= first < end - start and start in [0, *ends] and end in ends
        rows += range(start + first, min(end, start + first + packing.PIECE_ROWS))
    assert sorted(rows) == list(range(ends[-1])), "each row is in one piece"


class Choosy(matmul.Plain):
    """A product that takes another kernel, with other bits, for few rows or an odd number of them,
    as CPUs do that the tests may not meet."""

    def __call__(self, rows_TI):
        exact = F.linear(rows_TI.double(), self.weight_OI.double(), self.bias_O.double())
        outputs_TO = exact.float()
        is_usual = len(rows_TI) >= 64 and len(rows_TI) % 16 == 0
        return outputs_TO if is_usual else outputs_TO * (1 + len(rows_TI) * 2**-20)


def test_a_protein_alone_and_in_any_batch_meets_the_same_kernels(found, monkeypatch):
    monkeypatch.setattr(matmul, "forms", lambda device, dtype: [Choosy])
    encoder = Encoder(found.path, found.metadata, [HOST], torch.float32)
    sequences = [tokenize(p.encode(), (0, len(p))) for p in ["M", "MKVLAAG", *demo_proteins(4, 90)]]

    def bits(*chosen):
        pack = packing.pack(chosen)
        *_, (_, hidden_TD) = encoder.representations(pack, [5])
        return [hidden_TD[start:end].numpy().tobytes() for start, end in pairwise(pack.bounds)]

    together = bits(*sequences)
    assert [bits(sequence) for sequence in sequences] == [[one] for one in together]


def test_filling_changes_nothing(found):
    """The rows that CUDA's packs are filled up with, tried on a CPU."""
    encoder = Encoder(found.path, found.metadata, [HOST], torch.float32)
    sequences = [tokenize(p.encode(), (0, len(p))) for p in demo_proteins(3, 300)]
    narrow = packing.pack(sequences)
    filled = packing.pack(sequences, 4096, torch.device("cuda", 0))
    assert len(filled.tokens_T) == 4096 and filled.bounds == narrow.bounds
    both = (encoder.representations(each, range(6)) for each in (narrow, filled))
    for (_, few), (_, many) in zip(*both, strict=True):
        assert torch.equal(few[: narrow.bounds[-1]], many[: narrow.bounds[-1]])
        assert many.isfinite().all()


# Places.


def test_places_name_the_row_of_every_residue():
    """Against a slow count: each row is numbered, and each residue sums the rows that show it."""
    options = esm2.Options(long="chunk", max_residues=10, chunk_overlap=4)
    lengths = [3, 25, 10, 17, 1, 40]
    cut = [windows(length, options) for length in lengths]
    num_rows = sum(end - start + 2 for each in cut for start, end in each)
    hidden_TD = torch.arange(num_rows, dtype=torch.float32)[:, None]
    pools = ("mean", "max", "std", "bos")
    options = esm2.Options(pool=pools, per_residue=True, output_dtype="float32")
    found = pooling.places(cut)
    means, largest, deviations, bos, residues = pooling.tensors_of_layer(
        hidden_TD, found, options, reference.mean_rows
    )
    assert found.lengths == lengths
    row = 0
    for number, (length, each) in enumerate(zip(lengths, cut, strict=True)):
        seen = [[] for _ in range(length)]
        begins = []
        for start, end in each:
            begins.append(row)
            for residue in range(start, end):
                seen[residue].append(row + 1 + residue - start)
            row += end - start + 2
        expected = np.array([np.mean(rows) for rows in seen])
        start = sum(lengths[:number])
        assert np.allclose(residues[start : start + length, 0], expected)
        assert np.isclose(means[number, 0], expected.mean())
        assert np.isclose(largest[number, 0], expected.max())
        assert np.isclose(deviations[number, 0], expected.std())
        assert np.isclose(bos[number, 0], np.mean(begins))


def test_pools_are_over_residues_and_have_the_same_bits_in_any_batch(found):
    more = {"per_residue": True, "output_dtype": "float32", "dtype": "fp32"}
    options = esm2.Options(layers=(2, 5), pool=("mean", "max", "std"), **more)
    model = esm2.load(options, [CPU], found)
    proteins = [b"M", *(protein.encode() for protein in demo_proteins(8, 200))]
    together = values_of(esm2, model, proteins, 4096)
    for place, protein in enumerate(proteins):
        alone = values_of(esm2, model, [protein], 4096)
        assert alone.equals(together.slice(place, 1))
        (row,) = alone.to_pylist()
        for layer in options.layers:
            residues = np.array(row[f"residues_layer_{layer}"], np.float32)
            assert np.array_equal(row[f"max_layer_{layer}"], residues.max(0))
            close = {"mean": residues.mean(0), "std": residues.std(0)}
            for pool, expected in close.items():
                assert np.allclose(row[f"{pool}_layer_{layer}"], expected, rtol=1e-5, atol=1e-6)


# Layers over several devices.


@pytest.mark.parametrize("num_devices", [2, 3, 5, 7])
def test_layers_over_devices_give_the_same_bits(found, num_devices):
    """CPUs stand in for GPUs that are too small for the model each."""
    more = {"layers": tuple(range(6)), "per_residue": True, "dtype": "fp32"}
    options = esm2.Options(pool=("mean", "bos"), **more)
    payloads = [protein.encode() for protein in demo_proteins(6, 300)]
    whole = esm2.load(options, [CPU], found)
    spread = esm2.load(options, [CPU] * num_devices, found)
    counts = [len(stage.layers) for stage in spread.encoder.stages]
    assert sum(counts) == 5 and max(counts) - min(counts) <= 1 and counts[-1] > 0
    assert values_of(esm2, spread, payloads, 4096).equals(values_of(esm2, whole, payloads, 4096))


def test_a_pack_and_the_residual_stream_follow_the_layers(found, monkeypatch):
    """Every tensor that a stage touches is sent to its device first."""
    encoder = Encoder(found.path, found.metadata, [HOST] * 3, torch.float32)
    sent = []
    monkeypatch.setattr(Stage, "bring", lambda stage, tensor: (sent.append(stage), tensor)[1])
    [_] = encoder.representations(packing.pack([np.full(9, 5)]), {5})
    a_stage = 5  # tokens, positions, bounds, pieces and the stream
    assert list(map(id, sent)) == [id(stage) for stage in encoder.stages for _ in range(a_stage)]
    sent.clear()
    [_] = encoder.representations(packing.pack([np.full(9, 5)]), {1})
    assert len(sent) == a_stage  # layers above the last wanted one do not run


def test_every_kernel_is_launched_on_the_device_of_its_stage(found, monkeypatch):
    """Triton launches where the current device is, whatever device its tensors are on."""
    encoder = Encoder(found.path, found.metadata, [HOST] * 2, torch.float32)
    current, calls = [], []

    @contextmanager
    def enter(stage):
        [number] = [n for n, known in enumerate(encoder.stages) if known is stage]
        current.append(number)
        yield
        current.pop()

    def noted(number, kernel):
        return lambda *arguments: (calls.append((number, *current)), kernel(*arguments))[1]

    monkeypatch.setattr(Stage, "current", enter)
    for number, stage in enumerate(encoder.stages):
        wrapped = {
            name: noted(number, getattr(stage.kernels, name))
            for name in ("rotate_", "add_norm", "norm", "mean_rows")
        }
        encoder.stages[number] = stage._replace(kernels=stage.kernels._replace(**wrapped))
    options = esm2.Options(layers=(0, 2, 5), pool=("mean", "bos"), dtype="fp32")
    model = esm2.Model(encoder, options, "")
    values_of(esm2, model, [b"MKVL"], 64)
    # Both stages are the same CPU, so all means count as the first one's.
    assert len(calls) == 5 * 3 + 1 + 3 * 2
    assert {number for number, *_ in calls} == {0, 1}
    assert all(len(call) == 2 and call[0] == call[1] for call in calls)


# Long proteins.

LONG = """
    import numpy as np, torch
    from featuremill.base import this_process
    from featuremill.workload import weights
    from featuremill.workload.compute import values_of
    from featuremill.base.devices import cpu
    from featuremill.workloads import esm2
    torch.set_num_threads(2)
    found = weights.weights_of(weights.convert("mill_t6_8M"))
    options = esm2.Options(long="full", per_residue=True, dtype="fp32")
    model = esm2.load(esm2.resolve(options, cpu(), found), [cpu()], found)
    before = this_process.peak_of_process_mb()
    letters = np.random.default_rng(0).choice(list(b"ACDEFGHIKLMNPQRSTVWY"), 36_000)
    values = values_of(esm2, model, [bytes(letters.astype(np.uint8))], 4096)
    assert len(values.column(1)[0]) == 36_000
    assert np.isfinite(values.column(0).flatten().to_numpy()).all()
    print(this_process.peak_of_process_mb() - before)
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_36000_residues_in_full_need_little_memory(environment):
    assert int(printed_by(LONG, env=environment)) < 1000  # MB; attention maps alone would be 41,000
