# autoencoders: train sparse autoencoders on vectors, encode features, and write the pages.
#
#   in    manifest.json of the features
#   out   results/<run>/autoencoders/<name>/ in SAELens' layout, with sae.json and report.html, and
#         <name>.<features>.parquet beside it for each of `encode`

from featuremill.steps import autoencoders

autoencoders_sections = mill.steps["autoencoders"]
autoencoders_prefix = f"{mill.project.folder}/autoencoders/{{autoencoder}}"
autoencoders_names = "|".join(map(re.escape, autoencoders_sections))


def autoencoders_features_of(wildcards):
    """Return the folder of the features that an autoencoder is trained on."""
    return mill.project.features_of(autoencoders_sections[wildcards.autoencoder].of)


def autoencoders_encoded_of(wildcards):
    """Return the folder of the features that an autoencoder is applied to."""
    section = autoencoders_sections[wildcards.autoencoder]
    return autoencoders.encoded(section, mill.project)[wildcards.features]


rule autoencoders_train:
    input:
        manifest=lambda wildcards: f"{autoencoders_features_of(wildcards)}/manifest.json",
    output:
        card=f"{autoencoders_prefix}/sae.json",
        config=f"{autoencoders_prefix}/cfg.json",
        weights=f"{autoencoders_prefix}/sae_weights.safetensors",
    log:
        f"{mill.project.logs}/autoencoders/{{autoencoder}}.train.log",
    wildcard_constraints:
        autoencoder=autoencoders_names,
    conda:
        str(autoencoders.ENVIRONMENT)
    threads: lambda wildcards: autoencoders_sections[wildcards.autoencoder].threads
    resources:
        gpu=lambda wildcards: autoencoders_sections[wildcards.autoencoder].num_gpus,
        # Also on a CPU. Not a parameter, as the number of processes does not change the result.
        ranks=lambda wildcards: autoencoders_sections[wildcards.autoencoder].gpus,
    params:
        run=subpath(input.manifest, parent=True),
        folder=subpath(output.card, parent=True),
        options=lambda wildcards: autoencoders_sections[wildcards.autoencoder].words,
    shell:
        "exec featuremill sae train {params.run:q} --output {params.folder:q} --gpus {resources.ranks}"
        " {params.options:q} --log-file {log:q}"


rule autoencoders_report:
    input:
        card=f"{autoencoders_prefix}/sae.json",
        manifest=lambda wildcards: f"{autoencoders_features_of(wildcards)}/manifest.json",
    output:
        page=f"{autoencoders_prefix}/report.html",
        features=f"{autoencoders_prefix}/features.tsv",
    log:
        f"{mill.project.logs}/autoencoders/{{autoencoder}}.report.log",
    wildcard_constraints:
        autoencoder=autoencoders_names,
    conda:
        str(autoencoders.ENVIRONMENT)
    params:
        folder=subpath(input.card, parent=True),
        run=subpath(input.manifest, parent=True),
    shell:
        "exec featuremill sae report {params.run:q} --sae {params.folder:q} --threads {threads}"
        " --log-file {log:q}"


rule autoencoders_encode:
    input:
        card=f"{autoencoders_prefix}/sae.json",
        manifest=lambda wildcards: f"{autoencoders_encoded_of(wildcards)}/manifest.json",
    output:
        table=f"{autoencoders_prefix}.{{features}}.parquet",
    log:
        f"{mill.project.logs}/autoencoders/{{autoencoder}}.{{features}}.log",
    wildcard_constraints:
        autoencoder=autoencoders_names,
        features="[^/]+",
    conda:
        str(autoencoders.ENVIRONMENT)
    params:
        folder=subpath(input.card, parent=True),
        run=subpath(input.manifest, parent=True),
    shell:
        "exec featuremill sae encode {params.run:q} --sae {params.folder:q} --output {output.table:q}"
        " --threads {threads} --log-file {log:q}"
