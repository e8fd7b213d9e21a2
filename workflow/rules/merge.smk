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
        **{name: result(name) for name in run.outputs},
        manifest=f"{results}/manifest.json",
        failed=f"{results}/failed.tsv",
        sequences=f"{results}/failed.fa",
    log:
        f"{logs}/merge.log",
    conda:
        # Only one of the outputs needs PyTorch.
        "../../envs/esm2.yaml" if "fair_esm_pt" in run.outputs else "../../envs/base.yaml"
    threads: 4
    resources:
        mem_mb=asked.merge_mb,
        runtime=asked.merge_minutes,
    params:
        folder=subpath(output.manifest, parent=True),
        outputs=run.outputs,
        max_failed=run.max_failed,
    shell:
        "exec featuremill merge {params.folder:q} --outputs {params.outputs}"
        " --max-failed {params.max_failed} --threads {threads} --log-file {log:q}"
