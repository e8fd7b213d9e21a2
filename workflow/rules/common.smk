# What the rules share: the validated config and where a run's files are.
#
#   run       the validated config, as featuremill.config.Run
#   results   results/<run>, the run's folder
#   logs      logs/<run>, a folder a verb
#   asked     what a cluster is asked for: memory and minutes of each kind of job

from featuremill import workflow_inputs, workflow_slurm, workflow_start, workflow_totals
from featuremill import workflow_support as support
from featuremill.calm import calm_output
from featuremill.job_resources import JobResources, gpu_model
from featuremill.outputs import FILES, FOLDERS
from featuremill.workflow_failures import closing

failures = calm_output(workflow)
run = support.validated(config, workflow)
workflow_inputs.explain_missing(workflow, config, run)
results = f"results/{run.run}"
logs = f"logs/{run.run}"
weights_files = support.weights_json(run)

support.prepare_jobs(workflow)
support.answer_sigterm()
workflow_start.prepare(workflow, run, results)
workflow_slurm.prepare(workflow)
workflow_totals.tell(workflow, results)
num_slots = support.cap_gpus(workflow, run.device, run.gpus)
asked = JobResources(run, results, tuple(weights_files), gpu_model(workflow))


def receipts(wildcards):
    """Return the receipts that the plan asks for, once there is a plan."""
    plan = support.read_plan(checkpoints.plan.get(**wildcards).output.plan)
    shards = (shard["shard"] for shard in plan["shards"])
    return [f"{results}/receipts/{plan['recipe']}/{shard}.json" for shard in shards]


def result(name):
    """Return where the output `name` goes, as Snakemake wants it told."""
    path = f"{results}/{FILES[name]}"
    return directory(path) if name in FOLDERS else path
