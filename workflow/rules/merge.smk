# merge: gather the parts into results in input order, and account for every record.
#
#   in    plan.json, manifest.parquet, a receipt for each shard of the plan
#   out   the files of config `outputs`, failed.tsv, failed.fa, manifest.json (provenance and counts)

from featuremill.merge.outputs import FILES, FOLDERS


def receipts(wildcards):
    """Return the receipts that the plan asks for, once there is a plan."""
    return mill.receipts(checkpoints.plan.get(**wildcards).output.plan)


def result(name):
    """Return where the output `name` goes, as Snakemake wants it told."""
    path = f"{mill.results}/{FILES[name]}"
    return directory(path) if name in FOLDERS else path


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
        f"../../envs/{mill.merge_environment}.yaml"
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
