# groups: the vectors of the records of a group become one.
#
#   in    manifest.json of the features, which says that they are finished; the table of groups, if
#         these are not the samples'
#   out   results/<run>/groups/<name>.parquet, <name>.members.tsv and <name>.json

from featuremill.steps import groups

groups_asked = mill.steps["groups"]


rule groups:
    input:
        manifest=lambda wildcards: (
            mill.project.features_of(groups_asked[wildcards.groups].of) + "/manifest.json"
        ),
        table=lambda wildcards: [*filter(None, [groups_asked[wildcards.groups].table])],
    output:
        table=groups.TABLE.of("{groups}", mill.project),
        members=f"{mill.project.folder}/groups/{{groups}}.members.tsv",
        card=f"{mill.project.folder}/groups/{{groups}}.json",
    log:
        f"{mill.project.logs}/groups/{{groups}}.log",
    wildcard_constraints:
        groups="|".join(map(re.escape, groups_asked)),
    conda:
        str(groups.ENVIRONMENT)
    resources:
        # 28 bytes a number of each group, of 1,280 numbers and five rows of 20 letters a group. More
        # than 840,000 such groups wait for a second attempt: large tables often have large groups.
        mem_mb=lambda wildcards, input, attempt: (
            attempt * (2000 + min(30_000, round(360 * input.size_mb)))
        ),
    params:
        run=subpath(input.manifest, parent=True),
        table=lambda wildcards, input: [f"--table={path}" for path in input.table],
        options=lambda wildcards: groups_asked[wildcards.groups].words,
    shell:
        "exec featuremill groups {params.run:q} {params.table:q} {params.options:q}"
        " --output {output.table:q} --log-file {log:q}"
