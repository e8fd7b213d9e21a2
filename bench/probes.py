"""Smaller questions about our engine: same bits, budgets, long proteins, kernels, sharing a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from bench import gpu_only
from bench.ceiling import Gemms
from bench.child import run_together
from bench.clock import Clock
from bench.engines import Output
from bench.engines.ours import Ours, batch_budget
from bench.lengths import Protein, describe, tokens_of
from bench.place import Place
from bench.sample import write_fasta
from bench.stage import Stage, say
from featuremill.base.errors import WorkloadError
from featuremill.workload import compute
from featuremill.workload.batches import make_batches
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import matmul
from featuremill.workloads.esm2.encoder import DTYPES

BUDGETS = (8_192, 16_896, 33_792, 67_584)
NUM_KERNELS = 12
SIDE_BY_SIDE = (1, 2, 3)
K = TypeVar("K")


def same_bits(stage: Stage, dtype: str, budget: int, num_tokens: int, num_alone: int) -> Any:
    """Return how many proteins get other bits alone, or in shards cut otherwise."""
    say(f"{stage.shape.name}: same bits, {dtype}, {budget:,} tokens")
    model = stage.ours(dtype).model_for("exact")
    proteins = stage.sample.take(num_tokens)
    whole = _bits(model, proteins, budget)
    halves = _bits(model, proteins[::2], budget) | _bits(model, proteins[1::2], budget)
    alone: dict[str, bytes] = {}
    for protein in proteins[:num_alone]:
        alone |= _bits(model, [protein], budget)
    return {
        "dtype": dtype,
        "budget": budget,
        "proteins": len(proteins),
        "differ_in_other_shards": sum(whole[name] != halves[name] for name in whole),
        "alone": len(alone),
        "differ_alone": sum(whole[name] != alone[name] for name in alone),
        "differ_again": sum(whole[n] != bits for n, bits in _bits(model, proteins, budget).items()),
    }


def _bits(model: Any, proteins: Sequence[Protein], budget: int) -> dict[str, bytes]:
    found = {}
    for rows in make_batches(tokens_of(proteins), budget):
        payloads = [proteins[row][1].encode() for row in rows]
        values = compute.values_of(esm2, model, payloads, budget).column(0)
        for row, value in zip(rows, values, strict=True):
            numbers = value.values.flatten().to_numpy(zero_copy_only=False)
            found[proteins[row][0]] = numbers.tobytes()
    return found


def _interleaved(stage: Stage, work: Mapping[K, tuple[Any, list[Any]]]) -> dict[K, list[float]]:
    """Return the device's seconds of three passes over the batches of each model, in turn."""
    seconds: dict[K, list[float]] = {key: [] for key in work}
    for number in range(4):
        for key, (model, batches) in work.items():
            measured = gpu_only.seconds(stage.place, model, batches)
            if number:  # the first pass warms up
                seconds[key].append(measured)
    return seconds


def budget_sweep(stage: Stage, num_tokens: int) -> list[dict[str, Any]]:
    """Return the device's tokens per second for each token budget, interleaved."""
    say(f"{stage.shape.name}: sweep of the token budget")
    model = stage.ours(stage.dtype).model_for("mean")
    proteins = stage.sample.take(num_tokens)
    prepared = {budget: gpu_only.prepare(model, proteins, budget) for budget in BUDGETS}
    seconds = _interleaved(stage, {b: (model, batches) for b, batches in prepared.items()})
    tokens = sum(tokens_of(proteins))
    return [
        {"budget": b, "tokens_per_second": round(tokens / statistics.median(s), 1), "seconds": s}
        for b, s in seconds.items()
    ]


