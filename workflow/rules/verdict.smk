# verdict: fragments' scores become one verdict a contig.
#
#   in    translated/<run>/, and the predictions that config["predictions"] names
#   out   verdicts/<run>.tsv, verdicts/<run>.html, which tells of the runs in config["features"] and
#         of the head in config["head_folder"]
#
# For workflows that include it, behind translate.smk and head.smk.


rule verdict:
    input:
        summary=f"translated/{config['run']}/translate.json",
        predictions=config["predictions"],
    output:
        table=f"verdicts/{config['run']}.tsv",
        page=f"verdicts/{config['run']}.html",
    log:
        f"logs/{config['run']}/verdict.log",
    conda:
        "../../envs/base.yaml"
    resources:
        mem_mb=2000,
    params:
        folder=subpath(input.summary, parent=True),
        options=config.get("verdict", ""),
        head=["--head", config["head_folder"]] if config.get("head_folder") else [],
        runs=["--runs", *config["features"].values()] if config.get("features") else [],
    shell:
        "exec featuremill verdict {params.folder:q} {input.predictions:q} --output {output.table:q}"
        " {params.options} {params.head:q} {params.runs:q} --log-file {log:q}"
