"""LSF and PBS under Snakemake's cluster-generic executor: what its three commands do.

    submit.py    a job script becomes a job of the scheduler; prints the job's number
    status.py    running, success or failed, whatever the scheduler forgets or does not answer
    systems.py   what differs between LSF and PBS: options, states, words

The profiles `profiles/lsf` and `profiles/pbs` call `python -m featuremill.flow.batch SYSTEM VERB`;
docs/clusters.md tells the rest. Nothing here knows of shards, GPUs or models.
"""
