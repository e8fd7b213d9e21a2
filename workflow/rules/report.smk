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
        labels=[run.labels.file] if run.labels.file else [],
    output:
        page=report(
            f"{results}/report.html",
            caption="../report/report.rst",
            category="Report",
            labels={"run": run.run, "figure": "everything on one page"},
        ),
        figures=[
            report(
                f"{results}/figures/{figure}.html",
                caption=f"../report/{figure}.rst",
                category="Figures",
                labels={"run": run.run, "figure": figure},
            )
            for figure in figures
        ],
    log:
        f"{logs}/report.log",
    conda:
        "../../envs/base.yaml"
    resources:
        mem_mb=asked.merge_mb,
        runtime=asked.merge_minutes,
    params:
        folder=subpath(output.page, parent=True),
        figures=subpath(output[1], parent=True),
        labels=support.report_labels(there),
    shell:
        "exec featuremill report {params.folder:q} --output {output.page:q}"
        " --figures {params.figures:q} {params.labels:q} --log-file {log:q}"