def batch_memory(stage: Stage, num_tokens: int) -> list[dict[str, Any]]:
    """Return, for each token budget, the most that batches take of the GPU beside the weights, and
    what the estimate has for it: the difference between that of the budget and that of one token.
    """
    say(f"{stage.shape.name}: memory of a batch")
    place, ours, found = stage.place, stage.ours(stage.dtype), []
    proteins = stage.sample.take(num_tokens)
    outputs: tuple[Output, ...] = ("mean", "per_residue")
    for output in outputs:
        model = ours.model_for(output)
        for budget in BUDGETS:
            batches = gpu_only.prepare(model, proteins, budget)
            place.free_memory()  # gives back what the allocator keeps
            place.forget_peak()
            before = place.allocated_bytes(), place.reserved_bytes()
            gpu_only.seconds(place, model, batches)
            peak = place.peak_bytes() - before[0], place.peak_reserved_bytes() - before[1]
            allocated, reserved = (size >> 20 for size in peak)
            most, least = (ours.estimated_mb(model, tokens) for tokens in (budget, 1))
            row = {"output": output, "budget": budget, "estimated_mb": most - least}
            row |= {"allocated_mb": allocated, "reserved_mb": reserved, "with_weights_mb": most}
            found.append(row)
            stage.so_far({"rows": found})
    return found


def share_of_products(stage: Stage, num_tokens: int, repeats: int) -> dict[str, Any]:
    """Return the device's tokens per second of whole batches, and of the matrix products alone, in
    turn: what the machine does in that minute, it does to both."""
    say(f"{stage.shape.name}: the GPU's work beside its products alone")
    place, budget = stage.place, batch_budget(stage.place)
    model = stage.ours(stage.dtype).model_for("mean")
    proteins = stage.sample.take(num_tokens)
    batches = gpu_only.prepare(model, proteins, budget)
    products = Gemms(stage.shape, place, stage.dtype, budget)
    tokens = sum(tokens_of(proteins))
    num_products = max(1, round(tokens / products.num_rows))
    rows: list[dict[str, Any]] = []
    for number in range(repeats + 1):
        whole = tokens / gpu_only.seconds(place, model, batches)
        took = sum(products.run() for _ in range(num_products))
        alone = num_products * products.num_rows / took
        if number:  # the first one warms up
            rows.append({"whole": round(whole), "products": round(alone), "share": whole / alone})
    shares = sorted(row["share"] for row in rows)
    return {
        "dtype": stage.dtype,
        "share": round(statistics.median(shares), 4),
        "range": [round(shares[0], 4), round(shares[-1], 4)],
        "tokens_per_second": statistics.median(row["whole"] for row in rows),
        "products_per_second": statistics.median(row["products"] for row in rows),
        "rows": [row | {"share": round(row["share"], 4)} for row in rows],
    }


def long_protein(stage: Stage, num_residues: int) -> dict[str, Any]:
    """Return time and memory of one protein of so many residues, computed whole."""
    say(f"{stage.shape.name}: a protein of {num_residues:,} residues")
    residues = "".join(sequence for _, sequence in stage.sample.take(2 * num_residues))
    payload = residues[:num_residues].encode()
    assert len(payload) == num_residues
    ours, place = stage.ours(stage.dtype), stage.place
    model = ours.model_for("per_residue", long="full")
    seconds = []
    for _ in range(2):
        place.forget_peak()
        place.synchronize()
        started = time.perf_counter()
        compute.values_of(esm2, model, [payload], batch_budget(place))
        place.synchronize()
        seconds.append(round(time.perf_counter() - started, 4))
    return {
        "residues": num_residues,
        "dtype": stage.dtype,
        "first_seconds": seconds[0],
        "seconds": seconds[1],
        "peak_allocated_mb": place.peak_bytes() // 2**20,
    }


def kernels(stage: Stage) -> dict[str, Any]:
    """Return the attention backend and the kernels that take most of one full batch."""
    say(f"{stage.shape.name}: kernels")
    place = stage.place
    budget = batch_budget(place)
    ours = stage.ours(stage.dtype)
    model = ours.model_for("mean")
    batches = gpu_only.prepare(model, stage.sample.take(budget), budget)[:1]
    whole = gpu_only.seconds(place, model, batches)
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(
        activities=[activity.CUDA if place.device == "cuda" else activity.CPU]
    ) as profile:
        gpu_only.seconds(place, model, batches)
    events = [(_time_of(event, place), event) for event in profile.key_averages()]
    found = sorted((pair for pair in events if pair[0]), key=lambda pair: -pair[0])
    total = sum(time for time, _ in found) or 1
    listed = [
        {
            "kernel": event.key[:120],
            "calls": event.count,
            "share": round(time / total, 4),
        }
        for time, event in found[:NUM_KERNELS]
    ]
    # Kernels of a small network are short: what is left of the time, the GPU waits for launches.
    busy = round(total / 1e6 / whole, 3)
    return {"backend": ours.backend(), "busy_share": busy, "kernels": listed}


