"""What the files of a run say: its results, its settings, its records."""

from featuremill.store.delivery import Accounts, Delivery
from featuremill.store.failed import Group as FailedGroup
from featuremill.store.failed import read_list as failed_groups
from featuremill.store.formats import outputs_of
from featuremill.store.journal_log import digest_of_file as digest_of_part
from featuremill.store.parts import read_shard
from featuremill.store.plan import Settings
from featuremill.store.records import read_records, whole_ids, with_keys, with_whole_ids
from featuremill.store.results import Results

__all__ = [
    "Accounts",
    "Delivery",
    "FailedGroup",
    "Results",
    "Settings",
    "digest_of_part",
    "failed_groups",
    "outputs_of",
    "read_records",
    "read_shard",
    "whole_ids",
    "with_keys",
    "with_whole_ids",
]
