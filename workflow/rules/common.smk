# What the rules share: one object, `mill`, that knows the run (src/featuremill/flow/begin.py).
#
#   mill.config    the validated config
#   mill.results   results/<run>, the run's folder
#   mill.logs      results/<run>/logs
#   mill.asks      what a cluster is asked for: memory and minutes of each kind of job

from featuremill.flow.screen import calm_output

failures = calm_output(workflow)  # first of all: it also answers Ctrl-C

from featuremill import SNAKEFILE  # where a module is called featuremill, it stands for the package
from featuremill.flow.begin import begin
from featuremill.store.formats import format_of

mill = begin(workflow, config, failures)


def receipts(wildcards):
    """Return the receipts that the plan asks for, once there is a plan."""
    return mill.receipts(checkpoints.plan.get(**wildcards).output.plan)


def result(name):
    """Return where the output `name` goes, as Snakemake wants it told."""
    found = format_of(name)
    path = f"{mill.results}/{found.file}"
    return directory(path) if found.is_folder else path
