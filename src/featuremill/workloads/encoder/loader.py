"""Load a network with its weights as an `Encoder`, and check it on an example.

`load` builds the network without weights, compares all names and shapes with the checkpoint, and
only then loads it: transformers itself would load the tensors that fit and leave the others random.
The wrong values of a network that attends to padding, or counts positions from the wrong end, would
not be noticed without the checks.

Shape legend: B sequences, T tokens of the longest, E width.
"""

from __future__ import annotations

import contextlib
import logging
import re
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from featuremill.kit.errors import UserError, WorkloadError
from featuremill.kit.text import one_line
from featuremill.workload import Device, spread
from featuremill.workload.hugging_face import (
    CONFIG,
    NO_WEIGHTS,
    checkpoint_files,
    is_pointer,
    wrapped,
)
from featuremill.workload.networks import LayerOptions
from featuremill.workload.spread import Copies
from featuremill.workloads.encoder import causal, mosaicbert, padding, swiglu, t5
from featuremill.workloads.encoder.architectures import (
    ESM,
    GATED_SIGN,
    Facts,
    by_weights,
    config_of,
    facts_of,
)
from featuremill.workloads.encoder.vocabulary import Ids, Vocabulary

__all__ = ["Encoder", "check_padding", "load"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BOUNDS = {"bf16": 3e-2, "fp16": 5e-3, "fp32": 1e-5}
"""Largest relative L2 difference of a sequence alone and in a batch with a longer one, by dtype."""
TOKEN_COSINE = 0.9995
"""Smallest mean cosine of token vectors in 16 bits with fp32, as in `featuremill audit`."""
LETTERS = {
    "proteins": b"MKTAYIAKQRQISFVKSHFS",
    "nucleotides": b"ACGTTGCAAGCTTAGGCATC",
    "contigs": b"+MKTAYIAK+acgttg-RQI",
    "texts": b"Each text is a line.",
}
SHORT, LONG, ROOM = 19, 40, 1024
"""Letters of both examples, and a token limit above both."""
IDLE = re.compile(r"(^|\.)(position_ids|token_type_ids)$")
"""Buffers in older checkpoints, which every network computes itself."""
OLD_NAMES = (
    (re.compile(r"(?<=LayerNorm\.)gamma$"), "weight"),
    (re.compile(r"(?<=LayerNorm\.)beta$"), "bias"),
)
"""TensorFlow's names of the weight and bias of a LayerNorm, and PyTorch's."""
ROTARY = re.compile(r"encoder\.layer\.(\d+|\*)\.attention\.self\.rotary_embeddings\.inv_freq")
FREQUENCIES = "rotary_embeddings.inv_freq"
"""The rotary frequencies of all layers. Older files have them for each layer, and transformers 5
writes an asterisk as the number of the layer."""
POSITIONS = "embeddings.position_embeddings.weight"
"""A table in some checkpoints of ESM-2, which does not use it."""
T5_TABLES = ("shared.weight", "encoder.embed_tokens.weight")
"""The two names of a T5's embedding table; a checkpoint has one or both."""
ATTENTION = "sdpa"
"""transformers' name for torch's scaled_dot_product_attention, whose softmax is in fp32."""
CONV1D = "Conv1D"
"""The class name of GPT-2's linear layers."""
MOST_NAMED = 3
OF_AUTHORS = (mosaicbert.MosaicBert, swiglu.SwigluEncoder)
"""The networks that are no classes of transformers."""
log = logging.getLogger("featuremill.encoder")


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of the checkpoint in `folder` by name, memory-mapped if the format allows
    it. A pickle is read with `weights_only=True`."""
    tensors: dict[str, Tensor] = {}
    for path in checkpoint_files(folder):
        own = _file(path)
        if twice := tensors.keys() & own.keys():
            raise UserError(f"{path}: it has {min(twice)}, as another part does; download both.")
        tensors |= own
    if problem := wrapped(list(tensors)):
        raise UserError(f"{folder}: {problem}.")
    return tensors


def _file(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        raw = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # other files may raise any exception
        if is_pointer(path):
            raise UserError(f"{path}: {NO_WEIGHTS}.") from None
        reason = one_line(str(error)).partition(". ")[0][:120]
        raise UserError(
            f"{path}: this checkpoint cannot be read safely ({type(error).__name__}: {reason}); "
            "fetch it again, or save it as safetensors."
        ) from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: this is no state dict; save it as safetensors.")
    raw = raw.get("state_dict", raw)
    return {str(name): tensor for name, tensor in raw.items() if isinstance(tensor, torch.Tensor)}


def _transformers(model_type: str, model: str, **more: Any) -> Callable[..., Any]:
    """Return a function that builds a class of transformers; code in the folder never runs."""

    def build(config: Mapping[str, Any]) -> Any:
        import transformers

        own_config = transformers.CONFIG_MAPPING[model_type].from_dict(dict(config))
        own_config._attn_implementation = ATTENTION
        return getattr(transformers, model)(own_config, **more)

    return build


_esm = _transformers("esm", "EsmModel", add_pooling_layer=False)


def _gated_esm(config: Mapping[str, Any]) -> Any:
    """Return an ESM with SwiGLU feed-forward layers, as in the Nucleotide Transformer 2."""
    return swiglu.with_gates(_esm(config), bias=bool(config.get(GATED_SIGN, True)))


def _t5_named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a T5 with its embedding table under both names."""
    named = dict(tensors)
    for name, other in (T5_TABLES, T5_TABLES[::-1]):
        if other in named:
            named.setdefault(name, named[other])
    return named


BUILD: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "bert": _transformers("bert", "BertModel", add_pooling_layer=False),
    "esm": _esm,
    "gated esm": _gated_esm,
    "t5": t5.build,
    "modernbert": _transformers("modernbert", "ModernBertModel"),
    "mosaicbert": mosaicbert.MosaicBert,
    "AMPLIFY": swiglu.SwigluEncoder,
    "gLM2": swiglu.SwigluEncoder,
}
"""By architecture, a function of a config that returns the network without weights; causal networks
are built by `causal`."""
NAMED = {"t5": _t5_named, "AMPLIFY": swiglu.named, "gLM2": swiglu.named}
"""By architecture, a function that returns the tensors of a checkpoint under the names in the
network, if these differ."""


