"""Estimate the memory of an encoder from its config and the tokens of a batch.

Imports no torch, except for a causal network that is not KNOWN in `causal`.
tests/test_encoder_workload.py compares the estimates with measured peaks on a CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from featuremill.workload import Weights
from featuremill.workloads.encoder import causal, t5
from featuremill.workloads.encoder.architectures import config_of, facts_of
from featuremill.workloads.encoder.options import Options

NUMBER_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
FILE_BYTES = {"float16": 2, "bfloat16": 2}
FLOAT_BYTES = 4
ACTIVATIONS_IN_STEPS = {"gelu_new": 4}
"""Activations that take several operations, and the number of their tensors alive at once."""
STATES_AT_ONCE = 3
"""Number of tensors of all states of a recurrent layer alive at once, without a fused kernel."""
SLACK = 1.1
"""Factor for rounding and fragmentation of the allocator."""
CPU_PROCESS_MB = 500
"""Measured memory of Python, torch, transformers and buffers of the matrix library."""
CUDA_PROCESS_MB = 750
"""Measured memory of the CUDA context and kernels, on an H200 (`workloads/esm2/estimates.py`)."""


class Size(NamedTuple):
    """The sizes of an encoder that the estimate needs; the fields are also keys of metadata."""

    layers: int
    width: int
    inner_width: int
    attention_width: int
    """Width of all heads together."""
    heads: int
    num_product_numbers: int
    """Number of parameters of linear layers."""
    num_other_numbers: int
    """Number of parameters that stay in fp32: embeddings, norms and experts."""
    file_number_bytes: int
    num_scores: int
    """Number of tensors of all scores at once: 3 with softcap, as in Gemma 2, or eager; else 0."""
    num_scores_in_parts: int
    """Number of tensors of MOST_SCORES scores: 2 with a bias per score, as in a T5; else 0."""
    num_inner: int
    """Number of tensors of the inner width alive at once."""
    has_experts: int
    """1 if tensors of experts are read and then joined, else 0."""

    @property
    def file_bytes(self) -> int:
        """Bytes of all numbers in the checkpoint."""
        return (self.num_product_numbers + self.num_other_numbers) * self.file_number_bytes


def size_of_config(folder: Path) -> Size:
    """Return the size of the encoder in `folder`, from its config."""
    facts = facts_of(folder)
    config, name = facts.config, facts.architecture.name
    if name == "t5":
        heads, inner = int(config.get("num_heads", 8)), int(config.get("d_ff", 2048))
        attention = heads * int(config.get("d_kv", 64))
    else:
        heads = int(config.get("num_attention_heads", 12))
        inner = int(config.get("intermediate_size", 4 * facts.width))
        attention = heads * int(config.get("head_dim") or facts.width // heads)
    is_gated = facts.architecture.is_gated or "gated" in str(config.get("feed_forward_proj", ""))
    layer = (2 + is_gated) * inner + 4 * attention
    products = facts.num_layers * facts.width * layer
    embedded = int(config.get("vocab_size") or 0) + (facts.max_tokens or 0)
    others = facts.width * (embedded + 4 * facts.num_layers)
    has_softcap = bool(config.get("attn_logit_softcapping"))
    num_inner = 2 + is_gated
    if facts.architecture.is_causal and name not in causal.KNOWN:
        counted = causal.counted(causal.of_text(config_of(folder)))
        products, others = counted.products, counted.others
        has_softcap |= counted.has_all_scores
        inner = int(config.get("moe_intermediate_size") or inner)
        num_inner *= int(config.get("num_experts_per_tok") or 1)
        num_inner += STATES_AT_ONCE * int(config.get("state_size") or 0)
    activation = config.get("activation_function") or config.get("hidden_act")
    number = config.get("dtype") or config.get("torch_dtype") or "float32"
    return Size(
        facts.num_layers,
        facts.width,
        inner,
        attention,
        heads,
        products,
        others,
        file_number_bytes=FILE_BYTES.get(str(number), FLOAT_BYTES),
        num_scores=3 * has_softcap,
        num_scores_in_parts=2 * (name == "t5"),
        num_inner=max(num_inner, ACTIVATIONS_IN_STEPS.get(str(activation), 0)),
        has_experts=int(bool(config.get("num_experts_per_tok"))),
    )


def size_of(weights: Weights) -> Size:
    """Return the size in the metadata of `weights`."""
    return Size(**{name: int(weights.metadata[name]) for name in Size._fields})


def estimate_mb(size: Size, options: Options, kind: str, batch_tokens: int) -> int:
    """Return the peak in MiB: slack x (weights + activations) + memory of the bare process."""
    assert options.letters_per_token is not None
    letters = options.max_residues or batch_tokens * options.letters_per_token
    most_tokens = options.max_tokens or letters // options.letters_per_token + 2
    longest = min(batch_tokens, most_tokens)
    number_bytes = NUMBER_BYTES[options.dtype]
    share = options.share_of_layers(kind, size.layers)
    held = share * size.num_product_numbers * number_bytes + size.num_other_numbers * FLOAT_BYTES
    if kind == "cpu":
        # Pages of the file count, too, unless the mapped weights are used without a cast.
        is_wide = size.file_number_bytes == FLOAT_BYTES
        read = 0 if is_wide and options.dtype == "fp32" else size.num_product_numbers
        is_read = (size.has_experts and options.dtype != "fp32") or not is_wide
        read += size.num_other_numbers * is_read
        held += read * size.file_number_bytes
    kept = 1 if options.layers == (size.layers,) else size.layers + 1
    held += batch_tokens * _activation_bytes(size, kept, longest, number_bytes)
    scores = min(t5.MOST_SCORES[kind], batch_tokens * size.heads * longest)
    held += size.num_scores_in_parts * scores * FLOAT_BYTES
    process_mb = CUDA_PROCESS_MB if kind == "cuda" else CPU_PROCESS_MB
    return round(SLACK * held / 2**20) + process_mb


def _activation_bytes(size: Size, num_kept: int, longest: int, number_bytes: int) -> int:
    """Return the peak bytes per token in a layer: kept hidden states, the residual stream twice,
    and the feed-forward layers or attention."""
    stream = (num_kept + 2) * size.width * FLOAT_BYTES
    feed_forward = size.num_inner * size.inner_width * number_bytes
    attention = 4 * size.attention_width * number_bytes
    attention += size.num_scores * size.heads * longest * FLOAT_BYTES
    return stream + max(feed_forward, attention)
