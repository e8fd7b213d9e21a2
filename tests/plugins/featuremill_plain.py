"""What test workloads have in common that compute next to nothing: a record is a unit of work."""

from featuremill.inputs import proteins

VERSION = "1"
COST_UNIT = "records"


def records(files, options):
    return proteins(files)


def cost(payload, options):
    return 1


def weights(options):
    return None


def resolve(options, device, weights):
    return options


def batch_cost(options, device):
    return 2


def prepare(model, payloads, batch_cost):
    return payloads


def run(model, payloads):
    return payloads
