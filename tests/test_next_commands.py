"""What featuremill says to type next: it is typed as it was printed, where it was printed."""

import os
import random
import re
import shutil
import signal
import subprocess

import pandas as pd
import pytest
import yaml
from conftest import PLUGINS
from programs import jobs_listed, wait_for
from reading import house  # noqa: F401  (a fixture)

pytestmark = pytest.mark.slow

GOOD = ">p1\nMKVLAAGIVGL\n>p2\nMKVLAAGIVGLCDEFGH\n"


class Desk:
    """A folder and a shell in it, where whatever a command prints is typed as it stands."""

    def __init__(self, folder, environment, package):
        self.folder = folder
        path = os.pathsep.join([str(package), str(PLUGINS)])
        self.environment = {**environment, "PYTHONPATH": path, "VIRTUAL_ENV": "active"}

    def start(self, command):
        return subprocess.Popen(
            ["bash", "--norc", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def type(self, command, status=0):
        """Type a command; return what it says."""
        process = self.start(command)
        said, _ = process.communicate(timeout=200)
        assert process.returncode == status, f"{command}\n{said}"
        assert "Traceback (most recent" not in said
        return said

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def table(self, run):
        return pd.read_parquet(self.folder / "results" / run / "embeddings.parquet")


@pytest.fixture
def checkout(house, tmp_path):  # noqa: F811
    """A checkout whose demo takes no model; `.venv` is active."""
    folder = house.checkout(tmp_path / "checkout")
    demo = yaml.safe_load((folder / "config/examples/composition.yaml").read_text())
    (folder / "config/config.yaml").write_text(yaml.safe_dump({**demo, "run": "demo"}))
    return Desk(folder, house.environment, folder / "src")


@pytest.fixture
def empty(house, tmp_path):  # noqa: F811
    """A folder with nothing in it, where featuremill is installed from its wheel."""
    (tmp_path / "empty").mkdir()
    return Desk(tmp_path / "empty", house.environment, house.site)


def after(words, said):
    """Return the rest of the one line of `said` that has `words`."""
    (rest,) = re.findall(rf"{re.escape(words)} *(.*)", said)
    return rest


def below(heading, said):
    """Return the indented lines that follow the one that begins with `heading`."""
    (block,) = re.findall(rf"^{re.escape(heading)}.*\n((?: +.*\n?)+)", said, re.MULTILINE)
    return [line.strip() for line in block.splitlines()]


def test_from_a_machine_that_is_ready_to_results_that_were_lost(checkout):
    checkout.write("my.fa", GOOD)
    assert below("To run", checkout.type("featuremill doctor")) == ["featuremill run YOUR.yaml"]
    said = checkout.type("featuremill run config/config.yaml")
    assert len(checkout.table("demo")) == 1000
    assert "sp|B3QYE3|RL15_CHLT3" in checkout.type(after("Look at them:", said))
    checkout.write("YOUR.fasta", GOOD)
    assert "wrote YOUR.yaml" in checkout.type(after("Your own data:", said))

    said = checkout.type("featuremill init my.fa --workload composition --force")
    assert "plan" in jobs_listed(checkout.type(f"{after('next:', said)} -n"))

    (checkout.folder / "results/demo/embeddings.parquet").unlink()
    said = checkout.type("featuremill status results/demo", status=1)
    for command in below("Type next", said):
        checkout.type(command)
    assert len(checkout.table("demo")) == 1000
    assert "Nothing to do." in checkout.type("featuremill status results/demo")


def test_from_a_fasta_file_to_results_without_a_checkout(empty):
    empty.write("my.fa", GOOD)
    said = empty.type("featuremill init my.fa --workload composition")
    said = empty.type(after("next:", said))
    assert empty.table("my")["id"].tolist() == ["p1", "p2"]
    assert (empty.folder / "results/my/report.html").exists()
    assert "p1" in empty.type(after("Look at them:", said))
    shutil.copy2(empty.folder / "my.yaml", empty.folder / "YOUR.yaml")
    (command,) = below("To run", empty.type("featuremill doctor"))
    assert "Nothing to be done" in empty.type(command)

    said = empty.type("featuremill clean results/my --keep results")
    option = re.search(r"give (--yes)", said)[1]
    assert "removed:" in empty.type(f"featuremill clean results/my --keep results {option}")
    assert not (empty.folder / "results/my/store/parts").exists()

    # The shards that an estimate asks for, in the words of the config.
    empty.write("long.fa", "".join(f">p{n}\n{'MKVLA' * 40}{'A' * n}\n" for n in range(200)))
    config = {"run": "long", "inputs": "long.fa", "workload": "composition"}
    empty.write("long.yaml", yaml.safe_dump({**config, "shards": {"cost": 1000}}))
    estimate = (
        "featuremill estimate long.yaml --cpu-slots 2 --tokens-per-second 10 --startup-seconds 60"
    )
    shards = yaml.safe_load(re.search(r"`(shards: .*?)`", empty.type(estimate))[1])
    empty.write("long.yaml", yaml.safe_dump({**config, **shards}))
    assert "cuts 10 shards of 5_990 residues" in empty.type(estimate), "as it does now"


def test_from_a_stopped_run_and_failed_records_to_results(empty):
    options = {"hold": "hold", "spans": "spans", "cure_file": "cured"}
    config = {"run": "my", "inputs": "my.fa", "workload": "poison", "device": "cpu"}
    empty.write("my.yaml", yaml.safe_dump({**config, "options": options}))
    empty.write("my.fa", f"{GOOD}>odd\nRAISEK\n")
    empty.write("hold", "")
    process = empty.start("featuremill run my.yaml")
    wait_for(lambda: (empty.folder / "spans").exists() or process.poll() is not None)
    os.killpg(process.pid, signal.SIGINT)
    stopped, _ = process.communicate(timeout=60)
    assert "job stopped" in stopped
    said = empty.type("featuremill search results/my --query p1", status=2)
    (partial,) = re.findall(r"featuremill merge \S+ --partial", said)
    assert "3 are not computed yet" in empty.type(partial)
    (empty.folder / "hold").unlink()
    again, status = below("Nothing computed is lost", stopped), below("What is done", stopped)
    assert "not done" in empty.type(status[0], status=1)
    failed = empty.type(again[0], status=2)
    said = empty.type(below("What is done", failed)[0], status=1)
    (logs,) = re.findall(r"^ +→ (grep .*)$", said, re.MULTILINE)
    (retry,) = re.findall(r"^ +→ (featuremill retry .*)$", said, re.MULTILINE)
    (log,) = empty.type(logs).split()
    assert "I don't like RAISEK" in (empty.folder / log).read_text()
    empty.write("cured", "")
    empty.type(after("now run:", empty.type(retry)))
    assert empty.table("my")["id"].tolist() == ["p1", "p2", "odd"]
    assert "Nothing to do." in empty.type(status[0])


def test_from_contigs_whose_fragments_failed_to_verdicts(empty):
    """Once because more failed than may, and once because some did, as they may."""
    rng = random.Random(5)
    contigs = {f"c{n}": "".join(rng.choices("ACGT", k=400)) for n in range(8)}
    empty.write("soil.fa", "".join(f">{id}\n{letters}\n" for id, letters in contigs.items()))
    kinds = [f"{id},{('others', 'virus')[n % 2]}\n" for n, id in enumerate(contigs)]
    empty.write("kinds.csv", "".join(["id,kind\n", *kinds]))
    options = {"alphabet": "proteins", "marker": "SR", "cured": "cured"}
    run = {"workload": "marked", "options": options, "outputs": "parquet"}
    config = {"run": "soil", "inputs": "soil.fa", "translate": {"by": "chunks", "window": 90}}
    config |= {"features": {"proteins": run}, "verdicts": {}}
    config |= {"heads": {"kinds": {"labels": "kinds.csv", "column": "kind"}}}
    empty.write("soil.yaml", yaml.safe_dump(config))

    command = after("; type", empty.type("featuremill status soil.yaml", status=2)).rstrip(".")
    empty.type(command, status=2)
    said = empty.type("featuremill status soil.yaml", status=1)
    assert "only when max_failed is at least that" in said.replace("\n    ", " ")
    assert below("Type next", said) == ["featuremill retry soil.yaml", command]
    run["max_failed"] = 1000
    empty.write("soil.yaml", yaml.safe_dump(config))
    empty.type(command)
    assert "<pre>featuremill retry" in (empty.folder / "results/soil/verdicts.html").read_text()
    said = empty.type("featuremill status soil.yaml", status=2)
    empty.write("cured", "")
    for command in below("Type next", said):
        said = empty.type(command)
    assert "no prediction" not in said
    assert "Nothing to do." in empty.type("featuremill status soil.yaml")
    assert "Nothing to do." in empty.type("featuremill top soil.yaml")
