"""Estimate the memory of a language model from its config and the options, before it is loaded.

Imports no torch, except for a network that is not among the KNOWN of `causal`.
tests/test_llm_json_memory.py compares the estimate with the memory that torch allocates.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.workload.hugging_face import json_of
from featuremill.workloads.encoder import causal

if TYPE_CHECKING:
    from featuremill.workload import Device, Weights
    from featuremill.workloads.llm_json.options import Options

NUMBER_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
FILE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
FLOAT_BYTES = 4
QUANTISED_BYTES = {"8bit": 1.0, "4bit": 0.5 + 4 / 64}
"""Bytes per quantised number in bitsandbytes; with 4 bits, 64 numbers share a scale in fp32."""
ROWS_ON_CPU, MOST_ROWS = 16, 64
"""The largest numbers of rows that are computed at once. More rows make a step longer, but no row
cheaper."""
SHARE_OF_MEMORY = 0.6
"""The share of a GPU's memory that is free beside the weights, for keys and values."""
SHARE_OF_VLLM = 0.9
"""The share of a GPU's memory that vLLM takes (its gpu_memory_utilization)."""
SLACK = 1.1
"""The factor for memory that the allocator loses by rounding and fragmentation."""
CPU_PROCESS_MB = 500
"""Measured: Python, torch, transformers, and the buffers of the matrix library."""
CUDA_PROCESS_MB = 750
"""Measured on an H200: the CUDA context and loaded kernels (`workloads/esm2/estimates.py`)."""
TIED = ("gemma", "gpt2", "opt", "bloom", "cohere", "falcon")
"""Prefixes of the model types whose head shares the embedding's weights unless the config
decides otherwise."""
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
WIDTH = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KEY_HEADS = ("num_key_value_heads", "num_kv_heads")
INNER = ("intermediate_size", "n_inner", "ffn_dim")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


class Size(NamedTuple):
    """The sizes of a network. The names of the fields are keys of the metadata."""

    layers: int
    width: int
    heads: int
    attention_width: int
    """The sum of the widths of all heads."""
    key_width: int
    """The sum of the widths of all key heads."""
    inner_width: int
    """The width of the feed-forward network, or of one of its experts."""
    num_up: int
    """The number of products from `width` to `inner_width`: 2 for a gated network, else 1."""
    num_product_numbers: int
    """Parameters in the linear layers, which `quantize` changes."""
    num_other_numbers: int
    """Parameters in embedding, head, norms, and experts that are one tensor; never quantised."""
    vocabulary: int
    file_number_bytes: int
    has_all_scores: int
    """1 if attention scores are capped, as in Gemma 2: then all of them are in memory. Else 0."""

    @property
    def file_bytes(self) -> int:
        return (self.num_product_numbers + self.num_other_numbers) * self.file_number_bytes

    def token_bytes(self, number_bytes: int) -> int:
        """Return the bytes of a token's keys and values in all layers."""
        return 2 * self.layers * self.key_width * number_bytes


def size_of_config(folder: Path) -> Size:
    """Return the size of the network by the config in `folder`.

    Raises:
        UserError: the config has no number of layers, or no width.
    """
    path = folder / "config.json"
    config = json_of(path, "a model's")
    kind = str(config.get("model_type", ""))
    config = {**config, **config.get("text_config", {})}  # of a model that also takes images
    layers, width = _first_number(config, LAYERS), _first_number(config, WIDTH)
    if not (layers and width):
        raise UserError(
            f"{path}: it has no {' or no '.join((LAYERS[0], WIDTH[0]))}, so the memory of this "
            "model is not known; take the config of the model."
        )
    heads = _first_number(config, HEADS)
    head_width = _first_number(config, ("head_dim",)) or width // (heads or 1)
    key_heads = _first_number(config, KEY_HEADS) or (1 if config.get("multi_query") else heads)
    experts = _first_number(config, EXPERTS)
    inner = _first_number(config, INNER) or 4 * width
    inner = (experts and _first_number(config, ("moe_intermediate_size",))) or inner
    vocabulary = _first_number(config, ("vocab_size",))
    number = str(config.get("dtype") or config.get("torch_dtype"))
    num_up = 1 if kind in causal.NOT_GATED else 2
    attention, keys = heads * head_width, key_heads * head_width
    is_laid_out = bool(config.get("attn_logit_softcapping"))
    if kind not in causal.KNOWN and causal.why_not(config) == "":
        counted = causal.counted(causal.of_text(config))
        products, others = counted.products, counted.others + counted.head
        is_laid_out |= counted.has_all_scores
    else:
        feed_forward = (num_up + 1) * inner
        is_tied = config.get("tie_word_embeddings", kind.startswith(TIED))
        products = layers * width * (2 * attention + 2 * keys + feed_forward * (experts <= 1))
        vectors = vocabulary * (1 if is_tied else 2) + _first_number(config, ("n_positions",))
        others = width * (vectors + layers * (4 + experts * feed_forward * (experts > 1)))
    return Size(
        layers,
        width,
        heads,
        attention,
        keys,
        inner,
        num_up,
        products,
        others,
        vocabulary,
        file_number_bytes=FILE_BYTES.get(number, FLOAT_BYTES),
        has_all_scores=int(is_laid_out),
    )