def load(
    options: LayerOptions,
    devices: Sequence[Device],
    folder: Path,
    dtype: str,
    example: Ids | None = None,
) -> Encoder:
    """Return the encoder in `folder`, its layers spread over `devices` by the `options`. Its matrix
    products are in `dtype`. For an `example` (T) of tokens, it has the last layer in fp32.

    Raises:
        UserError: if the checkpoint does not fit the config, a causal network fails on the example,
            or its layers cannot be on several devices.
    """
    places, of_products = spread.places(devices), DTYPES[dtype]
    tensors = tensors_of(folder)
    facts = by_weights(facts_of(folder), tensors)
    network = _filled(folder, facts, tensors)
    network.eval().requires_grad_(False)
    copies = spread.over(network, facts.num_layers, places, options.gpu_layers)
    encoder = Encoder(network, facts, places[0], copies)
    is_causal, is_narrow = facts.architecture.is_causal, of_products != torch.float32
    if example is None:
        _cast_products(network, of_products)
        return encoder
    tokens_T = torch.from_numpy(example).to(places[0])
    with _in_fp32(network):
        if is_narrow:
            encoder.exact_TE = encoder.last_layer(tokens_T)
        if is_causal:
            _prove(folder, encoder, tokens_T)
    _cast_products(network, of_products)
    if is_causal and is_narrow:
        _set_autocast(folder, encoder, tokens_T, of_products)
    return encoder


def _filled(folder: Path, facts: Facts, tensors: Mapping[str, Tensor]) -> torch.nn.Module:
    """Return the network of a folder with its weights.

    Raises:
        UserError: if a tensor is missing or unexpected, or has another shape.
    """
    name = facts.architecture.name
    try:
        if facts.architecture.is_causal:
            network, problems = causal.filled(causal.of_text(config_of(folder)), tensors)
        else:
            network, problems = _fitted(folder, facts, tensors)
    except UserError:
        raise
    except Exception as error:  # an inconsistent config may raise any exception
        raise UserError(
            f"{folder / CONFIG}: no {name} can be made of it ({one_line(str(error))[:200]}); take "
            "the config of the model."
        ) from None
    details = []
    for what, names in problems.items():
        if names:
            more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
            details.append(f"{what}: {', '.join(sorted(names)[:MOST_NAMED])}{more}")
    if details:
        raise UserError(
            f"{folder}: its weights are not those of the {name} that its {CONFIG} describes "
            f"({'; '.join(details)}); give a folder in which the two belong together."
        )
    return network


def _fitted(
    folder: Path, facts: Facts, tensors: Mapping[str, Tensor]
) -> tuple[torch.nn.Module, dict[str, set[str]]]:
    """Return the network of a config, and its missing, unexpected and wrongly shaped tensors. If
    there are none, the network has its weights."""
    from transformers.initialization import no_init_weights

    with no_init_weights():
        network = BUILD[facts.architecture.name](facts.config)
    heads = facts.architecture.heads
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    renamed = _renamed(folder, facts, tensors)
    idle = {FREQUENCIES, *(name for name in expected if name.startswith(heads))}
    problems = {
        "missing": expected.keys() - renamed.keys() - idle,
        "unexpected": renamed.keys() - expected.keys(),
        "of another shape": {
            f"{name} {tuple(tensor.shape)} for {expected[name]}"
            for name, tensor in renamed.items()
            if tuple(tensor.shape) != expected.get(name, tuple(tensor.shape))
        },
    }
    if not any(problems.values()):
        network.load_state_dict(renamed, strict=False, assign=True)
    return network, problems


