# maps: the records of each set of features are placed by t-SNE, for its report.
#
#   in    manifest.json of the features, which says that they are finished
#   out   results/<run>/map.parquet

from featuremill.steps import maps


rule maps:
    input:
        manifest=f"{mill.results}/manifest.json",
    output:
        table=f"{mill.results}/{maps.FILE}",
    log:
        f"{mill.logs}/maps.log",
    wildcard_constraints:
        run=mill.names,
    conda:
        str(maps.ENVIRONMENT)
    resources:
        # The vectors of 60,000 records with 5,120 numbers, thrice.
        mem_mb=lambda wildcards, attempt: 6000 * attempt,
        runtime=60,
    params:
        folder=subpath(input.manifest, parent=True),
        options=mill.steps["maps"].words,
    shell:
        "exec featuremill map {params.folder:q} {params.options:q} --log-file {log:q}"
