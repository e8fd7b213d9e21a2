# verdicts: classify contigs by the scores of their fragments.
#
#   in    results/<run>/translate/, results/<run>/predictions/<head>.tsv, the head, the features
#   out   results/<run>/verdicts.tsv and verdicts.html

from featuremill.steps import verdicts


rule verdicts:
    input:
        **verdicts.inputs_of(mill.steps["verdicts"], mill.project),
    output:
        table=verdicts.table_of(mill.project),
        page=f"{mill.project.folder}/verdicts.html",
    log:
        f"{mill.project.logs}/verdicts.log",
    conda:
        str(verdicts.ENVIRONMENT)
    resources:
        mem_mb=2000,
    params:
        folder=subpath(input.summary, parent=True),
        options=mill.steps["verdicts"].words,
        head=subpath(input.card, parent=True),
        runs=lambda wildcards, input: [str(Path(path).parent) for path in input.manifests],
    shell:
        "exec featuremill verdict {params.folder:q} {input.predictions:q} --output {output.table:q}"
        " {params.options:q} --head {params.head:q} --runs {params.runs:q} --log-file {log:q}"
