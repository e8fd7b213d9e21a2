"""lease under stress: hundreds of processes of two users, a third killed with SIGKILL at random.

The observer (nvml/witness.c) runs inside the commands and knows nothing of the locks.
"""

import json
import os
import random
import shutil
import subprocess
import time
import uuid
from collections import defaultdict

import pytest
from leases import NOBODY, for_all_users
from nvml_node import SOURCES, Gpu

NUM_GPUS, NUM_SLOTS = 4, 2


class Stress:
    """Starts the processes, kills some, and keeps what the observer wrote."""

    def __init__(self, leases, num_processes, seed):
        self.rng = random.Random(seed)
        self.leases = leases
        self.root = leases.node.locks.parent
        self.log = self.root / "witness.log"
        self.log.touch()
        self.log.chmod(0o666)
        self.witness = self.root / "witness"
        compiler = [shutil.which("cc"), "-O1", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([*compiler, "-o", self.witness, SOURCES / "witness.c"], check=True)
        self.run = str(uuid.uuid4())
        users = [None, NOBODY] if os.getuid() == 0 else [None]
        self.processes = [self.start(users[n % len(users)]) for n in range(num_processes)]
        self.victims = self.rng.sample(self.processes, num_processes // 3)

    def start(self, user):
        milliseconds = self.rng.randint(60, 400)
        command = [self.witness, self.run, NUM_SLOTS, self.log, milliseconds]
        as_user = {} if user is None else {"user": user, "group": user}
        return self.leases.start(
            *("--quiet", "--slots-per-gpu", NUM_SLOTS),
            run=[str(word) for word in command],
            cwd="/",
            stdout=subprocess.DEVNULL,
            **as_user,
        )

    def events(self):
        lines = (line.split() for line in self.log.read_text().splitlines())
        return [(int(at) / 1e6, int(pid), what, gpu, int(uid)) for at, pid, what, gpu, uid in lines]

    def holders(self):
        """Return the victims that hold a device now, as the observer has it."""
        state = {pid: what for _, pid, what, *_ in self.events()}
        return [victim for victim in self.victims if state.get(victim.pid) == "got"]

    def carry_out(self, seconds):
        """Kill one victim after the other, every second one while it holds; wait for the rest."""
        deadline = time.monotonic() + seconds
        left, next_kill = list(self.processes), 0.0
        while left:
            assert time.monotonic() < deadline, f"{len(left)} were not served"
            if self.victims and time.monotonic() > next_kill:
                next_kill = time.monotonic() + self.rng.uniform(0, 0.3)
                holders = self.holders() if len(self.victims) % 2 else []
                victim = self.rng.choice(holders or self.victims)
                self.victims.remove(victim)
                victim.kill()
            left = [process for process in left if process.poll() is None]
            time.sleep(0.02)


def most_at_once(spans):
    """Return the most that ever overlapped; one that ends as another begins does not."""
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def stress(library, environment, num_processes, seconds, seed):
    gpus = [Gpu() for _ in range(NUM_GPUS)]
    with for_all_users(library, environment, *gpus) as leases:
        started = time.monotonic()
        run = Stress(leases, num_processes, seed)
        run.carry_out(seconds)
        took = time.monotonic() - started
        events = run.events()
        codes = defaultdict(int)
        for process in run.processes:
            codes[process.returncode] += 1
        got = {pid: (at, gpu) for at, pid, what, gpu, _ in events if what == "got"}
        done = {pid: at for at, pid, what, *_ in events if what == "done"}
        # When a killed one ended is known only roughly: there the observer's own word counts.
        per_gpu = defaultdict(list)
        for pid, (at, gpu) in got.items():
            if pid in done:
                per_gpu[gpu].append((at, done[pid]))
        killed_holding = sum(pid not in done for pid in got)
        facts = {
            "processes": num_processes,
            "seconds": round(took, 1),
            "exit statuses": dict(codes),
            "leases": len(got),
            "killed while holding": killed_holding,
            "most at once on a device": {g: most_at_once(s) for g, s in per_gpu.items()},
            "users": len({user for *_, user in events}),
        }
        print(json.dumps(facts))
        assert not [event for event in events if event[2] == "TOO_MANY"]
        assert sorted(per_gpu) == leases.node.uuids
        assert max(map(most_at_once, per_gpu.values())) <= NUM_SLOTS
        assert set(codes) <= {0, -9}
        assert codes[0] >= num_processes - num_processes // 3, "all survivors were served"
        assert killed_holding
        assert len(leases.list()) == 1, "no slot is lost"
        assert leases("--gpus", NUM_GPUS, "--wait", 5)[0].split(",") == leases.node.uuids
        return took


def test_a_slice_of_the_stress(nvml_library, environment):
    stress(nvml_library, environment, 48, 60, seed=1)


@pytest.mark.slow
def test_three_hundred_processes(nvml_library, environment):
    assert stress(nvml_library, environment, 300, 240, seed=2) < 120
