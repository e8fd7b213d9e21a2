rule tally:
    input:
        mill.project.features_of(mill.steps["tally"].of) + "/manifest.json",
    output:
        f"{mill.project.folder}/tally/tally.txt",
    log:
        f"{mill.project.logs}/tally/tally.log",
    params:
        run=subpath(input[0], parent=True),
        word=mill.steps["tally"].word,
    shell:
        "exec featuremill tally {params.run:q} --word {params.word:q} --output {output:q}"
        " --log-file {log:q}"
