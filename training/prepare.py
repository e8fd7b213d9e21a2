"""Proteins from Debian's packages, clustered, split by cluster and packed for training.

All proteins are clustered at 50 % identity, and whole clusters go to one of four splits:

* `test` (2 %) and `valid` (0.5 %): drawn by a hash of the representative;
* `probe`: of the others, those with no member in Swiss-Prot, only in `mmseqs2-examples`;
* `train`: all the rest, less whatever a search finds to be 50 % identical to a protein of the
  other three, over 80 % of both. (Clusters alone are not enough: more than half of the held-out
  proteins had such relatives in other clusters.) A held-out protein with very many relatives is
  dropped instead.

Writes FASTA files for evaluation (`>ACCESSION CLUSTER KINGDOM GENUS`, the last two `-` where they
are not known), `shards/` for training (train and valid; see shards.py), `split.json` with counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import shards
import sources
from taxonomy import DUMP, taxa

IDENTITY, COVERAGE = "0.5", "0.8"
TEST, VALID = 0.02, 0.005  # of the clusters
MOST_RELATIVES = 200  # in training of a held-out protein; of more, the search may have missed some


def write_fasta(path: Path, records: list[tuple[str, str]]) -> None:
    """Write (header, sequence) records, one line per sequence; the name appears when complete."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as file:
        file.writelines(f">{header}\n{sequence}\n" for header, sequence in records)
    partial.replace(path)


def mmseqs(*arguments: object) -> None:
    """Run a command of mmseqs2; where it fails, what it said comes out."""
    command = ["mmseqs", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout[-2000:]}\n{' '.join(command)}: exit {done.returncode}")


def cluster(fasta: Path, work: Path, threads: int) -> dict[str, str]:
    """Cluster with `mmseqs linclust`; return {member accession: representative accession}."""
    table = work / "clusters.tsv"
    options = ["--min-seq-id", IDENTITY, "-c", COVERAGE, "--cov-mode", 0, "--threads", threads]
    with tempfile.TemporaryDirectory(dir=work) as folder:  # mmseqs2 overwrites nothing
        sequences, clusters = Path(folder, "all"), Path(folder, "clusters")
        mmseqs("createdb", fasta, sequences)
        mmseqs("linclust", sequences, clusters, Path(folder, "tmp"), *options)
        mmseqs("createtsv", sequences, sequences, clusters, table)
    rows = (line.split("\t") for line in table.read_text().splitlines())
    return {member: representative for representative, member in rows}


def relatives(queries: Path, targets: Path, work: Path, threads: int) -> dict[str, set[str]]:
    """Return {query: accessions among `targets` that a search finds to be its relatives}.

    Candidates come best first, so eight in a row that are none end the search for a query.
    """
    table = work / "relatives.tsv"
    options = ["--min-seq-id", IDENTITY, "-c", COVERAGE, "--cov-mode", 0, "--alignment-mode", 3]
    options += ["--max-seqs", 300, "--max-rejected", 8, "-s", 4, "--threads", threads]
    options += ["--format-output", "query,target"]
    with tempfile.TemporaryDirectory(dir=work) as folder:
        mmseqs("easy-search", queries, targets, table, folder, *options)
    found: dict[str, set[str]] = {}
    for line in table.read_text().splitlines():
        query, target = line.split("\t")
        found.setdefault(query, set()).add(target)
    return found


def draw(sequence: str) -> float:
    """Return a number in [0, 1) from the sequence's hash: a draw with neither seed nor order."""
    return int.from_bytes(shards.hashed(sequence)[:8], "big") / 2**64


def split_of(representative: str, has_swiss_prot: bool) -> str:
    """Return the split of a cluster."""
    drawn = draw(representative)
    if drawn < TEST + VALID:
        return "test" if drawn < TEST else "valid"
    return "train" if has_swiss_prot else "probe"


