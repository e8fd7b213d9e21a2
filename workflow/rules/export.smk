# export: write one more format of finished results, for `snakemake results/<run>/embeddings.h5ad` and
# the like; nothing is computed again.
#
#   in    manifest.json, which says that the results and their parts are there
#   out   the file of one format that the config's `outputs` does not name

for exported in mill.exported:

    rule:
        name:
            f"export_{exported.format}"
        input:
            manifest=f"{mill.results}/manifest.json",
        output:
            result(exported.format),
        log:
            f"{mill.logs}/export.{exported.format}.log",
        wildcard_constraints:
            run=exported.runs,
        conda:
            mill.environment("merge")
        threads: 4
        resources:
            mem_mb=mill.resource("merge_mb"),
            runtime=mill.resource("merge_minutes"),
        params:
            folder=subpath(input.manifest, parent=True),
            format=exported.format,
        shell:
            "exec featuremill export {params.folder:q} --to {params.format} --threads {threads}"
            " --log-file {log:q}"
