"""The architectures that are known, and the one place that knows about them.

What a config says is looked at without torch. A network is built empty, held against the
checkpoint name by name and shape by shape, and only then given its weights: transformers itself
loads what fits, warns at most, and computes with random numbers for the rest.

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
"""The marks of a MosaicBERT, which calls itself a BERT: in its config, and in a tensor's name."""
GATED_SIGN = "add_bias_fnn"
GATED_NAME = "encoder.layer.0.intermediate.dense.weight"
"""The marks of an ESM with gated feed-forward layers: a config key, a weight of twice the rows."""
IDLE = re.compile(r"(^|\.)(position_ids|token_type_ids)$")
"""Tables that checkpoints of older releases hold, and that any network makes for itself."""
OLD_NAMES = (
    (re.compile(r"(?<=LayerNorm\.)gamma$"), "weight"),
    (re.compile(r"(?<=LayerNorm\.)beta$"), "bias"),
)
"""TensorFlow's names of the scale and shift of a LayerNorm."""
ROTARY = re.compile(r"encoder\.layer\.(\d+|\*)\.attention\.self\.rotary_embeddings\.inv_freq")
FREQUENCIES = "rotary_embeddings.inv_freq"
"""Once for all layers; older files have it for each, and transformers 5 writes an asterisk for the
number of a layer."""
POSITIONS = "embeddings.position_embeddings.weight"
"""A table that some ESM-2 were saved with, and do not use."""
T5_TABLES = ("shared.weight", "encoder.embed_tokens.weight")
"""The two names of the embedding table; a checkpoint has either or both."""
ATTENTION = "sdpa"
"""transformers' name for torch's own attention, which has its softmax in fp32."""
CONV1D = "Conv1D"
"""GPT-2's module for a product."""
MOST_NAMED = 3


def _unknown(_: Mapping[str, Any]) -> int | None:
    return None


class Architecture(NamedTuple):
    """One that is known."""

    name: str
    prefix: str
    """The prefix of the encoder's names in a checkpoint with heads."""
    heads: tuple[str, ...]
    """The prefixes of tensors of heads in checkpoints."""
    build: Callable[[Mapping[str, Any]], torch.nn.Module] | None
    """Makes the network of a config, without weights; None where `causal` makes it with them."""
    layers_key: str = "num_hidden_layers"
    width_key: str = "hidden_size"
    positions: Callable[[Mapping[str, Any]], int | None] = _unknown
    """How many tokens a sequence can have at most; None where nothing in the network ends."""
    trained: Callable[[Mapping[str, Any]], int | None] = _unknown
    """With how many it was trained at most, where there could be more; None: that is not said."""
    plain: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    """Makes of a config one with the usual keys; UserError for what is not computed."""
    named: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = dict
    """Makes of a checkpoint's tensors those of the network by their names there."""
    is_gated: bool = False
    """Whether its feed-forward part has two products up."""
    is_of_transformers: bool = True
    is_causal: bool = False
    """Whether a token sees those before it alone."""
    is_whole: bool = False
    """Whether its authors compute proteins of any length."""


def _transformers(model_type: str, model: str, **more: Any) -> Callable[..., Any]:
    """Return a function that builds a class of transformers; code in the folder never runs."""

    def build(config: Mapping[str, Any]) -> Any:
        import transformers

        own_config = transformers.CONFIG_MAPPING[model_type].from_dict(dict(config))
        own_config._attn_implementation = ATTENTION  # whatever the config was saved with
        return getattr(transformers, model)(own_config, **more)

    return build


def _mosaic(config: Mapping[str, Any]) -> Any:
    from featuremill.workloads.encoder import mosaicbert

    return mosaicbert.MosaicBert(dict(config))


def _swiglu(turns_neighbours: bool) -> Callable[..., Any]:
    def build(config: Mapping[str, Any]) -> Any:
        from featuremill.workloads.encoder import swiglu

        return swiglu.SwigluEncoder(config, turns_neighbours=turns_neighbours)

    return build


def _swiglu_named(table: str) -> Callable[..., dict[str, Tensor]]:
    def named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        from featuremill.workloads.encoder import swiglu

        return swiglu.named(tensors, getattr(swiglu, table))

    return named