def main() -> None:
    """Read, cluster, split, search, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, help="folder for the results and mmseqs2's files")
    parser.add_argument("--swiss-prot", type=Path, default=sources.SWISS_PROT)
    parser.add_argument("--examples", type=Path, default=sources.EXAMPLES)
    parser.add_argument("--taxonomy", type=Path, default=DUMP)
    parser.add_argument("--megabytes", type=float, default=48.0, help="of shards/, in 2^20 bytes")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()

    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    reviewed = sources.swiss_prot(arguments.swiss_prot)
    examples = sources.examples(arguments.examples)
    taxon_of = taxa({entry.organism for entry in examples.values()}, arguments.taxonomy)
    sequence_of = {entry.accession: sequence for sequence, entry in examples.items()}
    sequence_of |= {accession: sequence for sequence, accession in reviewed.items()}
    sequence_of = {a: s for s, a in sorted({s: a for a, s in sequence_of.items()}.items())}
    write_fasta(work / "all.fasta", sorted(sequence_of.items()))
    representative_of = cluster(work / "all.fasta", work, arguments.threads)
    assert representative_of.keys() == sequence_of.keys()

    with_swiss_prot = {r for m, r in representative_of.items() if sequence_of[m] in reviewed}
    members: dict[str, list[tuple[str, str]]] = {s: [] for s in ("train", "valid", "test", "probe")}
    for member, representative in representative_of.items():
        split = split_of(sequence_of[representative], representative in with_swiss_prot)
        members[split].append((representative, member))

    def write_fastas() -> None:
        for name, pairs in members.items():
            records = []
            for representative, member in sorted(pairs):
                entry = examples.get(sequence_of[member])
                taxon = taxon_of.get(entry.organism) if entry and not entry.is_fragment else None
                label = f"{taxon.kingdom} {taxon.genus}" if taxon else "- -"
                records.append((f"{member} {representative} {label}", sequence_of[member]))
            write_fasta(work / f"{name}.fasta", records)

    write_fastas()
    heldout = work / "heldout.fasta"
    heldout.write_text("".join((work / f"{n}.fasta").read_text() for n in members if n != "train"))
    found = relatives(heldout, work / "train.fasta", work, arguments.threads)
    dropped = {query for query, targets in found.items() if len(targets) >= MOST_RELATIVES}
    removed = {member for query, of_it in found.items() if query not in dropped for member in of_it}
    unwanted = removed | dropped
    for name, pairs in members.items():
        members[name] = [pair for pair in pairs if pair[1] not in unwanted]
    write_fastas()
    summary = {"removed_from_train": len(removed), "dropped_from_heldout": len(dropped)}
    summary |= write_splits(members, sequence_of, arguments)
    (work / "split.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary, indent=2))


def write_splits(
    members: dict[str, list[tuple[str, str]]],
    sequence_of: dict[str, str],
    arguments: argparse.Namespace,
) -> dict[str, int]:
    """Write the shards of train and valid; return the counts of every split."""
    counts = {}
    left = int(arguments.megabytes * 2**20)
    for name in ("valid", "test", "probe", "train"):
        clusters: dict[str, list[str]] = {}
        for representative, member in sorted(members[name]):
            clusters.setdefault(sequence_of[representative], []).append(sequence_of[member])
        counts[f"{name}_clusters"], counts[f"{name}_proteins"] = len(clusters), len(members[name])
        counts[f"{name}_residues"] = sum(len(s) for of_one in clusters.values() for s in of_one)
        if name in ("valid", "train"):
            room = left - 4096 - 3 * len(members[name])  # for lengths, cluster sizes and headers
            whole = [members[: shards.MOST_OF_A_CLUSTER] for members in clusters.values()]
            chosen = shards.choose(clusters, room) if name == "train" else whole
            shards.write(arguments.work / "shards", name, chosen)
            left -= sum(p.stat().st_size for p in (arguments.work / "shards").glob(f"{name}-*"))
            kept = [len(s[: shards.LONGEST]) for of_one in chosen for s in of_one]
            counts[f"{name}_shard_clusters"], counts[f"{name}_shard_proteins"] = (
                len(chosen),
                len(kept),
            )
            counts[f"{name}_shard_residues"] = sum(kept)
    return counts


if __name__ == "__main__":
    main()
