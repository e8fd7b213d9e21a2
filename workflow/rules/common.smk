# What the rules share: one object, `mill`, that knows the run (src/featuremill/flow/begin.py).
#
#   mill.config    the validated config
#   mill.results   results/<run>, the run's folder
#   mill.logs      logs/<run>, a folder a verb
#   mill.asks      what a cluster is asked for: memory and minutes of each kind of job

from featuremill.flow.screen import calm_output

failures = calm_output(workflow)  # first of all: it also answers Ctrl-C

from featuremill import SNAKEFILE  # where a module is called featuremill, it stands for the package
from featuremill.flow.begin import begin
from featuremill.store.formats import FILES, FOLDERS

mill = begin(workflow, config, failures)


def receipts(wildcards):
    """Return the receipts that the plan asks for, once there is a plan."""
    return mill.receipts(checkpoints.plan.get(**wildcards).output.plan)


def result(name):
    """Return where the output `name` goes, as Snakemake wants it told."""
    path = f"{mill.results}/{FILES[name]}"
    return directory(path) if name in FOLDERS else path
