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
        f"{logs}/partial.log",
    conda:
        "../../envs/esm2.yaml" if "fair_esm_pt" in run.outputs else "../../envs/base.yaml"
    threads: 4
    resources:
        mem_mb=asked.merge_mb,
        runtime=asked.merge_minutes,
    params:
        folder=subpath(input.plan, parent=True),
        outputs=run.outputs,
    shell:
        "featuremill merge {params.folder:q} --partial --outputs {params.outputs}"
        " --threads {threads} --log-file {log:q} &&"
        " exec featuremill report {params.folder:q} --partial --log-file {log:q}"
