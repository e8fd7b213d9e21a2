# virnucpro: write VirNucPro's files.
#
#   in    results/<run>/translate/, manifest.json of the features, results/<run>/predictions/<head>.tsv
#   out   in results/<run>/virnucpro/ or `folder`: failed_files.txt, and in <run>_merged/
#         prediction_results.txt and prediction_results_highestscore.csv; with `files: all`, not
#         declared, output_<i>… in <run>_merged/, <run>_protein/ and <run>_nucleotide/

from featuremill.steps import virnucpro

virnucpro_section = mill.steps["virnucpro"]
virnucpro_sets = virnucpro.sets_of(virnucpro_section, mill.project)


rule virnucpro:
    input:
        **virnucpro.inputs_of(virnucpro_section, mill.project),
    output:
        **virnucpro.files_of(virnucpro_section, mill.project)._asdict(),
    log:
        f"{mill.project.logs}/virnucpro.log",
    conda:
        str(virnucpro.ENVIRONMENT)
    resources:
        mem_mb=3000,  # 10,000 fragments of 768 and 2,560 numbers took 1.4 GB
    params:
        translated=subpath(input.summary, parent=True),
        head=subpath(input.card, parent=True),
        folder=subpath(output.failed, parent=True),
        name=mill.project.name,
        runs=lambda wildcards, input: [
            f"--{kind}={Path(path).parent}"
            for kind, path in zip(virnucpro_sets, input.manifests, strict=True)
        ],
        flags=["--predictions-only"] * (virnucpro_section.files == "predictions"),
    shell:
        "exec featuremill virnucpro-files {params.translated:q} {input.predictions:q} {params.runs:q}"
        " --head {params.head:q} --output {params.folder:q} --name {params.name:q} {params.flags}"
        " --log-file {log:q}"
