# featuremill: records in, model features out, on every GPU you have.
#
#   input ──plan──▶ shards ──extract──▶ parts ──merge──▶ results ──report──▶ report.html
#
# One config is one run: `snakemake --cores all` computes the demo of config/config.yaml, and
# `snakemake --cores all --configfile my.yaml` yours. README.md tells the rest.

from featuremill.flow import reach

if not config and not reach.is_imported(workflow):

    configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/weights.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/extract.smk"
include: "workflow/rules/merge.smk"
include: "workflow/rules/partial.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: mill.is_target
    input:
        rules.merge.output,
        rules.report.output,


onsuccess:
    mill.say_success()


onerror:
    mill.say_failure()
