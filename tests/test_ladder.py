"""What computes ESM-2 on a device: each operation proves itself while the model is loaded, and one
that does not steps down, or nothing is computed.

A GPU's ways are taken on the CPU where that is possible: each torch's FlashAttention is an
implementation of the same operation here.
"""

import json
import os

import numpy as np
import pytest
import torch
from esm2_models import fair_esm, save_fair_esm
from programs import random_records

from featuremill import compute, devices, weights
from featuremill.errors import WorkloadError
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import attention, kernels, packing, products, transfer
from featuremill.workloads.esm2.encoder import DTYPES, Encoder
from featuremill.workloads.esm2.kernels import twins

HOST = torch.device("cpu")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The weights of a small random network whose heads FlashAttention takes."""
    cache = tmp_path_factory.mktemp("cache")
    path = save_fair_esm(fair_esm(3, 64, 4), cache / "random3.pt")
    return weights.weights_of(weights.convert(str(path), cache))


def load(found, dtype="bf16", devices=(HOST,)):
    return Encoder(found.path, found.metadata, devices, DTYPES[dtype])


def features(model):
    pack = packing.pack([np.arange(4, 4 + n) for n in (20, 5, 18)])
    ((_, hidden_TD),) = model.representations(pack, [model.num_layers])
    return hidden_TD[: pack.bounds[-1]].clone()


# Every operation is spoiled in turn.


def spoil(right, how):
    """Return an operation that gives what `right` gives, but for one number; or that raises."""

    def wrong(first, *others, **more):
        if how == "raises":
            raise RuntimeError("this kernel was not built")
        result = right(first, *others, **more)
        target = first if result is None else result
        with torch.inference_mode():
            target.view(-1)[-1] = torch.nan if how == "not a number" else 30_000.0
        return result

    return wrong


class Spoiled:
    """Ways of which the first does an operation badly."""

    def __init__(self, monkeypatch, operation, how):
        group, _, part = operation.partition(".")
        monkeypatch.setattr(*getattr(self, group)(part, how))

    def attention(self, _, how):
        (good,) = attention.backends(HOST, torch.bfloat16, 4, 16)
        bad = attention.Backend("a bad attention", spoil(good.attend, how))
        return attention, "backends", lambda *_: [bad, good]

    def kernels(self, part, how):
        bad = kernels.TORCH._replace(name="bad kernels", **{part: spoil(getattr(twins, part), how)})
        return kernels, "ways", lambda *_: [bad, kernels.TORCH]

    def products(self, part, how):
        class Bad(products.Plain):
            NAME = "bad products"

        setattr(Bad, part, spoil_method(getattr(products.Plain, part), how))
        return products, "forms", lambda *_: [Bad, products.Plain]


def spoil_method(right, how):
    def wrong(self, rows):
        return spoil(lambda given: right(self, given), how)(rows)

    return wrong


OPERATIONS = {
    "attention.": "attention",
    "kernels.rotate_": "rotary",
    "kernels.add_norm": "LayerNorm",
    "kernels.mean_rows": "mean",
    "products.__call__": "product",
    "products.gelu": "product with GELU",
}


@pytest.mark.parametrize("how", ["raises", "not a number", "one number is wrong"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_that_fails_its_check_steps_down(found, monkeypatch, caplog, operation, how):
    expected = features(load(found, "fp16"))
    Spoiled(monkeypatch, operation, how)
    model = load(found, "fp16")
    (record,) = caplog.records
    said = record.getMessage()
    assert record.levelname == "WARNING" and OPERATIONS[operation] in said and "bad" in said
    assert ("this kernel was not built" if how == "raises" else "relative error") in said
    assert "bad" not in model.backend
    assert torch.allclose(features(model), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_with_no_way_left_nothing_is_computed_and_the_operation_is_named(
    found, monkeypatch, operation
):
    Spoiled(monkeypatch, operation, "raises")
    module = {"attention": attention, "kernels": kernels, "products": products}
    group = operation.partition(".")[0]
    name = {"attention": "backends", "kernels": "ways", "products": "forms"}[group]
    both = getattr(module[group], name)
    monkeypatch.setattr(module[group], name, lambda *_: both()[:1])
    named = f"^{OPERATIONS[operation]} on this CPU .*this kernel was not built"
    with pytest.raises(WorkloadError, match=named):
        load(found)


@pytest.mark.parametrize("last", [False, True])
def test_a_layer_of_each_device_is_checked_and_its_last_one(found, monkeypatch, last):
    """Weights that did not arrive on a device whole are no operation's fault."""
    read = Encoder._layer

    def torn(self, get, number, *others):
        layer = read(self, get, number, *others)
        if number == (2 if last else 1):
            layer.down.bias_O[0] += 100
        return layer

    monkeypatch.setattr(products, "forms", lambda *_: [products.Plain])
    monkeypatch.setattr(Encoder, "_layer", torn)
    with pytest.raises(WorkloadError, match=r"^product on this CPU"):
        load(found, devices=(HOST, HOST))


