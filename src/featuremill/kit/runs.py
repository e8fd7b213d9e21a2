"""What the files of a run say: its results, its settings, its records."""

from featuremill.store.delivery import Accounts
from featuremill.store.failed import Group as FailedGroup
from featuremill.store.failed import read_list as failed_groups
from featuremill.store.plan import Settings
from featuremill.store.records import full_ids, read_records, with_full_ids, with_keys
from featuremill.store.results import Results
from featuremill.store.run_lock import working_folder

__all__ = [
    "Accounts",
    "FailedGroup",
    "Results",
    "Settings",
    "failed_groups",
    "full_ids",
    "read_records",
    "with_full_ids",
    "with_keys",
    "working_folder",
]
