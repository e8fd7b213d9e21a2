# plan: read every record once, decide what is computed in which shard.
#
#   in    the input files, weights/<name>.json
#   out   plan.json (recipe, shards, counts), manifest.parquet (one row an input record)
#   also  store/shards/<shard>.arrow, undeclared: named by content, never deleted by a rule

import json


checkpoint plan:
    input:
        records=run.inputs,
        weights=weights_files,
    output:
        plan=f"{results}/plan.json",
        manifest=f"{results}/manifest.parquet",
    log:
        f"{logs}/plan.log",
    conda:
        "../../envs/base.yaml"
    threads: 4
    resources:
        mem_mb=asked.plan_mb,
        runtime=asked.plan_minutes,
    params:
        folder=subpath(output.plan, parent=True),
        config=json.dumps(there.model_dump(mode="json", exclude=support.NOT_PLANNED)),
        weights=[f"--weights={path}" for path in weights_there],
        # What a function of `threads` returns is never compared: other outputs are no new plan.
        outputs=lambda wildcards, threads: " ".join(run.outputs),
    shell:
        "FEATUREMILL_OUTPUTS={params.outputs:q}"
        " exec featuremill plan {params.folder:q} --config-json {params.config:q}"
        " {params.weights:q} --threads {threads} --log-file {log:q}"
