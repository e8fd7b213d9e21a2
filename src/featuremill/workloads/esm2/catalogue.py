"""Published models by name: the ESM-2 of Meta, with their sizes, and models of other workloads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from featuremill.workload.hugging_face import download_command

__all__ = ["OTHERS", "Other", "where_else"]


class Published(NamedTuple):
    """A model on Meta's server."""

    num_layers: int
    width: int
    num_heads: int
    dtype: str
    gigabytes: float
    """The approximate size of its checkpoint in GB."""


PUBLISHED = {
    "esm2_t6_8M_UR50D": Published(6, 320, 20, "float32", 0.03),
    "esm2_t12_35M_UR50D": Published(12, 480, 20, "float32", 0.14),
    "esm2_t30_150M_UR50D": Published(30, 640, 20, "float32", 0.6),
    "esm2_t33_650M_UR50D": Published(33, 1280, 20, "float32", 2.6),
    "esm2_t36_3B_UR50D": Published(36, 2560, 40, "float16", 5.7),
    "esm2_t48_15B_UR50D": Published(48, 5120, 40, "float16", 30.3),
}
SUGGESTED = (
    *("esm2_t33_650M_UR50D", "esm2_t30_150M_UR50D", "esm2_t12_35M_UR50D", "esm2_t6_8M_UR50D"),
    *("esm2_t36_3B_UR50D", "esm2_t48_15B_UR50D"),
)
"""The default model, then one for any machine."""


class Other(NamedTuple):
    """A family of models."""

    pattern: str
    """A regular expression for its names, in small letters and digits only."""
    weights: str
    """The name of its default weights on Hugging Face."""
    alphabet: str = "proteins"
    """The option `alphabet` of `encoder`; "" for another workload."""
    workload: str = "encoder"
    model: str = ""
    """The model's name in that workload; "" for the name on Hugging Face."""


NUCLEOTIDES = "nucleotides"
OTHERS = (
    Other("prostt5", "Rostlab/ProstT5"),
    Other("prott5", "Rostlab/prot_t5_xl_half_uniref50-enc"),
    Other("protbert", "Rostlab/prot_bert"),
    Other("ankh3", "ElnaggarLab/ankh3-large"),
    Other("ankh", "ElnaggarLab/ankh-base"),
    Other("saprot", "westlake-repl/SaProt_650M_AF2"),
    Other("amplify", "chandar-lab/AMPLIFY_350M"),
    Other("glm2", "tattabio/gLM2_650M"),
    Other("esm1b", "facebook/esm1b_t33_650M_UR50S"),
    Other("esm1v", "facebook/esm1v_t33_650M_UR90S_1"),
    Other("esm(c|cambrian)300m", "biohub/ESMC-300M", "", "esmc", "esmc_300m"),
    Other("esm(c|cambrian)6b", "biohub/ESMC-6B", "", "esmc", "esmc_6b"),
    Other("esm(c|cambrian)", "biohub/ESMC-600M", "", "esmc", "esmc_600m"),
    Other("dnaberts", "zhihan1996/DNABERT-S", NUCLEOTIDES),
    Other("dnabert2", "zhihan1996/DNABERT-2-117M", NUCLEOTIDES),
    Other("dnabert", "zhihan1996/DNA_bert_6", NUCLEOTIDES),
    Other(
        "(nt|nucleotidetransformer)v2",
        "InstaDeepAI/nucleotide-transformer-v2-500m-multi-species",
        NUCLEOTIDES,
    ),
    Other(
        "nucleotidetransformer", "InstaDeepAI/nucleotide-transformer-500m-human-ref", NUCLEOTIDES
    ),
    Other("agro", "InstaDeepAI/agro-nucleotide-transformer-1b", NUCLEOTIDES),
    Other("segment", "InstaDeepAI/segment_nt", NUCLEOTIDES),
)


def where_else(model: str) -> str:
    """Return the command for a model of another workload; "" if `model` is not one, or is an
    existing file or folder."""
    if Path(model).expanduser().exists():
        return ""
    owner, _, last = model.rpartition("/")
    name = re.sub("[^a-z0-9]", "", last.lower())
    match = next((network for network in OTHERS if re.match(network.pattern, name)), None)
    owners = {network.weights.partition("/")[0] for network in OTHERS}
    if match is None or (owner and owner not in owners) or Path(last).suffix:  # a path
        return ""
    weights = model if owner else match.weights
    then = f" Set alphabet: {match.alphabet} in that config." if match.alphabet else ""
    return (
        f"workload {match.workload} computes it: type {download_command(weights)}, then "
        f"featuremill init YOUR.fasta --workload {match.workload} --model "
        f"{match.model or weights}.{then}"
    )
