# translate: contigs or reads become proteins, and the nucleotides that code each.
#
#   in    config["contigs"]: one file or several, FASTA, FASTQ or GenBank
#   out   translated/<run>/: proteins.faa.gz, nucleotides.fna.gz (the same ids in the same order),
#         fragments.parquet (where each stands), untranslated.tsv, translate.json
#
# Not part of the main Snakefile, whose runs begin with records: include it in a workflow of yours. Its
# config has `run`, `contigs` and `translate`: the options of the command, such as "--by chunks".


rule translate:
    input:
        config["contigs"],
    output:
        multiext(
            f"translated/{config['run']}/",
            proteins="proteins.faa.gz",
            nucleotides="nucleotides.fna.gz",
            fragments="fragments.parquet",
            untranslated="untranslated.tsv",
            summary="translate.json",
        ),
    log:
        f"logs/{config['run']}/translate.log",
    conda:
        "../../envs/base.yaml"
    resources:
        mem_mb=2000,
    params:
        folder=subpath(output.summary, parent=True),
        options=config["translate"],
    shell:
        "exec featuremill translate {input:q} --output {params.folder:q} {params.options}"
        " --log-file {log:q}"
