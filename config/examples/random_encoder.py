"""Write a BERT for proteins whose weights are RANDOM: its features are worth nothing.

It is there to try the workload `encoder` without a download; config/examples/encoder.yaml runs it.
Run as `python config/examples/random_encoder.py random_encoder`, which makes that folder.
"""

import sys
from pathlib import Path

try:
    import torch
    from transformers import BertConfig, BertModel
except ImportError as error:
    sys.exit(f"{error.name} is not installed; pip install 'featuremill[encoder]' brings it.")

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"LAGVESIKRDTPNQFYMHCWXUBZO"]


def main(folder: Path) -> None:
    """Write config, weights and vocabulary, as a published ProtBERT has them."""
    config = BertConfig(
        vocab_size=len(TOKENS),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
