# weights: turn a checkpoint into one memory-mapped file, once for all runs, or hash what is
# taken as it is.
#
#   in    a checkpoint: bundled, downloaded by name, or a local path, as an option of the config says
#   out   weights/<name>.json: where the file is, its sha256, the model's shape
#
# Runs where Snakemake itself does: a cluster's nodes often have no network, its login node has.


rule weights:
    input:
        lambda wildcards: mill.of_weights(wildcards).checkpoint,
    output:
        "weights/{name}.json",
    log:
        "weights/{name}.log",
    wildcard_constraints:
        name=mill.weights_names,
    localrule: True
    conda:
        lambda wildcards: mill.of_weights(wildcards).environment("weights")
    resources:
        mem_mb=8000,
    params:
        model=lambda wildcards: mill.of_weights(wildcards).weights_of,
    shell:
        "exec featuremill weights {params.model:q} --output {output:q} --log-file {log:q}"
