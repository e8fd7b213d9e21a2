"""`--gpus` and `--devices`: one meaning in every command, on a simulated node."""

import json
import subprocess
import sys
from typing import NamedTuple

import pytest

from featuremill.base.errors import UserError
from featuremill.lease import GpuOptions

READ = {  # what is typed, what it says, and how many that are
    (None, None): ((None, ""), None),
    ("all", None): ((None, ""), None),
    ("2", None): ((2, ""), 2),
    ("0", None): ((0, ""), 0),
    ("2", "0,1,3"): ((2, "0,1,3"), 2),
    (None, "0, 2"): ((None, "0,2"), 2),
    (None, "cuda:1,1"): ((None, "1"), 1),
    ("0,2", None): ((2, "0,2"), 2),
    ("1,", None): ((1, "1"), 1),
    ("cuda:3", None): ((1, "3"), 1),
    ("GPU-3a,MIG-GPU-3a/1/0", None): ((2, "GPU-3a,MIG-GPU-3a/1/0"), 2),
}


@pytest.mark.parametrize("typed", READ, ids=str)
def test_a_number_is_how_many_and_a_list_is_which(typed):
    found = GpuOptions.parse(*typed)
    assert (found, found.of_all()) == READ[typed]


@pytest.mark.parametrize(
    ("gpus", "devices", "sentence"),
    [
        ("two", None, "--gpus two: give numbers as nvidia-smi has them, .*; or how many, as in 2"),
        ("-1", None, "--gpus -1: give numbers"),
        (None, "0;1", "--devices 0;1: give numbers .* as in 0,2.$"),
        (None, "0,,1", "--devices 0,,1: give numbers"),
        ("0,1", "0", "--gpus 0,1 and --devices 0: both name devices; leave one of them out."),
        ("2", "0", "--gpus 2: --devices 0 names fewer"),
    ],
)
def test_what_is_neither_is_refused(gpus, devices, sentence):
    with pytest.raises(UserError, match=sentence):
        GpuOptions.parse(gpus, devices)


BECOME = """
import json, os, sys
from featuremill.__main__ import main
from featuremill.base import environment
from featuremill.lease.environment import DEVICES
def become(_, command):
    said = [setting.value() for setting in (DEVICES, environment.TYPED)]
    print(json.dumps([command[3:], *said]))
os.execv = become
sys.exit(main(sys.argv[1:]))
"""
"""`featuremill run …` that prints the command that it would become, and what that inherits."""


class Started(NamedTuple):
    words: list[str]
    devices: str
    typed: str

    @property
    def gpu(self):
        words = self.words
        return words[words.index("--resources") + 1] if "--resources" in words else ""


@pytest.fixture
def start(gpu_node, tmp_path, environment):
    """Return a function that types `featuremill run my.yaml …` on a node of 4 GPUs; it returns what
    that becomes, or the sentence that refuses it."""
    (tmp_path / "my.yaml").write_text("inputs: my.fa\n")
    (tmp_path / "cpu.yaml").write_text("inputs: my.fa\ndevice: cpu\n")
    node = gpu_node(4).environment

    def started(*words, config="my.yaml", **more):
        done = subprocess.run(
            [sys.executable, "-c", BECOME, "run", config, *words],
            cwd=tmp_path,
            env={**environment, **node, **more},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            assert done.returncode == 2
            return " ".join(done.stderr.split())
        return Started(*json.loads(done.stdout))

    return started


def test_a_run_takes_so_many_or_these(start):
    two = start("--gpus", "2", "--resources", "mem_mb=9", "merge")
    assert two.gpu == "gpu=2" and not two.devices
    assert two.words.count("--resources") == 1 and two.words[-2:] == ["mem_mb=9", "merge"]
    assert two.typed.endswith(" run my.yaml --gpus 2 --resources mem_mb=9 merge")
    these = start("--devices", "0,3", "merge")
    assert (these.gpu, these.devices, these.words[-1]) == ("gpu=2", "0,3", "merge")
    listed = start("--gpus=1,2", FEATUREMILL_SLOTS_PER_GPU="3")
    assert (listed.gpu, listed.devices) == ("gpu=6", "1,2")
    of_them = start("--gpus", "1", "--devices", "1,2")
    assert (of_them.gpu, of_them.devices) == ("gpu=1", "1,2")
    # Where jobs run elsewhere, the GPUs here do not count.
    assert start("--gpus", "9", "--executor", "slurm", "--jobs", "9").gpu == "gpu=9"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--gpus", "5"], "--gpus 5: 4 GPUs can be used here; ask for fewer."),
        (["--devices", "7"], "GPU 7 does not exist"),
        (["--gpus", "0"], "for the GPU of number 0, give --devices 0"),
        (["-n", "--devices"], "--devices: name GPUs, as in 0,2, after it."),
        (["--gpus", "1", "--resources", "gpu=2"], "--resources gpu=… limits them, too"),
    ],
)
def test_a_run_refuses_what_cannot_be(start, words, sentence):
    assert sentence in start(*words)


def test_gpus_of_a_run_on_the_cpu_are_refused(start):
    said = start("--gpus", "1", config="cpu.yaml")
    assert "--gpus 1: the config has device: cpu; drop one of them." in said
