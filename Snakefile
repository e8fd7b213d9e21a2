# featuremill: records in, model features out, on every GPU you have.
#
#   input ──plan──▶ shards ──extract──▶ parts ──merge──▶ results ──report──▶ report.html
#
# One config is one run: `snakemake --cores all` computes the demo of config/config.yaml, and
# `snakemake --cores all --configfile my.yaml` yours. README.md tells the rest.

if not config and workflow.modifier.is_main_snakefile():

    configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/weights.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/extract.smk"
include: "workflow/rules/merge.smk"
include: "workflow/rules/partial.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: is_target
    input:
        rules.merge.output,
        rules.report.output,


onsuccess:
    print(support.closing_words(run_folder))
    print(support.tidied(workflow, run_folder, run.keep), end="")


onerror:
    print(closing(failures, run_folder))
