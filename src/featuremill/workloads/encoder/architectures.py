"""The encoder architectures, and how their configs are read, without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.workload.hugging_face import CONFIG, json_of, refuse_adapter
from featuremill.workloads.encoder import causal

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BERT", "Facts", "facts_of"]
MOSAIC_SIGN = "alibi_starting_size"
MOSAIC_NAME = "mlp.gated_layers"
"""A config key and a part of tensor names that only MosaicBERT has; its model_type is bert."""
GATED_SIGN = "add_bias_fnn"
GATED_NAME = "encoder.layer.0.intermediate.dense.weight"
"""A config key of ESMs with gated feed-forward layers, and the weight that has twice the rows."""


def _unknown(_: Mapping[str, Any]) -> int | None:
    return None


class Architecture(NamedTuple):
    """An encoder architecture, and how its config and checkpoint are read; `loader` builds it."""

    name: str
    prefix: str
    """The prefix of the encoder's tensor names in a checkpoint with heads."""
    heads: tuple[str, ...]
    """The prefixes of the names of heads' tensors in checkpoints."""
    layers_key: str = "num_hidden_layers"
    width_key: str = "hidden_size"
    positions: Callable[[Mapping[str, Any]], int | None] = _unknown
    """A function that returns the largest number of tokens per sequence; None: unlimited."""
    trained: Callable[[Mapping[str, Any]], int | None] = _unknown
    """A function that returns the tokens per sequence in training, if more are possible."""
    plain: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    """A function that returns a config with the usual keys; UserError if it is not supported."""
    is_gated: bool = False
    """Whether the feed-forward layers are gated, with two up projections."""
    is_causal: bool = False
    """Whether attention is causal: a token attends only to itself and earlier tokens."""
    is_whole: bool = False
    """Whether its authors compute records of any length whole."""


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


def _has_table(config: Mapping[str, Any]) -> bool:
    return bool(config.get("position_embedding_type", "absolute") == "absolute")


def _esm_tokens(config: Mapping[str, Any]) -> int:
    """Return the number of positions in the table, without the rows up to the padding's."""
    return int(config.get("max_position_embeddings", 1026)) - int(config.get("pad_token_id", 1)) - 1


def _causal(model_type: str) -> Architecture:
    return Architecture(
        model_type,
        "",
        (),
        positions=causal.positions,
        trained=causal.trained,
        plain=causal.plain,
        is_gated=model_type not in causal.NOT_GATED,
        is_causal=True,
    )


BERT = Architecture(
    "bert",
    "bert.",
    ("cls.", "pooler.", "classifier.", "qa_outputs."),
    positions=lambda config: int(config.get("max_position_embeddings", 512)),
)
ESM = Architecture(
    "esm",
    "esm.",
    ("lm_head.", "contact_head.", "pooler.", "classifier.", "unet.", "fc."),
    positions=lambda config: _esm_tokens(config) if _has_table(config) else None,
    trained=lambda config: None if _has_table(config) else _esm_tokens(config),
)
GATED_ESM = ESM._replace(name="gated esm", is_gated=True)
MOSAIC = Architecture("mosaicbert", "bert.", BERT.heads, is_gated=True)
T5 = Architecture(
    "t5",
    "",
    ("decoder.", "lm_head.", "classification_head.", "classifier."),
    layers_key="num_layers",
    width_key="d_model",
    is_whole=True,
)
MODERNBERT = Architecture(
    "modernbert",
    "model.",
    ("head.", "decoder.", "classifier."),
    trained=lambda config: int(config.get("max_position_embeddings") or 0) or None,
    is_gated=True,
)
AMPLIFY = Architecture(
    "AMPLIFY",
    "",
    ("decoder.", "layer_norm_2."),
    trained=lambda config: int(config.get("max_length", 2048)),
    plain=_amplify_config,
    is_gated=True,
)
GLM2 = Architecture(
    "gLM2",
    "glm2.",
    ("lm_head.",),
    trained=lambda _: 4096,  # by its card
    plain=_glm2_config,
    is_gated=True,
)
KNOWN = {
    known.name: known
    for known in (
        *(BERT, ESM, T5, MODERNBERT, MOSAIC, AMPLIFY, GLM2),
        *map(_causal, causal.KNOWN),
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


def config_of(folder: Path) -> dict[str, Any]:
    """Return the config of the encoder in `folder`.

    Raises:
        UserError: if there is none, or it lacks the keys that Hugging Face writes.
    """
    if folder.is_file():
        raise UserError(
            f"options.model: {folder}: this is a file; give the folder that holds it, with its "
            f"{CONFIG} and its vocabulary."
        )
    if not (folder / CONFIG).is_file():
        refuse_adapter(folder)
    config = json_of(folder / CONFIG)
    if not isinstance(config.get("model_type"), str):
        raise UserError(f"{folder / CONFIG}: it names no model_type; take the one of the model.")
    return config


def facts_of(folder: Path) -> Facts:
    """Return the facts in the config of `folder`, without reading weights.

    Raises:
        UserError: if the architecture is not supported, or the config lacks a number.
    """
    config = config_of(folder)
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
    reason = causal.why_not(config)
    if reason is None:
        return f"and known ones are {', '.join(KNOWN)}, and transformers' causal networks"
    return reason and f"{reason}; give a causal one, or one of {', '.join(KNOWN)}"


def by_weights(facts: Facts, tensors: Mapping[str, Tensor]) -> Facts:
    """Return the facts with the architecture of the weights, if the config leaves it open."""
    if facts.architecture is BERT and any(MOSAIC_NAME in name for name in tensors):
        return facts._replace(architecture=MOSAIC, max_tokens=None)
    if facts.architecture in (ESM, GATED_ESM):
        up = tensors.get(ESM.prefix + GATED_NAME, tensors.get(GATED_NAME))
        inner = int(facts.config.get("intermediate_size", 3072))
        is_gated = up is not None and len(up) == 2 * inner
        return facts._replace(architecture=GATED_ESM if is_gated else ESM)
    return facts
