"""The whole way of a GPU at once, on a CPU: Triton's kernels interpreted, products that add
themselves, one call of FlashAttention or of our attention a layer, and one block of all rows.

Run by test_fallbacks.py with TRITON_INTERPRET=1, which has to be set before Triton is imported.
"""

from functools import partial
from importlib import metadata
from itertools import product

import numpy as np
import pytest
import torch
from esm2_models import fair_esm, relative_l2, save_fair_esm
from esmc_models import esmc
from test_fallbacks import TAKES_SPLITS, Flash, adding, hopper, load
from test_kernels import have_bf16_multiplied

from featuremill.workload import weights
from featuremill.workloads.esm2 import attention, kernels, packing, stages
from featuremill.workloads.esm2.kernels import triton_attention, triton_kernels

__all__ = ["adding", "hopper"]
have_bf16_multiplied()
BOUNDS = {"fp32": 1e-5, "fp16": 3e-3, "bf16": 2.5e-2}
LENGTHS = (20, 5, 118, 61)
ROWS = 256
"""Of a batch: with filling, as a GPU's has."""


@pytest.mark.parametrize(
    ("dtype", "attends"),
    [("fp32", "alone"), *product(["fp16", "bf16"], ["varlen flash_attention FA2", "triton"])],
)
@pytest.mark.parametrize(
    "shape",
    [(3, 64, 4), (2, 320, 20), (2, 480, 20), (2, 128, 2), ("ESM C", 2, 192, 512)],
    ids=lambda shape: f"width {shape[1]}" if len(shape) == 3 else shape[0],
)
def test_each_layer_is_close_to_fp32(
    shape, dtype, attends, monkeypatch, tmp_path, caplog, hopper, adding
):
    if len(shape) == 3:
        path = save_fair_esm(fair_esm(*shape), tmp_path / "random.pt")
        found = weights.weights_of(weights.convert(str(path), tmp_path))
    else:
        _, *sizes = shape
        esmc(*sizes).save_pretrained(tmp_path / "model")
        found = weights.weights_of(weights.convert(str(tmp_path / "model"), tmp_path, "esmc"))
    sequences = [np.arange(n) * 7 % 20 + 4 for n in LENGTHS]
    wanted, num_real = range(int(found.metadata["num_layers"]) + 1), sum(LENGTHS)
    exact = load(found, "fp32").representations(packing.pack(sequences), wanted)
    expected = [hidden[:num_real].clone() for _, hidden in exact]

    ours = triton_kernels
    # The interpreter of Triton 3.6 cannot count the mean's loop with NumPy 2.4.
    can_count = not metadata.version("triton").startswith("3.6.")
    mean_rows = ours.mean_rows if can_count else kernels.TORCH.mean_rows
    others = (ours.rotate_, ours.add_norm, ours.norm, ours.gate)
    interpreted = kernels.Kernels("interpreted", *others, mean_rows)
    monkeypatch.setattr(kernels, "ways", lambda *_: [interpreted])
    monkeypatch.setattr(stages.Stage, "block_rows", lambda self, num_rows: num_rows)
    monkeypatch.setattr(stages.Stage, "each", lambda self, compute, blocks: compute(*blocks))
    attend = partial(triton_attention.attend, tiling=triton_attention.CAUTIOUS)
    ways = {
        "alone": attention.Backend("alone", attention.attend_per_sequence),
        "triton": attention.Backend("triton", attend, attend),
    }
    if attends in ways:
        monkeypatch.setattr(attention, "backends", lambda *_: [ways[attends]])
    else:
        hopper(Flash(), TAKES_SPLITS)
    adding()
    model = load(found, dtype, num_rows=ROWS)
    assert not caplog.records, caplog.text
    assert "rest: interpreted" in model.backend
    assert dtype == "fp32" or f"{attends}; products: torch, ad" in model.backend
    pack = packing.pack(sequences, ROWS, torch.device("cuda"))
    assert len(pack.tokens_T) == ROWS
    for (number, hidden), right in zip(model.representations(pack, wanted), expected, strict=True):
        assert relative_l2(hidden[:num_real], right) < BOUNDS[dtype], number