@pytest.mark.parametrize(
    "text", ["CUDA error: an illegal memory access was encountered", "CUDA error: out of memory"]
)
def test_what_is_the_devices_fault_is_no_operations(found, monkeypatch, caplog, text):
    def fail(*_):
        raise RuntimeError(text)

    good = attention.backends(HOST, torch.bfloat16, 4, 16)
    monkeypatch.setattr(attention, "backends", lambda *_: [attention.Backend("dead", fail), *good])
    with pytest.raises(RuntimeError, match=text):
        load(found)
    assert not caplog.records


def test_values_leave_the_device_layer_by_layer(found, monkeypatch):
    """Of many layers, the features of one wait there at most."""
    device, options = devices.cpu(), esm2.Options(layers=(1, 2, 3), pool="mean", dtype="fp32")
    model = esm2.load(options, [device], found)
    num_computed, at_copy = 0, []
    feed_forward, copy = Encoder._feed_forward, transfer.Transfer._copy

    def counted(*given):
        nonlocal num_computed
        num_computed += 1
        return feed_forward(*given)

    def seen(self, tensor):
        at_copy.append(num_computed)
        return copy(self, tensor)

    monkeypatch.setattr(Encoder, "_feed_forward", counted)
    monkeypatch.setattr(transfer.Transfer, "_copy", seen)
    esm2.run(model, esm2.prepare(model, [b"MKVLAAGIVGL"], 64))
    assert at_copy == [1, 2, 3]


