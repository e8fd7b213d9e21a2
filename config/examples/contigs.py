"""Write what config/examples/contigs.yaml runs on: contigs, what they are, and a DNA encoder.

The contigs are MADE UP: each codes a protein of config/demo.fasta, in codons drawn at random. The
encoder's weights are RANDOM. So verdicts on them are worth nothing; it is there to see the whole
line without a download. Run as `python config/examples/contigs.py made`, which makes that folder.
"""

import random
import re
import sys
from pathlib import Path

try:
    import torch
    from Bio.Data.CodonTable import standard_dna_table
    from transformers import BertConfig, BertModel
except ImportError as error:
    sys.exit(f"{error.name} is not installed; pip install 'featuremill[encoder]' brings it.")

DEMO = Path(__file__).parents[1] / "demo.fasta"
MOST_CONTIGS = 80
BASES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ACGTN"]
ANY_BASE = "ACGT"


def codons() -> dict[str, list[str]]:
    """Return the codons of each residue."""
    found: dict[str, list[str]] = {}
    for codon, residue in standard_dna_table.forward_table.items():
        found.setdefault(residue, []).append(codon)
    return found


def write_contigs(folder: Path, chosen: random.Random) -> None:
    """Write contigs.fna and kinds.csv: viruses first, and as many others."""
    records = re.findall(r">(\S+) .*?OS=(.+?) (?:GN|PE)=[^\n]*\n([^>]+)", DEMO.read_text())
    known = codons()
    kinds: dict[str, list[tuple[str, str]]] = {"virus": [], "cellular": []}
    for id, organism, lines in records:
        letters = "".join(chosen.choice(known.get(r, ["NNN"])) for r in lines.replace("\n", ""))
        ends = ["".join(chosen.choices(ANY_BASE, k=chosen.randint(0, 99))) for _ in range(2)]
        kind = "virus" if re.search("virus|phage", organism) else "cellular"
        kinds[kind].append((id, ends[0] + letters + ends[1]))
    num_each = min(MOST_CONTIGS // 2, *map(len, kinds.values()))
    with (folder / "contigs.fna").open("w") as fasta, (folder / "kinds.csv").open("w") as table:
        table.write("id,kind\n")
        for kind, contigs in kinds.items():
            for id, letters in contigs[:num_each]:
                fasta.write(f">{id}\n{letters}\n")
                table.write(f"{id},{kind}\n")


def write_encoder(folder: Path) -> None:
    """Write a BERT of single bases, as Hugging Face lays one out."""
    config = BertConfig(
        vocab_size=len(BASES),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
    )
    torch.manual_seed(0)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(BASES) + "\n")


if __name__ == "__main__":
    made = Path(sys.argv[1])
    made.mkdir(parents=True, exist_ok=True)
    write_contigs(made, random.Random(0))  # noqa: S311  (nobody's secret)
    write_encoder(made / "dna_encoder")
