# merge: gather the parts into results in input order, and account for every record.
#
#   in    plan.json, manifest.parquet, a receipt for each shard of the plan
#   out   the files of config `outputs`, failed.tsv, failed.fa, manifest.json (provenance and counts)


rule merge:
    input:
        plan=rules.plan.output.plan,
        manifest=rules.plan.output.manifest,
        receipts=receipts,
    output:
        **{name: result(name) for name in mill.config.outputs},
        manifest=f"{mill.results}/manifest.json",
        failed=f"{mill.results}/failed.tsv",
        sequences=f"{mill.results}/failed.fa",
    log:
        f"{mill.logs}/merge.log",
    conda:
        mill.environment("merge")
    threads: 4
    resources:
        mem_mb=mill.asks.merge_mb,
        runtime=mill.asks.merge_minutes,
    params:
        folder=subpath(output.manifest, parent=True),
        config=mill.config_json,
        reruns=mill.reruns("merge"),
    shell:
        "exec featuremill merge {params.folder:q} --config-json {params.config:q}"
        " --threads {threads} --log-file {log:q}"
