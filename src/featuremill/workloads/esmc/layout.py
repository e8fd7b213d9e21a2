"""Names of ESM C's tensors: in transformers, in the research folders, and in the package esm.

Their names in our file are in `esm2/layout.py`. Biases that these lack are zeros there.
"""

from __future__ import annotations

from featuremill.workloads.esm2.layout import Names

WITHOUT_BIAS = ("final_norm", "qkv", "out", "up", "down")
TRANSFORMERS = Names(
    {
        "embed_tokens": ("embed_tokens.",),
        "final_norm": ("norm.",),
        "attention_norm": ("input_layernorm.",),
        "qkv": ("self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."),
        "query_key_norm": ("self_attn.q_norm.", "self_attn.k_norm."),
        "out": ("self_attn.o_proj.",),
        "feed_forward_norm": ("post_attention_layernorm.",),
        "up": ("mlp.gate_proj.", "mlp.up_proj."),
        "down": ("mlp.down_proj.",),
        "head.dense": ("lm_head.dense.",),
        "head.norm": ("lm_head.layer_norm.",),
        "head.decoder": ("lm_head.decoder.",),
    },
    "layers.",
    ("embed_tokens.", "layers.", "norm."),
    without_bias=WITHOUT_BIAS,
)
PACKAGE = Names(
    {
        "embed_tokens": ("embed.",),
        "final_norm": ("transformer.norm.",),
        "attention_norm": ("attn.layernorm_qkv.0.",),
        "qkv": ("attn.layernorm_qkv.1.",),
        "query_key_norm": ("attn.q_ln.", "attn.k_ln."),
        "out": ("attn.out_proj.",),
        "feed_forward_norm": ("ffn.0.",),
        "up": ("ffn.1.",),
        "down": ("ffn.3.",),
        "head.dense": ("sequence_head.0.",),
        "head.norm": ("sequence_head.2.",),
        "head.decoder": ("sequence_head.3.",),
    },
    "transformer.blocks.",
    ("embed.", "transformer."),
    without_bias=WITHOUT_BIAS,
)
RESEARCH = PACKAGE._replace(
    parts={
        **PACKAGE.parts,
        "attention_norm": ("attn.layernorm_qkv.layer_norm_",),
        "qkv": ("attn.layernorm_qkv.",),
        "feed_forward_norm": ("ffn.layer_norm_",),
        "up": ("ffn.fc1_",),
        "down": ("ffn.fc2_",),
        "head.dense": ("lm_head.0.",),
        "head.norm": ("lm_head.2.",),
        "head.decoder": ("lm_head.3.",),
    }
)
"""The names of TransformerEngine, which also stores its own state."""
STATE_OF_ENGINE = "_extra_state"
"""The end of the names of that state."""
