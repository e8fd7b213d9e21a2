"""Choose the method of each operation of the encoder on a device: the fastest that passes its test.

While a model is loaded, each operation of a layer is computed once, by the method for batches, and
compared with fp32 arithmetic on the same weights. If a method fails, the next one is used, with a
warning; without a next one, the load fails. So kernels are compiled and handles created before the
first batch, and a fault of the installation fails no record. The operation is announced before its
test, so that the message of a crash names it and the user can exclude the method.

Shape legend: T tokens, D width, F width of the feed forward, H heads, d width of a head, O and I
outputs and inputs, S rows of a sample.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from torch import Tensor

from featuremill.kit import environment
from featuremill.kit.errors import (
    UserError,
    WorkloadError,
    error_text,
    is_device_error,
    is_out_of_memory,
)
from featuremill.kit.text import listed
from featuremill.workload import Device, Weights, loading, networks, spread
from featuremill.workload.spread import Copies
from featuremill.workloads.esm2 import attention, kernels, matmul, packing
from featuremill.workloads.esm2.architecture import Architecture, Sizes, sizes_of
from featuremill.workloads.esm2.attention import Backend
from featuremill.workloads.esm2.kernels import Kernels, reference
from featuremill.workloads.esm2.layout import FAIR_ESM, FREQUENCIES, entries
from featuremill.workloads.esm2.matmul import Product, Stream
from featuremill.workloads.esm2.options import Options
from featuremill.workloads.esm2.packing import Packed
from featuremill.workloads.esm2.stages import Layer, Stage

__all__ = ["Fallbacks", "ways"]
LENGTHS = (3, 70, 1, 200)
BOUNDS = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
"""The largest relative L2 error of an operation, by dtype."""
WAYS_OF = {
    "attention": "attention",
    "product": "products",
    "product with GELU": "products",
    "gate": "kernels",
    "LayerNorm": "kernels",
    "rotary": "kernels",
    "mean": "kernels",
    "copy between GPUs": "copies",
}
"""Operations with several methods."""
HINTS = {
    "attention": "slower for short proteins",
    "kernels": "about 0.7 of the speed; if Triton has no C compiler, install gcc and python3-dev",
    "products": "a little slower",
    "copies": "slower, as what goes to the next GPU waits for the host; an IOMMU, or PCIe access "
    "control (ACS), between the GPUs is the usual cause",
}
HINTS_ON_CPU = HINTS | {
    "attention": "attention takes two to three times as long",
    "kernels": "a little slower",
}
WORDS = {
    "varlen-triton": "varlen triton",
    "triton": "triton",
    "llvm": "llvm",
    "adding": "added to the residual stream",
    "onednn": "onednn",
    "FA4": "FA4",
    "FA3": "FA3",
    "FA2": "FA2",
    "direct": "direct",
}
"""The values of FEATUREMILL_WITHOUT; each excludes backends by texts in their names."""
NUM_HEADS, USUAL_HEAD_WIDTH = 4, 64
"""The heads of a layer of random weights, and their width if no model is named."""
SAMPLE = 64
"""Number of rows of a full batch that are compared: the first, the last, and some between."""
LinearWeights = Mapping[str, tuple[Tensor, Tensor]]
"""Weight (OI) and bias (O) of linear layers in fp32, rounded like those of the layer."""
W = TypeVar("W", Backend, Kernels, Copies, type[Product])
log = logging.getLogger("featuremill.workloads.esm2")


class Fault(NamedTuple):
    """An operation that fails its test, and the error."""

    operation: str
    text: str


class Fallbacks:
    """The methods on one device that have not failed."""

    def __init__(
        self, device: torch.device, dtype: torch.dtype, num_heads: int, head_dim: int
    ) -> None:
        self._device = device
        left_out = _left_out()
        self.attention = _kept(attention.backends(device, dtype, num_heads, head_dim), left_out)
        """The methods for attention, the fastest first, as in the other lists."""
        self.kernels = _kept(kernels.ways(device, dtype, num_heads, head_dim), left_out)
        self.products = _kept(matmul.forms(device, dtype), left_out)
        self.copies = _kept(spread.ways(), left_out)

    def step_down(self, fault: Fault) -> None:
        """Remove the method that failed, and use the next one.

        Raises:
            WorkloadError: if it was the last one.
        """
        kind = WAYS_OF[fault.operation]
        names = [way.name for way in getattr(self, kind)]
        device = "this CPU"
        if self._device.type == "cuda":
            device = torch.cuda.get_device_name(self._device)
        if len(names) < 2:
            raise WorkloadError(
                f"{fault.operation} on {device} fails its check ({fault.text}) and has no fallback "
                "there; nothing was computed: see whether this torch fits the driver and the "
                "device (featuremill doctor)"
            )
        if kind == "products":
            self.products = _others(self.products, fault.operation)
        else:
            getattr(self, kind).pop(0)
        failed, instead = names[0], getattr(self, kind)[0].name
        hints = HINTS_ON_CPU if self._device.type == "cpu" else HINTS
        log.warning(
            "%s: %s of %s fails its check (%s), so %s computes it instead: %s.",
            device,
            fault.operation,
            failed,
            fault.text,
            instead,
            hints[kind],
        )


def _others(forms: list[type[Product]], operation: str) -> list[type[Product]]:
    """Return the `forms` that compute `operation` by other code than the first one, if there are
    any, as the same code would fail again."""

    def code(form: type[Product]) -> object:
        return form.gelu if operation == "product with GELU" else (form.__call__, form.STREAM)

    failed, *later = forms
    return [form for form in later if code(form) != code(failed)] or later


def _left_out() -> list[str]:
    """Return the words in FEATUREMILL_WITHOUT.

    Raises:
        UserError: if one of them is unknown.
    """
    words = [word for part in environment.WITHOUT.value().split(",") if (word := part.strip())]
    for word in words:
        if word not in WORDS:
            raise UserError(
                f"{environment.WITHOUT}: {word!r} is no way of computing; known are "
                f"{listed(WORDS)}."
            )
    return words


def _kept(ways: list[W], words: Collection[str]) -> list[W]:
    """Return the methods that `words` do not exclude; the last method is always kept."""
    kept = [way for way in ways if not any(WORDS[word] in way.name for word in words)]
    return kept or ways[-1:]


def fault_of(
    stage: Stage,
    layer: Layer,
    exact: LinearWeights,
    embedding_VD: Tensor,
    rotary: Callable[[int, torch.device], Tensor],
    dtype: torch.dtype,
    num_rows: int,
) -> Fault | None:
    """Return the first operation of `layer` whose result on its stage differs from fp32. Products
    are also tested with `num_rows`, unless it is 0.

    Raises:
        RuntimeError: if memory ran out or the device is dead, which is no fault of an operation.
    """
    trial = _Trial(stage, dtype)
    try:
        with stage.current(), torch.inference_mode():
            trial.run(layer, exact, embedding_VD, rotary)
            trial.run_full(layer, exact, num_rows)
    except Exception as error:
        if not trial.operation:  # a part that all operations need
            raise
        return _fault(trial.operation, trial.named, error)
    finally:
        loading.at("")
    for operation, off in trial.errors:
        if not off <= BOUNDS[dtype]:  # also true for NaN
            return Fault(operation, f"relative error {off:.1g}, at most {BOUNDS[dtype]:g}")
    return None


def fault_of_copies(way: Copies, source: torch.device, target: torch.device) -> Fault | None:
    """Return the fault of copies from a device to another one and back, or None.

    Raises:
        RuntimeError: if memory ran out or a device is dead, which is no fault of a copy.
    """
    operation = "copy between GPUs"
    loading.at(named := _named(operation, way.name))
    try:
        num_wrong = spread.num_wrong(way, source, target)
    except Exception as error:
        return _fault(operation, named, error)
    finally:
        loading.at("")
    return (
        Fault(operation, f"{num_wrong:,} of {2 * spread.PROBE_NUMBERS:,} wrong")
        if num_wrong
        else None
    )


def _named(operation: str, way: str) -> str:
    """Return the name of a test, with advice how to exclude its method."""
    word = next((word for word, mark in WORDS.items() if mark in way), "")
    advice = f" ({environment.WITHOUT}={word} continues without)" if word else ""
    return f"{operation} by {way}{advice}"


def _fault(operation: str, named: str, error: Exception) -> Fault:
    if is_out_of_memory(error):
        raise error
    if is_device_error(error):
        raise RuntimeError(f"{named}: {error}") from error
    return Fault(operation, f"{type(error).__name__}: {error_text(error)}")


class _Trial:
    """Computes a layer's operations on a few tokens, by the chosen methods and in fp32."""

    def __init__(self, stage: Stage, dtype: torch.dtype) -> None:
        self.operation = self.named = ""
        """The operation of the current test, without and with its method."""
        self.errors: list[tuple[str, float]] = []
        """The relative L2 error of each operation."""
        self._stage, self._dtype = stage, dtype

    def _at(self, operation: str) -> None:
        stage, kind = self._stage, WAYS_OF[operation]
        names = {
            "attention": stage.backend.name,
            "products": stage.form.name,
            "kernels": stage.kernels.name,
        }
        self.operation, self.named = operation, _named(operation, names[kind])
        loading.at(self.named)

    def run(
        self,
        layer: Layer,
        exact: LinearWeights,
        embedding_VD: Tensor,
        rotary: Callable[[int, torch.device], Tensor],
    ) -> None:
        """Compute `layer`, the last of its stage."""
        letters = 4 + np.arange(sum(LENGTHS)) * 7 % 20  # the amino acids' tokens
        pack = packing.pack(np.split(letters, np.cumsum(LENGTHS)[:-1]))
        stage, pack = self._stage, spread.on_device(pack, self._stage.device)
        residual_TD = F.embedding(pack.tokens_T.to(embedding_VD.device), embedding_VD).to("cpu")
        residual_TD += torch.arange(residual_TD.numel()).sin().view_as(residual_TD)
        residual_TD = residual_TD.to(stage.device)
        stream = stage.form.STREAM(residual_TD, stage.running_D[-3:])

        normed_TD = self._norm(stream, layer.attention_norm, self._dtype)
        self._at("product")
        qkv_TO = layer.qkv(normed_TD)
        self._is(qkv_TO, F.linear(normed_TD.float(), *exact["qkv"]))
        context_TD = self._attend(layer, qkv_TO, rotary(pack.longest, stage.device), pack)
        self._add(stream, layer.out, context_TD, exact["out"])

        normed_TD = self._norm(stream, layer.feed_forward_norm, self._dtype)
        hidden_TF = self._hidden(layer, normed_TD, F.linear(normed_TD.float(), *exact["up"]))
        self._add(stream, layer.down, hidden_TF, exact["down"])
        self._norm(stream, layer.attention_norm, torch.float32)  # as after the last layer
        self._at("mean")
        hidden_TD = stream.whole()
        bounds = torch.tensor(pack.bounds, device=stage.device)
        means_ND = stage.kernels.mean_rows(hidden_TD, bounds[:-1].clone(), bounds[1:].clone())
        rows = zip(pack.bounds, pack.bounds[1:], strict=False)
        self._is(means_ND, torch.stack([hidden_TD[a:b].mean(0) for a, b in rows]))

    def run_full(self, layer: Layer, exact: LinearWeights, num_rows: int) -> None:
        """Compute the linear layers with the rows of a full batch, for which cuBLAS uses another
        kernel than for few rows; with fewer rows if memory is too small, as batches will have."""
        while num_rows > SAMPLE:
            try:
                self._products(layer, exact, num_rows)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                num_rows //= 2
            else:
                return

    def _products(self, layer: Layer, exact: LinearWeights, num_rows: int) -> None:
        device, (width, num_hidden) = self._stage.device, exact["down"][0].shape
        # The rows of a sample, repeated.
        numbers = torch.arange(SAMPLE * num_hidden, device=device).sin().view(SAMPLE, -1)
        chosen_S = torch.linspace(0, num_rows - 1, SAMPLE, device=device).long()

        def rows_of(num_inputs: int) -> Tensor:
            sample_SI = numbers[:, :num_inputs].to(self._dtype)
            return sample_SI.repeat(-(-num_rows // SAMPLE), 1)[:num_rows]

        def expected(name: str, rows_TI: Tensor) -> Tensor:
            return F.linear(rows_TI[chosen_S].float(), *exact[name])

        rows_TD, rows_TF = rows_of(width), rows_of(num_hidden)
        self._at("product")
        self._is(layer.qkv(rows_TD)[chosen_S], expected("qkv", rows_TD))
        residual_TD = torch.zeros(num_rows, width, device=device)
        stream = self._stage.form.STREAM(residual_TD, self._stage.running_D[-3:])
        added_SD = stream.copy()[chosen_S]
        for name, product, rows_TI in (("out", layer.out, rows_TD), ("down", layer.down, rows_TF)):
            stream.add(product, rows_TI)
            before_SD, added_SD = added_SD, stream.copy()[chosen_S]
            stream.whole()
            rounding_SD = torch.finfo(torch.float32).eps * added_SD.abs()
            self._is(added_SD - before_SD, expected(name, rows_TI), rounding_SD)
        self._hidden(layer, rows_TD, expected("up", rows_TD), chosen_S)

    def _hidden(
        self, layer: Layer, rows_TD: Tensor, up_SO: Tensor, chosen_S: Tensor | slice = slice(None)
    ) -> Tensor:
        """Compute the inner tensor of the feed-forward layers, and check it; `up_SO` is the
        expected product of the chosen rows."""
        if not layer.is_gated:
            self._at("product with GELU")
            hidden_TF = layer.up.gelu(rows_TD)
            self._is(hidden_TF[chosen_S], F.gelu(up_SO))
            return hidden_TF
        self._at("product")
        up_TO = layer.up(rows_TD)
        self._is(up_TO[chosen_S], up_SO)
        self._at("gate")
        hidden_TF = self._stage.kernels.gate(up_TO)
        self._is(hidden_TF[chosen_S], reference.gate(up_TO[chosen_S].float()))
        return hidden_TF

    def _norm(self, stream: Stream, norm: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
        self._at("LayerNorm")
        sum_TD = stream.copy()
        normed_TD = stream.norm(self._stage.kernels, *norm, dtype)
        self._is(stream.copy(), sum_TD)
        self._is(normed_TD, F.layer_norm(sum_TD, sum_TD.shape[1:], *norm, reference.NORM_EPSILON))
        return normed_TD

    def _add(
        self, stream: Stream, product: Product, rows_TI: Tensor, exact: tuple[Tensor, Tensor]
    ) -> None:
        """Add a product to the stream, and check the change of the stream, without the rounding of
        the stream, which may be larger than the change."""
        self._at("product")
        before_TD = stream.copy()
        stream.add(product, rows_TI)
        after_TD = before_TD + F.linear(rows_TI.float(), *exact)
        rounding_TD = torch.finfo(torch.float32).eps * after_TD.abs()
        self._is(stream.copy() - before_TD, after_TD - before_TD, rounding_TD)

    def _attend(self, layer: Layer, qkv_TO: Tensor, rotary_Pf2: Tensor, pack: Packed) -> Tensor:
        qkv_T3Hd = qkv_TO.view(len(qkv_TO), 3, -1, 2 * rotary_Pf2.shape[1])
        turned_T3Hd = _rotated(layer, qkv_T3Hd.float(), rotary_Pf2[pack.positions_T])
        if not self._stage.rotates_in_attention(layer):
            self._at("rotary")
            weight_2D = layer.query_key_norm_2D
            self._stage.kernels.rotate_(qkv_T3Hd, rotary_Pf2, pack.positions_T, weight_2D)
            self._is(qkv_T3Hd, turned_T3Hd)
            turned_T3Hd = qkv_T3Hd
        # Inputs are rounded as in the kernel, because large scores amplify rounding.
        turned_T3Hd = turned_T3Hd.to(self._dtype).float()
        self._at("attention")
        context_TD = self._stage.attend(layer, qkv_T3Hd, pack, rotary_Pf2).flatten(1)
        plain_THd = attention.attend_per_sequence(turned_T3Hd, pack, attention.with_scores)
        plain_TD = plain_THd.flatten(1)
        # The padding rows may have any number but NaN, which is not equal to itself.
        plain_TD[pack.bounds[-1] :] = context_TD[pack.bounds[-1] :]
        self._is(context_TD, plain_TD)
        return context_TD

    def _is(self, actual: Tensor, expected: Tensor, granted: Tensor | float = 0.0) -> None:
        off = ((actual.float() - expected).abs() - granted).clamp(min=0)
        # Reading the number waits for the device, so that its errors and hangs count for this
        # operation.
        self.errors.append((self.operation, float(off.norm() / expected.norm())))


def _rotated(layer: Layer, qkv_T3Hd: Tensor, rotary_Tf2: Tensor) -> Tensor:
    """Return fp32 query, key and value; query and key are rotated, after a norm if any."""
    query_key_T2Hd, weight_2D = qkv_T3Hd[:, :2], layer.query_key_norm_2D
    if weight_2D is not None:
        normed_T2D = F.layer_norm(
            query_key_T2Hd.flatten(2), weight_2D.shape[1:], eps=reference.NORM_EPSILON
        )
        query_key_T2Hd = (normed_T2D * weight_2D).view_as(query_key_T2Hd)
    cosine, sine = rotary_Tf2[:, None, None].unbind(-1)
    even, odd = query_key_T2Hd[..., ::2], query_key_T2Hd[..., 1::2]
    pairs = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1)
    return torch.cat((pairs.flatten(-2), qkv_T3Hd[:, 2:]), 1)


def ways(
    device: Device, weights: Weights | None, architecture: Architecture, load: Callable[..., Any]
) -> tuple[str, str, str, str]:
    """Return the dtype and the methods of attention, products and the rest on a device, for heads
    as wide as those of `weights`: `load`, that of the workload, loads a layer of random weights as
    a worker loads a model.

    Raises:
        WorkloadError: if no method computes an operation correctly.
        RuntimeError: if memory ran out, or the device is dead.
    """
    head_width = sizes_of(weights.metadata).head_dim if weights else USUAL_HEAD_WIDTH
    width = NUM_HEADS * head_width
    sizes = Sizes(architecture, 1, NUM_HEADS, width, 4 * width)
    rng = np.random.default_rng(0)
    tensors = {FREQUENCIES: 10_000 ** -(np.arange(0, head_width, 2) / head_width)}
    for entry in entries(FAIR_ESM, sizes):
        numbers = rng.standard_normal(entry.shape)
        tensors[entry.name] = numbers / entry.shape[-1] ** 0.5 if numbers.ndim > 1 else numbers
    options = Options.model_validate({"dtype": networks.dtype_on(device, "auto")})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probe.safetensors")
        save_file({name: np.asarray(t, np.float32) for name, t in tensors.items()}, path)
        probe = Weights("probe", path, "", sizes.metadata())
        (stage,) = load(options, [device], probe).encoder.stages
    return options.dtype, stage.backend.name, stage.form.name, stage.kernels.name
