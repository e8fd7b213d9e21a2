"""What computes ESM-2 on a device: each operation proves itself while the model is loaded, and one
that does not steps down, or nothing is computed.

A GPU's ways are taken on the CPU where that is possible: each torch's FlashAttention is an
implementation of the same operation here.
"""

import contextlib
import importlib
import inspect
import itertools
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT
from esm2_models import (
    Compared,
    fair_esm,
    fair_esm_bundled,
    proteins_of_all_lengths,
    relative_l2,
    save_fair_esm,
)
from programs import random_records
from safetensors.torch import load_file
from test_esm2 import assert_close_to_fair_esm
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from featuremill.base import devices, faults
from featuremill.base import environment as variables_of_ours
from featuremill.base.errors import UserError, WorkloadError
from featuremill.workload import loading, spread, weights
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import (
    attention,
    encoder,
    fallbacks,
    kernels,
    matmul,
    packing,
    pooling,
    stages,
    transfer,
    triton_cache,
)
from featuremill.workloads.esm2.encoder import DTYPES, Encoder
from featuremill.workloads.esm2.kernels import reference
from featuremill.workloads.esm2.tokens import tokenize
from featuremill.workloads.esm2.tokens import windows as windows_of

HOST, CUDA = torch.device("cpu"), torch.device("cuda", 0)
TAKES_SPLITS = attention._takes("num_splits")
"""From torch 2.12 on."""


def random_weights(cache, *shape):
    path = save_fair_esm(fair_esm(*shape), cache / f"random{shape[0]}.pt")
    return weights.weights_of(weights.convert(str(path), cache))


@pytest.fixture(scope="module")
def found(cache):
    """The weights of a small random network whose heads FlashAttention takes."""
    return random_weights(cache, 3, 64, 4)


@pytest.fixture(scope="module")
def found_wide(cache):
    """The same with heads that a later FlashAttention is worth its while for."""
    return random_weights(cache, 2, 128, 2)


def load(found, dtype="bf16", devices=(HOST,), num_rows=0):
    return Encoder(found.path, found.metadata, devices, DTYPES[dtype], num_rows)


def features(model):
    pack = packing.pack([np.arange(4, 4 + n) for n in (20, 5, 18)])
    ((_, hidden_TD),) = model.representations(pack, [model.num_layers])
    return hidden_TD[: pack.bounds[-1]].clone()


def are_close(model, expected, tolerance=2e-2):
    return torch.allclose(features(model), expected, rtol=tolerance, atol=tolerance)


def warned(caplog):
    """Return the only warning there is."""
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    return record.getMessage()


# Every operation is spoiled in turn.


