"""Typed here: `pytest test_terms.py`, where this package is installed."""

from types import MappingProxyType

from featuremill.contract import WorkloadContract


class TestTerms(WorkloadContract):
    workload = "terms"
    inputs = ("texts.csv",)
    options = MappingProxyType({"glossary": "glossary.tsv", "vectors": "vectors"})
    poison = "unknown.csv"
