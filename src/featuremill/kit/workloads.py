"""A workload, for a step that computes values or asks about them."""

from featuremill.workload import (
    Record,
    Weights,
    Workload,
    find_workload,
    refuse_lacking,
    refuse_without_packages,
)
from featuremill.workload.compute import values_in_batches
from featuremill.workload.option_files import refuse_others as refuse_other_files
from featuremill.workload.plugin_errors import attributed_to, batch_cost_of, records_of
from featuremill.workload.recipe import ENGINE_VERSION, ahead_of, settings_of
from featuremill.workload.weights import is_path as is_path_of_weights
from featuremill.workload.weights import json_of as json_of_weights
from featuremill.workload.weights import model_name_of
from featuremill.workload.weights import name_of as name_of_weights
from featuremill.workload.weights import read as read_weights
from featuremill.workload.weights import refuse_missing as refuse_missing_weights

__all__ = [
    "ENGINE_VERSION",
    "Record",
    "Weights",
    "Workload",
    "ahead_of",
    "attributed_to",
    "batch_cost_of",
    "find_workload",
    "is_path_of_weights",
    "json_of_weights",
    "model_name_of",
    "name_of_weights",
    "read_weights",
    "records_of",
    "refuse_lacking",
    "refuse_missing_weights",
    "refuse_other_files",
    "refuse_without_packages",
    "settings_of",
    "values_in_batches",
]
