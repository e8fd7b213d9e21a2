# deliver: write the rows of some shards as files of the results, beside other jobs that do so. Of runs
# with some million records, or `order: shard`: merge then only accounts for every record.
#
#   in    plan.json, records.parquet, the receipts of the job's shards
#   out   receipts/delivered/<job>.json: what was delivered of each shard
#   also  store/delivered/<key>/, undeclared, so that no rerun deletes it; store/identities/


rule deliver:
    input:
        plan=rules.plan.output.plan,
        records=rules.plan.output.records,
        receipts=receipts_of_job,
    output:
        f"{mill.results}/receipts/delivered/{{job}}.json",
    log:
        f"{mill.logs}/deliver/{{job}}.log",
    wildcard_constraints:
        run=mill.names,
        job=r"\d{4}",
    priority: -1  # no device waits for it
    conda:
        mill.environment("merge")
    threads: 2
    resources:
        mem_mb=mill.resource("deliver_mb"),
        runtime=mill.resource("deliver_minutes"),
    params:
        folder=subpath(input.plan, parent=True),
        reruns=mill.reruns("deliver"),
    shell:
        "exec featuremill deliver {params.folder:q} {wildcards.job} --threads {threads}"
        " --log-file {log:q}"
