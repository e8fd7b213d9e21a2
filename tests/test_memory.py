"""Memory that runs out: every record that fits alone is delivered, with the same bits."""

import json
import random
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import torch
from conftest import ROOT
from esm2_models import fair_esm, save_fair_esm
from programs import Verbs, printed_by
from test_fallbacks import CUDA, Launches, cuda_that_computes_nothing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from featuremill.workload import compute
from featuremill.workload.spread import each_tensor, on_device
from featuremill.workloads.esm2 import attention, encoder, estimates, layout, packing
from featuremill.workloads.esm2.architecture import ESM2, Sizes
from featuremill.workloads.esm2.encoder import DTYPES

__all__ = ["cuda_that_computes_nothing"]

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
MIB = 2**20
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sets a limit that Linux keeps")


def proteins(count, length):
    rng = random.Random(length)
    return [(f"p{length}.{n}", "".join(rng.choices(LETTERS, k=length))) for n in range(count)]


LIMITED = {"MALLOC_MMAP_THRESHOLD_": str(2**20), "MALLOC_ARENA_MAX": "1"}
"""Variables with which what is freed is free at once, and with which a thread reserves no 64 MB of
addresses for itself: the limit counts them."""


@pytest.fixture(scope="module")
def narrow(tmp_path_factory, environment):
    """Return a checkpoint with one narrow layer, which takes 4 KB a token; its weights are beside
    it."""
    verbs = Verbs(tmp_path_factory.mktemp("narrow"), environment)
    checkpoint = save_fair_esm(fair_esm(1, 128, 8), verbs.folder / "narrow.pt")
    verbs("weights", checkpoint, "--output", verbs.folder / "weights.json")
    return checkpoint


class Cramped:
    """Runs of that model in limited memory."""

    def __init__(self, verbs, narrow, records, batch_tokens, device="cpu"):
        self.verbs = verbs
        options = {"model": str(narrow), "dtype": "fp32", "long": "full"}
        options["batch_tokens"] = batch_tokens
        more = {"more": ("--weights", narrow.with_name("weights.json")), "device": device}
        self.plan = verbs.plan(records, "cramped", options, cost=10**6, **more)

    def __call__(self, room_mb=None):
        """Return the receipt, the part's rows by sha256 and what was said."""
        if room_mb:
            limits = {"CRAMPED_MB": str(room_mb)} | LIMITED
            self.verbs.environment = {**self.verbs.environment, **limits}
        said = self.verbs.extract(self.plan)
        (receipt,) = self.verbs.receipts(self.plan)
        path = self.verbs.run_folder.part(self.plan["recipe"], self.plan["shards"][0]["shard"])
        with pa.memory_map(str(path)) as source:
            rows = pa.ipc.open_stream(source).read_all().to_pylist()
        path.unlink()
        return receipt, {row["sha256"]: row for row in rows}, said


def test_batches_get_smaller_and_values_stay(verbs, narrow):
    run = Cramped(verbs, narrow, proteins(100, 500), batch_tokens=25_000)
    whole, expected, said = run()
    assert (whole["ok"], whole["oom_splits"], "out of memory" in said) == (100, 0, False)
    receipt, found, said = run(80)
    assert (receipt["ok"], receipt["failed"], receipt["retries"]) == (100, 0, 0)
    assert found == expected
    assert receipt["batch_cost"] == 25_000, "the budget stays"
    assert 1 <= receipt["oom_splits"] <= 5 < receipt["batches"], (
        "what did not fit is not tried again and again"
    )
    assert receipt["batches"] > whole["batches"]
    assert said.count("a batch of up to 25,000 tokens did not fit; continuing with 12,500") == 1
    assert said.count("warning") == 1


def test_one_record_that_does_not_fit_fails_alone(verbs, narrow):
    run = Cramped(verbs, narrow, [*proteins(20, 500), *proteins(1, 400_000)], batch_tokens=5_000)
    receipt, found, _ = run(200)
    assert (receipt["ok"], receipt["failed"], receipt["retries"]) == (20, 1, 0)
    (reason,) = [row["reason"] for row in found.values() if row["status"] == "failed"]
    assert reason.startswith("out of memory: ")
    assert receipt["batches"] == 4, "it says nothing about batches of many"


EMBED = """
import os, sys, warnings
from types import SimpleNamespace
import featuremill, featuremill_cramped
from featuremill.workloads import esm2
featuremill_cramped.esm2 = SimpleNamespace(load=esm2.load)
esm2.load = featuremill_cramped.load
options = {"dtype": "fp32", "long": "full", "batch_tokens": 50_000, "device": "cpu"}
with warnings.catch_warnings(record=True) as caught:
    vectors = featuremill.embed(sys.argv[3:], sys.argv[1], **options)
print(*sorted({str(warning.message)[:60] for warning in caught}), sep=chr(10))
assert "pandas" not in sys.modules, "a third of a second of a first call, and 40 MB"
vectors.tofile(sys.argv[2])
if "CRAMPED_MB" in os.environ:
    featuremill.embed(["M" * 120_000], sys.argv[1], **options)
"""


