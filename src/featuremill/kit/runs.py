"""What the files of a run say: its results, its settings, its records."""

from featuremill.store.delivery import Accounts
from featuremill.store.failed import Group as FailedGroup
from featuremill.store.failed import read_list as failed_groups
from featuremill.store.plan import Settings
from featuremill.store.records import SAMPLE, full_ids, read_records, samples_of, with_full_ids
from featuremill.store.results import Results
from featuremill.store.run_lock import working_folder

__all__ = [
    "SAMPLE",
    "Accounts",
    "FailedGroup",
    "Results",
    "Settings",
    "failed_groups",
    "full_ids",
    "read_records",
    "samples_of",
    "with_full_ids",
    "working_folder",
]
