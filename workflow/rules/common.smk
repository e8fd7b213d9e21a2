# What the rules share: the validated config and where a run's files are.
#
#   run       the validated config, as featuremill.config.Run
#   results   results/<run>, the run's folder
#   logs      logs/<run>, a folder a verb
#   asked     what a cluster is asked for: memory and minutes of each kind of job
#
# Rules name files so. Where another workflow imports this one with a prefix, Snakemake puts it
# before them. Where they are then: the run with such names is `there`, its folder `run_folder`.

from featuremill.flow.screen import calm_output

failures = calm_output(workflow)  # first of all: it also answers Ctrl-C

from featuremill import SNAKEFILE  # a module called featuremill hides the package of that name
from featuremill.flow import module_import, slurm_start, support, totals
from featuremill.flow import inputs as input_files
from featuremill.flow import start as run_start
from featuremill.flow.job_resources import JobResources, gpu_model
from featuremill.store.formats import FILES, FOLDERS
from featuremill.flow.failures import closing

is_target = workflow.default_target is None  # else an importing workflow has named its own
run = support.validated(config, workflow)
there = module_import.run_below_prefix(workflow, run)
input_files.explain_missing(workflow, config, there)
results = f"results/{run.run}"
run_folder = module_import.below_prefix(workflow, results)
logs = f"logs/{run.run}"
weights_files = support.weights_json(run)
weights_there = [module_import.below_prefix(workflow, path) for path in weights_files]

support.prepare_jobs(workflow)
support.answer_sigterm()
module_import.share(workflow, there, run_folder, weights_there)
run_start.prepare(workflow, there, run_folder, weights_there)
slurm_start.prepare(workflow)
totals.tell(workflow, run_folder)
num_slots = support.cap_gpus(workflow, run.device, run.gpus)
asked = JobResources(there, run_folder, tuple(weights_there), gpu_model(workflow))


def receipts(wildcards):
    """Return the receipts that the plan asks for, once there is a plan."""
    plan = support.read_plan(checkpoints.plan.get(**wildcards).output.plan)
    shards = (shard["shard"] for shard in plan["shards"])
    return [f"{results}/receipts/{plan['recipe']}/{shard}.json" for shard in shards]


def result(name):
    """Return where the output `name` goes, as Snakemake wants it told."""
    path = f"{results}/{FILES[name]}"
    return directory(path) if name in FOLDERS else path
