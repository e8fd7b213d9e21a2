# heads: train classifiers or regressions on features, and apply them.
#
#   in    manifest.json of the features; the labels
#   out   results/<run>/heads/<head>/ with head.json, and
#         results/<run>/predictions/<head>.tsv with <head>.missing.tsv

from featuremill.steps import heads

heads_sections = mill.steps["heads"]
heads_predicted = {
    table.rpartition("/")[2].removesuffix(".tsv"): (name, runs)
    for name, head in heads_sections.items()
    for table, runs in heads.predicted(name, head, mill.project).items()
}
heads_trained = "|".join(
    re.escape(name) for name, head in heads_sections.items() if not head.folder
)


def heads_manifests_of(wildcards):
    """Return manifest.json of the features of a head."""
    runs = heads.features_of(heads_sections[wildcards.head], mill.project)
    return [f"{run}/manifest.json" for run in runs]


def heads_translation_of(wildcards):
    """Return translate.json of the translation whose contigs have the labels, or []."""
    folder = heads.fragments_of(mill.project)
    return [f"{folder}/translate.json"] if folder else []


def heads_of_table(wildcards):
    """Return the config section of the head that predicts a table."""
    return heads_sections[heads_predicted[wildcards.table][0]]


def heads_folder_of(wildcards):
    """Return the folder of the head that predicts a table."""
    name, _ = heads_predicted[wildcards.table]
    return heads.folder_of(name, heads_sections[name], mill.project)


def heads_tensors_of(wildcards):
    """Return the tensors of a head with `folder`, which may change without its card."""
    head = heads_of_table(wildcards)
    return [f"{head.folder}/{heads.DELIVERED[0]}"] if head.folder else []


def heads_runs_of(wildcards, input):
    """Return the folders of the features, with the prefix of a Snakemake module."""
    return [str(Path(path).parent) for path in input.manifests]


def heads_options_of(wildcards):
    """Return the options of `featuremill head predict`."""
    head = heads_of_table(wildcards)
    return head.words_of_vectors + ["--any-recipe"] * head.any_recipe


rule heads_train:
    input:
        manifests=heads_manifests_of,
        translation=heads_translation_of,
        labels=lambda wildcards: [*filter(None, [heads_sections[wildcards.head].labels])],
    output:
        multiext(
            f"{mill.project.folder}/heads/{{head}}/",
            tensors="head.safetensors",
            page="head.html",
            missing="missing.tsv",
            held_out="held_out.parquet",
            card="head.json",
        ),
    log:
        f"{mill.project.logs}/heads/{{head}}.train.log",
    wildcard_constraints:
        head=heads_trained or "(?!)",
    conda:
        str(heads.ENVIRONMENT)
    threads: 1  # so that equal labels give equal bytes; change it with --set-threads
    params:
        folder=subpath(output.card, parent=True),
        runs=heads_runs_of,
        labels=lambda wildcards, input: [f"--labels={path}" for path in input.labels],
        fragments=lambda wildcards, input: [
            f"--fragments={Path(path).parent}" for path in input.translation
        ],
        options=lambda wildcards: heads_sections[wildcards.head].words,
    shell:
        "exec featuremill head train {params.runs:q} {params.options:q} {params.fragments:q}"
        " {params.labels:q} --output {params.folder:q} --threads {threads}"
        " --log-file {log:q}"


rule heads_predict:
    input:
        card=lambda wildcards: f"{heads_folder_of(wildcards)}/head.json",
        tensors=heads_tensors_of,
        manifests=lambda wildcards: [
            f"{run}/manifest.json" for run in heads_predicted[wildcards.table][1]
        ],
    output:
        table=f"{mill.project.folder}/predictions/{{table}}.tsv",
        missing=f"{mill.project.folder}/predictions/{{table}}.missing.tsv",
    log:
        f"{mill.project.logs}/heads/{{table}}.predict.log",
    wildcard_constraints:
        table="|".join(map(re.escape, heads_predicted)),
    conda:
        str(heads.ENVIRONMENT)
    params:
        folder=subpath(input.card, parent=True),
        runs=heads_runs_of,
        options=heads_options_of,
    shell:
        "exec featuremill head predict {params.folder:q} {params.runs:q} {params.options:q}"
        " --output {output.table:q} --log-file {log:q}"
