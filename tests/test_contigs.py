"""From contigs to verdicts: the workflow that imports this one for proteins and for nucleotides."""

import csv
import json
import random

import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT
from programs import Desk

from featuremill.config.contigs import ContigsConfig

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
        train = {"labels": "kinds.csv", "column": "kind", "features": ["composition"]}
        config |= {"proteins": run, "head": "kinds", "train": train, **more}
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

    def __call__(self, *words, status=0):
        given = ("-s", SNAKEFILE, "--configfile", "config.yaml", "--cores", 2)
        return self.type("snakemake", *given, *words, status=status).text

    def label(self, told):
        lines = [f"{id},{CLASSES[int(id[1:]) % 2]}\n" for id in told]
        (self.folder / "kinds.csv").write_text("id,kind\n" + "".join(lines))

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
    """Trained on some contigs, of which one has no fragment; judged are all."""
    others = {"new": contigs(1, seed=8)["c0"], "c98": "TAGC" * 60}
    line.write({**contigs(16), **others})
    line.label([*contigs(16), "c98"])
    said = line()
    assert "1 labelled contig has no fragment in translated/my" in said
    found = line.verdicts()
    assert set(found) == {*contigs(16), *others}
    assert found["c98"]["status"] == "without" and found["c98"]["verdict"] == "-"
    assert {id for id, row in found.items() if row["seen_in_training"] == "yes"} == {*contigs(16)}
    right = sum(found[id]["verdict"] == CLASSES[int(id[1:]) % 2] for id in contigs(16))
    assert right >= 14
    counted = {id: int(row["fragments"]) for id, row in found.items()}
    rows = [row["contig"] for row in line.fragments()]
    assert counted == {id: rows.count(id) for id in found}
    card = json.loads((line.folder / "heads" / "kinds" / "head.json").read_text())
    assert card["counts"]["groups"] == 16 and card["labels"]["group"] == "contig"
    assert "Nothing to be done" in line("-n")


def test_labels_that_are_of_no_contig_are_one_sentence(line):
    line.label(["c77", "c78"])
    said = line(status=1)
    assert "kinds.csv: none of its ids is a contig with fragments in translated/my" in said


@pytest.mark.parametrize(
    ("change", "sentences"),
    [
        ({"head": None}, ["config.yaml:", ": head: this is empty"]),
        ({"heads": "x"}, ["there is no such key here; did you mean 'head'?"]),
        ({"run": "a b"}, [": run: use letters, digits"]),
        ({"proteins": {"workload": "composition", "shards": 3}}, ["shards: give"]),
        ({"proteins": {"workload": "compositon"}}, ["workload: there is no workload 'compositon'"]),
        ({"train": {"labels": "kinds.csv"}}, ["column: this is missing"]),
        ({"contigs": []}, [": contigs: "]),
        ({"contigs": "gone.fa"}, ["config.yaml:1: contigs: gone.fa: there is no such file"]),
        ({"train": {"labels": "gone.csv", "column": "x"}}, [": train.labels: gone.csv: there is"]),
        ({"train": None}, [": head: heads/kinds/head.json: there is no such file"]),
        ({"head": "others/kinds"}, ["head: with train it is a name"]),
        ({"files": "virnucpro", "translate": "--by orfs"}, ["files: VirNucPro's are of windows"]),
        ({"files": "them"}, [": files: give one of `virnucpro`, `virnucpro_predictions`"]),
    ],
)
def test_a_wrong_config_is_a_sentence_with_its_line(line, change, sentences):
    line.label(["c1"])
    line.configure(**change)
    said = line("-n", status=1)
    for sentence in sentences:
        assert sentence in said
    assert "Traceback" not in said and "Error in line" not in said


def test_the_verb_run_takes_it_by_its_contigs(line):
    line.label(contigs(16))
    said = line.type("featuremill", "run", "config.yaml", "-n").text
    assert "rule translate" in said and "rule verdict" in said


def test_a_head_of_any_recipe_is_only_what_the_config_says():
    config = {"run": "soil", "contigs": "a.fa", "proteins": {"workload": "esm2"}, "head": "virus"}
    for said in (False, True):
        found = ContigsConfig.model_validate({**config, "any_recipe": said}).heads
        assert found["virus"]["any_recipe"] is said
    assert ContigsConfig.model_validate(config).heads["virus"]["any_recipe"] is False
    by_virnucpro = {**config, "files": "virnucpro"}
    assert ContigsConfig.model_validate(by_virnucpro).translate == "--by virnucpro"
    chosen = {**by_virnucpro, "translate": "--by chunks"}
    assert ContigsConfig.model_validate(chosen).translate == "--by chunks"
