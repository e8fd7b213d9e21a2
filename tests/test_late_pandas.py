"""Processes of ours do without pandas, unless somebody imports it; then Arrow knows it as ever."""

import subprocess
import sys

import pytest
from programs import random_records, written

LATER = """
import sys
import pyarrow as pa
from featuremill.base import late_pandas

late_pandas.set_up()
assert pa.array([1.0]).to_numpy().tolist() == [1] and "pandas" not in sys.modules
from importlib.util import find_spec
assert find_spec("pandas") and pa.scalar(1).as_py() == 1 and "pandas" not in sys.modules
import pandas as pd

assert pa.array(pd.Series([1, float("nan")])).null_count == 1, "Arrow takes it for any sequence"
print(len([finder for finder in sys.meta_path if "featuremill" in type(finder).__module__]))
"""


@pytest.fixture
def imported(verbs):
    """Return a function that runs a verb in a process of its own, and what that and its worker have
    imported."""

    def run(*words):
        log = verbs.folder / "log"
        environment = {**verbs.environment, "PYTHONPROFILEIMPORTTIME": "1"}
        with verbs.start(*words, "--log-file", log, env=environment) as process:
            text = process.communicate()[1] + log.read_text()
        assert process.returncode == 0, log.read_text()
        lines = (line.split("|") for line in text.splitlines() if "import time:" in line)
        return {name.strip() for *_, name in lines}

    return run


def test_no_process_of_a_run_imports_pandas(verbs, imported):
    records = random_records(20)
    plan = verbs.plan([*records, records[0]])
    root = verbs.run_folder.root
    config = {"run": "test", "inputs": ["in.fa"], "workload": "composition", "device": "cpu"}
    verbs.run_folder.plan.unlink()
    runs = (
        ["plan", root, "--config", written({**config, "shards": {"cost": 1000}})],
        ["extract", root, plan["shards"][0]["shard"]],
        ["merge", root],
    )
    for words in runs:
        names = imported(*words)
        assert "pyarrow.lib" in names and "pandas.core" not in names, words


def test_pandas_that_is_imported_later_is_what_arrow_looks_for(environment):
    words = [sys.executable, "-c", LATER]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_status_of_a_run_of_esm2_reads_json_without_numpy_and_arrow(environment):
    code = (
        "import sys\n"
        "from featuremill.status import project\n"
        "from featuremill.store import formats\n"
        "from featuremill.workload import know_reasons\n"
        "know_reasons('esm2')\n"
        "print(formats.outputs_of(['embeddings.npy', 'embeddings.parquet']))\n"
        "assert not {'numpy', 'pyarrow'} & set(sys.modules), sorted(sys.modules)\n"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "{'embeddings.parquet': 'parquet', 'embeddings.npy': 'npy'}\n", (
        done.stderr
    )
