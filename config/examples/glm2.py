"""Write a gLM2 whose weights are RANDOM, and contigs for it: its features are worth nothing.

It is there to try contigs without a download; config/examples/glm2.yaml computes them.
Run as `python config/examples/glm2.py random_glm2`, which makes that folder.
"""

import json
import sys
from pathlib import Path

from Bio import SeqIO
from Bio.Seq import Seq
from Bio.SeqFeature import SeqFeature, SimpleLocation
from Bio.SeqRecord import SeqRecord

try:
    import torch
    from safetensors.torch import save_file
except ImportError as error:
    sys.exit(f"{error.name} is not installed; pip install 'featuremill[encoder]' brings it.")

WIDTH, DEPTH, INNER, NUM_TOKENS = 64, 4, 176, 37
CONFIG = {
    "model_type": "gLM2",
    "dim": WIDTH,
    "depth": DEPTH,
    "heads": 4,
    "vocab_size": NUM_TOKENS,
    "swiglu_multiple_of": 16,
    "ffn_dim_multiplier": None,
    "norm_eps": 1e-5,
}


def main(folder: Path) -> None:
    """Write config and weights, as a published gLM2 has them, and a GenBank file of contigs."""
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(CONFIG))
    torch.manual_seed(0)
    tensors = {"glm2.tok_embeddings.weight": torch.randn(NUM_TOKENS, WIDTH)}
    for layer in range(DEPTH):
        at = f"glm2.encoder.layers.{layer}"
        shapes = {
            "attention.wqkv": (3 * WIDTH, WIDTH),
            "attention.wo": (WIDTH, WIDTH),
            "feed_forward.w1": (INNER, WIDTH),
            "feed_forward.w2": (WIDTH, INNER),
            "feed_forward.w3": (INNER, WIDTH),
        }
        for name, shape in shapes.items():
            tensors[f"{at}.{name}.weight"] = torch.randn(shape) / shape[1] ** 0.5
        for norm in ("attention_norm", "ffn_norm"):
            tensors[f"{at}.{norm}.weight"] = torch.ones(WIDTH)
    save_file(tensors, model / "model.safetensors")
    SeqIO.write([contig(number) for number in (1, 2)], folder / "contigs.gb", "genbank")


def contig(number: int) -> SeqRecord:
    """Return a contig of four genes, the last one on the other strand."""
    bases, genes = "", []
    for gene in range(1, 5):
        bases += "TTGACATATAAT" * (gene + number)
        strand, coding = (-1 if gene == 4 else 1), Seq("ATG" + "GCTAAAGAA" * 9 * gene + "TAA")
        place = SimpleLocation(len(bases), len(bases) + len(coding), strand=strand)
        bases += str(coding if strand == 1 else coding.reverse_complement())
        told = {"locus_tag": [f"C{number}_{gene}"], "translation": [str(coding.translate())[:-1]]}
        genes.append(SeqFeature(place, type="CDS", qualifiers=told))
    about = {"molecule_type": "DNA", "topology": "linear"}
    return SeqRecord(Seq(bases), f"contig{number}", features=genes, annotations=about)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
