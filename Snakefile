# The workflow is workflow/Snakefile. From here Snakemake finds it, and profiles/ beside this file.


include: "workflow/Snakefile"


rule default:  # a target of an included file is none (Snakemake 9.27)
    default_target: mill.is_target
    input:
        rules.all.input,
