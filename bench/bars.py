"""The targets, and how a comparison stands against them."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

RATE_OF_EXTRACT = "tokens_per_second_of_extract"
"""What rows of ours say of a pass without `plan`."""

CPU_OVER_FAIR_ESM = {"8M": 2.5, "35M": 2.2, "150M": 1.7}
CPU_SHARE_OF_GEMMS = 0.70
GPU_TOKENS = {"650M": 370e3, "3B": 105e3, "150M": 1.0e6}
GPU_SHARE_OF_MATMUL = {"650M": 0.65, "3B": 0.78}
GPU_EXTRACT = {"mean": 0.95, "per_residue": 0.90}
GPU_OVER_FAIR_ESM = {"mean": 15.0, "per_residue": 20.0}
OVER_BEST_PEER = 1.25
START_UP_SECONDS = 3.0


class Bar(NamedTuple):
    """One target."""

    what: str
    value: float
    bound: float
    is_met: bool


def of_comparison(comparison: dict[str, Any]) -> list[Bar]:
    """Return the bars of one comparison, on a CPU or on a GPU."""
    rates = {row["name"]: row["tokens_per_second"] for row in comparison["rows"]}
    if alone := _alone(comparison):
        return _gpu(comparison, rates, alone)
    return _cpu(comparison, rates)


def model_share(comparison: dict[str, Any], row: dict[str, Any]) -> float:
    """Return the share of the matmul rate of the same run that the encoder's work comes to."""
    peak = statistics.median(comparison["matmul_tflops"]) * 1e3
    return float(row["tokens_per_second"] * row["gflops_per_token"] / peak)


def _at_least(what: str, value: float, bound: float) -> Bar:
    return Bar(what, value, bound, value >= bound)


def _cpu(comparison: dict[str, Any], rates: dict[str, float]) -> list[Bar]:
    shape, ours = comparison["shape"], rates["featuremill fp32"]
    if shape not in CPU_OVER_FAIR_ESM:
        return []
    share = ours / rates["GEMMs alone fp32"]
    over = ours / rates["fair-esm fp32"]
    return [
        _at_least("fp32 over fair-esm fp32 (×)", over, CPU_OVER_FAIR_ESM[shape]),
        _at_least("fp32, share of its GEMMs alone", share, CPU_SHARE_OF_GEMMS),
    ]


def _alone(comparison: dict[str, Any]) -> dict[str, Any] | None:
    """Return the row of the device's share of our work in the 16-bit type that counts."""
    name = f"featuremill {comparison.get('dtype', 'bf16')}, "
    return next((row for row in comparison["rows"] if row["name"].startswith(name)), None)


def _gpu(comparison: dict[str, Any], rates: dict[str, float], alone: dict[str, Any]) -> list[Bar]:
    shape, output = comparison["shape"], comparison["output"]
    ours, _, only = alone["name"].removeprefix("featuremill ").partition(", ")
    (row,) = (row for row in comparison["rows"] if row["name"] == f"featuremill {ours}")
    rate, rate_alone = row["tokens_per_second"], alone["tokens_per_second"]
    # The worker's part: what keeps a GPU busy. `plan` is done before, by the CPU.
    share = row[RATE_OF_EXTRACT] / rate_alone
    bars = [_at_least(f"{ours} extract without plan, share of {only}", share, GPU_EXTRACT[output])]
    if output == "mean" and shape in GPU_TOKENS:
        bars.append(_at_least(f"{ours} {only} (tokens/s)", rate_alone, GPU_TOKENS[shape]))
    if output == "mean" and shape in GPU_SHARE_OF_MATMUL and comparison["matmul_tflops"]:
        share = model_share(comparison, alone)
        bars.append(_at_least(f"{ours} {only}, MFU", share, GPU_SHARE_OF_MATMUL[shape]))
    over = rate / rates["fair-esm fp32"]
    bars.append(_at_least(f"{ours} over fair-esm fp32 (×)", over, GPU_OVER_FAIR_ESM[output]))
    peers = [rate for name, rate in rates.items() if name.startswith(("transformers", "FAESM"))]
    if peers:
        over = rate / max(peers)
        bars.append(_at_least(f"{ours} over the best peer (×)", over, OVER_BEST_PEER))
    return bars
