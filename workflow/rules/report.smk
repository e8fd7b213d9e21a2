# report: draw what happened as one HTML page that opens offline.
#
#   in    manifest.json and what it names
#   out   report.html; the same figures one by one for `snakemake --report`


rule report:
    input:
        manifest=rules.merge.output.manifest,
    output:
        page=f"{results}/report.html",
    log:
        f"{logs}/report.log",
    params:
        folder=results,
    resources:
        mem_mb=4000,
    shell:
        "exec featuremill report {params.folder:q} --output {output.page:q} --log {log:q}"
