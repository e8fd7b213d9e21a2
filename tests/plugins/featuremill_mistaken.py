"""A workload that makes one mistake of its author's, which the option `mistake` names."""

import pyarrow as pa

from featuremill.inputs import proteins
from featuremill.workload import OptionWeights, WorkloadOptions
from featuremill.workloads import composition

VERSION = "1"
COST_UNIT = "residues"
PRECISION = "precision"


class Options(WorkloadOptions):
    """What a test sets."""

    hydropathy: bool = True
    """As composition's."""
    mistake: str = ""
    """What is done wrong."""
    precision: str = "bf16"
    """What audit compares."""
    network: OptionWeights | None = None
    """A file, for audit."""


CHANGED = {
    "payload is text": {"payload": "MKV"},
    "payload is None": {"payload": None},
    "id is a number": {"id": 7},
    "description is None": {"description": None},
    "line is None": {"line": None},
    "note is None": {"note": None},
    "length is a float": {"length": 1.5},
}


def records(files, options):
    if options.mistake == "records is None":
        return None
    return stream(files, options.mistake)


def stream(files, mistake):
    for number, record in enumerate(proteins(files), 1):
        if number == 2:
            if mistake == "records raises":
                raise KeyError("info\n  of it")
            if mistake == "records gives tuples":
                record = ("id", b"MKV")
            record = record._replace(**CHANGED[mistake]) if mistake in CHANGED else record
        yield record


def cost(payload, options):
    costs = {"cost is 0": 0, "cost is a float": 1.5, "cost is None": None, "cost is negative": -3}
    if options.mistake == "cost raises":
        raise ValueError("of no length")
    return costs.get(options.mistake, len(payload))


def resolve(options, device, weights):
    return None if options.mistake == "resolve gives None" else options


def schema(options, weights):
    if options.mistake == "schema gives a list":
        return ["composition"]
    if options.mistake == "schema gives None":
        return None
    if options.mistake == "schema is empty":
        return pa.schema({})
    good = composition.schema(options, weights)
    if options.mistake == "a column is reserved":
        return good.append(pa.field("sha256", pa.list_(pa.float32(), 1)))
    return good.append(good.field(0)) if options.mistake == "a column stands twice" else good


def weights(options):
    return options.network


def batch_cost(options, device):
    return {"batch_cost is None": None, "batch_cost is 0": 0}.get(options.mistake, 1000)


def load(options, devices, weights):
    fail(options, "load")
    return composition.schema(options, weights), options


def prepare(model, payloads, batch_cost):
    fail(model[1], "prepare")
    return payloads


def run(model, payloads):
    fail(model[1], "run")
    return composition.run(model[0], payloads)


def collect(model, rows):
    fail(model[1], "collect")
    values = composition.collect(model[0], rows)
    answers = {
        "collect gives None": None,
        "collect gives too little": values.slice(1),
        "collect gives other columns": values.rename_columns(["hydropathy", "composition"]),
    }
    return answers.get(model[1].mistake, values)


def fail(options, where):
    if options.mistake == f"{where} raises":
        raise KeyError("info")


def audited(options, precision):
    fail(options, "audited")
    return options.model_copy(update={"precision": precision})


def num_vectors(payload, options):
    return 1


class Lacking:
    """A workload that lacks half of the contract."""

    VERSION = "1"
    COST_UNIT = "residues"


class Nameless:
    """A workload of which nothing is there but the names."""

    def __getattr__(self, name):
        return None


class Unversioned(Nameless):
    """A workload whose version was forgotten."""

    COST_UNIT = "residues"
    Options = Options


lacking, nameless, unversioned = Lacking(), Nameless(), Unversioned()