def forms(stage: Stage, num_tokens: int) -> list[dict[str, Any]]:
    """Return the device's tokens per second with each form of the matrix products, on the rows of
    whole batches, interleaved; what a form cannot do there is told in place of its speed."""
    say(f"{stage.shape.name}: forms of the products")
    ours, budget = stage.ours(stage.dtype), batch_budget(stage.place)
    proteins = stage.sample.take(num_tokens)
    device = ours.model_for("mean").encoder.device
    models: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for form in matmul.forms(device, DTYPES[stage.dtype]):
        try:
            models[form.name] = ours.with_products(form)
        except WorkloadError as error:
            errors[form.name] = str(error)
    batches = gpu_only.prepare(ours.model_for("mean"), proteins, budget)
    seconds = _interleaved(stage, {name: (model, batches) for name, model in models.items()})
    tokens, rows = sum(tokens_of(proteins)), max(len(batch.pack.tokens_T) for batch in batches)
    found = [
        {"products": n, "rows": rows, "tokens_per_second": round(tokens / statistics.median(s), 1)}
        for n, s in seconds.items()
    ]
    none = {"rows": rows, "tokens_per_second": 0.0}
    return found + [{"products": n, **none, "error": error} for n, error in errors.items()]


def _time_of(event: Any, place: Place) -> float:
    on_gpu = place.device == "cuda"
    return float(event.self_device_time_total if on_gpu else event.self_cpu_time_total)


def peak_memory(stage: Stage, num_tokens: int, clock: Clock) -> list[dict[str, Any]]:
    """Return the peak memory of every engine, each in a process of its own."""
    proteins = stage.sample.take(num_tokens)
    fasta = write_fasta(stage.folder / "child.fasta", proteins)
    found = []
    for engine in [engine.name for engine in stage.engines]:
        say(f"{stage.shape.name}: memory of {engine}")
        (answer,) = run_together([_command(stage, engine, "per_residue", fasta)], fasta, clock)
        peaks = {name: value for name, value in answer.items() if name.startswith(("peak", "gpu"))}
        row = {"name": engine, "tokens": sum(tokens_of(proteins)), **peaks}
        estimate = _estimate(stage, engine)
        found.append(row | ({"estimated_mb": estimate} if stage.place.has_gpu_steps else {}))
        stage.so_far({"rows": found})
    return found


def _estimate(stage: Stage, engine: str) -> int | None:
    """Return what the product estimates for a whole job; None for a peer."""
    for each in stage.engines:
        if isinstance(each, Ours) and each.name == engine:
            model = each.model_for("per_residue")
            estimate = each.estimated_mb(model, batch_budget(stage.place))
            each.unload()
            return estimate
    return None


def share_of_gpu(stage: Stage, num_tokens: int, clock: Clock) -> dict[str, Any]:
    """Return tokens per second of one process on the GPU, of two and of three side by side."""
    proteins = stage.sample.take(num_tokens)
    fasta = write_fasta(stage.folder / "child.fasta", proteins)
    command = _command(stage, f"featuremill {stage.dtype}", "mean", fasta)
    found: dict[str, Any] = {"lengths": describe(proteins)}
    for count in SIDE_BY_SIDE:
        say(f"{stage.shape.name}: {count} at once")
        answers = run_together([command] * count, fasta, clock)
        span = max(a["ended"] for a in answers) - min(a["started"] for a in answers)
        tokens = count * sum(tokens_of(proteins))
        found[f"tokens_per_second_of_{count}"] = round(tokens / span, 1)
        stage.so_far(found)
    return found


def _command(stage: Stage, engine: str, output: str, fasta: Path) -> list[str]:
    assert stage.subject.weights
    settings = {
        "engine": engine,
        "shape": stage.shape.name,
        "place": stage.place.name,
        "output": output,
        "fasta": str(fasta),
        "weights": str(stage.subject.weights.parent),
    }
    return [part for name, value in settings.items() for part in (f"--{name}", value)]
