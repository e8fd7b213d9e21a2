"""How much memory an encoder takes, from its config and the tokens of a batch, before it runs.

No torch. tests/test_encoder_workload.py holds it against measured peaks on a CPU.
"""

from __future__ import annotations

from typing import NamedTuple

from featuremill.workload import Weights
from featuremill.workloads.encoder import t5
from featuremill.workloads.encoder.architectures import Facts
from featuremill.workloads.encoder.options import Options

NUMBER_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
FILE_BYTES = {"float16": 2, "bfloat16": 2}
FLOAT_BYTES = 4
ACTIVATIONS_IN_STEPS = {"gelu_new": 4}
"""Activations that are computed in several operations, and how many of their tensors live."""
SLACK = 1.1
"""What the allocator rounds up and cannot use."""
CPU_PROCESS_MB = 500
"""Python, torch, transformers and the matrix library's own buffers: measured."""
CUDA_PROCESS_MB = 750
"""The CUDA context and loaded kernels: measured on an H200 (`workloads/esm2/memory.py`)."""


class Size(NamedTuple):
    """What the estimate needs to know of an encoder; the names are those of its metadata."""

    layers: int
    width: int
    inner_width: int
    """Of the feed-forward part."""
    attention_width: int
    """Of all heads together."""
    heads: int
    num_up: int
    """Products from the width to the inner width: 2 where it is gated."""
    embedded: int
    """Tokens and positions that have a vector."""
    file_number_bytes: int
    num_scores: int
    """How often all scores are laid out at once: 3 where they are bent, as in a Gemma 2, else 0."""
    num_scores_in_parts: int
    """How often some at a time are: 2 where each gets a bias of its own, as in a T5, else 0."""
    num_inner: int
    """Tensors of the inner width that live at once."""

    @property
    def num_product_numbers(self) -> int:
        """Matrices of all layers."""
        inner, attention = (self.num_up + 1) * self.inner_width, 4 * self.attention_width
        return self.layers * self.width * (inner + attention)

    @property
    def num_other_numbers(self) -> int:
        """What stays in fp32: embeddings and norms."""
        return self.width * (self.embedded + 4 * self.layers)

    @property
    def file_bytes(self) -> int:
        """What the numbers take in the checkpoint."""
        return (self.num_product_numbers + self.num_other_numbers) * self.file_number_bytes


def size_told(facts: Facts) -> Size:
    """Return what the config of an encoder tells of its size."""
    config, name = facts.config, facts.architecture.name
    if name == "t5":
        heads, inner = int(config.get("num_heads", 8)), int(config.get("d_ff", 2048))
        attention = heads * int(config.get("d_kv", 64))
    else:
        heads = int(config.get("num_attention_heads", 12))
        inner = int(config.get("intermediate_size", 4 * facts.width))
        attention = heads * int(config.get("head_dim") or facts.width // heads)
    is_gated = facts.architecture.is_gated or "gated" in str(config.get("feed_forward_proj", ""))
    is_bent = bool(config.get("attn_logit_softcapping"))
    activation = config.get("activation_function") or config.get("hidden_act")
    number = config.get("dtype") or config.get("torch_dtype") or "float32"
    return Size(
        facts.num_layers,
        facts.width,
        inner,
        attention,
        heads,
        1 + is_gated,
        embedded=int(config.get("vocab_size") or 0) + (facts.max_tokens or 0),
        file_number_bytes=FILE_BYTES.get(str(number), FLOAT_BYTES),
        num_scores=3 * is_bent,
        num_scores_in_parts=2 * (name == "t5"),
        num_inner=max(2 + is_gated, ACTIVATIONS_IN_STEPS.get(str(activation), 0)),
    )


def size_of(weights: Weights) -> Size:
    """Return the size that the metadata of `weights` tell."""
    return Size(**{name: int(weights.metadata[name]) for name in Size._fields})


def estimate_mb(size: Size, options: Options, kind: str, batch_tokens: int) -> int:
    """Return the peak in MiB: slack x (weights + activations) + what the process takes anyway."""
    assert options.letters_per_token is not None
    letters = options.max_residues or batch_tokens * options.letters_per_token
    most_tokens = options.max_tokens or letters // options.letters_per_token + 2
    longest = min(batch_tokens, most_tokens)
    number_bytes = NUMBER_BYTES[options.dtype]
    held = size.num_product_numbers * number_bytes + size.num_other_numbers * FLOAT_BYTES
    if (
        kind == "cpu"
    ):  # pages of the file that are read count as well, unless used as they lie there
        is_wide = size.file_number_bytes == FLOAT_BYTES
        read = 0 if is_wide and options.dtype == "fp32" else size.num_product_numbers
        read += 0 if is_wide else size.num_other_numbers
        held += read * size.file_number_bytes
    kept = 1 if options.layers == (size.layers,) else size.layers + 1
    held += batch_tokens * _activation_bytes(size, kept, longest, number_bytes)
    scores = min(t5.MOST_SCORES[kind], batch_tokens * size.heads * longest)
    held += size.num_scores_in_parts * scores * FLOAT_BYTES
    process_mb = CUDA_PROCESS_MB if kind == "cuda" else CPU_PROCESS_MB
    return round(SLACK * held / 2**20) + process_mb


def _activation_bytes(size: Size, num_kept: int, longest: int, number_bytes: int) -> int:
    """Return the peak of a layer, a token: hidden states that are kept, the residual stream twice,
    and the feed-forward part or attention."""
    stream = (num_kept + 2) * size.width * FLOAT_BYTES
    feed_forward = size.num_inner * size.inner_width * number_bytes
    attention = 4 * size.attention_width * number_bytes
    attention += size.num_scores * size.heads * longest * FLOAT_BYTES
    return stream + max(feed_forward, attention)
