# maps: compute the t-SNE map of each set of features for its report.
#
#   in    manifest.json of the features
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
        # Three copies of 60,000 vectors of 5,120 numbers.
        mem_mb=lambda wildcards, attempt: 6000 * attempt,
        runtime=60,
    params:
        folder=subpath(input.manifest, parent=True),
        options=mill.steps["maps"].words,
    shell:
        "exec featuremill map {params.folder:q} {params.options:q} --log-file {log:q}"
