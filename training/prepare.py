"""Swiss-Prot 2014_01 from Debian's `metastudent-data`, clustered and split by cluster.

Reads the package's three BLAST databases, drops repeated sequences, clusters the rest at 50 %
identity and writes `train.fasta` and `heldout.fasta`. Both are sorted by cluster, and a header
reads `>ACCESSION CLUSTER`, where CLUSTER is the accession of the cluster's representative.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

DEBIAN_DATA = Path("/usr/share/metastudent-data/dataset_201401")
ONTOLOGIES = ("BPO", "CCO", "MFO")  # one database each; a protein is in one, two or all three


def read_database(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (accession, sequence) for each entry of a BLAST protein database."""
    command = ["blastdbcmd", "-db", str(path), "-entry", "all", "-outfmt", "%t\t%s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            title, sequence = line.rstrip("\n").split("\t")
            # A title is the accession, then the protein's GO terms: `B0RED7|GO:0006200,...`
            yield title.split("|")[0], sequence.upper()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def unique_proteins(data: Path) -> dict[str, str]:
    """Return {accession: sequence}: the union of the databases, each sequence once."""
    accession_of: dict[str, str] = {}
    for ontology in ONTOLOGIES:
        for accession, sequence in read_database(data / ontology / "goasp.fasta"):
            # The smallest accession wins, so that the order of reading does not matter.
            accession_of[sequence] = min(accession, accession_of.get(sequence, accession))
    return dict(sorted((accession, sequence) for sequence, accession in accession_of.items()))


def write_fasta(path: Path, records: list[tuple[str, str]]) -> None:
    """Write (header, sequence) records, one line per sequence; the name appears when complete."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as file:
        file.writelines(f">{header}\n{sequence}\n" for header, sequence in records)
    partial.replace(path)


def cluster(fasta: Path, work: Path, identity: float, threads: int) -> dict[str, str]:
    """Cluster with `mmseqs linclust`; return {member accession: representative accession}."""
    sequences, clusters, table = work / "mmseqs.db", work / "mmseqs.clusters", work / "clusters.tsv"
    options = ["--min-seq-id", str(identity), "-c", "0.8", "--cov-mode", "0"]
    options += ["--threads", str(threads)]
    for command in (
        ["createdb", str(fasta), str(sequences)],
        ["linclust", str(sequences), str(clusters), str(work / "mmseqs.tmp"), *options],
        ["createtsv", str(sequences), str(sequences), str(clusters), str(table)],
    ):
        subprocess.run(["mmseqs", *command], check=True, stdout=subprocess.DEVNULL)
    rows = (line.split("\t") for line in table.read_text().splitlines())
    return {member: representative for representative, member in rows}


def is_heldout(representative_sequence: str, fraction: float) -> bool:
    """Decide by the sequence's hash, so that the split needs neither a seed nor an order."""
    digest = hashlib.sha256(representative_sequence.encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def main() -> None:
    """Read, cluster, split; write the two FASTA files and `split.json` with their counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, help="folder for the results and mmseqs2's files")
    parser.add_argument("--data", type=Path, default=DEBIAN_DATA)
    parser.add_argument("--identity", type=float, default=0.5, help="of a cluster (default 0.5)")
    parser.add_argument("--heldout", type=float, default=0.02, help="fraction of the clusters")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()

    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    sequence_of = unique_proteins(arguments.data)
    write_fasta(work / "all.fasta", list(sequence_of.items()))
    cluster_of = cluster(work / "all.fasta", work, arguments.identity, arguments.threads)
    assert cluster_of.keys() == sequence_of.keys()

    heldout_clusters = {
        representative
        for representative in set(cluster_of.values())
        if is_heldout(sequence_of[representative], arguments.heldout)
    }
    summary = {"identity": arguments.identity, "heldout_fraction": arguments.heldout}
    for name, wanted in (("train", False), ("heldout", True)):
        members = [
            (representative, member)
            for member, representative in cluster_of.items()
            if (representative in heldout_clusters) == wanted
        ]
        records = [(f"{member} {rep}", sequence_of[member]) for rep, member in sorted(members)]
        write_fasta(work / f"{name}.fasta", records)
        summary[f"{name}_proteins"] = len(records)
        summary[f"{name}_clusters"] = len({representative for representative, _ in members})
        summary[f"{name}_residues"] = sum(len(sequence) for _, sequence in records)
    (work / "split.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
