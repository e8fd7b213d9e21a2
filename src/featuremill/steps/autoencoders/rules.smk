# autoencoders: train sparse autoencoders on vectors, encode features, and write the pages.
#
#   in    manifest.json of the features, which says that they and their parts are there
#   out   results/<run>/autoencoders/<name>/ in SAELens' layout, with sae.json and report.html, and
#         <name>.<features>.parquet beside it for each of `encode`

from featuremill.steps import autoencoders

autoencoders_asked = mill.steps["autoencoders"]
autoencoders_place = f"{mill.project.folder}/autoencoders/{{autoencoder}}"
autoencoders_names = "|".join(map(re.escape, autoencoders_asked))


def autoencoders_features_of(wildcards):
    """Return the folder of the features that an autoencoder is trained on."""
    return mill.project.features_of(autoencoders_asked[wildcards.autoencoder].of)


def autoencoders_encoded_of(wildcards):
    """Return the folder of the features that an autoencoder is applied to."""
    asked = autoencoders_asked[wildcards.autoencoder]
    return autoencoders.encoded(asked, mill.project)[wildcards.features]


rule autoencoders_train:
    input:
        manifest=lambda wildcards: f"{autoencoders_features_of(wildcards)}/manifest.json",
    output:
        card=f"{autoencoders_place}/sae.json",
        config=f"{autoencoders_place}/cfg.json",
        weights=f"{autoencoders_place}/sae_weights.safetensors",
    log:
        f"{mill.project.logs}/autoencoders/{{autoencoder}}.train.log",
    wildcard_constraints:
        autoencoder=autoencoders_names,
    conda:
        str(autoencoders.ENVIRONMENT)
    threads: lambda wildcards: autoencoders_asked[wildcards.autoencoder].threads
    resources:
        gpu=lambda wildcards: autoencoders_asked[wildcards.autoencoder].num_gpus,
        # Also on a CPU. No parameter: more processes do not make another autoencoder.
        ranks=lambda wildcards: autoencoders_asked[wildcards.autoencoder].gpus,
    params:
        run=subpath(input.manifest, parent=True),
        folder=subpath(output.card, parent=True),
        options=lambda wildcards: autoencoders_asked[wildcards.autoencoder].words,
    shell:
        "exec featuremill sae train {params.run:q} --output {params.folder:q} --gpus {resources.ranks}"
        " {params.options:q} --log-file {log:q}"


rule autoencoders_report:
    input:
        card=f"{autoencoders_place}/sae.json",
        manifest=lambda wildcards: f"{autoencoders_features_of(wildcards)}/manifest.json",
    output:
        page=f"{autoencoders_place}/report.html",
        features=f"{autoencoders_place}/features.tsv",
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
        card=f"{autoencoders_place}/sae.json",
        manifest=lambda wildcards: f"{autoencoders_encoded_of(wildcards)}/manifest.json",
    output:
        table=f"{autoencoders_place}.{{features}}.parquet",
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
