# virnucpro: the files that VirNucPro leaves behind.
#
#   in    translated/<run>/, the runs that config["features"] names by kind, config["predictions"]
#         of the head in config["head_folder"]
#   out   <run>_merged/prediction_results.txt and prediction_results_highestscore.csv, and
#         failed_files.txt; where config["files"] is `virnucpro` also output_<i>… in <run>_merged/,
#         <run>_protein/ and <run>_nucleotide/, whose number the fragments decide
#
# For workflows that include it, behind translate.smk and head.smk.


rule virnucpro:
    input:
        summary=f"translated/{config['run']}/translate.json",
        predictions=config["predictions"],
        manifests=[f"{run}/manifest.json" for run in config["features"].values()],
    output:
        results=f"{config['run']}_merged/prediction_results.txt",
        failed="failed_files.txt",
        highest=f"{config['run']}_merged/prediction_results_highestscore.csv",
    log:
        f"logs/{config['run']}/virnucpro.log",
    conda:
        "../../envs/esm2.yaml"
    resources:
        mem_mb=3000,  # 10,000 fragments of 768 and 2,560 numbers took 1.4 GB
    params:
        translated=subpath(input.summary, parent=True),
        head=config["head_folder"],
        runs=[f"--{kind}={run}" for kind, run in config["features"].items()],
        less=["--predictions-only"] * (config["files"] == "virnucpro_predictions"),
    shell:
        "exec featuremill virnucpro-files {params.translated:q} {input.predictions:q} {params.runs:q}"
        " --head {params.head:q} --output . {params.less} --log-file {log:q}"
