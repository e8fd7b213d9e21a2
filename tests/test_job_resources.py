"""What a cluster is asked for: it grows with shard, model, input and attempt, and suffices."""

import json
from types import SimpleNamespace

import pytest
from running_runs import RECIPE, RunningRun

from featuremill import job_resources
from featuremill.config import Run
from featuremill.doctor import memory
from featuremill.job_resources import UNKNOWN_MINUTES, JobResources
from featuremill.store import write_sealed
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import sources


def asked(folder, device="cuda", weights=(), gpu_model="", inputs="in.fa"):
    run = Run(run="test", inputs=[inputs], device=device)
    return JobResources(run, str(folder), tuple(map(str, weights)), gpu_model)


def wildcards(run, number=0):
    return SimpleNamespace(recipe=RECIPE, shard=run.names[number])


def converted(folder, num_bytes, name="model"):
    """Leave weights/<name>.json and a file of that size without contents."""
    file = folder / f"{name}.safetensors"
    with file.open("wb") as empty:
        empty.truncate(num_bytes)
    path = folder / f"{name}.json"
    path.write_text(
        json.dumps({"path": str(file), "metadata": {"num_layers": "33", "embed_dim": "1280"}})
    )
    return path


@pytest.mark.parametrize("name", sources.PUBLISHED_GIGABYTES)
def test_memory_on_a_cpu_covers_what_doctor_reckons(tmp_path, name):
    run = RunningRun(tmp_path, 1)
    model = memory.model_of(name)
    numbers = model.num_matrix_numbers + model.num_other_numbers
    weights = converted(tmp_path, numbers * memory.NUMBER_BYTES[model.file_dtype], name)
    resources = asked(run.folder.root, "cpu", [weights])
    for dtype in ("fp32", "bf16"):
        need = memory.estimate_mb(model, "cpu", dtype, esm2.CPU_BATCH_TOKENS)
        assert need < resources.extract_mb(wildcards(run), attempt=1) < 2 * need + 4000


def test_memory_grows_with_model_shard_and_attempt(tmp_path):
    run = RunningRun(tmp_path, 2)
    with run.folder.shard(run.names[1]).open("wb") as shard:
        shard.truncate(3 * 2**30)
    weights = converted(tmp_path, 2**30)
    small, large = (asked(run.folder.root, "cuda", files) for files in ([], [weights]))
    first = wildcards(run)
    assert small.extract_mb(first, 1) == 4000
    assert large.extract_mb(first, 1) == 4000 + 1.5 * 1024
    assert large.extract_mb(wildcards(run, 1), 1) == 4000 + 1.5 * 1024 + 2 * 3 * 1024
    assert large.extract_mb(first, 3) == 3 * large.extract_mb(first, 1)


def planned(run, weights, costs):
    """Let the run's plan be one of ESM-2 on GPUs."""
    settings = {"workload": "esm2", "version": "1", "options": {"dtype": "bf16"}}
    shards = [
        {**entry, "cost": cost} for entry, cost in zip(run.plan["shards"], costs, strict=True)
    ]
    more = {"settings": settings, "device": "cuda", "gpus": 1, "weights": str(weights)}
    write_sealed(run.folder.plan, {**run.plan, **more, "shards": shards})


def test_time_grows_with_shard_and_attempt_and_is_less_on_a_faster_card(tmp_path):
    run = RunningRun(tmp_path, 2)
    planned(run, converted(tmp_path, 1000), [1_000_000, 50_000_000])
    small, large = wildcards(run), wildcards(run, 1)
    root = run.folder.root
    slow, fast, unknown = (asked(root, gpu_model=name) for name in ("", "h100", "rack7"))
    assert slow.extract_minutes(large, 1) > 3 * slow.extract_minutes(small, 1)
    assert slow.extract_minutes(large, 2) == 2 * slow.extract_minutes(large, 1)
    assert fast.extract_minutes(large, 1) < slow.extract_minutes(large, 1) / 3
    assert unknown.extract_minutes(large, 1) == slow.extract_minutes(large, 1)


def test_a_workload_of_unknown_speed_gets_an_hour_an_attempt(tmp_path):
    run = RunningRun(tmp_path, 1)
    settings = {"workload": "poison", "version": "1", "options": {}}
    write_sealed(run.folder.plan, {**run.plan, "settings": settings, "device": "cuda", "gpus": 1})
    resources = asked(run.folder.root)
    assert resources.extract_minutes(wildcards(run), 2) == 2 * UNKNOWN_MINUTES


def test_a_run_beside_this_one_that_cannot_be_read_stops_nothing(tmp_path):
    run = RunningRun(tmp_path, 1)
    planned(run, converted(tmp_path, 1000), [1_000_000])
    resources = asked(run.folder.root)
    alone = resources.extract_minutes(wildcards(run), 1)
    (run.folder.root.parent / "other" / "plan.json").mkdir(parents=True)
    job_resources._seconds.cache_clear()
    assert resources.extract_minutes(wildcards(run), 1) == alone != UNKNOWN_MINUTES


def test_plan_and_merge_by_their_inputs(tmp_path):
    run = RunningRun(tmp_path, 1)
    root = run.folder.root
    assert asked(root).plan_mb(None, 1) == 4000, "an input that a rule has still to make"
    for name, times in (("in.fa", 1), ("in.fa.gz", 4)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(8 * 10**9)
        resources = asked(root, inputs=str(tmp_path / name))
        assert resources.plan_mb(None, 1) == 4000 + times * 2000
        assert resources.plan_minutes(None, 2) == 2 * (15 + times * 80)
    before = asked(root).merge_minutes(None, 1)
    with run.folder.part(RECIPE, run.names[0]).open("wb") as file:
        file.truncate(100 * 10**9)
    assert asked(root).merge_minutes(None, 1) == before + 500
    assert asked(root).merge_mb(None, 1) == 9000
