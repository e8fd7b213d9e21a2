# What the rules share: the validated config and where a run's files are.
#
#   run       the validated config, as featuremill.config.Run
#   results   results/<run>, the run's folder
#   logs      logs/<run>, a folder a verb

import json

from featuremill import workflow_support as support

run = support.validated(config)
results = f"results/{run.run}"
logs = f"logs/{run.run}"
weights_files = support.weights_json(run)

support.put_featuremill_on_path()
support.heal_stale_lock(workflow, results)
num_gpus = support.cap_gpus(workflow, run.device)
