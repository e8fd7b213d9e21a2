# plan: read every record once, decide what is computed in which shard.
#
#   in    the input files, weights/<name>.json
#   out   plan.json (recipe, shards, counts), manifest.parquet (one row an input record)
#   also  store/shards/<shard>.arrow, undeclared: named by content, never deleted by a rule


checkpoint plan:
    input:
        records=run.inputs,
        weights=weights_files,
    output:
        plan=f"{results}/plan.json",
        manifest=f"{results}/manifest.parquet",
    log:
        f"{logs}/plan.log",
    params:
        folder=results,
        config=json.dumps(run.model_dump(mode="json", exclude={"outputs", "max_failed"})),
        weights=[f"--weights={path}" for path in weights_files],
    resources:
        mem_mb=4000,
    shell:
        "exec featuremill plan {params.folder:q} --config-json {params.config:q}"
        " {params.weights:q} --log {log:q}"