def _prove(folder: Path, encoder: Encoder, tokens_T: Tensor) -> None:
    """Raise UserError if a causal network fails `causal.prove` on an example."""
    try:
        causal.prove(encoder, tokens_T)
    except causal.NotProven as why:
        raise UserError(
            f"{folder}: this {encoder.name} is not computed here, as {why}; give another network."
        ) from None


def _set_autocast(folder: Path, encoder: Encoder, tokens_T: Tensor, dtype: torch.dtype) -> None:
    """Enable autocast for a causal network that fails without it, as it mixes dtypes.

    Raises:
        UserError: if the network fails with autocast, too.
    """
    for encoder.cast_to in (None, dtype):
        try:
            causal.tried(lambda: encoder.last_layer(tokens_T))
        except causal.NotProven as error:
            why = error
        else:
            return
    raise UserError(
        f"{folder}: this {encoder.name} is not computed in 16 bits here, as {why}; set dtype: fp32."
    )


@contextlib.contextmanager
def _in_fp32(network: torch.nn.Module) -> Iterator[None]:
    """Compute in fp32 in the block: weights of each module are cast while it runs."""
    kept: dict[torch.nn.Module, list[Tensor]] = {}

    def widen(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        parameters = [*module.parameters(recurse=False)]
        kept[module] = [parameter.data for parameter in parameters]
        for parameter in parameters:
            parameter.data = parameter.data.float()
        return tuple(tensor.float() if tensor.is_floating_point() else tensor for tensor in inputs)

    def restore(module: torch.nn.Module, _: Any, output: Tensor) -> Tensor:
        for parameter, data in zip(module.parameters(recurse=False), kept.pop(module), strict=True):
            parameter.data = data
        return output

    hooks = []
    for module in network.modules():
        if any(parameter.dtype != torch.float32 for parameter in module.parameters(recurse=False)):
            hooks.append(module.register_forward_pre_hook(widen))
            hooks.append(module.register_forward_hook(restore))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _renamed(folder: Path, facts: Facts, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the encoder, without heads, under the names in the network."""
    prefix, heads = facts.architecture.prefix, facts.architecture.heads
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        bare = name.removeprefix(prefix)
        if bare.startswith(heads) or IDLE.search(bare):
            continue
        for old, new in OLD_NAMES:
            bare = old.sub(new, bare)
        if ROTARY.fullmatch(bare):
            bare = FREQUENCIES
            if bare in renamed and not bool((renamed[bare] == tensor).all()):
                raise UserError(
                    f"{folder}: its layers differ in their rotary frequencies; give another "
                    "network."
                )
        renamed[bare] = tensor
    if facts.architecture.prefix == ESM.prefix and facts.max_tokens is None:
        renamed.pop(POSITIONS, None)
    named = NAMED.get(facts.architecture.name)
    return named(renamed) if named else renamed


def _cast_products(network: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast the weights of linear layers to `dtype`, and all others to fp32.

    A linear layer casts its input to `dtype` and returns `dtype`. Added to the residual stream, its
    output becomes fp32 again. So the residual stream, norms and softmax are in fp32.
    """
    last: list[Tensor] = []

    def as_dtype(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Cast the input; the input that query, key and value share is cast once."""
        if inputs[0].dtype == dtype:
            return inputs
        if not last or last[0] is not inputs[0]:
            last[:] = inputs[0], inputs[0].to(dtype)
        return (last[1], *inputs[1:])

    # Modules that their authors keep in fp32, as fp16 overflows: in a T5, the last of a layer.
    wide = getattr(network, "_keep_in_fp32_modules", None) or ()
    for name, module in network.named_modules():
        is_product = isinstance(module, torch.nn.Linear) or type(module).__name__ == CONV1D
        if dtype == torch.float16 and name.rpartition(".")[2] in wide:
            is_product = False
        if is_product and dtype != torch.float32:
            module.register_forward_pre_hook(as_dtype)
        wanted = dtype if is_product else torch.float32
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(wanted)


class Encoder:
    """A network of any known architecture, with its weights."""

    def __init__(
        self, network: torch.nn.Module, facts: Facts, device: torch.device, copies: Copies
    ) -> None:
        """`device` is the device of tokens and hidden states; `copies` copies between it and the
        devices of other layers."""
        self.device = device
        self._copies = copies
        self.num_layers, self.width = facts.num_layers, facts.width
        self.exact_TE: Tensor | None = None
        """The last layer for the example, in fp32."""
        self.cast_to: torch.dtype | None = None
        """The dtype of autocast; None: disabled."""
        self.name = facts.architecture.name
        self.network = network
        self._is_of_transformers = not isinstance(network, OF_AUTHORS)

    @property
    def backend(self) -> str:
        """The network class and the device, for the receipt."""
        name = type(self.network).__name__
        where = self.device.type + self._copies.noted
        if not self._is_of_transformers:
            return f"{name}, {where}"
        import transformers

        config: Any = self.network.config
        kind = config._attn_implementation
        return f"transformers {transformers.__version__} {name}, {kind}, {where}"

    def last_layer(self, tokens_T: Tensor) -> Tensor:
        """Return the last hidden state of one sequence, (T, E) in fp32."""
        layer = self.num_layers
        return self.hidden_states(tokens_T[None], None, [layer])[layer][0]

    def hidden_states(
        self, tokens_BT: Tensor, is_token_BT: Tensor | None, wanted: Collection[int]
    ) -> dict[int, Tensor]:
        """Return hidden_BTE in fp32 of each wanted layer: 0 is the embedding, the last one includes
        the final norm of the network, if it has one.

        `is_token_BT` is False for padding; None: no padding.
        """
        cast = torch.autocast(self.device.type, self.cast_to, enabled=self.cast_to is not None)
        with torch.inference_mode(), cast:
            if not self._is_of_transformers:
                states = self.network(tokens_BT, is_token_BT)
            else:
                mask = None if is_token_BT is None else is_token_BT.long()
                is_last_only = set(wanted) == {self.num_layers}
                output = self.network(
                    input_ids=tokens_BT, attention_mask=mask, output_hidden_states=not is_last_only
                )
                if is_last_only:
                    return {self.num_layers: output.last_hidden_state.float()}
                states = (*output.hidden_states[:-1], output.last_hidden_state)
        assert len(states) == self.num_layers + 1
        bring = self._copies.bring
        return {layer: bring(states[layer].float(), self.device) for layer in wanted}


def examples(vocabulary: Vocabulary, alphabet: str) -> tuple[Ids, Ids]:
    """Return the tokens of a short sequence and of a long one."""
    letters = vocabulary.spelled(LETTERS[alphabet] * 2, alphabet)
    return vocabulary.tokens(letters[:SHORT]), vocabulary.tokens(letters[:LONG])


def check_padding(
    encoder: Encoder, vocabulary: Vocabulary, short: Ids, long: Ids, dtype: str
) -> None:
    """Compute a short sequence alone and beside a long one, and compare.

    Raises:
        WorkloadError: if they differ, or values are not finite.
    """
    layer = encoder.num_layers
    states = []
    for sequences in ([short], [short, long]):
        (group,) = [
            spread.on_device(group, encoder.device)
            for group in padding.groups(sequences, vocabulary, ROOM, most_filling=1.0)
        ]
        hidden = encoder.hidden_states(group.tokens_BT, group.is_token_BT, [layer])[layer]
        states.append(hidden[group.places.index(0), : len(short)])
    alone_TE, beside_TE = states
    off = float((alone_TE - beside_TE).norm() / alone_TE.norm())
    if not off <= BOUNDS[dtype]:  # also true for NaN
        raise WorkloadError(
            f"{encoder.backend}: the same sequence has other values beside a longer one (relative "
            f"error {off:.1g}, at most {BOUNDS[dtype]:g}), or none; nothing was computed: "
            "set dtype: fp32, and see whether this torch fits the device (featuremill doctor)"
        )


def check_precision(encoder: Encoder, example: Ids, dtype: str) -> None:
    """Warn if vectors of an example in 16 bits differ more from fp32 than those of ESM-2."""
    assert encoder.exact_TE is not None
    layer = encoder.num_layers
    tokens_BT = torch.from_numpy(example)[None].to(encoder.device)
    hidden_TE = encoder.hidden_states(tokens_BT, None, [layer])[layer][0]
    cosine = float(torch.cosine_similarity(hidden_TE, encoder.exact_TE, dim=-1).mean())
    if cosine < TOKEN_COSINE:
        log.warning(
            "%s moves this network further than ESM-2: of an example's tokens, the mean cosine "
            "with fp32 is %.4f (ESM-2's is above %s); set dtype: fp32, or see what that does to "
            "your records with featuremill audit",
            dtype,
            cosine,
            TOKEN_COSINE,
        )
