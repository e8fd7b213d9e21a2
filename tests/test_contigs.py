"""From contigs to verdicts: the workflow that imports this one for proteins and for nucleotides."""

import csv
import random

import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT
from programs import Desk

SNAKEFILE = ROOT / "workflow" / "contigs" / "Snakefile"
CLASSES = ("others", "virus")


def contigs(count, seed=5):
    """Return contigs of two kinds, which differ in their letters."""
    rng = random.Random(seed)
    return {
        f"c{n}": "".join(rng.choices(("AACGGT", "ACGTTT")[n % 2], k=rng.randint(90, 900)))
        for n in range(count)
    }


class Contigs(Desk):
    """A folder with contigs, their config and a head."""

    def write(self, told):
        text = "".join(f">{id}\n{letters}\n" for id, letters in told.items())
        (self.folder / "contigs.fa").write_text(text)

    def configure(self, **more):
        config = {"run": "my", "contigs": "contigs.fa", "translate": "--by chunks --window 90"}
        run = {"workload": "composition", "device": "cpu", "outputs": "parquet"}
        config |= {"proteins": run, "head": "kinds", **more}
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

    def __call__(self, *words, status=0):
        given = ("-s", SNAKEFILE, "--configfile", "config.yaml", "--cores", 2)
        return self.type("snakemake", *given, *words, status=status).text

    def train(self):
        """Make the head from the contigs that are here: the odd ones are viruses."""
        with (self.folder / "labels.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["id", "kind", "contig"])
            for row in self.fragments():
                kind = CLASSES[int(row["contig"][1:]) % 2]
                table.writerow([row["id"], kind, row["contig"]])
        labels = ("--labels", "labels.csv", "--column", "kind", "--group", "contig")
        feature = ("--feature", "composition", "--output", "heads/kinds")
        self.type("featuremill", "head", "train", "results/my-proteins", *labels, *feature)

    def fragments(self):
        return pq.read_table(self.folder / "translated" / "my" / "fragments.parquet").to_pylist()

    def verdicts(self):
        with (self.folder / "verdicts" / "my.tsv").open(newline="") as file:
            return {row["contig"]: row for row in csv.DictReader(file, delimiter="\t")}


@pytest.fixture
def line(tmp_path, environment):
    found = Contigs(tmp_path, environment)
    found.write(contigs(16))
    found.configure()
    return found


def test_each_contig_gets_a_verdict_and_a_second_call_computes_nothing(line):
    line("results/my-proteins/manifest.json")
    line.train()
    line.write({**contigs(16), "new": contigs(1, seed=8)["c0"], "stops": "TAGC" * 60})
    line()
    found = line.verdicts()
    assert set(found) == {*contigs(16), "new", "stops"}
    assert found["stops"]["status"] == "without" and found["stops"]["verdict"] == "-"
    right = [
        row["verdict"] == CLASSES[int(id[1:]) % 2] for id, row in found.items() if id[0] == "c"
    ]
    assert sum(right) >= 14
    counted = {id: int(row["fragments"]) for id, row in found.items()}
    rows = [row["contig"] for row in line.fragments()]
    assert counted == {id: rows.count(id) for id in found}
    assert "Nothing to be done" in line("-n")
