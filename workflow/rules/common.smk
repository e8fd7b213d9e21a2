# What the rules share: one object, `mill`, that knows the project (src/featuremill/flow/context.py).
#
#   mill.results   results/<run>, the run's folder; of several sets of features results/{run}, and the
#                  wildcard is <run>/<name>
#   mill.logs      the folder of its logs
#   mill.of        the run that a job is about, by wildcards
#   mill.resource  memory and minutes of each kind of job, for a cluster

from featuremill.flow.screen import filter_output

failures = filter_output(workflow)  # first of all: it also answers Ctrl-C

from featuremill import SNAKEFILE  # where a module is called featuremill, it stands for the package
from featuremill.flow.context import begin
from featuremill.store.formats import format_of

mill = begin(workflow, config, failures)
mill.guard_outputs(SNAKEFILE)


def receipts(wildcards):
    return receipts_of(**wildcards)


def receipts_of(**wildcards):
    """Return the receipts that the plan asks for, once there is a plan and steps can do with it."""
    plan = checkpoints.plan.get(**wildcards).output.plan
    for run in mill.checked_together:
        checkpoints.plan.get(run=run)
    mill.check_records()
    return mill.runs[wildcards.get("run", mill.run)].receipts(plan)


def delivered(wildcards):
    """Return what the delivering jobs of the plan write: nothing of results in the input's order."""
    plan = checkpoints.plan.get(**wildcards).output.plan
    return mill.of(wildcards).delivered(plan)


def receipts_of_job(wildcards):
    """Return the receipts of the shards that a delivering job is about."""
    run = {"run": wildcards.run} if hasattr(wildcards, "run") else {}
    plan = checkpoints.plan.get(**run).output.plan
    return mill.of(wildcards).receipts_of_job(plan, wildcards.job)


def result(name):
    """Return where the output `name` goes, as Snakemake wants it told."""
    found = format_of(name)
    path = f"{mill.results}/{found.file}"
    return directory(path) if found.is_folder else path
