"""A run survives being killed: whoever of it, at whatever moment, by whatever signal.

The environment says how: FEATUREMILL_CHAOS_SEED replays a seed's choices (whom, when, how; not
how far the machine is by then), FEATUREMILL_CHAOS_KILLS sets the number of kills of the slow test.
"""

import json
import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import chaos
import pytest
from chaos import Chain
from programs import Verbs, written

BESIDE = 2
"""Chains at the same time."""
SHARD_RECORDS = 250
WITNESSED = {
    "run": "test",
    "inputs": "in.fa",
    "workload": "witnessed",
    "options": {
        "batch_records": chaos.BATCH_RECORDS,
        "batch_seconds": 0.02,
        "record_seconds": 0.0002,
    },
    "shards": {"cost": SHARD_RECORDS},
    "device": "cpu",
}
ESM2 = {
    "run": "test",
    "inputs": "in.fa",
    "workload": "esm2",
    "options": {"model": "mill_t6_8M", "dtype": "fp32", "batch_tokens": 400},
    "shards": {"cost": 3500},
    "device": "cpu",
}


class Trial:
    """Chains of kills, each compared with an undisturbed run of its kind."""

    def __init__(self, folder, environment, seed, node, num_shards=8):
        print(f"FEATUREMILL_CHAOS_SEED={seed}")
        self.folder = folder
        self.seed = seed
        self.num_kills = 0
        self._distinct = {sequence for _, sequence in chaos.proteins(num_shards * SHARD_RECORDS)}
        self._environment = environment | {"FEATUREMILL_CACHE": str(folder / "cache")}
        self._node = node
        self._records = {
            "witnessed": chaos.proteins(num_shards * SHARD_RECORDS),
            "esm2": [record for record in chaos.proteins(400) if 100 <= len(record[1]) <= 220][:80],
        }

    def chain(self, config, name, kills=()):
        folder = self.folder / name
        chaos.fill(folder, self._records[config["workload"]])
        environment = self._environment
        if config["device"] == "cuda":
            path = {"PYTHONPATH": environment["PYTHONPATH"]}
            environment = environment | self._node.environment | path
        return Chain(folder, environment, config, kills, f"seed {self.seed}, {name}")

    def undisturbed(self, name):
        """Return a chain without kills, computed by one verb after the other."""
        chain = self.chain(WITNESSED, name)
        verbs = Verbs(chain.folder, self._environment)
        verbs("plan", verbs.run_folder.root, "--config", written(WITNESSED))
        verbs.extract(json.loads(verbs.run_folder.plan.read_text()))
        verbs("merge", verbs.run_folder.root, "--outputs", "parquet", "per_protein_h5")
        return chain

    def survive(self, number, least, most, whole):
        """Carry out chain `number` and check it."""
        rng = random.Random(f"{self.seed}.{number}")
        config = ESM2 if number % 10 == 9 else WITNESSED
        if self._node and config is WITNESSED and number % 2:
            config = WITNESSED | {"device": "cuda"}
        chain = self.chain(config, f"chain{number}", chaos.draw(rng, rng.randint(least, most)))
        chain()
        chain.compare(whole[config["workload"]])
        if config is not ESM2:
            assert len(chain.check_noted()) == len(self._distinct)
        self.num_kills += len(chain.done)
        shutil.rmtree(chain.folder)


def node_of(request):
    """Return a simulated node of two GPUs; None where there is no compiler to build one."""
    return request.getfixturevalue("gpu_node")(2) if shutil.which("cc") else None


def test_the_same_seed_makes_the_same_choices():
    first, second = (chaos.draw(random.Random("7.0"), 500) for _ in range(2))
    assert first == second != chaos.draw(random.Random("8.0"), 500)
    assert {kill.phase for kill in first} == set(chaos.PHASES)
    assert {(kill.target, kill.signal) for kill in first} == {
        (target, number)
        for target in ("snakemake", "job", "worker", "group")
        for number in chaos.SIGNALS
    }


@pytest.mark.slow
def test_a_run_survives_four_kills(tmp_path, environment, request):
    """On the simulated node, where there is one: chains of odd numbers take a GPU."""
    trial = Trial(tmp_path, environment, chaos.seed(2884), node_of(request), num_shards=2)
    trial.survive(1, 4, 4, {"witnessed": trial.undisturbed("whole")})
    assert trial.num_kills >= 3, "most kills met somebody"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_survives_two_hundred_kills(tmp_path, environment, request):
    trial = Trial(tmp_path, environment, chaos.seed(), node_of(request))
    wanted = int(os.environ.get("FEATUREMILL_CHAOS_KILLS", "200"))
    whole = {c["workload"]: trial.chain(c, f"whole-{c['workload']}") for c in (WITNESSED, ESM2)}
    for chain in whole.values():
        chain()
    numbers = count()

    def one_after_the_other():
        while trial.num_kills < wanted:
            trial.survive(next(numbers), 6, 14, whole)

    with ThreadPoolExecutor(BESIDE) as pool:
        for worker in [pool.submit(one_after_the_other) for _ in range(BESIDE)]:
            worker.result()
    print(f"{trial.num_kills} kills in {next(numbers)} chains")