@pytest.mark.slow
def test_embed_gets_smaller_batches_too(verbs, narrow):
    environment = verbs.environment | LIMITED
    sequences = [sequence for _, sequence in proteins(100, 500)]

    def embed(sequences, **more):
        command = [sys.executable, "-c", EMBED, narrow, verbs.folder / "out", *sequences]
        streams = {"text": True, "capture_output": True, "timeout": 120}
        done = subprocess.run(command, env=environment | more, **streams)
        return done, (verbs.folder / "out").read_bytes()

    whole, expected = embed(sequences)
    assert (whole.returncode, whole.stdout.strip()) == (0, ""), whole.stderr
    done, found = embed(sequences, CRAMPED_MB="160")
    assert done.stdout.strip() == "out of memory: a batch of up to 50,000 tokens did not fit; c"
    assert found == expected
    assert done.returncode == 1
    assert "memory ran out for one sequence of 120,000 residues" in done.stderr


REFUSED = """
import resource, sys
from pathlib import Path
import torch
from featuremill.workloads.esm2 import lanes, matmul
torch.set_num_threads(int(sys.argv[1]))
product = matmul.OneDnn(torch.randn(640, 128), torch.randn(640))
multiply = lambda rows: product(torch.ones(rows, 128)).sum().item()
lanes.each(multiply, 4 * [64])
[bytearray(100_000) for _ in range(200)]  # freed, and not given back: 20 MB for all but new code
size = 1024 * int(Path("/proc/self/status").read_text().partition("VmSize:")[2].split()[0])
resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
try:
    lanes.each(multiply, 4 * [80])
except RuntimeError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
lanes.each(multiply, 4 * [80])
"""


@pytest.mark.parametrize("num_threads", [1, 2])
def test_products_go_on_where_onednn_had_no_memory_for_its_code(environment, num_threads):
    """For as long as the thread lives it refuses all that needs new code."""
    settings = {"MMAP_THRESHOLD_": 2**30, "TRIM_THRESHOLD_": 2**30, "ARENA_MAX": 1}
    environment = environment | {f"MALLOC_{name}": str(size) for name, size in settings.items()}
    said = printed_by(REFUSED, num_threads, env=environment, timeout=120)
    assert said == "could not create a primitive\n"