def _amplify_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return AMPLIFY's config; its inner width is two thirds of what it says, in eights."""
    meant = {
        "hidden_act": "SwiGLU",
        "rms_norm": True,
        "layer_norm_after_embedding": False,
        "att_bias": False,
        "ffn_bias": False,
    }
    for key, value in meant.items():
        if config.get(key, value) != value:
            raise UserError(
                f"its {key} is {config[key]!r}, and an AMPLIFY is computed with {value!r} only"
            )
    inner = _in_steps_of(8, int(2 * config["intermediate_size"] / 3))
    return {"norm_eps": 1e-5, **config, "intermediate_size": inner}


def _glm2_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return gLM2's config, which has keys of its own."""
    inner = int(2 * 4 * config["dim"] / 3)
    if config.get("ffn_dim_multiplier") is not None:
        inner = int(config["ffn_dim_multiplier"] * inner)
    return {
        "norm_eps": 1e-5,
        **config,
        "hidden_size": config["dim"],
        "num_hidden_layers": config["depth"],
        "num_attention_heads": config["heads"],
        "intermediate_size": _in_steps_of(config.get("swiglu_multiple_of", 256), inner),
    }


def _in_steps_of(step: int, number: int) -> int:
    return -(-number // step) * step


def _amplify_trained(config: Mapping[str, Any]) -> int | None:
    return int(config.get("max_length", 2048))


def _glm2_trained(_: Mapping[str, Any]) -> int | None:
    return 4096  # by its card


def _t5_named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a T5 with its embedding table under both of its names."""
    named = dict(tensors)
    for name, twin in (T5_TABLES, T5_TABLES[::-1]):
        if twin in named:
            named.setdefault(name, named[twin])
    return named


def _bert_positions(config: Mapping[str, Any]) -> int | None:
    return int(config.get("max_position_embeddings", 512))


def _gated_esm(config: Mapping[str, Any]) -> Any:
    """Return an ESM whose feed-forward part is a SwiGLU, as the Nucleotide Transformer 2 has it."""
    from featuremill.workloads.encoder import gated_esm

    return gated_esm.with_gates(_esm(config), bias=bool(config.get(GATED_SIGN, True)))


def _has_table(config: Mapping[str, Any]) -> bool:
    return bool(config.get("position_embedding_type", "absolute") == "absolute")


def _esm_tokens(config: Mapping[str, Any]) -> int:
    """Return the rows of the table of positions that count: it begins behind the padding's."""
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
    positions=_bert_positions,
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
            _swiglu(turns_neighbours=True),
            trained=_amplify_trained,
            plain=_amplify_config,
            named=_swiglu_named("AMPLIFY"),
            is_gated=True,
            is_of_transformers=False,
        ),
        Architecture(
            "gLM2",
            "glm2.",
            ("lm_head.",),
            _swiglu(turns_neighbours=False),
            trained=_glm2_trained,
            plain=_glm2_config,
            named=_swiglu_named("GLM2"),
            is_gated=True,
            is_of_transformers=False,
        ),
        *map(_causal, decoders.KNOWN),
    )
}


PACKAGES_OF_THEIR_OWN = ("e1", "esm3", "evo", "evo2", "stripedhyena")
"""Networks that are in their authors' packages alone."""


class Facts(NamedTuple):
    """What a folder's config says of its network."""

    architecture: Architecture
    config: dict[str, Any]
    num_layers: int
    width: int
    max_tokens: int | None
    """The tokens of a sequence, at most, special ones included; None where the network has no
    limit."""
    trained_tokens: int | None
    """As many as it was trained with, where that is not `max_tokens` and is known."""


def facts_of(folder: Path) -> Facts:
    """Return what the config in `folder` says; looks at no weights.

    Raises:
        UserError: it is of an architecture that is not known, or lacks a number.
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
    """Return the architecture of a network, by what its config says."""
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
    """Return why an unknown network is not supported; "" for one that is."""
    own = "write a workload for it (docs/your-workload.md), or take an encoder"
    name = config["model_type"].lower()
    if name == "esmc":
        return "an ESM C, which is computed by workload: esmc"
    if name in PACKAGES_OF_THEIR_OWN:
        return f"and its network is in its authors' package alone; {own}"
    reason = decoders.why_not(config)
    if reason is None:
        return f"and known ones are {', '.join(KNOWN)}, and transformers' causal networks"
    return reason and f"{reason}; give a causal one, or one of {', '.join(KNOWN)}"


def _by_its_weights(facts: Facts, tensors: Mapping[str, Tensor]) -> Facts:
    """Return the facts of the network that the weights are of, where its config does not tell."""
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
    """Return the encoder in `folder`, its layers spread over `devices` and, behind the first
    `gpu_layers`, the CPU. Its matrix products are in `dtype`. Of the tokens of an `example` (T), it
    has what the last layer is in fp32.

    Raises:
        UserError: the checkpoint is not that of the config's network, a causal network does not
            give what it should for the example, or its layers cannot be on several devices.
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
        with _wide(network):
            if dtype != torch.float32:
                encoder.exact_TE = encoder.last_layer(example.to(device))
            if facts.architecture.is_causal:
                _prove(folder, encoder, example.to(device))
    _narrow(network, dtype)
    if example is not None and facts.architecture.is_causal and dtype != torch.float32:
        _settle(folder, encoder, example.to(device), dtype)
    return encoder


