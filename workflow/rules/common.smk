# What the rules share: the validated config and where a run's files are.
#
#   run       the validated config, as featuremill.config.Run
#   results   results/<run>, the run's folder
#   logs      logs/<run>, a folder a verb

import json

from featuremill import workflow_support as support
from featuremill.calm import calm_output

run = support.validated(config)
results = f"results/{run.run}"
logs = f"logs/{run.run}"
weights_files = support.weights_json(run)

calm_output(workflow)
support.prepare_jobs(workflow)
support.claim_run(workflow, results)
num_slots = support.cap_gpus(workflow, run.device, run.gpus)


def receipts(wildcards):
    """Return the receipts that the plan asks for, once there is a plan."""
    with checkpoints.plan.get(**wildcards).output.plan.open() as handle:
        plan = json.load(handle)
    shards = (shard["shard"] for shard in plan["shards"])
    return [f"{results}/receipts/{plan['recipe']}/{shard}.json" for shard in shards]
