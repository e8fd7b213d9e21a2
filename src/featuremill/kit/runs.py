"""What the files of a run say: its results, its settings, its records."""

from featuremill.store.delivery import Accounts
from featuremill.store.failed import Group as FailedGroup
from featuremill.store.failed import read_list as failed_groups
from featuremill.store.plan import Settings
from featuremill.store.records import read_records, whole_ids, with_keys, with_whole_ids
from featuremill.store.results import Results
from featuremill.store.run_lock import working_folder

__all__ = [
    "Accounts",
    "FailedGroup",
    "Results",
    "Settings",
    "failed_groups",
    "read_records",
    "whole_ids",
    "with_keys",
    "with_whole_ids",
    "working_folder",
]