def _first_number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """Return the first number under one of the `names`; 0 if there is none."""
    return next((int(config[name]) for name in names if config.get(name)), 0)


def size_of(weights: Weights) -> Size:
    """Return the size from the metadata of `weights`, or from the config in their folder."""
    if not weights.metadata:
        return size_of_config(weights.path)
    return Size(**{name: int(weights.metadata[name]) for name in Size._fields})


def rows_within(free_bytes: float, token_bytes: int, num_tokens: int) -> int:
    """Return how many rows of `num_tokens` are computed at once in `free_bytes` of memory."""
    row_bytes = max(1, token_bytes * num_tokens)  # 0 for a network without keys and values
    return max(1, min(MOST_ROWS, int(free_bytes * SHARE_OF_MEMORY / row_bytes)))


def weights_bytes(size: Size, options: Options) -> int:
    number_bytes = NUMBER_BYTES[options.dtype]
    of_product = QUANTISED_BYTES.get(options.quantize, number_bytes)
    return round(size.num_product_numbers * of_product) + size.num_other_numbers * number_bytes


def estimate_mb(size: Size, options: Options, device: Device) -> int:
    """Return the peak in MiB for prompts that fill the context. If the number of rows depends on
    the memory of the GPU, it is that of `device`, or the largest one for an unknown GPU."""
    assert options.context is not None
    is_cuda = device.kind == "cuda"
    number_bytes = NUMBER_BYTES[options.dtype]
    process_mb = CUDA_PROCESS_MB if is_cuda else CPU_PROCESS_MB
    share = options.share_of_layers(device.kind, size.layers)
    num_bytes = weights_bytes(size, options)
    num_bytes -= round((1 - share) * size.num_product_numbers * number_bytes)
    if not is_cuda and size.file_number_bytes != number_bytes:
        num_bytes += size.file_bytes  # pages of the memory-mapped file count as well
    token_bytes = round(share * size.token_bytes(number_bytes))
    row = token_bytes * options.context
    alone = num_bytes + row + _working_bytes(size, 1, options.context, number_bytes)
    if options.engine == "vllm":
        return round((SLACK * alone / 2**20 + process_mb) / SHARE_OF_VLLM)
    rows = options.batch_rows or (MOST_ROWS if is_cuda else ROWS_ON_CPU)
    if is_cuda and not options.batch_rows and device.memory_mb:
        free = (device.memory_mb - process_mb) * 2**20 - num_bytes
        rows = rows_within(free, token_bytes, options.context)
    # A prompt is computed outside of the slots, and then copied into one.
    rows_held = rows if options.batch_rows == 1 else rows + 1
    working = _working_bytes(size, rows, options.context, number_bytes)
    return round(SLACK * (num_bytes + rows_held * row + working) / 2**20) + process_mb


def _working_bytes(size: Size, rows: int, context: int, number_bytes: int) -> int:
    """Return the larger of two peaks: that of a layer that computes a prompt, and that of choosing
    the next token of each row, with the logits and two copies of them in fp32."""
    stream = 3 * size.width * number_bytes
    feed_forward = (size.num_up + 1) * size.inner_width * number_bytes
    attention = 4 * size.attention_width * number_bytes
    if size.has_all_scores:
        attention += size.heads * context * (number_bytes + FLOAT_BYTES)
    choice = rows * size.vocabulary * (number_bytes + 2 * FLOAT_BYTES)
    return max(context * (stream + max(feed_forward, attention)), choice)
