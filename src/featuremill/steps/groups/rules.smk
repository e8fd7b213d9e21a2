# groups: pool the vectors of groups of records.
#
#   in    manifest.json of the features; the table of groups, unless groups consist of samples
#   out   results/<run>/groups/<name>.parquet, <name>.members.tsv and <name>.json

from featuremill.steps import groups

groups_sections = mill.steps["groups"]


rule groups:
    input:
        manifest=lambda wildcards: (
            mill.project.features_of(groups_sections[wildcards.groups].of) + "/manifest.json"
        ),
        table=lambda wildcards: [*filter(None, [groups_sections[wildcards.groups].table])],
    output:
        table=groups.TABLE.of("{groups}", mill.project),
        members=f"{mill.project.folder}/groups/{{groups}}.members.tsv",
        card=f"{mill.project.folder}/groups/{{groups}}.json",
    log:
        f"{mill.project.logs}/groups/{{groups}}.log",
    wildcard_constraints:
        groups="|".join(map(re.escape, groups_sections)),
    conda:
        str(groups.ENVIRONMENT)
    resources:
        # 28 bytes per number and group, with 1,280 numbers and five rows of 20 letters per group. For
        # more than 840,000 such groups, a second attempt has more: large tables can have few groups.
        mem_mb=lambda wildcards, input, attempt: (
            attempt * (2000 + min(30_000, round(360 * input.size_mb)))
        ),
    params:
        run=subpath(input.manifest, parent=True),
        table=lambda wildcards, input: [f"--table={path}" for path in input.table],
        options=lambda wildcards: groups_sections[wildcards.groups].words,
    shell:
        "exec featuremill groups {params.run:q} {params.table:q} {params.options:q}"
        " --output {output.table:q} --log-file {log:q}"
