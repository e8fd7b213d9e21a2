"""The targets, and how a comparison stands against them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

RATE_OF_EXTRACT = "tokens_per_second_of_extract"
"""What rows of ours say of a pass without `plan`."""

RIVAL = "OpenVINO"
"""The peer of a CPU that is as fast as ours: it has to be right in 16 bits as well, and is compared
on the same proteins."""

CPU_OVER_FAIR_ESM = {"8M": 2.5, "35M": 2.2, "150M": 1.7}
CPU_OVER_RIVAL = 1.15
CPU_SHARE_OF_GEMMS = {
    "fp32": {"8M": 0.70, "35M": 0.70, "150M": 0.85},
    "bf16": {"8M": 0.45, "35M": 0.55},
}
H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
"""As NVML calls them; other cards of these names are slower (PCIe, NVL)."""
GPU_TOKENS = {
    H100: {"650M": 337e3, "3B": 98e3, "150M": 0.90e6},
    H200: {"650M": 370e3, "3B": 105e3, "150M": 1.0e6},
}
"""Of an H100, on which nothing has run, they are predicted by a roofline of 798 TFLOP/s in the
matrix products and 3.0 TB/s of memory (ranges: 320k to 352k, 91k to 103k); of an H200 they are the
project's targets (docs/performance.md has what it reached). Published inference of CodonFM (1B, 8
H100) comes to 320k at 650M, and 80k at 3B.
"""
GPU_SHARE_OF_MATMUL = {
    H100: {"650M": 0.58, "3B": 0.71},
    H200: {"650M": 0.65, "3B": 0.78},
}
"""The same tokens, as a share of the matrix products' rate of that card."""
GPU_EXTRACT = {"mean": 0.95, "per_residue": 0.90}
GPU_OVER_FAIR_ESM = {"mean": 15.0, "per_residue": 20.0}
OVER_BEST_PEER = 1.25
START_UP_SECONDS = {"8M": 1.5, "35M": 3.0}
"""Of a whole extract on a CPU, at most."""
OWN_START_UP_SECONDS = 3.0
"""The same on a GPU, beyond a bare load of the weights: what torch and CUDA take there differs by
machine, so it is measured in the same step."""


class Bar(NamedTuple):
    """One target."""

    what: str
    value: float | None
    """None where there is nothing to divide by, or to divide."""
    bound: float
    is_met: bool | None
    why_left_out: str = ""


def of_comparison(
    comparison: dict[str, Any], missing: Mapping[str, str] = MappingProxyType({})
) -> list[Bar]:
    """Return the bars of one comparison, on a CPU or on a GPU; `missing` has the engines that could
    not run, and why."""
    rates = {row["name"]: row["tokens_per_second"] for row in comparison["rows"]}
    if alone := _alone(comparison):
        return _gpu(comparison, rates, alone)
    return _cpu(comparison, rates, missing)


def is_rival(name: str) -> bool:
    """Tell whether a contestant of that name is one of ours, or the peer that is as fast."""
    return name.startswith(("featuremill", RIVAL))


def of_start_up(shape: str, found: dict[str, Any], on_gpu: bool) -> list[Bar]:
    """Return the bar of a start-up, if there is one."""
    seconds = found["start_up_seconds"]
    if on_gpu:
        what, most = "start-up beyond a bare load (s, at most)", OWN_START_UP_SECONDS
        seconds = round(seconds - found["bare_load_seconds"], 3)
    elif shape in START_UP_SECONDS:
        what, most = "start-up of extract (s, at most)", START_UP_SECONDS[shape]
    else:
        return []
    return [Bar(what, seconds, most, seconds <= most)]


def model_share(comparison: dict[str, Any], row: dict[str, Any]) -> float:
    """Return the share of the matmul rate of the same run that the encoder's work comes to."""
    peak = statistics.median(comparison["matmul_tflops"]) * 1e3
    return float(row["tokens_per_second"] * row["gflops_per_token"] / peak)


def _at_least(what: str, value: float, bound: float) -> Bar:
    return Bar(what, value, bound, value >= bound)


def _cpu(
    comparison: dict[str, Any], rates: dict[str, float], missing: Mapping[str, str]
) -> list[Bar]:
    shape = comparison["shape"]
    if shape not in CPU_OVER_FAIR_ESM:
        return []

    def bar(what: str, dtype: str, other: str, bound: float) -> Bar:
        names = f"featuremill {dtype}", other
        for name in names:
            if name not in rates:
                whys = (why for known, why in missing.items() if name.startswith(known))
                return Bar(what, None, bound, None, next(whys, f"{name} is not among these"))
        ours, others = (rates[name] for name in names)
        return _at_least(what, ours / others, bound)

    other = "fair-esm fp32"
    bars = [bar(f"fp32 over {other} (×)", "fp32", other, CPU_OVER_FAIR_ESM[shape])]
    if comparison["output"] != "mean":
        return bars
    for dtype, shares in CPU_SHARE_OF_GEMMS.items():
        other = f"{RIVAL} {dtype}"
        bars.append(bar(f"{dtype} over {other} (×)", dtype, other, CPU_OVER_RIVAL))
        if shape in shares:
            what, other = f"{dtype}, share of its GEMMs alone", f"GEMMs alone {dtype}"
            bars.append(bar(what, dtype, other, shares[shape]))
    return bars


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
    gpu = comparison.get("gpu", "")
    if output == "mean" and (least := GPU_TOKENS.get(gpu, {}).get(shape)):
        bars.append(_at_least(f"{ours} {only} (tokens/s)", rate_alone, least))
    least = GPU_SHARE_OF_MATMUL.get(gpu, {}).get(shape)
    if output == "mean" and least and comparison["matmul_tflops"]:
        share = model_share(comparison, alone)
        bars.append(_at_least(f"{ours} {only}, MFU", share, least))
    over = rate / rates["fair-esm fp32"]
    bars.append(_at_least(f"{ours} over fair-esm fp32 (×)", over, GPU_OVER_FAIR_ESM[output]))
    peers = [rate for name, rate in rates.items() if name.startswith(("transformers", "FAESM"))]
    if peers:
        over = rate / max(peers)
        bars.append(_at_least(f"{ours} over the best peer (×)", over, OVER_BEST_PEER))
    return bars
