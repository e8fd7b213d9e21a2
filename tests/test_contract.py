"""The contract's own test, over the built-in workloads and two of the tests."""

import math
from types import MappingProxyType

import pyarrow as pa
import pytest
from conftest import PLUGINS, ROOT
from programs import ForkedWorkload, QuickWorkload, fasta, random_records, working_in

from featuremill.contract import WorkloadContract


@pytest.fixture(scope="module", autouse=True)
def surroundings(tmp_path_factory, environment):
    """Let the contract's own processes find the plug-ins, a cache of their own, and few records."""
    folder = tmp_path_factory.mktemp("contract")
    (folder / "few.fa").write_text(fasta(random_records(15)))
    (folder / "number.txt").write_text("3")
    (folder / "poison.fa").write_text(">unlucky\nBDE\n")
    more = {"FEATUREMILL_CACHE": folder / "cache", "BULKY_UNLUCKY": "B"}
    with working_in(folder, **{**environment, **more}) as patch:
        patch.syspath_prepend(str(PLUGINS))
        yield


class TestComposition(QuickWorkload):
    workload = "composition"
    inputs = (ROOT / "config" / "demo.fasta",)


class TestEsm2(ForkedWorkload):
    workload = "esm2"
    inputs = ("few.fa",)
    options = MappingProxyType(
        {"dtype": "fp32", "per_residue": True, "pool": ["mean", "bos"], "layers": [2, -1]}
    )


@pytest.fixture(scope="module")
def random_esmc(surroundings):
    from esmc_models import esmc

    esmc(2, 64, 128).save_pretrained("esmc")


@pytest.mark.slow
@pytest.mark.usefixtures("random_esmc")
class TestEsmc(ForkedWorkload):
    workload = "esmc"
    inputs = ("few.fa",)
    options = MappingProxyType({"model": "esmc", "dtype": "fp32", "layers": [1, -1]})


@pytest.mark.slow
@pytest.mark.usefixtures("random_esmc")
class TestScoresOfAnEsmC(ForkedWorkload):
    workload = "scores"
    inputs = ("few.fa",)
    options = MappingProxyType(
        {"model": "esmc", "dtype": "fp32", "long": "full", "marginals": ["wildtype", "masked"]}
    )


@pytest.mark.slow
class TestAnOptionFile(ForkedWorkload):
    workload = "numbered"
    inputs = ("few.fa",)
    options = MappingProxyType({"number": "number.txt"})


@pytest.mark.slow
class TestTables(WorkloadContract):
    workload = "bulky"
    inputs = ("few.fa",)
    poison = "poison.fa"
    tolerance = 1e-6


@pytest.fixture
def contract():
    """Return the contract over a workload whose `collect` can be spoiled, here in this process."""
    found = TestTables()
    return found, found._module


def test_a_value_that_depends_on_its_batch_is_found(contract, monkeypatch):
    test, module = contract
    collect = module.collect

    def spoiled(model, payloads):
        rows = collect(model, payloads)
        sizes = pa.array([len(payloads)] * rows.num_rows, pa.int64())
        return rows.set_column(rows.schema.get_field_index("size"), "size", sizes)

    monkeypatch.setattr(module, "collect", spoiled)
    with pytest.raises(AssertionError, match="size differs"):
        test.test_values_do_not_depend_on_the_batch()


def test_a_wrong_word_about_what_is_delivered_is_found(contract, monkeypatch):
    test, module = contract
    monkeypatch.setattr(module.Options, "delivers", lambda self: {"pooled"})
    with pytest.raises(AssertionError):
        test.test_values_have_the_declared_kinds()


def test_a_cost_of_nothing_is_found(contract, monkeypatch):
    test, module = contract
    monkeypatch.setattr(module, "cost", lambda payload, options: 0)
    with pytest.raises(AssertionError):
        test.test_records_have_costs_and_are_the_same_when_read_twice()


def test_a_nan_in_a_table_equals_itself_and_no_number():
    """Arrow's own comparison has no NaN that equals another."""
    kind = pa.list_(pa.struct({"gene": pa.string(), "cosine": pa.float64()}))

    def table(cosine):
        return pa.table({"shifts": pa.array([[{"gene": "A", "cosine": cosine}]], kind)})

    contract = WorkloadContract()
    contract._compare(table(math.nan), table(math.nan))
    for one, other in ((math.nan, 0.5), (0.5, math.nan), (0.5, math.nextafter(0.5, 1))):
        with pytest.raises(AssertionError, match="shifts differs"):
            contract._compare(table(one), table(other))
