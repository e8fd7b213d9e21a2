"""Read the settings and tokens of an ESM C's folder from Hugging Face, and refuse other networks.

Reads no weights and imports no torch, so that a run is refused before its first job.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from featuremill.kit.errors import UserError
from featuremill.workload.hugging_face import CONFIG
from featuremill.workloads.esm2 import folder as of_esm2
from featuremill.workloads.esm2.architecture import ESM_C as ARCHITECTURE
from featuremill.workloads.esm2.folder import ROTARY_BASE, Kind

ALPHABET = (*of_esm2.ALPHABET[:31], "|", *of_esm2.ALPHABET[32:])
"""ESM C's tokens in the order of their ids: ESM-2's, with a break between chains."""
ROTARY = {"rope_type": "default", "rope_theta": ROTARY_BASE}
ESM_C = Kind(
    ARCHITECTURE.title,
    "esmc",
    {
        "vocab_size": ARCHITECTURE.num_rows,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    },
    {},
    ALPHABET,
    ARCHITECTURE.num_rows,
    "the workload esm2 takes ESM-2, and encoder takes BERT, T5 and others (docs/encoders.md)",
    "the folder of an EsmcModel, a .safetensors, or the .pth of the package esm",
)


def facts_of(path: Path) -> dict[str, Any]:
    """Return the settings of an ESM C from the config.json in the folder `path`, or beside the file
    `path`; {} if there is no config.json, or that beside a file is of another model.

    Raises:
        UserError: the folder has another network, or other tokens.
    """
    facts = of_esm2.facts_of(path, ESM_C)
    rotary = facts.get("rope_parameters")
    if rotary and rotary != ROTARY:
        config = (path if path.is_dir() else path.parent) / CONFIG
        raise UserError(
            f"{config}: its settings have rope_parameters {rotary}, where an ESM C has {ROTARY}; "
            f"{ESM_C.others}."
        )
    return facts
