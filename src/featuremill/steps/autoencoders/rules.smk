# autoencoders: train sparse autoencoders on the vectors of features, and look at them.
#
#   in    manifest.json of the features, which says that they and their parts are there
#   out   results/<run>/autoencoders/<name>/ in SAELens' layout, with sae.json and report.html, and
#         <name>.<features>.parquet beside it for each of `encode`

from featuremill import SNAKEFILE
from featuremill.steps import autoencoders

trained = mill.steps["autoencoders"]
trained_in = f"{mill.project.folder}/autoencoders/{{autoencoder}}"
trained_names = "|".join(map(re.escape, trained))
trained_environment = str(Path(SNAKEFILE).parent / "envs" / "sae.yaml")


def features_trained_on(wildcards):
    """Return the folder of the features that an autoencoder is trained on."""
    return mill.project.features_of(trained[wildcards.autoencoder].of)


def features_to_encode(wildcards):
    """Return the folder of the features that an autoencoder is applied to."""
    return autoencoders.encoded(trained[wildcards.autoencoder], mill.project)[wildcards.features]


rule autoencoder_train:
    input:
        manifest=lambda wildcards: f"{features_trained_on(wildcards)}/manifest.json",
    output:
        card=f"{trained_in}/sae.json",
        config=f"{trained_in}/cfg.json",
        weights=f"{trained_in}/sae_weights.safetensors",
    log:
        f"{mill.project.logs}/autoencoders/{{autoencoder}}.train.log",
    wildcard_constraints:
        autoencoder=trained_names,
    conda:
        trained_environment
    threads: lambda wildcards: trained[wildcards.autoencoder].threads
    resources:
        gpu=lambda wildcards: trained[wildcards.autoencoder].num_gpus,
    params:
        run=subpath(input.manifest, parent=True),
        folder=subpath(output.card, parent=True),
        gpus=lambda wildcards: trained[wildcards.autoencoder].gpus,
        options=lambda wildcards: trained[wildcards.autoencoder].words,
    shell:
        "exec featuremill sae train {params.run:q} --output {params.folder:q} --gpus {params.gpus}"
        " {params.options:q} --log-file {log:q}"


rule autoencoder_report:
    input:
        card=f"{trained_in}/sae.json",
        manifest=lambda wildcards: f"{features_trained_on(wildcards)}/manifest.json",
    output:
        page=f"{trained_in}/report.html",
        features=f"{trained_in}/features.tsv",
    log:
        f"{mill.project.logs}/autoencoders/{{autoencoder}}.report.log",
    wildcard_constraints:
        autoencoder=trained_names,
    conda:
        trained_environment
    params:
        folder=subpath(input.card, parent=True),
        run=subpath(input.manifest, parent=True),
    shell:
        "exec featuremill sae report {params.run:q} --sae {params.folder:q} --threads {threads}"
        " --log-file {log:q}"


rule autoencoder_encode:
    input:
        card=f"{trained_in}/sae.json",
        manifest=lambda wildcards: f"{features_to_encode(wildcards)}/manifest.json",
    output:
        table=f"{trained_in}.{{features}}.parquet",
    log:
        f"{mill.project.logs}/autoencoders/{{autoencoder}}.{{features}}.log",
    wildcard_constraints:
        autoencoder=trained_names,
        features="[^/]+",
    conda:
        trained_environment
    params:
        folder=subpath(input.card, parent=True),
        run=subpath(input.manifest, parent=True),
    shell:
        "exec featuremill sae encode {params.run:q} --sae {params.folder:q} --output {output.table:q}"
        " --threads {threads} --log-file {log:q}"
