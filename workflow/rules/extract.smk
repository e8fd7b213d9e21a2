# extract: compute one shard on one GPU slot (or several, or on the CPU). The target `extracted` is all
# shards of all runs, without what comes after.
#
#   in    weights/<name>.json; the shard itself stands in the store, named by the wildcard
#   out   receipts/<recipe>/<shard>.json: counts, seconds, device, the part's digest
#   also  store/parts/<recipe>/<shard>.arrows, undeclared, so that no rerun deletes it


rule extract:
    input:
        # A weights file of another mtime is no reason to compute again: the recipe holds its sha256.
        weights=lambda wildcards: ancient(mill.of(wildcards).weights),
    output:
        receipt=f"{mill.results}/receipts/{{recipe}}/{{shard}}.json",
    log:
        f"{mill.logs}/extract/{{recipe}}/{{shard}}.log",
    wildcard_constraints:
        run=mill.names,
        recipe="[0-9a-f]{32}",
        shard="[0-9a-f]{32}",
    conda:
        mill.environment("extract")
    threads: lambda wildcards: mill.of(wildcards).extract_threads()
    resources:
        gpu=lambda wildcards: mill.of(wildcards).extract_gpus,
        mem_mb=mill.resource("extract_mb"),
        runtime=mill.resource("extract_minutes"),
    params:
        folder=subpath(output.receipt, ancestor=3),
    shell:
        "exec featuremill extract {params.folder:q} {wildcards.shard}"
        " --recipe {wildcards.recipe} --threads {threads} --log-file {log:q}"


rule extracted:
    input:
        lambda wildcards: [file for run in mill.runs for file in receipts_of(run=run)],
