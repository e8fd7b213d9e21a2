# report: draw a run as one HTML page that opens offline.
#
#   in    manifest.json and what it names; the table of config `labels`;
#         what steps place on its map
#   out   report.html, also for `snakemake --report`


rule report:
    input:
        manifest=f"{mill.results}/manifest.json",
        labels=lambda wildcards: mill.of(wildcards).labels,
        drawn=mill.drawn,
    output:
        page=report(
            f"{mill.results}/report.html",
            caption="../report/report.rst",
            category="Report",
            labels={"run": mill.run},
        ),
    log:
        f"{mill.logs}/report.log",
    wildcard_constraints:
        run=mill.names,
    conda:
        mill.environment("report")
    resources:
        mem_mb=mill.resource("merge_mb"),
        runtime=mill.resource("merge_minutes"),
    params:
        folder=subpath(output.page, parent=True),
        reruns=mill.reruns("report"),
    shell:
        "exec featuremill report {params.folder:q} --output {output.page:q} --log-file {log:q}"