def test_what_is_free_on_a_gpu_is_said_where_it_can_be(monkeypatch):
    error = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`")
    assert compute.reason_of(error).endswith("when calling `cublasCreate`")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2 * 10**9, 80 * 10**9))
    assert compute.free_on_gpu() == "2.0 GB of 80.0 GB are free"
    assert compute.reason_of(error).endswith("`cublasCreate`; 2.0 GB of 80.0 GB are free")

    fail = mock.Mock(side_effect=RuntimeError("CUDA error: unspecified launch failure"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    assert compute.free_on_gpu() == ""


ON_A_GPU = {"batch_tokens": 131_072}


def test_the_run_for_a_gpu_can_be_planned(verbs, narrow, gpu_node):
    verbs.environment = verbs.environment | gpu_node(1).environment
    Cramped(verbs, narrow, proteins(20, 500), device="cuda", **ON_A_GPU)


@pytest.mark.gpu
def test_batches_get_smaller_on_a_gpu(verbs, narrow):
    run = Cramped(verbs, narrow, proteins(2000, 500), device="cuda", **ON_A_GPU)
    whole, expected, _ = run()
    assert (whole["ok"], whole["oom_splits"]) == (2000, 0)
    receipt, found, said = run(300)  # a full batch takes 500 MB
    assert (receipt["ok"], receipt["failed"], receipt["retries"]) == (2000, 0, 0)
    assert receipt["devices"][0]["kind"] == "cuda"
    assert 1 <= receipt["oom_splits"] <= 4
    assert said.count("did not fit") == 1
    for sha256, row in expected.items():
        one, other = (np.array(each["mean_layer_1"]) for each in (row, found[sha256]))
        assert np.linalg.norm(one - other) < 1e-3 * np.linalg.norm(one)


# torch's caching allocator of CUDA, as far as sizes go, and what a network asks of it. The tensors
# are fake: no memory is taken, and no GPU is needed. The rules are those of torch's
# CUDACachingAllocator.cpp (2.11): sizes are rounded up, a free block of the best fit is taken, and
# the rest of it is split off.

SMALL, LARGE_FROM = MIB, 10 * MIB
"""The largest of the small allocations, and the smallest that gets a segment of its own size."""
WORKSPACE = 32 * MIB
"""cuBLAS's on Hopper, kept from the first product on; cuBLASLt uses the same (CUDABlas.cpp)."""


class CachingAllocator:
    """The segments that torch has of the driver, and the blocks in them."""

    def __init__(self, order=1):
        """`order`: 1 if the driver gives rising addresses, -1 if falling ones."""
        self.order = order
        self.segments = []
        """Of each: whether it is of small blocks, and its blocks as [size, user]; None is free."""

    @property
    def reserved(self):
        return sum(size for _, blocks in self.segments for size, _ in blocks)

    def allocate(self, num_bytes, user):
        size = max(512, -(-num_bytes // 512) * 512)
        is_small = size <= SMALL
        fits = [
            (block[0], self.order * number, place)
            for number, (small, blocks) in enumerate(self.segments)
            if small == is_small
            for place, block in enumerate(blocks)
            if block[1] is None and block[0] >= size
        ]
        if fits:
            _, number, place = min(fits)
            number *= self.order
        else:
            whole = 2 * MIB if is_small else 20 * MIB
            if size >= LARGE_FROM:
                whole = -(-size // (2 * MIB)) * 2 * MIB
            self.segments.append((is_small, [[whole, None]]))
            number, place = len(self.segments) - 1, 0
        blocks = self.segments[number][1]
        rest = blocks[place][0] - size
        if rest >= (512 if is_small else SMALL + 1):
            blocks[place : place + 1] = [[size, user], [rest, None]]
        else:
            blocks[place][1] = user

    def free(self, user):
        for _, blocks in self.segments:
            for place, block in enumerate(blocks):
                if block[1] == user:
                    block[1] = None
                    for at in (place, place - 1):  # with its free neighbours
                        if 0 <= at < len(blocks) - 1 and blocks[at][1] is blocks[at + 1][1] is None:
                            blocks[at : at + 2] = [[blocks[at][0] + blocks[at + 1][0], None]]
                    return


class Allocations(Launches):
    """Gives each new tensor on the GPU its memory, and takes it back when its last user is gone."""

    def __init__(self, order):
        super().__init__()
        self.allocator = CachingAllocator(order)
        self.peak_live = self.live = 0
        self._known = {}
        self._numbers = iter(range(10**9))
        self.allocator.allocate(WORKSPACE, "cuBLAS")

    def __torch_dispatch__(self, operation, types, arguments=(), more=None):
        made = super().__torch_dispatch__(operation, types, arguments, more)
        self._take_back()
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda":
                self._give(tensor.untyped_storage())
        return made

    def _take_back(self):
        for key, (reference, number, size) in list(self._known.items()):
            if reference.expired():
                self.allocator.free(number)
                self.live -= size
                del self._known[key]

    def _give(self, storage):
        reference = StorageWeakRef(storage)
        if reference.cdata in self._known:
            return
        number, size = next(self._numbers), storage.nbytes()
        self._known[reference.cdata] = reference, number, size
        self.allocator.allocate(size, number)
        self.live += size
        self.peak_live = max(self.peak_live, self.live)


def peak(monkeypatch, sizes, file_dtype, dtype, batch_tokens, order=1, num_batches=2):
    """Return the bytes that torch reserves on a GPU for a network and some batches, and the most
    that live at once."""
    with FakeTensorMode() as mode:
        entries = layout.entries(layout.FAIR_ESM, sizes)
        tensors = {e.name: torch.empty(e.shape, dtype=DTYPES[file_dtype]) for e in entries}
        tensors[layout.FREQUENCIES] = torch.empty(sizes.head_dim // 2)
        file = nullcontext(SimpleNamespace(get_tensor=tensors.get))
        monkeypatch.setattr(encoder, "safe_open", lambda *_, **__: file)
        # Our own kernel needs a driver. It takes no other memory than FlashAttention-2.
        monkeypatch.setattr(attention, "_triton", lambda *_: ([], False))
        packs = [
            packing.pack([np.full(512, 5)] * (batch_tokens // 512), batch_tokens, CUDA)
            for _ in range(num_batches)
        ]
        with Allocations(order) as given:
            model = encoder.Encoder("", sizes.metadata(), [CUDA], DTYPES[dtype])
            for pack in packs:
                on_gpu = on_device(each_tensor(pack, mode.from_tensor), CUDA)
                for _, hidden_TD in model.representations(on_gpu, [sizes.num_layers]):
                    hidden_TD.sum()
                del hidden_TD
    return given.allocator.reserved, given.peak_live


SHAPES = {
    "8M": (6, 320),
    "35M": (12, 480),
    "150M": (30, 640),
    "650M": (33, 1280),
    "3B": (36, 2560),
    "650M, 4 layers": (4, 1280),
}


def model_of_shape(shape, file_dtype):
    num_layers, width = SHAPES[shape]
    heads = 40 if width == 2560 else 20
    return estimates.Model(Sizes(ESM2, num_layers, heads, width, 4 * width), file_dtype)


@pytest.fixture
def reserved(cuda_that_computes_nothing, monkeypatch):
    """What torch reserves for a shape, in MiB, with rising and with falling addresses, and what
    lives at once."""

    def find(shape, file_dtype, batch_tokens):
        sizes = model_of_shape(shape, file_dtype).sizes
        peaks = [
            peak(monkeypatch, sizes, file_dtype, "bf16", batch_tokens, order) for order in (1, -1)
        ]
        return [held / MIB for held, _ in peaks], peaks[0][1] / MIB

    return find


@pytest.mark.parametrize(
    ("shape", "file_dtype", "batch_tokens"),
    [
        ("8M", "bf16", 16_896),
        ("35M", "fp32", 16_896),
        ("150M", "fp32", 16_896),
        ("650M, 4 layers", "fp32", 32_768),
        ("650M, 4 layers", "bf16", 131_072),
        pytest.param("650M", "fp32", 4_096, marks=pytest.mark.slow),
        pytest.param("3B", "fp16", 16_896, marks=pytest.mark.slow),
    ],
)
def test_the_estimate_for_a_gpu_holds_what_torch_would_reserve(
    reserved, shape, file_dtype, batch_tokens
):
    """Within 30 % of the most, whatever addresses the driver gives."""
    held, _ = reserved(shape, file_dtype, batch_tokens)
    estimated = estimates.estimate_mb(
        model_of_shape(shape, file_dtype), "cuda", "bf16", batch_tokens
    )
    assert estimated - estimates.CUDA_PROCESS_MB == pytest.approx(max(held), rel=0.3)


@pytest.mark.parametrize(
    ("shape", "file_dtype", "batch_tokens", "measured"),
    [("650M, 4 layers", "fp32", 32_768, 1520), ("8M", "bf16", 16_896, 212)],
)
def test_the_allocator_on_paper_is_torchs(reserved, shape, file_dtype, batch_tokens, measured):
    """`torch.cuda.max_memory_reserved` on an H200: of test_doctor.py's test, and of the demo."""
    held, _ = reserved(shape, file_dtype, batch_tokens)
    assert min(abs(each - measured) for each in held) < 0.02 * measured


@pytest.mark.parametrize("record", sorted(ROOT.glob("bench/results/*-gpu.json")), ids=str)
def test_what_lives_at_once_is_what_gpus_have_shown(record):
    """`working_gpu_mb` of the benchmark: the most that lives, without the weights."""
    data, checked = json.loads(record.read_text()), 0
    for found in data["measured"].values():
        rows = {row["name"]: row for row in found.get("rows", []) if "name" in row}
        budget = rows.get("featuremill bf16, GPU only", {}).get("budget")
        if found.get("output") != "mean" or not budget or found["shape"] not in SHAPES:
            continue
        sizes = model_of_shape(found["shape"], "fp16").sizes
        wide = budget * estimates.activation_bytes_a_token(sizes, 2) / MIB
        assert rows["featuremill bf16"]["working_gpu_mb"] == pytest.approx(wide, rel=0.02)
        checked += 1
    assert checked


def test_batches_that_a_gpu_has_computed_fit_in_what_is_estimated():
    record = ROOT / "bench/results/2026-11-26-NVIDIA-H200-650M-memory.json"
    rows = json.loads(record.read_text())["measured"]["batch_memory 650M"]["rows"]
    model = model_of_shape("650M", "fp32")
    least = estimates.estimate_mb(model, "cuda", "bf16", 1)
    for row in rows:
        share = row["reserved_mb"] / (
            estimates.estimate_mb(model, "cuda", "bf16", row["budget"]) - least
        )
        # The other batches found memory that those of means had left.
        assert share < 1.005 and (share > 0.6 or row["output"] != "mean")


def test_what_lives_at_once_on_a_gpu_is_the_feed_forwards(reserved):
    model = model_of_shape("650M, 4 layers", "fp16")
    _, lives = reserved("650M, 4 layers", "fp16", 16_896)
    own = estimates.weights_bytes(model, "cuda", "bf16")
    own += 16_896 * estimates.activation_bytes_a_token(model.sizes, 2)
    assert lives == pytest.approx(own / MIB, rel=0.02)