def test_kernels_are_kept_where_the_weights_are(monkeypatch, tmp_path):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("FEATUREMILL_CACHE", str(tmp_path / "nowhere"))
    kernels.keep_compiled()
    assert "TRITON_CACHE_DIR" not in os.environ
    monkeypatch.setenv("FEATUREMILL_CACHE", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # so that what follows is undone
    del os.environ["TRITON_CACHE_DIR"]
    kernels.keep_compiled()
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", "my own")
    kernels.keep_compiled()
    assert os.environ["TRITON_CACHE_DIR"] == "my own"


def test_without_triton_the_twins_stand_in_and_a_warning_says_so(monkeypatch, caplog):
    def fail():
        raise ImportError("libcuda.so.1: cannot open\nshared object")

    monkeypatch.setattr(kernels, "_triton", fail)
    assert kernels.ways(torch.device("cuda")) == [kernels.TORCH]
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "\n" not in record.getMessage()
    assert "(ImportError: libcuda.so.1: cannot open)" in record.getMessage()


# FlashAttention as each torch has it.


class Flash:
    """An implementation of torch's operation for the CPU, and how often it was called."""

    def __init__(self, refuses=False):
        self.calls = []
        self._refuses = refuses

    def __call__(self, query, key, value, bounds, _, longest, *others, **more):
        assert bounds.dtype == torch.int32 and bounds[0] == 0
        assert longest == int(bounds.diff().max())
        self.calls.append(more.get("num_splits"))
        if self._refuses and more.get("num_splits") is not None:
            raise RuntimeError("num_splits requires FA3 or FA4")
        context_THd = torch.full_like(query, torch.nan)  # what is behind the last bound
        for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            qkv = (t[start:end].float().transpose(0, 1) for t in (query, key, value))
            attended = attention.with_scores(torch.stack(tuple(qkv)))
            context_THd[start:end] = attended.transpose(0, 1).to(query.dtype)
        nothing = torch.empty(0)
        return context_THd, nothing, nothing.long(), nothing.long(), nothing


@pytest.fixture
def hopper(monkeypatch):
    """Return a function that gives this CPU a Hopper's FlashAttention."""
    libraries = []

    def put(flash, takes_splits=True):
        library = torch.library.Library("aten", "IMPL")
        library.impl("_flash_attention_forward", flash, "CPU")
        libraries.append(library)
        monkeypatch.setattr(attention, "_capability", lambda _: (9, 0))
        monkeypatch.setattr(attention, "_takes", lambda _: takes_splits)
        return flash

    yield put
    for library in libraries:
        library._destroy()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("torch_version, refuses, takes", [
    ("2.11", False, False), ("2.12", True, True), ("2.13", False, True), ("2.14", False, True),
])  # fmt: skip
def test_each_torchs_flash_attention_is_used(
    found, hopper, caplog, dtype, torch_version, refuses, takes
):
    expected = features(load(found, dtype))
    flash = hopper(Flash(refuses), takes)
    model = load(found, dtype)
    flash.calls.clear()
    assert torch.allclose(features(model), expected, rtol=2e-2, atol=2e-2)
    splits = 1 if takes and not refuses else None
    assert flash.calls == [splits] * 3, "one call a layer"
    assert model.backend.startswith("attention: varlen flash_attention FA2")
    assert bool(caplog.records) == refuses


def test_without_a_flash_attention_that_is_right_sequences_go_one_by_one(found, hopper, caplog):
    def wrong(query, *_, **__):
        nothing = torch.empty(0)
        return torch.zeros_like(query), nothing, nothing.long(), nothing.long(), nothing

    expected = features(load(found))
    hopper(wrong)
    model = load(found)
    assert torch.equal(features(model), expected)
    assert "varlen" not in model.backend and "per sequence" in model.backend
    assert len(caplog.records) == 2 and "fails its check" in caplog.records[0].getMessage()


# A fault of the installation is no record's, and no device's.


def plan(verbs, number=200, **options):
    return verbs.plan(random_records(number), "faulty", options, cost=100)


def test_a_kernel_that_always_raises_costs_no_record(verbs):
    planned = plan(verbs, text="no kernel for you")
    shard = planned["shards"][0]["shard"]
    said = verbs("extract", verbs.run_folder.root, shard, status=1)
    (sentence,) = [line for line in said.splitlines() if "error:" in line]
    assert "the first 8 records fail alike and none went well (RuntimeError: no kernel" in sentence
    assert "Traceback" in said, "the sentence says that there is one"
    planned = plan(verbs)  # mended: nothing of it is left
    verbs.extract(planned)
    assert [(r["ok"], r["failed"]) for r in verbs.receipts(planned)] == [(100, 0), (100, 0)]


def test_records_that_fail_alike_fail_where_others_went_well(verbs):
    """Batches of more than one row always raise here: each record is computed alone."""
    planned = plan(verbs, 30, text="too many", above=1)
    verbs.extract(planned)
    assert [(r["ok"], r["failed"]) for r in verbs.receipts(planned)] == [(30, 0)]


def test_few_records_that_all_fail_alike_are_failed_rows(verbs):
    planned = plan(verbs, 7, text="not one")
    verbs.extract(planned)
    assert [(r["ok"], r["failed"]) for r in verbs.receipts(planned)] == [(0, 7)]


MIG = "NVML_SUCCESS == r INTERNAL ASSERT FAILED at /c10/cuda/CUDACachingAllocator.cpp:1130"


def test_memory_that_a_slice_of_a_gpu_lacks_cuts_batches(verbs):
    planned = plan(verbs, 64, text=MIG, above=4)
    verbs.extract(planned)
    (receipt,) = verbs.receipts(planned)
    assert (receipt["ok"], receipt["failed"]) == (64, 0) and receipt["oom_splits"] > 0
    (warned,) = receipt["warnings"]
    assert "out of memory: a batch of up to 10 records did not fit" in warned


@pytest.mark.parametrize("text, advice", [
    ("CUDA error: no kernel image is available for execution", "not built for a GPU"),
    ("The NVIDIA driver on your system is too old (found 11040)", "update the NVIDIA driver"),
    ("an attention that this torch has not", "an attention that this torch has not"),
])  # fmt: skip
@pytest.mark.parametrize("where", ["load", "run"])
def test_what_is_installed_is_not_held_against_a_device(verbs, gpu_node, text, advice, where):
    node = gpu_node(1)
    verbs.environment = {**verbs.environment, **node.environment}
    planned = verbs.plan(
        random_records(20), "faulty", {"where": where, "text": text}, device="cuda"
    )
    said = verbs.extract(planned, 1)
    assert advice in said and "starting another" not in said
    assert not list(node.locks.glob("*.failures"))


def test_a_warning_of_the_workload_is_seen_on_all_ways(verbs):
    planned = verbs.plan([("a", "MKV")], "faulty", {"warning": "the slow way is taken"})
    said = verbs.extract(planned)
    assert "warning: shard" in said and "the slow way is taken" in said
    (receipt,) = verbs.receipts(planned)
    assert receipt["warnings"] == ["the slow way is taken"]
    verbs("merge", verbs.run_folder.root, "--outputs", "parquet")
    manifest = json.loads((verbs.run_folder.root / "manifest.json").read_text())
    assert manifest["warnings"] == ["the slow way is taken"]
    assert "warned: the slow way is taken" in (verbs.run_folder.root / "run.log").read_text()


def test_want_of_memory_has_its_words():
    for text in (MIG, "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"):
        assert compute.is_out_of_memory(RuntimeError(text))
        assert not compute.is_device_error(RuntimeError(text))
