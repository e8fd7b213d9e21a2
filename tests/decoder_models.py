"""Folders of causal networks with random weights, as transformers saves published ones."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXTS = [
    "The protein folds in two steps.",
    "A kinase moves a phosphate from ATP to a protein, and a phosphatase takes it away again.",
    "Größe ≥ 3 µm; naïve T‑cells 細胞\nsecond line\n\n\tindented",
    "x",
    "DNA " * 30,
]
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
WIDE = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 768,
}
"""Of a network whose memory is measured."""
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64, "rope_theta": 10000.0}  # fmt: skip
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 256, "rope_theta": 10000.0}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
        "rope_theta": 10000.0}  # fmt: skip
NETWORKS = {
    "llama": SIZES | {"rope_parameters": LLAMA3, "tie_word_embeddings": True},
    "mistral": SIZES | {"sliding_window": 8},
    "qwen2": SIZES | {"rope_parameters": YARN},
    "qwen3": SIZES | {"tie_word_embeddings": False},
    "gemma": SIZES,
    "gemma2": SIZES | {"sliding_window": 8, "query_pre_attn_scalar": 16,
                       "attn_logit_softcapping": 5.0},
    "gemma3_text": SIZES | {"sliding_window": 8, "query_pre_attn_scalar": 16,
                            "num_hidden_layers": 6,
                            "layer_types": ["sliding_attention"] * 5 + ["full_attention"]},
    "phi3": SIZES | {"rope_parameters": LONG, "pad_token_id": 0,
                     "original_max_position_embeddings": 256},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256, "bos_token_id": 0,
             "eos_token_id": 0},
    "gpt_neox": {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
                 "intermediate_size": 256, "max_position_embeddings": 512, "bos_token_id": 0,
                 "eos_token_id": 0},
}  # fmt: skip
"""Of each kind, with what is peculiar to it: windows, scaled rotations, bent scores, tied heads."""
TRUE = {
    "llama": {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
              "head_dim": 128, "intermediate_size": 14336, "rope_parameters": LLAMA3},
    "mistral": {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
                "head_dim": 128, "intermediate_size": 14336, "sliding_window": 48},
    "qwen2": {"hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
              "head_dim": 128, "intermediate_size": 18944, "rope_parameters": YARN},
    "qwen3": {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
              "head_dim": 128, "intermediate_size": 12288},
    "gemma": {"hidden_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 16,
              "head_dim": 256, "intermediate_size": 24576},
    "gemma2": {"hidden_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 8,
               "head_dim": 256, "intermediate_size": 14336, "query_pre_attn_scalar": 256,
               "attn_logit_softcapping": 50.0, "sliding_window": 48},
    "gemma3_text": {"hidden_size": 2560, "num_attention_heads": 8, "num_key_value_heads": 4,
                    "head_dim": 256, "intermediate_size": 10240, "query_pre_attn_scalar": 256,
                    "sliding_window": 48,
                    "layer_types": ["sliding_attention", "full_attention"]},
    "phi3": {"hidden_size": 3072, "num_attention_heads": 32, "num_key_value_heads": 32,
             "head_dim": 96, "intermediate_size": 8192,
             "rope_parameters": LONG | {"short_factor": [1.0] * 48, "long_factor": [4.0] * 48}},
    "gpt2": {"n_embd": 1600, "n_head": 25, "n_positions": 1024},
    "gpt_neox": {"hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 16384},
}  # fmt: skip
"""Widths of published ones (7 to 9 B; Gemma 3 4B, Phi-3 mini, GPT-2 XL, Pythia 6.9B), for two
layers."""
GPT = {"n_embd": 64, "n_layer": 3, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
EXPERTS = SIZES | {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
RECURRENT = {"hidden_size": 64, "num_hidden_layers": 3, "state_size": 8, "bos_token_id": 0,
             "eos_token_id": 0}  # fmt: skip
OTHERS = {
    "olmo2": SIZES,
    "granite": SIZES,
    "starcoder2": SIZES | {"sliding_window": 8},
    "stablelm": SIZES,
    "cohere": SIZES,
    "smollm3": SIZES | {"no_rope_layers": [1, 0, 1]},
    "phi": SIZES | {"num_key_value_heads": 4},
    "falcon": {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
               "bos_token_id": 0, "eos_token_id": 0},
    "gptj": GPT | {"n_positions": 256, "rotary_dim": 8},
    "opt": {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 96,
            "word_embed_proj_dim": 64, "max_position_embeddings": 256, "pad_token_id": 1,
            "bos_token_id": 0, "eos_token_id": 0},
    "bloom": {"hidden_size": 64, "n_layer": 3, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0},
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS | {"moe_intermediate_size": 48},
    "gpt_oss": EXPERTS | {"sliding_window": 8},
    "mamba": RECURRENT,
    "bamba": SIZES | {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8,
                      "mamba_n_groups": 1, "attn_layer_indices": [1]},
    "recurrent_gemma": SIZES | {"lru_width": 64, "attention_window_size": 8, "pad_token_id": 0,
                                "num_key_value_heads": 1},
    "xlm": {"emb_dim": 64, "n_layers": 3, "n_heads": 4},
    "jamba": SIZES | {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
                      "mamba_d_state": 8, "mamba_dt_rank": 8, "pad_token_id": 0},
}  # fmt: skip
"""Of those that transformers tells of, one of each way: positions that are turned, a table, or
slopes of the scores; experts, sinks, and states in place of keys and values."""


def write(folder: Path, name: str, *, has_bos=True, spread=0.1, shard="100KB", **more) -> Path:
    """Write the folder of a network in several files of weights, with a tokenizer of bytes."""
    import transformers

    vocabulary = tokenizer(has_bos)
    size = vocabulary.get_vocab_size()
    config = transformers.CONFIG_MAPPING[name](
        vocab_size=size, **((NETWORKS | OTHERS)[name] | more)
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            random = torch.randn(tensor.shape, generator=numbers).mul_(spread)
            tensor.copy_(random.add_(tensor.dim() == 1 and key.endswith("weight")))
    model.save_pretrained(folder, max_shard_size=shard)
    transformers.PreTrainedTokenizerFast(tokenizer_object=vocabulary).save_pretrained(folder)
    return folder


def tokenizer(has_bos: bool) -> Tokenizer:
    """Return pairs of bytes, learned of the texts, with a token before them or without."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|begin|>"], initial_alphabet=letters, show_progress=False
    )
    made.train_from_iterator([*TEXTS, "ACGTACGTTGCA", "MKTAYIAKQR"], trainer)
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    if has_bos:
        made.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
        )
    return made
