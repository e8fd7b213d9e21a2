# transfer: assign records the labels of their nearest labelled records.
#
#   in    manifest.json of the features; the labels
#   out   results/<run>/transfer/<name>.tsv, <name>.missing.tsv and <name>.json

from featuremill.steps import transfer

transfer_sections = mill.steps["transfer"]


rule transfer:
    input:
        manifests=lambda wildcards: [
            f"{run}/manifest.json"
            for run in transfer.features_of(transfer_sections[wildcards.transfer], mill.project)
        ],
        labels=lambda wildcards: transfer_sections[wildcards.transfer].labels,
    output:
        table=transfer.TABLE.of("{transfer}", mill.project),
        missing=f"{mill.project.folder}/transfer/{{transfer}}.missing.tsv",
        card=f"{mill.project.folder}/transfer/{{transfer}}.json",
    log:
        f"{mill.project.logs}/transfer/{{transfer}}.log",
    wildcard_constraints:
        transfer="|".join(map(re.escape, transfer_sections)),
    conda:
        str(transfer.ENVIRONMENT)
    threads: 4
    resources:
        mem_mb=2000,  # 5,000 labelled vectors of 1,280 numbers took 0.6 GB
    params:
        runs=lambda wildcards, input: [Path(path).parent for path in input.manifests],
        options=lambda wildcards: transfer_sections[wildcards.transfer].words,
    shell:
        "exec featuremill transfer {params.runs:q} --labels {input.labels:q} {params.options:q}"
        " --output {output.table:q} --log-file {log:q}"
