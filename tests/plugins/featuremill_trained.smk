import featuremill_trained as trained_step

trained = mill.steps["trained"]


rule trained:
    input:
        manifest=lambda wildcards: (
            mill.project.features_of(trained[wildcards.trained].of) + "/manifest.json"
        ),
        labels=lambda wildcards: trained[wildcards.trained].labels,
    output:
        table=trained_step.TABLE.of("{trained}", mill.project),
        missing=f"{mill.project.folder}/trained/{{trained}}.missing.tsv",
        card=f"{mill.project.folder}/trained/{{trained}}.json",
    log:
        f"{mill.project.logs}/trained/{{trained}}.log",
    params:
        run=subpath(input.manifest, parent=True),
        options=lambda wildcards: trained[wildcards.trained].words,
    shell:
        "exec featuremill trained {params.run:q} --labels {input.labels:q} {params.options:q}"
        " --output {output.table:q} --log-file {log:q}"
