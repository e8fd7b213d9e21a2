"""The contract's own test, over the built-in workloads and one with an option file."""

from types import MappingProxyType

import pytest
from conftest import PLUGINS, ROOT
from programs import fasta, random_records

from featuremill.contract import WorkloadContract

DEMO = ROOT / "config" / "demo.fasta"


@pytest.fixture(scope="module", autouse=True)
def surroundings(tmp_path_factory, environment):
    """Let the contract's own processes find the plug-ins, a cache of their own, and few records."""
    folder = tmp_path_factory.mktemp("contract")
    (folder / "few.fa").write_text(fasta(random_records(15)))
    (folder / "number.txt").write_text("3")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setenv("FEATUREMILL_CACHE", str(folder / "cache"))
        patch.syspath_prepend(str(PLUGINS))
        patch.chdir(folder)
        yield


class TestComposition(WorkloadContract):
    workload = "composition"
    inputs = (DEMO,)


class TestEsm2(WorkloadContract):
    workload = "esm2"
    inputs = ("few.fa",)
    options = MappingProxyType(
        {"dtype": "fp32", "per_residue": True, "pool": ["mean", "bos"], "layers": [2, -1]}
    )


class TestAnOptionFile(WorkloadContract):
    workload = "numbered"
    inputs = ("few.fa",)
    options = MappingProxyType({"number": "number.txt"})
