# sae: train sparse autoencoders on the vectors of finished runs, and look at them. For workflows that
# include this file: config `saes` names each, with the options of `featuremill sae train`.
#
#   saes:
#     NAME:
#       run: results/a                   finished, with its parts
#       column: residues_layer_6         its vectors; may be left out where there is one column
#       gpus: 2                          devices; 1 if not given
#       features: 4096                   and any other option: k, batch, steps, seed, device, …
#       encode: [results/b]              optional; encoded/NAME/b.parquet
#
#   in    results/<run>/manifest.json
#   out   saes/<sae>/ in SAELens' layout, with sae.json and report.html; encoded/<sae>/<run>.parquet

saes = config.get("saes") or {}
NOT_OPTIONS = {"run", "gpus", "encode"}


def options_of_sae(wildcards):
    """Return the optional words of `featuremill sae train`."""
    told = saes[wildcards.sae]
    return [f"--{key.replace('_', '-')}={told[key]}" for key in told if key not in NOT_OPTIONS]


def gpus_of_sae(wildcards):
    """Return the GPUs that a training asks for."""
    told = saes[wildcards.sae]
    return 0 if told.get("device") == "cpu" else told.get("gpus", 1)


rule sae_train:
    input:
        manifest=lambda wildcards: f"{saes[wildcards.sae]['run']}/manifest.json",
    output:
        card="saes/{sae}/sae.json",
        config="saes/{sae}/cfg.json",
        weights="saes/{sae}/sae_weights.safetensors",
    log:
        "logs/saes/{sae}.log",
    wildcard_constraints:
        sae="[^/]+",
    conda:
        "../../envs/sae.yaml"
    threads: lambda wildcards: saes[wildcards.sae].get("threads", 1)
    resources:
        gpu=gpus_of_sae,
    params:
        run=subpath(input.manifest, parent=True),
        folder=subpath(output.card, parent=True),
        gpus=lambda wildcards: saes[wildcards.sae].get("gpus", 1),
        options=options_of_sae,
    shell:
        "exec featuremill sae train {params.run:q} --output {params.folder:q} --gpus {params.gpus}"
        " {params.options:q} --log-file {log:q}"


rule sae_report:
    input:
        card="saes/{sae}/sae.json",
    output:
        page="saes/{sae}/report.html",
        features="saes/{sae}/features.tsv",
    log:
        "logs/saes/{sae}.report.log",
    wildcard_constraints:
        sae="[^/]+",
    conda:
        "../../envs/sae.yaml"
    params:
        folder=subpath(input.card, parent=True),
        run=lambda wildcards: saes[wildcards.sae]["run"],
    shell:
        "exec featuremill sae report {params.run:q} --sae {params.folder:q} --threads {threads}"
        " --log-file {log:q}"


rule sae_encode:
    input:
        card="saes/{sae}/sae.json",
        manifest="results/{run}/manifest.json",
    output:
        table="encoded/{sae}/{run}.parquet",
    log:
        "logs/saes/{sae}.{run}.log",
    wildcard_constraints:
        sae="[^/]+",
        run="[^/]+",
    conda:
        "../../envs/sae.yaml"
    params:
        folder=subpath(input.card, parent=True),
        run=subpath(input.manifest, parent=True),
    shell:
        "exec featuremill sae encode {params.run:q} --sae {params.folder:q} --output {output.table:q}"
        " --threads {threads} --log-file {log:q}"
