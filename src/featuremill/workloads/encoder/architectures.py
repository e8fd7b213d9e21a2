"""The known encoder architectures, and `Encoder`, a network with its weights.

`facts_of` reads a config without torch. `load` builds the network without weights, compares all
names and shapes with the checkpoint, and only then loads it: transformers itself would load the
tensors that fit and leave the others random.

Shape legend: B sequences, T tokens of the longest, E width.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.kit.text import one_line
from featuremill.workload.hugging_face import CONFIG
from featuremill.workloads.encoder import decoders, t5
from featuremill.workloads.encoder import folder as folders

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from featuremill.workload.spread import Copies

__all__ = ["BERT", "Encoder", "Facts", "facts_of"]
MOSAIC_SIGN = "alibi_starting_size"
MOSAIC_NAME = "mlp.gated_layers"
"""A config key and a part of tensor names that only MosaicBERT has; its model_type is bert."""
GATED_SIGN = "add_bias_fnn"
GATED_NAME = "encoder.layer.0.intermediate.dense.weight"
"""A config key of ESMs with gated feed-forward layers, and the weight that has twice the rows."""
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


def _unknown(_: Mapping[str, Any]) -> int | None:
    return None


class Architecture(NamedTuple):
    """An encoder architecture, and how its config and checkpoint are read."""

    name: str
    prefix: str
    """The prefix of the encoder's tensor names in a checkpoint with heads."""
    heads: tuple[str, ...]
    """The prefixes of the names of heads' tensors in checkpoints."""
    build: Callable[[Mapping[str, Any]], torch.nn.Module] | None
    """A function of a config that returns the network without weights; None: `causal.filled`."""
    layers_key: str = "num_hidden_layers"
    width_key: str = "hidden_size"
    positions: Callable[[Mapping[str, Any]], int | None] = _unknown
    """A function that returns the largest number of tokens per sequence; None: unlimited."""
    trained: Callable[[Mapping[str, Any]], int | None] = _unknown
    """A function that returns the tokens per sequence in training, if more are possible."""
    plain: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    """A function that returns a config with the usual keys; UserError if it is not supported."""
    named: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = dict
    """A function that returns the tensors of a checkpoint under the names in the network."""
    is_gated: bool = False
    """Whether the feed-forward layers are gated, with two up projections."""
    is_of_transformers: bool = True
    """Whether the network is a class of transformers."""
    is_causal: bool = False
    """Whether attention is causal: a token attends only to itself and earlier tokens."""
    is_whole: bool = False
    """Whether its authors compute records of any length whole."""


def _transformers(model_type: str, model: str, **more: Any) -> Callable[..., Any]:
    """Return a function that builds a class of transformers; code in the folder never runs."""

    def build(config: Mapping[str, Any]) -> Any:
        import transformers

        own_config = transformers.CONFIG_MAPPING[model_type].from_dict(dict(config))
        own_config._attn_implementation = ATTENTION
        return getattr(transformers, model)(own_config, **more)

    return build


def _mosaic(config: Mapping[str, Any]) -> Any:
    from featuremill.workloads.encoder import mosaicbert

    return mosaicbert.MosaicBert(config)


def _swiglu(config: Mapping[str, Any]) -> Any:
    from featuremill.workloads.encoder import swiglu

    return swiglu.SwigluEncoder(config)


def _swiglu_named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    from featuremill.workloads.encoder import swiglu

    return swiglu.named(tensors)


