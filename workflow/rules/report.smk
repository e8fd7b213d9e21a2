# report: draw what happened as one HTML page that opens offline.
#
#   in    manifest.json and what it names; the table of config `labels`
#   out   report.html; the same figures one by one, for `snakemake --report`

figures = [
    "accounting",
    "embeddings",
    "lengths",
    "timeline",
    "usage",
    "throughput",
    "stages",
]


rule report:
    input:
        manifest=rules.merge.output.manifest,
        labels=mill.labels,
    output:
        page=report(
            f"{mill.results}/report.html",
            caption="../report/report.rst",
            category="Report",
            labels={"run": mill.config.run, "figure": "everything on one page"},
        ),
        figures=[
            report(
                f"{mill.results}/figures/{figure}.html",
                caption=f"../report/{figure}.rst",
                category="Figures",
                labels={"run": mill.config.run, "figure": figure},
            )
            for figure in figures
        ],
    log:
        f"{mill.logs}/report.log",
    conda:
        mill.environment("report")
    resources:
        mem_mb=mill.asks.merge_mb,
        runtime=mill.asks.merge_minutes,
    params:
        folder=subpath(output.page, parent=True),
        figures=subpath(output[1], parent=True),
        config=mill.config_json,
        reruns=mill.reruns("report"),
    shell:
        "exec featuremill report {params.folder:q} --output {output.page:q}"
        " --figures {params.figures:q} --config-json {params.config:q} --log-file {log:q}"
