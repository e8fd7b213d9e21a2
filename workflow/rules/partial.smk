# partial: write what is computed by now, for `snakemake … partial`; starts no extract. Of several sets
# of features each has a rule, partial_<name>: what is asked for by a rule's name has no wildcard.
#
#   in    plan.json, records.parquet, and whatever parts are finished
#   out   partial/ with embeddings.parquet, manifest.json, report.html and so on: undeclared, so that
#         it runs whenever it is asked for; merge removes it
#
# While the run is going on its Snakemake keeps others out: `featuremill merge --partial` does it then.

for run in mill.runs.values():

    rule:
        name:
            f"partial{run.suffix}"
        input:
            plan=f"{run.results}/plan.json",
            records=f"{run.results}/records.parquet",
        log:
            f"{run.results}/logs/partial.log",
        conda:
            run.environment("merge")
        threads: 4
        resources:
            mem_mb=run.resources.merge_mb,
            runtime=run.resources.merge_minutes,
        params:
            folder=subpath(input.plan, parent=True),
        shell:
            "featuremill merge {params.folder:q} --partial --threads {threads} --log-file {log:q} &&"
            " exec featuremill report {params.folder:q} --partial --log-file {log:q}"
