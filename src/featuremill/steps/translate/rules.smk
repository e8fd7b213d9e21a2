# translate: translate contigs or reads to proteins, with their nucleotides.
#
#   in    the project's inputs: files of FASTA, FASTQ or GenBank
#   out   results/<run>/translate/: proteins.faa.gz, nucleotides.fna.gz (with the same ids and order),
#         fragments.parquet (their positions), untranslated.tsv, translate.json
#         with samples: proteins.samples.parquet, nucleotides.samples.parquet (sheets of fragments),
#         translate.json and, not declared, folders sample=<name>/ with the files above

from featuremill.steps import translate


rule translate:
    input:
        lambda wildcards: mill.inputs,
    output:
        multiext(
            f"{translate.folder_of(mill.project)}/",
            **translate.files_of(mill.project),
            summary="translate.json",
        ),
    log:
        f"{mill.project.logs}/translate.log",
    conda:
        str(translate.ENVIRONMENT)
    resources:
        mem_mb=2000,
    params:
        folder=subpath(output.summary, parent=True),
        inputs=lambda wildcards, input: translate.words_of_inputs(input, mill.project),
        options=mill.steps["translate"].words,
        method=mill.steps["translate"].method,  # a new version of the method triggers a rerun
    shell:
        "exec featuremill translate {params.inputs:q} --output {params.folder:q} {params.options:q}"
        " --log-file {log:q}"
