# translate: contigs or reads become proteins, and the nucleotides that code each.
#
#   in    the project's inputs: one file or several, FASTA, FASTQ or GenBank
#   out   results/<run>/translate/: proteins.faa.gz, nucleotides.fna.gz (the same ids in the same
#         order), fragments.parquet (where each stands), untranslated.tsv, translate.json
#         of samples: proteins.samples.parquet, nucleotides.samples.parquet (sheets of the fragments),
#         translate.json; and, undeclared, a folder sample=<name>/ with the files above of each

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
        method=mill.steps["translate"].method,  # so that Snakemake sees another one
    shell:
        "exec featuremill translate {params.inputs:q} --output {params.folder:q} {params.options:q}"
        " --log-file {log:q}"
