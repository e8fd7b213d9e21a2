# plan: read every record once, decide what is computed in which shard.
#
#   in    the input files, the files that options name, weights/<name>.json
#   out   plan.json (recipe, shards, counts), records.parquet (one row an input record)
#   also  store/shards/<shard>.arrow, undeclared: named by content, never deleted by a rule


checkpoint plan:
    input:
        records=lambda wildcards: mill.inputs_of(wildcards),
        weights=lambda wildcards: mill.of(wildcards).weights,
        options=lambda wildcards: mill.of(wildcards).option_inputs,  # files and folders that they name
    output:
        plan=f"{mill.results}/plan.json",
        records=f"{mill.results}/records.parquet",
    log:
        f"{mill.logs}/plan.log",
    wildcard_constraints:
        run=mill.names,
    conda:
        mill.environment("plan")
    threads: 4
    resources:
        mem_mb=mill.resource("plan_mb"),
        runtime=mill.resource("plan_minutes"),
    params:
        folder=subpath(output.plan, parent=True),
        reruns=mill.reruns("plan"),
        weights=lambda wildcards: mill.of(wildcards).weights_words,
    shell:
        "exec featuremill plan {params.folder:q} {params.weights:q} --threads {threads}"
        " --log-file {log:q}"
