# partial: write what is computed by now, for `snakemake … partial`; starts no extract.
#
#   in    plan.json, manifest.parquet, and whatever parts are finished
#   out   partial/ with embeddings.parquet, manifest.json, report.html and so on: undeclared, so that
#         it runs whenever it is asked for; merge removes it
#
# While the run is going on its Snakemake keeps others out: `featuremill merge --partial` does it then.


rule partial:
    input:
        plan=rules.plan.output.plan,
        manifest=rules.plan.output.manifest,
    log:
        f"{mill.logs}/partial.log",
    conda:
        mill.environment("merge")
    threads: 4
    resources:
        mem_mb=mill.asks.merge_mb,
        runtime=mill.asks.merge_minutes,
    params:
        folder=subpath(input.plan, parent=True),
        config=mill.config_json,
    shell:
        "featuremill merge {params.folder:q} --partial --config-json {params.config:q}"
        " --threads {threads} --log-file {log:q} &&"
        " exec featuremill report {params.folder:q} --partial --config-json {params.config:q}"
        " --log-file {log:q}"
