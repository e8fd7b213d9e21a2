# weights: turn a checkpoint into one memory-mapped file, once for all runs.
#
#   in    a checkpoint: bundled, downloaded by name, or a local path (config: options.model)
#   out   weights/<name>.json: where the file is, its sha256, the model's shape


rule weights:
    input:
        support.checkpoint_files(run),
    output:
        "weights/{name}.json",
    log:
        "logs/weights/{name}.log",
    conda:
        "../../envs/esm2.yaml"
    resources:
        mem_mb=8000,
    params:
        model=run.options.get("model", ""),
    shell:
        "exec featuremill weights {params.model:q} --output {output:q} --log-file {log:q}"