def _amplify_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return AMPLIFY's config with the usual keys. The inner width is two thirds of the stated
    one, rounded up to a multiple of 8."""
    supported = {
        "hidden_act": "SwiGLU",
        "rms_norm": True,
        "layer_norm_after_embedding": False,
        "att_bias": False,
        "ffn_bias": False,
    }
    for key, value in supported.items():
        if config.get(key, value) != value:
            raise UserError(
                f"its {key} is {config[key]!r}, and an AMPLIFY is computed with {value!r} only"
            )
    inner = _multiple_of(8, int(2 * config["intermediate_size"] / 3))
    return {"norm_eps": 1e-5, **config, "intermediate_size": inner}


def _glm2_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return gLM2's config with the usual keys."""
    inner = int(2 * 4 * config["dim"] / 3)
    if config.get("ffn_dim_multiplier") is not None:
        inner = int(config["ffn_dim_multiplier"] * inner)
    return {
        "norm_eps": 1e-5,
        **config,
        "hidden_size": config["dim"],
        "num_hidden_layers": config["depth"],
        "num_attention_heads": config["heads"],
        "intermediate_size": _multiple_of(config.get("swiglu_multiple_of", 256), inner),
    }


def _multiple_of(step: int, number: int) -> int:
    return -(-number // step) * step


def _t5_named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a T5 with its embedding table under both names."""
    named = dict(tensors)
    for name, other in (T5_TABLES, T5_TABLES[::-1]):
        if other in named:
            named.setdefault(name, named[other])
    return named


def _gated_esm(config: Mapping[str, Any]) -> Any:
    """Return an ESM with SwiGLU feed-forward layers, as in the Nucleotide Transformer 2."""
    from featuremill.workloads.encoder import swiglu

    return swiglu.with_gates(_esm(config), bias=bool(config.get(GATED_SIGN, True)))


def _has_table(config: Mapping[str, Any]) -> bool:
    return bool(config.get("position_embedding_type", "absolute") == "absolute")


def _esm_tokens(config: Mapping[str, Any]) -> int:
    """Return the number of positions in the table, without the rows up to the padding's."""
    return int(config.get("max_position_embeddings", 1026)) - int(config.get("pad_token_id", 1)) - 1


def _esm_positions(config: Mapping[str, Any]) -> int | None:
    return _esm_tokens(config) if _has_table(config) else None


def _esm_trained(config: Mapping[str, Any]) -> int | None:
    return None if _has_table(config) else _esm_tokens(config)


def _bert_trained(config: Mapping[str, Any]) -> int | None:
    most = config.get("max_position_embeddings")
    return int(most) if most else None


def _causal(model_type: str) -> Architecture:
    return Architecture(
        model_type,
        "",
        (),
        None,
        positions=decoders.positions,
        trained=decoders.trained,
        plain=decoders.plain,
        is_gated=model_type not in decoders.NOT_GATED,
        is_causal=True,
    )


BERT = Architecture(
    "bert",
    "bert.",
    ("cls.", "pooler.", "classifier.", "qa_outputs."),
    _transformers("bert", "BertModel", add_pooling_layer=False),
    positions=lambda config: int(config.get("max_position_embeddings", 512)),
)
_esm = _transformers("esm", "EsmModel", add_pooling_layer=False)
ESM = Architecture(
    "esm",
    "esm.",
    ("lm_head.", "contact_head.", "pooler.", "classifier.", "unet.", "fc."),
    _esm,
    positions=_esm_positions,
    trained=_esm_trained,
)
GATED_ESM = ESM._replace(name="gated esm", build=_gated_esm, is_gated=True)
MOSAIC = Architecture(
    "mosaicbert", "bert.", BERT.heads, _mosaic, is_gated=True, is_of_transformers=False
)
KNOWN = {
    known.name: known
    for known in (
        BERT,
        ESM,
        Architecture(
            "t5",
            "",
            ("decoder.", "lm_head.", "classification_head.", "classifier."),
            t5.build,
            layers_key="num_layers",
            width_key="d_model",
            named=_t5_named,
            is_whole=True,
        ),
        Architecture(
            "modernbert",
            "model.",
            ("head.", "decoder.", "classifier."),
            _transformers("modernbert", "ModernBertModel"),
            trained=_bert_trained,
            is_gated=True,
        ),
        MOSAIC,
        Architecture(
            "AMPLIFY",
            "",
            ("decoder.", "layer_norm_2."),
            _swiglu,
            trained=lambda config: int(config.get("max_length", 2048)),
            plain=_amplify_config,
            named=_swiglu_named,
            is_gated=True,
            is_of_transformers=False,
        ),
        Architecture(
            "gLM2",
            "glm2.",
            ("lm_head.",),
            _swiglu,
            trained=lambda _: 4096,  # by its card
            plain=_glm2_config,
            named=_swiglu_named,
            is_gated=True,
            is_of_transformers=False,
        ),
        *map(_causal, decoders.KNOWN),
    )
}


UNSUPPORTED = ("e1", "esm3", "evo", "evo2", "stripedhyena")
"""Model types whose network is only in a package of its authors."""


class Facts(NamedTuple):
    """The facts about a network in the config of its folder."""

    architecture: Architecture
    config: dict[str, Any]
    num_layers: int
    width: int
    max_tokens: int | None
    """Largest number of tokens per sequence, with special tokens; None: unlimited."""
    trained_tokens: int | None
    """Largest number of tokens per sequence in training; None: unknown, or `max_tokens`."""


def facts_of(folder: Path) -> Facts:
    """Return the facts in the config of `folder`, without reading weights.

    Raises:
        UserError: if the architecture is not supported, or the config lacks a number.
    """
    config = folders.config_of(folder)
    path = folder / CONFIG
    architecture = _architecture(config, path)
    is_decoder = config.get("is_decoder") and not architecture.is_causal
    if is_decoder or config.get("add_cross_attention"):
        raise UserError(f"{path}: this is a decoder; give a network that is an encoder alone.")
    try:
        config = architecture.plain(config)
    except (UserError, KeyError, TypeError, ValueError) as error:
        problem = str(error) if isinstance(error, UserError) else f"it lacks or has a wrong {error}"
        raise UserError(f"{path}: {problem}; take the config of the model.") from None
    keys = architecture.layers_key, architecture.width_key
    num_layers, width = (config.get(key) for key in keys)
    if not (isinstance(num_layers, int) and isinstance(width, int) and min(num_layers, width) > 0):
        raise UserError(f"{path}: {' and '.join(keys)} have to be whole numbers above 0 in it.")
    return Facts(
        architecture,
        config,
        num_layers,
        width,
        architecture.positions(config),
        architecture.trained(config),
    )


def _architecture(config: Mapping[str, Any], path: Path) -> Architecture:
    name = config["model_type"]
    if name == "bert" and MOSAIC_SIGN in config:
        return MOSAIC
    if name == "esm" and GATED_SIGN in config:
        if config.get("rescaling_factor"):
            raise UserError(
                f"{path}: its rescaling_factor is {config['rescaling_factor']}, which stretches "
                "the positions, and that is not computed here; set it to null."
            )
        return GATED_ESM
    if name in KNOWN:
        return KNOWN[name]
    if why_not := _why_not(config):
        raise UserError(f"{path}: its model_type is {name!r}, {why_not}.")
    return _causal(name)


def _why_not(config: Mapping[str, Any]) -> str:
    """Return why a network with another model_type is not supported; "" if it is."""
    own = "write a workload for it (docs/your-workload.md), or take an encoder"
    name = config["model_type"].lower()
    if name == "esmc":
        return "an ESM C, which is computed by workload: esmc"
    if name in UNSUPPORTED:
        return f"and its network is in its authors' package alone; {own}"
    reason = decoders.why_not(config)
    if reason is None:
        return f"and known ones are {', '.join(KNOWN)}, and transformers' causal networks"
    return reason and f"{reason}; give a causal one, or one of {', '.join(KNOWN)}"


def _by_its_weights(facts: Facts, tensors: Mapping[str, Tensor]) -> Facts:
    """Return the facts with the architecture of the weights, if the config leaves it open."""
    if facts.architecture is BERT and any(MOSAIC_NAME in name for name in tensors):
        return facts._replace(architecture=MOSAIC, max_tokens=None)
    if facts.architecture in (ESM, GATED_ESM):
        up = tensors.get(ESM.prefix + GATED_NAME, tensors.get(GATED_NAME))
        is_gated = up is not None and len(up) == 2 * int(
            facts.config.get("intermediate_size", 3072)
        )
        return facts._replace(architecture=GATED_ESM if is_gated else ESM)
    return facts


def load(
    folder: Path,
    devices: Sequence[torch.device],
    dtype: torch.dtype,
    example: Tensor | None = None,
    gpu_layers: int | None = None,
) -> Encoder:
    """Return the encoder in `folder`, its layers spread over `devices`; layers after the first
    `gpu_layers` are on the CPU. Its matrix products are in `dtype`. For an `example` (T) of tokens,
    it has the last layer in fp32.

    Raises:
        UserError: if the checkpoint does not fit the config, a causal network fails on the example,
            or its layers cannot be on several devices.
    """
    import torch

    from featuremill.workload import spread

    device = devices[0]
    tensors = folders.tensors_of(folder)
    facts = _by_its_weights(facts_of(folder), tensors)
    network = _filled(folder, facts, tensors)
    network.eval().requires_grad_(False)
    encoder = Encoder(
        network, facts, device, spread.over(network, facts.num_layers, devices, gpu_layers)
    )
    if example is not None:
        with _in_fp32(network):
            if dtype != torch.float32:
                encoder.exact_TE = encoder.last_layer(example.to(device))
            if facts.architecture.is_causal:
                _prove(folder, encoder, example.to(device))
    _cast_products(network, dtype)
    if example is not None and facts.architecture.is_causal and dtype != torch.float32:
        _set_autocast(folder, encoder, example.to(device), dtype)
    return encoder


def _filled(folder: Path, facts: Facts, tensors: Mapping[str, Tensor]) -> torch.nn.Module:
    """Return the network of a folder with its weights.

    Raises:
        UserError: if a tensor is missing or unexpected, or has another shape.
    """
    from featuremill.workloads.encoder import causal

    name = facts.architecture.name
    try:
        if facts.architecture.build is None:
            config = decoders.of_text(folders.config_of(folder))
            network, problems = causal.filled(config, tensors)
        else:
            network, problems = _fitted(folder, facts, tensors, facts.architecture.build)
    except UserError:
        raise
    except Exception as error:  # an inconsistent config may raise any exception
        raise UserError(
            f"{folder / CONFIG}: no {name} can be made of it ({one_line(str(error))[:200]}); take "
            "the config of the model."
        ) from None
    details = [f"{what}: {_shortened(sorted(names))}" for what, names in problems.items() if names]
    if details:
        raise UserError(
            f"{folder}: its weights are not those of the {name} that its {CONFIG} describes "
            f"({'; '.join(details)}); give a folder in which the two belong together."
        )
    return network


def _fitted(
    folder: Path,
    facts: Facts,
    tensors: Mapping[str, Tensor],
    build: Callable[[Mapping[str, Any]], torch.nn.Module],
) -> tuple[torch.nn.Module, dict[str, set[str]]]:
    """Return the network of a config, and its missing, unexpected and wrongly shaped tensors. If
    there are none, the network has its weights."""
    from transformers.initialization import no_init_weights

    with no_init_weights():
        network = build(facts.config)
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
    from featuremill.workloads.encoder import causal

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
    from featuremill.workloads.encoder import causal

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
    import torch

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
    return facts.architecture.named(renamed)


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _cast_products(network: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast the weights of linear layers to `dtype`, and all others to fp32.

    A linear layer casts its input to `dtype` and returns `dtype`. Added to the residual stream, its
    output becomes fp32 again. So the residual stream, norms and softmax are in fp32.
    """
    import torch

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
        self._is_of_transformers = facts.architecture.is_of_transformers

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
        import torch

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