def spoil(right, how):
    """Return an operation that gives what `right` gives, but for one number; or that raises."""

    def wrong(first, *others, **more):
        if how == "raises":
            raise RuntimeError("this kernel was not built")
        result = right(first, *others, **more)
        target = first if result is None else result
        with torch.inference_mode():
            if how == "not a number":
                target.view(-1)[-1] = torch.nan  # of attention: of the filling
            else:
                target.view(-1)[target.numel() // 2] = 30_000.0
        return result

    return wrong


def spoiled(operation, how):
    """Return the module of an operation, its function of ways, and ways; the first is a bad one."""
    group, _, part = operation.partition(".")
    if group == "attention":
        *_, good = attention.backends(HOST, torch.bfloat16, 4, 16)
        bad = attention.Backend("a bad attention", spoil(good.attend, how))
        return attention, "backends", [bad, good]
    if group == "kernels":
        wrong = {part: spoil(getattr(reference, part), how)}
        bad = kernels.TORCH._replace(name="bad kernels", **wrong)
        return kernels, "ways", [bad, kernels.TORCH]
    wrong = {"name": "bad products", part: spoil_method(getattr(matmul.Plain, part), how)}
    return matmul, "forms", [type("Bad", (matmul.Plain,), wrong), matmul.Plain]


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
    module, name, ways = spoiled(operation, how)
    monkeypatch.setattr(module, name, lambda *_: ways)
    model = load(found, "fp16")
    said = warned(caplog)
    assert OPERATIONS[operation] in said and "bad" in said
    assert ("this kernel was not built" if how == "raises" else "relative error") in said
    assert "Triton" not in said and "short proteins" not in said, "what is so on a GPU"
    assert "bad" not in model.backend
    assert are_close(model, expected, 1e-2)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_with_no_way_left_nothing_is_computed_and_the_operation_is_named(
    found, monkeypatch, operation
):
    module, name, ways = spoiled(operation, "raises")
    monkeypatch.setattr(module, name, lambda *_: ways[:1])
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

    monkeypatch.setattr(matmul, "forms", lambda *_: [matmul.Plain])
    monkeypatch.setattr(Encoder, "_layer", torn)
    with pytest.raises(WorkloadError, match=r"^product on this CPU"):
        load(found, devices=(HOST, HOST))


@pytest.mark.parametrize(
    "text", ["CUDA error: an illegal memory access was encountered", "CUDA error: out of memory"]
)
def test_what_is_the_devices_fault_is_no_operations(found, failing, caplog, text):
    failing(text)
    with pytest.raises(RuntimeError, match=text):
        load(found)
    assert not caplog.records


@pytest.fixture
def failing(monkeypatch):
    """Return a function that has the first way of attention fail in these words."""

    def put(text):
        def fail(*_):
            raise RuntimeError(text)

        good = attention.backends(HOST, torch.bfloat16, 4, 16)
        bad = attention.Backend("a bad one", fail)
        monkeypatch.setattr(attention, "backends", lambda *_: [bad, *good])

    return put


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_device_that_still_computes_has_only_refused(
    found, failing, monkeypatch, caplog, is_dead
):
    text = "CUDA error: too many resources requested for launch"
    failing(text)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(faults, "computes", lambda device: not is_dead)
    if is_dead:
        with pytest.raises(RuntimeError, match=f"^attention by a bad one: {text}$"):
            load(found)
        return
    assert "a bad one" not in load(found).backend
    assert f"attention of a bad one fails its check (RuntimeError: {text})" in warned(caplog)


class Late(TorchDispatchMode):
    """A GPU that meets an illegal access in attention, and says so to whoever looks at a number."""

    is_hurt = False

    def __torch_dispatch__(self, operation, _, arguments=(), more=None):
        name = operation.overloadpacket.__name__
        self.is_hurt |= name == "_flash_attention_forward"
        if self.is_hurt and name in ("item", "_local_scalar_dense"):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return operation(*arguments, **(more or {}))


def test_what_a_gpu_says_late_is_said_of_the_right_operation(found, hopper, monkeypatch):
    hopper(Flash(), takes_splits=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    right = fallbacks._Trial.run

    def run(*given):
        with Late():
            right(*given)

    monkeypatch.setattr(fallbacks._Trial, "run", run)
    monkeypatch.setattr(faults, "computes", lambda _: False)
    with pytest.raises(RuntimeError, match=r"^attention by varlen flash_attention FA2 \("):
        load(found)


class Refusing(TorchDispatchMode):
    """Refuses one of torch's operations, by its number, in the words of a library of CUDA."""

    def __init__(self, number):
        super().__init__()
        self.left = number

    def __torch_dispatch__(self, operation, _, arguments=(), more=None):
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("CUDA error: invalid argument")
        return operation(*arguments, **(more or {}))


@pytest.mark.parametrize("first", [1, 8, 15])
def test_whatever_is_refused_something_else_stands_in(
    found, hopper, adding, monkeypatch, caplog, first
):
    """One operation of the check after the other; all but what every way needs has another way."""
    hopper(Flash(), TAKES_SPLITS)
    adding()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(kernels, "compiled_on_cpu", lambda *_: None)
    ways = [kernels.TORCH._replace(name="triton"), kernels.TORCH]
    monkeypatch.setattr(kernels, "ways", lambda *_: ways)
    right = fallbacks._Trial.run
    for number in itertools.count(first, 21):
        caplog.clear()
        refusing, trials = Refusing(number), []

        def run(trial, *given, refusing=refusing, trials=trials):
            trials.append(trial)
            with refusing:
                right(trial, *given)

        monkeypatch.setattr(fallbacks._Trial, "run", run)
        try:
            load(found)
        except RuntimeError as error:
            assert str(error) == "CUDA error: invalid argument" and not trials[-1].operation
        else:
            assert len(caplog.records) == (refusing.left <= 0), caplog.text
        if refusing.left > 0:
            break
    assert number > 200


def test_values_leave_the_device_layer_by_layer(found, monkeypatch):
    """Of many layers, the features of one wait there at most."""
    device, options = devices.cpu(), esm2.Options(layers=(1, 2, 3), pool="mean", dtype="fp32")
    model = esm2.load(options, [device], found)
    num_computed, at_copy = 0, []
    feed_forward, copy = Encoder._add, transfer.Transfer._copy

    def counted(*given):
        nonlocal num_computed
        num_computed += 1
        return feed_forward(*given)

    def seen(self, tensor):
        at_copy.append(num_computed)
        return copy(self, tensor)

    monkeypatch.setattr(Encoder, "_add", counted)
    monkeypatch.setattr(transfer.Transfer, "_copy", seen)
    esm2.run(model, esm2.prepare(model, [b"MKVLAAGIVGL"], 64))
    assert at_copy == [1, 2, 3]


def test_kernels_are_kept_where_the_weights_are(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # so that what follows is undone
    del os.environ["TRITON_CACHE_DIR"]
    for cache, kept in ((tmp_path / "nowhere", None), (tmp_path, str(tmp_path / "triton"))):
        monkeypatch.setenv("FEATUREMILL_CACHE", str(cache))
        triton_cache.keep_compiled()
        assert os.environ.get("TRITON_CACHE_DIR") == kept
    monkeypatch.setenv("TRITON_CACHE_DIR", "my own")
    triton_cache.keep_compiled()
    assert os.environ["TRITON_CACHE_DIR"] == "my own"


def test_without_triton_the_twins_stand_in_and_a_warning_says_so(monkeypatch, caplog):
    def fail():
        raise ImportError("libcuda.so.1: cannot open\nshared object")

    monkeypatch.setattr(kernels, "_triton", fail)
    assert kernels.ways(torch.device("cuda"), torch.bfloat16, 4, 16) == [kernels.TORCH]
    said = warned(caplog)
    assert "\n" not in said and "(ImportError: libcuda.so.1: cannot open)" in said


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


def calls_of(model, *flashes):
    """Return the calls of each of them that one computation takes."""
    for flash in flashes:
        flash.calls.clear()
    features(model)
    return [flash.calls for flash in flashes]


@pytest.fixture
def hopper(monkeypatch):
    """Return a function that gives this CPU a Hopper's FlashAttention."""
    libraries = []

    def put(flash, takes_splits=True):
        if takes_splits and not TAKES_SPLITS:
            pytest.skip("this torch's FlashAttention has no num_splits")
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
    assert are_close(model, expected)
    splits = 1 if takes and not refuses else None
    assert calls_of(model, flash) == [[splits] * 3], "one call a layer"
    assert model.backend.startswith("attention: varlen flash_attention FA2")
    assert bool(caplog.records) == refuses


def test_without_a_flash_attention_that_is_right_sequences_go_one_by_one(
    found, hopper, caplog, monkeypatch
):
    def wrong(query, *_, **__):
        nothing = torch.empty(0)
        return torch.zeros_like(query), nothing, nothing.long(), nothing.long(), nothing

    monkeypatch.setattr(kernels, "compiled_on_cpu", lambda *_: None)  # a GPU has none
    expected = features(load(found))
    hopper(wrong)
    model = load(found)
    assert torch.equal(features(model), expected)
    assert "varlen" not in model.backend and "per sequence" in model.backend
    assert len(caplog.records) == 2 and "fails its check" in caplog.records[0].getMessage()


# Later ones, which torch's operation is given.


class Later(Flash):
    """FlashAttention-3 from a package of its own, as torch.nn.attention._fa3 puts it in place."""

    def __init__(self, name="FA3", how="right"):
        super().__init__()
        self.module = attention.FLASH_PACKAGES[name]
        self._how = how
        self.library = None

    def register(self):
        importlib.import_module(self.module)
        torch._C._set_sdp_use_fa3(True)
        if self._how == "is of another torch":
            raise RuntimeError("no such operation")
        self.library = torch.library.Library("aten", "IMPL")
        self.library.impl("_flash_attention_forward", self, "CPU")
        return self

    def remove(self):
        self.library = None

    def __call__(self, query, *others, **more):
        if self._how == "refuses":
            raise RuntimeError("FA3 flash_attention forward unsupported: a reason")
        context_THd, *rest = super().__call__(query, *others, **more)
        return (context_THd.neg() if self._how == "is wrong" else context_THd), *rest


@pytest.fixture
def later(monkeypatch, tmp_path):
    """Return a function that has torch know a later FlashAttention, and installs its package."""
    flags = []
    monkeypatch.setattr(torch._C, "_set_sdp_use_fa3", flags.append)

    def put(how="right", package="", name="FA3"):
        later = Later(name, how)
        later.flags = flags
        file = tmp_path.joinpath(*later.module.split(".")).with_suffix(".py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(package)
        monkeypatch.syspath_prepend(tmp_path)
        registered = torch.nn.attention._registry._FLASH_ATTENTION_IMPLS
        monkeypatch.setitem(registered, name, later.register)
        return later

    yield put
    if torch.nn.attention.current_flash_attention_impl():
        torch.nn.attention.restore_flash_attention_impl()
    for package in attention.FLASH_PACKAGES.values():
        sys.modules.pop(package, None)
        sys.modules.pop(package.partition(".")[0], None)


def test_flash_attention_3_is_used_where_its_package_is(found_wide, hopper, later, caplog):
    expected = features(load(found_wide))
    own = hopper(Flash())
    assert "FA2" in load(found_wide).backend, "nothing is installed, and nothing is said"
    newer = later()
    model = load(found_wide)
    assert are_close(model, expected)
    assert calls_of(model, own, newer) == [[], [1] * 2]
    assert model.backend.startswith("attention: varlen flash_attention FA3;")
    assert not caplog.records


def test_narrow_heads_and_other_gpus_keep_flash_attention_2(
    found, found_wide, hopper, later, monkeypatch
):
    own, newer = hopper(Flash()), later()
    assert "FA2" in load(found).backend and not newer.calls
    capabilities = iter([(9, 0), (9, 0), (8, 0), (8, 0)])  # of two GPUs, each asked for twice
    monkeypatch.setattr(attention, "_capability", lambda _: next(capabilities))
    model = load(found_wide, devices=(HOST, HOST))
    assert [stage.backend.name[-3:] for stage in model.stages] == ["FA3", "FA2"]
    for _ in range(2):
        assert list(map(len, calls_of(model, own, newer))) == [1, 1], "each device has its own"


@pytest.mark.parametrize("how, package, said", [
    ("is wrong", "", "relative error 2"),
    ("refuses", "", "forward unsupported: a reason"),
    ("right", "import a_library_of_another_cuda", "No module named"),
    ("is of another torch", "", "no such operation"),
])  # fmt: skip
def test_a_flash_attention_3_that_fails_its_check_is_put_back(
    found_wide, hopper, later, caplog, how, package, said
):
    own, newer = hopper(Flash()), later(how, package)
    model = load(found_wide)
    told = warned(caplog)
    assert said in told and "FA3 fails its check" in told and "FA2 computes it instead" in told
    assert calls_of(model, own, newer) == [[1, 1], []]
    assert torch.nn.attention.current_flash_attention_impl() is None
    assert how != "is of another torch" or newer.flags == [True, False]


@pytest.mark.parametrize("major, installed, offered", [
    (8, ("FA3", "FA4"), ["FA2"]),
    (9, (), ["FA2"]),
    (9, ("FA3",), ["FA3", "FA2"]),
    (9, ("FA4",), ["FA4", "FA2"]),
    (9, ("FA3", "FA4"), ["FA3", "FA4", "FA2"]),
    (10, ("FA3", "FA4"), ["FA4", "FA2"]),
    (12, ("FA3", "FA4"), ["FA2"]),
])  # fmt: skip
def test_which_flash_attention_is_offered_where(later, monkeypatch, major, installed, offered):
    for name in installed:
        later(name=name)
    monkeypatch.setattr(attention, "_capability", lambda _: (major, 0))
    monkeypatch.setattr(attention, "_takes", lambda _: True)
    found = attention.backends(HOST, torch.bfloat16, 20, 64)
    names = [way.name.rpartition(" ")[2] for way in found if way.name.startswith("varlen")]
    assert names == [*offered, "likes"]
    narrow = attention.backends(HOST, torch.bfloat16, 20, 32)
    assert narrow[0].name.endswith("FA2")


@pytest.fixture
def flash_cache(monkeypatch):
    """The variables by which FlashAttention-4 keeps what it compiles, unset."""
    variables = [
        variables_of_ours.FLASH_ATTENTION_CUTE_DSL_CACHE_DIR,
        variables_of_ours.FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED,
    ]
    for each in variables:
        monkeypatch.setenv(each.name, "")  # so that what follows is undone
        each.unset()
    return variables


def test_flash_attention_4_on_a_hopper_keeps_what_it_compiles(
    found_wide, hopper, later, monkeypatch, tmp_path, flash_cache
):
    """Inside Triton's folder; without that each job would compile it anew."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    expected = features(load(found_wide))
    hopper(Flash())
    seen, name = "seen_by_flash_attention", flash_cache[0].name
    newer = later(package=f"import os\n{seen} = os.environ[{name!r}]", name="FA4")
    model = load(found_wide)
    assert model.backend.startswith("attention: varlen flash_attention FA4;")
    assert are_close(model, expected) and calls_of(model, newer) == [[1] * 2]
    folder = tmp_path / "triton" / "flash_attention"
    assert getattr(sys.modules[newer.module], seen) == str(folder) and folder.is_dir()
    assert flash_cache[1].text() == "1"


def test_where_no_folder_can_be_made_flash_attention_4_keeps_nothing(
    monkeypatch, tmp_path, flash_cache
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "triton"))
    kernels.keep_flash_attention()
    assert [each.text() for each in flash_cache] == [None, None]
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    flash_cache[0].set("my own")
    kernels.keep_flash_attention()
    assert [each.text() for each in flash_cache] == ["my own", "1"]


def test_torch_imports_the_packages_that_are_looked_for():
    for name, package in attention.FLASH_PACKAGES.items():
        assert name in torch.nn.attention.list_flash_attention_impls()
        module = importlib.import_module(f"torch.nn.attention._{name.lower()}")
        register = getattr(module, f"register_flash_attention_{name.lower()}")
        path = inspect.signature(register).parameters["module_path"].default
        assert f"{path}.".startswith(f"{package}.")
    assert attention._is_installed("torch.nn.attention") and not attention._is_installed("torch.no")


# Products that add themselves to the residual stream, which torch has for CUDA only.


class AddMm:
    """torch's operation for the CPU, as CUDA carries it out: a sum in fp32, and in place."""

    def __init__(self, how="right"):
        self.how, self.num_calls = how, 0

    def __call__(self, stream, rows, weight, out_dtype, *, beta=1, alpha=1, out):
        assert out_dtype == out.dtype == stream.dtype == torch.float32 and rows.dtype != out_dtype
        assert stream.data_ptr() == out.data_ptr() and beta == alpha == 1
        self.num_calls += 1
        if self.how == "refuses":
            raise RuntimeError("self and mat2 must have the same dtype")
        product = rows.float() @ weight.float()
        if self.how == "loses the stream":
            return out.copy_(product)
        if self.how == "rounds":
            product = product.to(torch.float8_e4m3fn).float()
        return out.add_(product)


@pytest.fixture
def adding(monkeypatch):
    """Return a function that gives this CPU CUDA's forms of products, the first one's `how`."""
    libraries = []

    def put(how="right"):
        operation = AddMm(how)
        libraries.append(torch.library.Library("aten", "IMPL"))
        libraries[-1].impl("addmm.dtype_out", operation, "CPU")
        forms = matmul.forms
        monkeypatch.setattr(matmul, "forms", lambda _, dtype: forms(torch.device("cuda"), dtype))
        return operation

    yield put
    for library in libraries:
        library._destroy()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("num_devices", [1, 2, 3, 4])
def test_products_that_add_themselves_give_the_same_numbers(found, adding, dtype, num_devices):
    """Every layer that is wanted has all biases, and those after it no bias twice."""
    pack = packing.pack([np.arange(4, 4 + n) for n in (20, 5, 18)])
    real = slice(pack.bounds[-1])
    exact = load(found, "fp32")
    expected = [hidden[real].clone() for _, hidden in exact.representations(pack, range(4))]
    after = load(found, dtype)
    operation = adding()
    model = load(found, dtype, [HOST] * num_devices)
    assert "products: torch, added to the residual stream;" in model.backend
    for wanted in ([0, 1, 2, 3], [3], [2], [0], [1, 3]):
        operation.num_calls = 0
        states = [(n, hidden[real].clone()) for n, hidden in model.representations(pack, wanted)]
        assert [number for number, _ in states] == wanted
        assert operation.num_calls == 2 * wanted[-1], "one product each of attention, feed-forward"
        theirs = after.representations(pack, wanted)
        for (number, state), (_, other) in zip(states, theirs, strict=True):
            off = relative_l2(state, expected[number])
            assert off <= 1.05 * relative_l2(other[real], expected[number])


@pytest.mark.parametrize("dtype, bound_l2", [("bf16", 3.4e-3), ("fp16", 4.2e-4)])
def test_products_that_add_themselves_are_close_to_fair_esm(
    adding, tmp_path_factory, dtype, bound_l2
):
    """Within the bounds of the ways that a CPU has (test_16_bits_are_close_to_fair_esm)."""
    found = weights.weights_of(weights.convert("mill_t6_8M", tmp_path_factory.mktemp("cache")))
    operation = adding()
    both = Compared(found, fair_esm_bundled())
    assert_close_to_fair_esm(both, dtype, proteins_of_all_lengths(6, 400), bound_l2)
    assert operation.num_calls


def test_a_product_that_is_small_beside_the_stream_is_no_fault(found, monkeypatch, caplog):
    """What it adds has few digits then, rightly computed or not."""
    read = Encoder._weights

    def small(self, get, number, name, device):
        factor = 1e-4 if name in ("out", "down") else 1
        return tuple(tensor * factor for tensor in read(self, get, number, name, device))

    class Inexact(matmul.Plain):
        """Off by less than its bound, which is enough for another rounding of the stream."""

        def __call__(self, rows):
            return super().__call__(rows) * (1 + 2e-6)

    monkeypatch.setattr(Encoder, "_weights", small)
    monkeypatch.setattr(matmul, "forms", lambda *_: [Inexact])
    load(found, "fp32")
    assert not caplog.records


@pytest.mark.parametrize("how", ["refuses", "loses the stream", "rounds"])
def test_products_that_do_not_add_themselves_rightly_are_added_after(found, adding, caplog, how):
    expected = features(load(found))
    adding(how)
    model = load(found)
    said = warned(caplog)
    assert "product of torch, added to the residual" in said
    assert ("must have the same dtype" if how == "refuses" else "relative error") in said
    assert "products: torch;" in model.backend
    assert are_close(model, expected)


@pytest.mark.parametrize("how", ["raises", "one number is wrong"])
def test_a_gelu_that_fails_its_check_costs_no_more(found, adding, monkeypatch, caplog, how):
    """The products go on being added in their own pass, and are not tried once more in between."""
    expected = features(load(found))
    right = matmul.Plain.gelu
    for form in (matmul.Plain, matmul.Adding):
        monkeypatch.setattr(form, "gelu", spoil_method(right, how))
    operation = adding()
    model = load(found)
    assert "product with GELU of torch, added to the residual stream fails" in warned(caplog)
    assert "products: torch, added to the residual stream, gelu apart;" in model.backend
    operation.num_calls = 0
    assert are_close(model, expected)
    assert operation.num_calls == 6, "two a layer"


# Copies from GPU to GPU.


@pytest.mark.parametrize("spoiled, said", [
    ("there", "524,288 of 524,288 wrong"), ("back", "262,144 of 524,288 wrong"),
])  # fmt: skip
def test_copies_that_arrive_wrong_go_through_the_host(found, monkeypatch, caplog, spoiled, said):
    """As on a machine whose IOMMU is in the way: other numbers arrive, and nobody says so."""
    expected = features(load(found))
    num_copies = 0

    def wrong(tensor, device):
        nonlocal num_copies
        num_copies += 1
        is_spoiled = num_copies % 2 == (1 if spoiled == "there" else 0)
        return torch.zeros_like(tensor) if is_spoiled else tensor.clone()

    bad = spread.Copies("bad copies", wrong)
    monkeypatch.setattr(spread, "ways", lambda: [bad, *copies_ways()[1:]])
    assert "copies" not in load(found).backend and not num_copies, "there is nothing to copy"
    model = load(found, devices=(HOST, HOST))
    assert said in warned(caplog)
    assert "copies between GPUs: through the host" in model.backend
    num_copies = 0
    assert torch.equal(features(model), expected) and not num_copies
    monkeypatch.setattr(spread, "ways", lambda: [bad])
    with pytest.raises(WorkloadError, match=r"^copy between GPUs on this CPU .* has no fallback"):
        load(found, devices=(HOST, HOST))


def copies_ways():
    return [spread.DIRECT, spread.Copies("through the host", spread.through_host)]


def test_all_that_goes_to_the_next_device_is_brought_as_proved(found, monkeypatch):
    brought = []

    def seen(tensor, device):
        brought.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(spread, "ways", lambda: [spread.Copies("seen", seen)])
    model = load(found, devices=(HOST, HOST))
    brought.clear()
    features(model)
    assert len(brought) == 5, "the pack's four tensors and the stream"


@pytest.mark.parametrize(
    "chosen", ["bf16 and 64", pytest.param("width or ESM", marks=pytest.mark.slow)]
)
def test_the_whole_way_of_a_gpu_is_close_to_fp32(environment, chosen):
    pytest.importorskip("triton", reason="Triton is for Linux")
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    words += [ROOT / "tests" / "gpu_way.py", "-k", chosen]
    more = {"cwd": ROOT, "env": {**environment, "TRITON_INTERPRET": "1"}}
    done = subprocess.run(words, capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stdout
    assert f"{2 if 'bf16' in chosen else 25} passed" in done.stdout


# Launches.


class Launches(TorchDispatchMode):
    """Counts the operations that a GPU is given; none is carried out."""

    NONE = ("view", "t", "unbind", "new_empty")
    """These give the GPU nothing to do."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operation, _, arguments=(), more=None):
        more = more or {}
        if operation.namespace != "aten":  # asks for a tensor's device
            return operation(*arguments, **more)
        with self:  # what is made of others is not an operation by itself
            made = operation.decompose(*arguments, **more)
        if made is not NotImplemented:
            return made
        name = operation.overloadpacket.__name__
        if name not in self.NONE:
            self.names.append(name)
        if operation is torch.ops.aten.addmm.dtype_out:
            return more["out"]  # torch has no kernel of it for this, and its stand-in would copy
        return operation(*arguments, **more)


@pytest.fixture
def cuda_that_computes_nothing(monkeypatch):
    """Tensors of type cuda, on a torch for CPUs, in the ways of a Hopper with Triton's kernels."""
    launches = Launches()

    def stand_in(name, result=lambda *_: None):
        return lambda *given: (launches.names.append(name), result(*given))[1]

    def normed(residual_TD, *others):
        return residual_TD.new_empty(residual_TD.shape, dtype=others[-1])

    counted = kernels.Kernels(
        "counted",
        *(stand_in("rotate_"), stand_in("add_norm", normed), stand_in("norm", normed)),
        *(stand_in("gate", lambda halves_TG: halves_TG.chunk(2, 1)[0].contiguous()), None),
    )
    monkeypatch.setattr(kernels, "ways", lambda *_: [counted])
    monkeypatch.setattr(attention, "_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *_: 1)
    monkeypatch.setattr(encoder, "fault_of", lambda *_: None)
    monkeypatch.setattr(stages.Stage, "current", lambda _: contextlib.nullcontext())
    return launches


def fake_encoder(found, tensors, mode, monkeypatch):
    """Return the encoder with weights that are on a GPU, as far as torch can tell."""
    tensors = {name: mode.from_tensor(tensor) for name, tensor in tensors.items()}
    file = contextlib.nullcontext(SimpleNamespace(get_tensor=tensors.get))
    monkeypatch.setattr(encoder, "safe_open", lambda *_, **__: file)
    return load(found, devices=[CUDA])


@pytest.mark.parametrize("form, first", [("Adding", "norm"), ("Plain", "add_norm")])
def test_a_layer_is_eight_launches(found, cuda_that_computes_nothing, monkeypatch, form, first):
    """Of a batch in bf16: five of torch's operations, of which attention is one, and three kernels.

    Nothing else is computed or copied, and nothing is waited for, which these tensors refuse.
    """
    monkeypatch.setattr(matmul, "forms", lambda *_: [getattr(matmul, form)])
    device, launches = CUDA, cuda_that_computes_nothing
    pack = packing.pack([np.arange(4, 4 + n) for n in (20, 5, 18)], 256, device)
    tensors = load_file(found.path)
    with FakeTensorMode() as mode:
        model = fake_encoder(found, tensors, mode, monkeypatch)
        pack = spread.on_device(spread.each_tensor(pack, mode.from_tensor), device)
        model._rotary(pack.longest, device)
        with launches:
            ((_, hidden_TD),) = model.representations(pack, [3])
    assert hidden_TD.shape == (256, 64) and hidden_TD.device == device
    layer = [
        *(first, "addmm", "rotate_", "_flash_attention_forward", "addmm"),
        *(first, "_addmm_activation", "addmm"),
    ]
    assert len(layer) == 8
    assert launches.names == ["embedding", *layer * 3, first]


@pytest.mark.parametrize("asked", [
    {},
    {"pool": ("mean", "bos"), "per_residue": True},
    {"layers": (0, 1, -1), "pool": "none", "per_residue": True},
    {"long": "chunk", "max_residues": 12, "chunk_overlap": 4, "per_residue": True},
])  # fmt: skip
def test_no_batch_waits_for_the_gpu(found, cuda_that_computes_nothing, monkeypatch, asked):
    """From the pack to what goes to the host; to look at a number would be to wait for it."""
    launches = cuda_that_computes_nothing
    options = esm2.Options(**asked, dtype="bf16")
    options = options.model_copy(update={"layers": tuple(sorted(n % 4 for n in options.layers))})
    payloads = [b"MKVLAAGIVGLCAKAYMKVL"[:n] for n in (20, 5, 18)]
    windows = [windows_of(len(payload), options) for payload in payloads]
    both = zip(payloads, windows, strict=True)
    pack = packing.pack([tokenize(each, w) for each, ws in both for w in ws], 256, CUDA)
    places, tensors = pooling.places(windows), load_file(found.path)

    def mean(hidden_TD, starts_N, _):
        return hidden_TD.new_empty(len(starts_N), hidden_TD.shape[1])

    with FakeTensorMode() as mode:
        model = fake_encoder(found, tensors, mode, monkeypatch)
        pack = spread.on_device(spread.each_tensor(pack, mode.from_tensor), CUDA)
        places = spread.on_device(spread.each_tensor(places, mode.from_tensor), CUDA)
        model._rotary(pack.longest, CUDA)
        with launches:
            values = [
                tensor
                for _, hidden_TD in model.representations(pack, options.layers)
                for tensor in pooling.tensors_of_layer(hidden_TD, places, options, mean)
            ]
    assert values and all(tensor.device == CUDA for tensor in values)
    assert not {"_local_scalar_dense", "nonzero", "item"} & set(launches.names)


class Casts(TorchDispatchMode):
    """Notes where numbers change their type."""

    def __init__(self):
        super().__init__()
        self.devices = []

    def __torch_dispatch__(self, operation, _, arguments=(), more=None):
        result = operation(*arguments, **(more or {}))
        if operation is torch.ops.aten._to_copy.default and result.dtype != arguments[0].dtype:
            self.devices.append(arguments[0].device.type)
        return result


def test_weights_are_rounded_on_the_device(found, cuda_that_computes_nothing, monkeypatch):
    """But for the embedding and what is small; the host needs seconds for a large model."""
    tensors = load_file(found.path)
    with FakeTensorMode() as mode, Casts() as casts:
        model = fake_encoder(found, tensors, mode, monkeypatch)
    assert model.stages[0].layers[0].qkv.weight_OI.device == CUDA
    rounded = [place for place in casts.devices if place == "cuda"]
    assert len(rounded) >= 3 * len(encoder.PRODUCTS) * 2
    assert casts.devices.count("cpu") <= 1 + 4 * 3 + 3


# Products with as many rows as a batch has.


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        *itertools.product(("Adding", "AddingApart", "Plain", "Apart"), ("bf16", "fp16")),
        ("Plain", "fp32"),
    ],
)
def test_products_are_right_with_all_rows_of_a_batch(
    found, adding, monkeypatch, caplog, form, dtype
):
    adding()
    monkeypatch.setattr(matmul, "forms", lambda *_: [getattr(matmul, form)])
    load(found, dtype, num_rows=1000)
    assert not caplog.records


@pytest.mark.parametrize("operation", ["__call__", "gelu", "add_"])
def test_a_kernel_for_many_rows_that_is_wrong_steps_down(
    found, adding, monkeypatch, caplog, operation
):
    """In one row of a thousand, and where there are few it is right."""
    adding()
    good = matmul.Adding if operation == "add_" else matmul.Plain
    right = getattr(good, operation)

    def wrong(self, *given):
        found = right(self, *given)
        target = given[0] if found is None else found
        if len(target) == 1000:
            target[-1] = 7
        return found

    bad = type("Bad", (good,), {"name": "bad for many rows", operation: wrong})
    monkeypatch.setattr(matmul, "forms", lambda *_: [bad, matmul.Plain])
    load(found)
    assert not caplog.records, "few rows"
    model = load(found, num_rows=1000)
    assert "bad for many rows fails its check (relative error" in warned(caplog)
    assert "products: torch;" in model.backend


def test_a_batch_that_memory_does_not_reach_for_is_tried_in_halves(found, monkeypatch, caplog):
    seen = []

    class Short(matmul.Plain):
        name = "short of memory"

        def __call__(self, rows):
            seen.append(len(rows))
            if len(rows) > 300:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().__call__(rows)

    monkeypatch.setattr(matmul, "forms", lambda *_: [Short])
    load(found, num_rows=1000)
    assert {1000, 500, 250} <= set(seen) and not caplog.records


def test_our_attention_is_first_only_where_it_is_known_to_be_faster(
    cuda_that_computes_nothing, monkeypatch
):
    ours = pytest.importorskip("featuremill.workloads.esm2.kernels.triton_attention")
    monkeypatch.setattr(attention, "_takes", lambda _: False)
    monkeypatch.setattr(kernels, "has_triton", lambda: True)
    tiling = ours.Tiling(64, 32)

    def names(faster, width=64, capability=(9, 0), dtype=torch.bfloat16):
        monkeypatch.setattr(ours, "FASTER", faster)
        monkeypatch.setattr(attention, "_capability", lambda _: capability)
        with FakeTensorMode():
            found = attention.backends(CUDA, dtype, 4, width)
        kinds = [next(k for k in ("triton", "FA2", "FA3", "sdpa") if k in w.name) for w in found]
        tilings = [way.attend.keywords["tiling"] for way in found if "triton" in way.name]
        return kinds, tilings

    behind, first = ["FA2", "triton", "sdpa"], ["triton", "FA2", "sdpa"]
    assert names({}) == (behind, [ours.CAUTIOUS])
    known = {((9, 0), 64): tiling}
    assert names(known) == names(known, 48) == (first, [tiling])
    assert names(known, 32) == names(known, 80) == (behind, [ours.CAUTIOUS])
    assert names(known, capability=(12, 0)) == names(known, capability=(8, 0))
    assert names(known, capability=(8, 0)) == (behind, [ours.CAUTIOUS])
    assert names(known, 160)[0] == ["FA2", "sdpa"]
    assert names(known, dtype=torch.float32)[0] == names(known, capability=(7, 5))[0] == ["sdpa"]
    with monkeypatch.context() as patched:  # beside which nothing was timed
        patched.setattr(attention, "_takes", lambda _: True)
        patched.setattr(attention, "_later_flash", lambda _: ["FA3"])
        assert names(known)[0] == ["FA3", "triton", "FA2", "FA2", "sdpa"]
        assert names({})[0] == ["FA3", "FA2", "FA2", "triton", "sdpa"]
    monkeypatch.setattr(kernels, "has_triton", lambda: False)
    assert names(known)[0] == ["FA2", "sdpa"]


def test_each_tiling_in_use_divides_a_piece():
    ours = pytest.importorskip("featuremill.workloads.esm2.kernels.triton_attention")
    for tiling in (ours.CAUTIOUS, *ours.FASTER.values()):
        assert packing.PIECE_ROWS % tiling.queries == 0 and tiling.keys >= 16


# What is left out by hand, and what kills or stops the process.


@pytest.mark.parametrize(("words", "backend"), [
    ("", "attention: varlen flash_attention FA2; products: torch, added to the residual stream;"),
    ("adding", "attention: varlen flash_attention FA2; products: torch;"),
    ("FA2, llvm,adding", "attention: sdpa"),
])  # fmt: skip
def test_a_way_can_be_left_out(found, hopper, adding, monkeypatch, caplog, words, backend):
    hopper(Flash(), TAKES_SPLITS)
    adding()
    monkeypatch.setenv("FEATUREMILL_WITHOUT", words)
    assert load(found).backend.startswith(backend) and not caplog.records


def test_the_last_way_is_not_left_out_and_a_typo_is_refused(found, monkeypatch):
    monkeypatch.setenv("FEATUREMILL_WITHOUT", "llvm,onednn,triton,direct")
    assert "products: torch" in load(found).backend
    monkeypatch.setenv("FEATUREMILL_WITHOUT", "FA33")
    with pytest.raises(UserError, match="FEATUREMILL_WITHOUT: 'FA33' is no way of computing; kno"):
        load(found)


def test_what_is_tried_is_named_before_it_is(found, hopper, adding, monkeypatch):
    hopper(Flash(), TAKES_SPLITS)
    adding()
    said = []
    monkeypatch.setattr(loading, "_watchers", [lambda step, seconds: said.append(step)])
    load(found, devices=(HOST, HOST))
    without = " (FEATUREMILL_WITHOUT={} continues without)"
    assert "attention by varlen flash_attention FA2" + without.format("FA2") in said
    assert "copy between GPUs by direct" + without.format("direct") in said
    assert any(step.startswith("product by torch, added") for step in said) and said[-1] == ""


# A fault of the installation is no record's, and no device's.


def plan(verbs, number=200, **options):
    return verbs.plan(random_records(number), "faulty", options, cost=100)


def ends(verbs, planned):
    """Compute; return how many records of each shard went well and how many failed."""
    verbs.extract(planned)
    return [(receipt["ok"], receipt["failed"]) for receipt in verbs.receipts(planned)]


def test_a_kernel_that_always_raises_costs_no_record(verbs):
    planned = plan(verbs, text="no kernel for you")
    shard = planned["shards"][0]["shard"]
    said = verbs("extract", verbs.run_folder.root, shard, status=1)
    (sentence,) = [line for line in said.splitlines() if "error:" in line]
    assert "the first 8 records all fail in the same way (RuntimeError: no kernel" in sentence
    assert "Traceback" in said, "the sentence says that there is one"
    assert ends(verbs, plan(verbs)) == [(100, 0), (100, 0)], "fixed: nothing of it is left"


@pytest.mark.parametrize(("trial", "said"), [
    ("crash", "the last worker was killed by SIGSEGV, trying another kernel; see"),
    ("hang", "FEATUREMILL_STALL_SECONDS higher), trying another kernel; see"),
])  # fmt: skip
def test_what_killed_or_stopped_the_load_is_named(verbs, trial, said):
    """In the time that it said it takes, not that of a whole load."""
    planned = plan(verbs, 20, trial=trial)
    assert said in verbs.extract(planned, 3)
    verbs.extract(plan(verbs, 20))


def test_records_that_fail_alike_fail_where_others_went_well(verbs):
    """Batches of more than one row always raise here: each record is computed alone."""
    assert ends(verbs, plan(verbs, 30, text="too many", above=1)) == [(30, 0)]


def test_few_records_that_all_fail_alike_are_failed_rows(verbs):
    assert ends(verbs, plan(verbs, 7, text="not one")) == [(0, 7)]


MIG = "NVML_SUCCESS == r INTERNAL ASSERT FAILED at /c10/cuda/CUDACachingAllocator.cpp:1130"


def test_memory_that_a_slice_of_a_gpu_lacks_cuts_batches(verbs):
    planned = plan(verbs, 64, text=MIG, above=4)
    assert ends(verbs, planned) == [(64, 0)]
    (receipt,) = verbs.receipts(planned)
    assert receipt["oom_splits"] > 0
    (warned,) = receipt["warnings"]
    assert "out of memory: a batch of up to 10 records did not fit" in warned


NO_IMAGE = "CUDA error: no kernel image is available for execution"


@pytest.mark.parametrize("where, text, advice", [
    ("load", NO_IMAGE, "not built for a GPU"),
    ("run", NO_IMAGE, "not built for a GPU"),
    ("load", "The NVIDIA driver on your system is too old", "update the NVIDIA driver"),
    ("run", "an attention that this torch has not", "an attention that this torch has not"),
])  # fmt: skip
def test_what_is_installed_is_not_held_against_a_device(verbs, gpu_node, text, advice, where):
    node = gpu_node(1)
    verbs.environment = {**verbs.environment, **node.environment}
    options = {"where": where, "text": text}
    planned = verbs.plan(random_records(20), "faulty", options, device="cuda")
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
        assert faults.is_out_of_memory(RuntimeError(text))
        assert not faults.is_device_error(RuntimeError(text))