def _filled(folder: Path, facts: Facts, tensors: Mapping[str, Tensor]) -> torch.nn.Module:
    """Return the network of a folder with its weights.

    Raises:
        UserError: a tensor is missing, has another shape, or is one too many.
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
    except Exception as error:  # of a config that contradicts itself
        raise UserError(
            f"{folder / CONFIG}: no {name} can be made of it ({one_line(str(error))[:200]}); take "
            "the config of the model."
        ) from None
    details = [f"{what}: {_some(sorted(names))}" for what, names in problems.items() if names]
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
    """Return the network of a config, and its missing, unexpected and wrongly shaped tensors. It
    has its weights if there are none of these."""
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
    """Refuse a causal network that does not give what it should for an example."""
    from featuremill.workloads.encoder import causal

    try:
        causal.prove(encoder, tokens_T)
    except causal.NotProven as why:
        raise UserError(
            f"{folder}: this {encoder.name} is not computed here, as {why}; give another network."
        ) from None


def _settle(folder: Path, encoder: Encoder, tokens_T: Tensor, dtype: torch.dtype) -> None:
    """Have torch narrow what goes into each product where a network mixes both number types."""
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
def _wide(network: torch.nn.Module) -> Iterator[None]:
    """Make a network compute in fp32: narrower weights are cast for one product at a time."""
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
    """Return the tensors of the encoder, without heads, under their present names."""
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


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _narrow(network: torch.nn.Module, dtype: torch.dtype) -> None:
    """Have the weights of the products of `network` in `dtype` and all else in fp32.

    A product takes what it gets as `dtype` and hands `dtype` on; added to the residual stream that
    becomes fp32 again, as embeddings and norms are. So the stream, norms and softmax are fp32.
    """
    import torch

    last: list[Tensor] = []

    def as_dtype(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Query, key and value get the same tensor, which is made narrow once."""
        if inputs[0].dtype == dtype:
            return inputs
        if not last or last[0] is not inputs[0]:
            last[:] = inputs[0], inputs[0].to(dtype)
        return (last[1], *inputs[1:])

    # Products that fp16 cannot hold, by their authors' experience: of a T5, the last of a layer.
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
    """A network with its weights, whatever its architecture."""

    def __init__(
        self, network: torch.nn.Module, facts: Facts, device: torch.device, copies: Copies
    ) -> None:
        """`device` is the first one, which takes tokens and returns hidden states; `copies` copies
        between it and others."""
        self.device = device
        self._copies = copies
        self.num_layers, self.width = facts.num_layers, facts.width
        self.exact_TE: Tensor | None = None
        """The last layer of an example in fp32."""
        self.cast_to: torch.dtype | None = None
        """The type of the inputs of products, if the weights do not settle it."""
        self.name = facts.architecture.name
        self.network = network
        self._is_of_transformers = facts.architecture.is_of_transformers

    @property
    def backend(self) -> str:
        """What computes, for the receipt."""
        name = type(self.network).__name__
        where = self.device.type + self._copies.noted
        if not self._is_of_transformers:
            return f"{name}, {where}"
        import transformers

        config: Any = self.network.config
        kind = config._attn_implementation
        return f"transformers {transformers.__version__} {name}, {kind}, {where}"

    def last_layer(self, tokens_T: Tensor) -> Tensor:
        """Return what the last layer is of one sequence, (T, E) in fp32."""
        layer = self.num_layers
        return self.hidden_states(tokens_T[None], None, [layer])[layer][0]

    def hidden_states(
        self, tokens_BT: Tensor, is_token_BT: Tensor | None, wanted: Collection[int]
    ) -> dict[int, Tensor]:
        """Return hidden_BTE in fp32 of each wanted layer: 0 is the embedding, the last one has the
        final norm applied where the network has one.

        `is_token_BT` is False for filling, or None where there is none.
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
