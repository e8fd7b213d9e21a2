# merge: gather the parts into results in input order, and account for every record.
#
#   in    plan.json, records.parquet, a receipt for each shard of the plan; of a large run also what
#         the jobs of `deliver` have written
#   out   the files of config `outputs`, failed.tsv, failed.fa, manifest.json (provenance and counts)
#
# A rule is of fixed outputs: sets of features that have others are merged by rules merge_<name>.

for merged in mill.merged:

    rule:
        name:
            merged.rule
        input:
            plan=rules.plan.output.plan,
            records=rules.plan.output.records,
            receipts=receipts,
            delivered=delivered,
        output:
            **{name: result(name) for name in merged.outputs},
            manifest=f"{mill.results}/manifest.json",
            failed=f"{mill.results}/failed.tsv",
            sequences=f"{mill.results}/failed.fa",
        log:
            f"{mill.logs}/merge.log",
        wildcard_constraints:
            run=merged.runs,
        conda:
            mill.environment("merge")
        threads: 4
        resources:
            mem_mb=mill.resource("merge_mb"),
            runtime=mill.resource("merge_minutes"),
        params:
            folder=subpath(output.manifest, parent=True),
            reruns=mill.reruns("merge"),
        shell:
            "exec featuremill merge {params.folder:q} --threads {threads} --log-file {log:q}"
