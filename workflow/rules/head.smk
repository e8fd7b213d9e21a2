# head: train a classifier on features of finished runs, and apply it. For workflows that include
# this file: config `heads` names each head, and what it is made of and applied to.
#
#   heads:
#     NAME:
#       runs: [results/a, results/b]     side by side, joined by id
#       labels: labels.csv               a table of ids and classes
#       column: kingdom                  the classes
#       group: genus                     optional; kept whole in folds
#       fragments: translated/a          optional; where the labels are of its contigs
#       kind: mlp                        optional; logistic if not given
#       features: [mean_layer_6]         optional; which vectors, where runs have several
#       predict: {more: [results/c, …]}  optional; predictions/NAME/more.tsv
#       any_recipe: true                 optional; predict takes features of other recipes
#       folder: elsewhere/NAME           optional; where the head is, if not heads/NAME
#
# A head that is there already has only the last four.
#
#   in    results/<run>/manifest.json of each run, the labels
#   out   heads/<head>/ with head.json, and predictions/<head>/<name>.tsv with <name>.missing.tsv

heads = config.get("heads", {})


def manifests_of_head(wildcards):
    """Return what says that the runs of a head are finished."""
    return [f"{run}/manifest.json" for run in heads[wildcards.head]["runs"]]


def card_of_head(wildcards):
    """Return the card of a head, which may stand elsewhere."""
    folder = heads[wildcards.head].get("folder", f"heads/{wildcards.head}")
    return f"{folder}/head.json"


def runs_to_predict(wildcards):
    """Return the runs whose records are to be classified."""
    return heads[wildcards.head]["predict"][wildcards.name]


def features_of(told):
    """Return the words that say which vectors of the runs are meant."""
    return [f"--feature={column}" for column in told.get("features", [])]


def options_of_head(wildcards):
    """Return the optional words of `featuremill head train`."""
    told = heads[wildcards.head]
    return features_of(told) + [
        f"--{key}={told[key]}" for key in ("group", "kind", "fragments") if key in told
    ]


def options_to_predict(wildcards):
    """Return the optional words of `featuremill head predict`."""
    told = heads[wildcards.head]
    return features_of(told) + ["--any-recipe"] * told.get("any_recipe", False)


rule head_train:
    input:
        manifests=manifests_of_head,
        labels=lambda wildcards: heads[wildcards.head]["labels"],
    output:
        card="heads/{head}/head.json",
        tensors="heads/{head}/head.safetensors",
        page="heads/{head}/head.html",
        missing="heads/{head}/missing.tsv",
        held_out="heads/{head}/held_out.parquet",
    log:
        "logs/heads/{head}.log",
    wildcard_constraints:
        head="|".join(name for name in heads if "labels" in heads[name]) or "$.",
    threads: 1  # so that the same labels give the same bytes; --set-threads has others
    params:
        folder=subpath(output.card, parent=True),
        runs=lambda wildcards: heads[wildcards.head]["runs"],
        column=lambda wildcards: heads[wildcards.head]["column"],
        options=options_of_head,
    shell:
        "exec featuremill head train {params.runs:q} {params.options:q} --labels {input.labels:q}"
        " --column {params.column:q} --output {params.folder:q} --threads {threads}"
        " --log-file {log:q}"


rule head_predict:
    input:
        card=card_of_head,
        manifests=lambda wildcards: [f"{run}/manifest.json" for run in runs_to_predict(wildcards)],
    output:
        table="predictions/{head}/{name}.tsv",
        missing="predictions/{head}/{name}.missing.tsv",
    log:
        "logs/heads/{head}.{name}.log",
    wildcard_constraints:
        head="[^/]+",
        name="[^/]+",
    params:
        folder=subpath(input.card, parent=True),
        runs=runs_to_predict,
        options=options_to_predict,
    shell:
        "exec featuremill head predict {params.folder:q} {params.runs:q} {params.options:q}"
        " --output {output.table:q} --log-file {log:q}"
