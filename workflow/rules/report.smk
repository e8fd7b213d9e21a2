# report: draw a run as one HTML page that opens offline.
#
#   in    manifest.json and what it names; the table of config `labels`;
#         what steps place on its map
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
drawn = [f"figures/{figure}.html" for figure in figures]


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
            labels={"run": mill.run, "figure": "everything on one page"},
        ),
        figures=[
            report(
                f"{mill.results}/{file}",
                caption=f"../report/{figure}.rst",
                category="Figures",
                labels={"run": mill.run, "figure": figure},
            )
            for figure, file in zip(figures, drawn)
        ],
    log:
        f"{mill.logs}/report.log",
    wildcard_constraints:
        run=mill.names,
    conda:
        mill.environment("report")
    resources:
        mem_mb=mill.asks("merge_mb"),
        runtime=mill.asks("merge_minutes"),
    params:
        folder=subpath(output.page, parent=True),
        figures=subpath(output[1], parent=True),
        reruns=mill.reruns("report"),
    shell:
        "exec featuremill report {params.folder:q} --output {output.page:q}"
        " --figures {params.figures:q} --log-file {log:q}"
