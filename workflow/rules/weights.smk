# weights: turn a checkpoint into one memory-mapped file, once for all runs.
#
#   in    a checkpoint: bundled, downloaded by name, or a local path (config: options.model)
#   out   weights/<name>.json: where the file is, its sha256, the model's shape
#
# Runs where Snakemake itself does: a cluster's nodes often have no network, its login node has.


rule weights:
    input:
        mill.checkpoint,
    output:
        "weights/{name}.json",
    log:
        "logs/weights/{name}.log",
    wildcard_constraints:
        name=mill.weights_names,
    localrule: True
    conda:
        "../../envs/esm2.yaml"
    resources:
        mem_mb=8000,
    params:
        model=mill.there.options.get("model", ""),
    shell:
        "exec featuremill weights {params.model:q} --output {output:q} --log-file {log:q}"
