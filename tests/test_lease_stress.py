"""lease under stress: hundreds of processes of two users, a third killed with SIGKILL at random.

The observer (nvml/witness.c) runs inside the commands and knows nothing of the locks.
"""

import json
import os
import random
import shutil
import subprocess
import uuid
from collections import defaultdict

import pytest
from leases import NOBODY, for_all_users
from nvml_node import SOURCES, Gpu
from programs import wait_for

NUM_GPUS, NUM_SLOTS = 4, 2


class Stress:
    """Starts the processes, kills some, and keeps what the observer wrote."""

    def __init__(self, leases, seed):
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
        self.users = [None, NOBODY] if os.getuid() == 0 else [None]
        self.processes = []
        self.killed = set()

    def start(self, user):
        milliseconds = self.rng.randint(100, 1500)
        command = [self.witness, self.run, NUM_SLOTS, self.log, milliseconds]
        more = {} if user is None else {"user": user, "group": user}
        more |= {"run": [*map(str, command)], "cwd": "/", "stdout": subprocess.DEVNULL}
        return self.leases.start("--quiet", "--slots-per-gpu", NUM_SLOTS, **more)

    def events(self):
        lines = (line.split() for line in self.log.read_text().splitlines())
        return [(int(at) / 1e6, int(pid), what, gpu, int(uid)) for at, pid, what, gpu, uid in lines]

    def carry_out(self, num_processes, seconds):
        """Start them all, kill every third at a random moment, wait for the rest.

        Each kill takes one that runs at that moment: starting, waiting, or (half of the kills) one
        that holds a device, as the observer has it.
        """
        left = []

        def go_on():
            if len(self.processes) < num_processes:
                user = self.users[len(self.processes) % len(self.users)]
                self.processes.append(self.start(user))
                left.append(self.processes[-1])
            left[:] = [process for process in left if process.poll() is None]
            alive = [process for process in left if process.pid not in self.killed]
            if alive and len(self.killed) < len(self.processes) // 3:
                state = {pid: what for _, pid, what, *_ in self.events()}
                if len(self.killed) % 2:
                    alive = [process for process in alive if state.get(process.pid) == "got"]
                for victim in self.rng.sample(alive, min(1, len(alive))):
                    self.killed.add(victim.pid)
                    victim.kill()
            return len(self.processes) == num_processes and not left

        wait_for(go_on, seconds)


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
        run = Stress(leases, seed)
        run.carry_out(num_processes, seconds)
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
        assert codes[0] + codes[-9] == num_processes, "all survivors were served"
        assert codes[-9] >= 0.9 * (num_processes // 3), "the others ended as they were killed"
        assert killed_holding > codes[-9] // 5
        _, *gpus = leases.list()
        assert gpus and all(gpu.split()[3] == "free" for gpu in gpus), "no slot is lost"
        assert leases("--gpus", NUM_GPUS, "--wait", 5)[0].split(",") == leases.node.uuids


def test_a_slice_of_the_stress(nvml_library, environment):
    stress(nvml_library, environment, 48, 120, seed=1)


@pytest.mark.slow
def test_three_hundred_processes(nvml_library, environment):
    stress(nvml_library, environment, 300, 120, seed=2)
