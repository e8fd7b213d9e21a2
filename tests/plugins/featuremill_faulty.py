"""A workload on a faulty installation: it raises a given text, always or above a size."""

import logging
import os
import signal

from featuremill.inputs import proteins
from featuremill.workload import WorkloadOptions, loading
from featuremill.workloads import composition
from featuremill.workloads.composition import prepare, resolve, schema, weights

__all__ = ["prepare", "resolve", "schema", "weights"]
VERSION = "1"
COST_UNIT = "records"


class Options(WorkloadOptions):
    """What a test sets; the values are the same whatever it is."""

    EXECUTION = frozenset({"where", "text", "warning", "above", "batch_records", "trial"})
    hydropathy: bool = True
    """As composition's."""
    where: str = "run"
    """What raises: load or run."""
    text: str = ""
    """What a RuntimeError says."""
    warning: str = ""
    """What loading the model warns of."""
    above: int = 0
    """More rows than this raise it."""
    trial: str = ""
    """How the process ends in what loading the model tries: crash or hang."""
    batch_records: int = 10
    """Records in a batch."""


def records(files, options):
    return proteins(files)


def cost(payload, options):
    return 1


def batch_cost(options, device):
    return options.batch_records


def load(options, devices, weights):
    loading.at("a first kernel")
    loading.at("")
    if options.trial:
        loading.at("another kernel", 0.1)
        os.kill(os.getpid(), signal.SIGSEGV) if options.trial == "crash" else signal.pause()
    if options.where == "load":
        raise RuntimeError(options.text)
    if options.warning:
        logging.getLogger("featuremill.workloads.faulty").warning(options.warning)
    return options, composition.load(options, devices, weights)


def run(model, batch):
    options, schema = model
    if options.text and len(batch) > options.above:
        raise RuntimeError(options.text)
    return composition.run(schema, batch)


def collect(model, result):
    return composition.collect(model[1], result)
