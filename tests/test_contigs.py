"""From contigs to verdicts: the workflow that imports this one for proteins and for nucleotides."""

import csv
import json
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT
from featuremill.config.contigs import ContigsConfig
from featuremill.flow.head_fits import refuse_unfit
from programs import Desk, jobs_listed

from featuremill.base.errors import UserError
from featuremill.flow.begin import begin_contigs
from featuremill.flow.screen import RefusedError
from featuremill.steps.heads.card import CARD, Card, Part
from featuremill.steps.translate.command import as_typed as translate_words
from featuremill.steps.verdicts.command import as_typed as verdict_words
from featuremill.store.plan import Settings

SNAKEFILE = ROOT / "workflow" / "contigs" / "Snakefile"
CLASSES = ("others", "virus")
RUN = {"workload": "composition", "device": "cpu", "outputs": "parquet"}
OTHERS = Settings(workload="esm2", version="1", options={"dtype": "bf16"}, weights_sha256="")


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
        train = {"labels": "kinds.csv", "column": "kind", "features": ["composition"]}
        config |= {"proteins": RUN, "head": "kinds", "train": train, **more}
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

    def __call__(self, *words, status=0):
        given = ("-s", SNAKEFILE, "--configfile", "config.yaml", "--cores", 2)
        return self.type("snakemake", *given, *words, status=status).text

    def head(self, *features):
        """Write a head that takes such features."""
        folder = self.folder / "heads" / "kinds"
        folder.mkdir(parents=True)
        about = {"kind": "mlp", "classes": list(CLASSES), "features": [*features], "sha256": ""}
        Card(version=Card.NEWEST, **about).write(folder / CARD)

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
def test_a_wrong_config_is_a_sentence_with_its_line(line, monkeypatch, change, sentences):
    line.label(["c1"])
    line.configure(**change)
    said = refused(line, monkeypatch)
    for sentence in sentences:
        assert sentence in said


def refused(line, monkeypatch):
    """Return what the workflow refuses in the config, before any job."""
    monkeypatch.chdir(line.folder)
    path = Path("config.yaml")
    workflow = SimpleNamespace(
        configfiles=[path],
        is_main_process=True,
        modifier=SimpleNamespace(is_main_snakefile=lambda: True),
    )
    checks = {
        "translate": lambda asked: translate_words(asked.contigs, "", asked.translate),
        "head": refuse_unfit,
        "verdict": lambda asked: verdict_words(asked.verdict, asked.head_folder),
    }
    with pytest.raises(RefusedError) as error:
        begin_contigs(workflow, yaml.safe_load(path.read_text()), checks)
    assert error.value.status == 2
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"verdict": "--by meen"}, ": verdict: argument --by: invalid choice: 'meen' (choose"),
        ({"verdict": "--prefer phage"}, ": verdict: --prefer phage: heads/kinds has others and"),
        ({"translate": "--by chunks --windw 9"}, ": translate: unrecognized arguments: --windw 9;"),
        ({"translate": "--by chunks --window 2"}, ": translate: --window 2: this must be at least"),
        ({"translate": '--by "chunks'}, "no closing quotation; close the quotation mark."),
        ({"nucleotides": RUN}, "takes features of 1 kind (20 numbers), and the config has nucl"),
        (
            {"proteins": {"workload": "esm2", "options": {"model": "mill_t6_8M"}, "device": "cpu"}},
            ": head: heads/kinds: this head does not take the features that my-proteins will have: "
            "it was made for the column composition, and they have mean_layer_6; change the",
        ),
    ],
)
def test_what_a_late_job_would_refuse_is_refused_before_the_first(
    line, monkeypatch, change, sentence
):
    line.head(Part(width=20, column="composition"))
    line.configure(train=None, **change)
    said = refused(line, monkeypatch)
    assert said.startswith("config.yaml:") and sentence in said


@pytest.mark.parametrize(
    ("known", "any_recipe", "sentence"),
    [
        (Part(width=320, column="mean_layer_6"), False, ""),
        (Part(width=320), True, ""),
        (Part(width=2560), True, ": it takes 2,560 numbers, and they have 320 (mean_layer_6)"),
        (Part(width=320, settings=OTHERS), True, ""),
        (Part(width=320, settings=OTHERS), False, " (here model mill_t6_8M and not None, "),
    ],
)
def test_a_head_is_held_against_the_features_that_runs_will_have(
    line, monkeypatch, known, any_recipe, sentence
):
    line.head(known)
    options = {"model": "mill_t6_8M", "dtype": "fp32"}
    run = {"workload": "esm2", "options": options, "device": "cpu"}
    line.configure(train=None, proteins=run, any_recipe=any_recipe)
    monkeypatch.chdir(line.folder)
    asked = ContigsConfig.model_validate(yaml.safe_load(Path("config.yaml").read_text()))
    if not sentence:
        refuse_unfit(asked)
        return
    with pytest.raises(UserError, match=re.escape(f"my-proteins will have{sentence}")):
        refuse_unfit(asked)


def test_a_head_that_names_no_column_is_held_against_runs_of_several(line, monkeypatch):
    line.head(Part(width=320))
    options = {"model": "mill_t6_8M", "layers": [5, 6]}
    run = {"workload": "esm2", "options": options, "device": "cpu"}
    line.configure(train=None, proteins=run, any_recipe=True)
    monkeypatch.chdir(line.folder)
    asked = ContigsConfig.model_validate(yaml.safe_load(Path("config.yaml").read_text()))
    with pytest.raises(UserError, match="columns mean_layer_5 and mean_layer_6, and it does not"):
        refuse_unfit(asked)


def test_the_verb_run_takes_it_by_its_contigs_and_refuses_in_one_line(line):
    line.label(contigs(16))
    train = {"labels": "kinds.csv", "column": "kind", "group": "genus", "kind": "mlp"}
    line.configure(train=train, verdict="--by mean")
    said = line.type("featuremill", "run", "config.yaml", "-n", "-p").text
    assert {"translate", "head_train", "head_predict", "verdict"} <= jobs_listed(said)
    assert re.search("featuremill translate .*--by chunks --window 90", said)
    assert re.search("featuremill head train .*--group=genus --kind=mlp", said)
    assert re.search("featuremill verdict .*--by mean", said)
    line.configure(verdict="--by meen")
    said = line.type("featuremill", "run", "config.yaml", status=2).text
    assert said.splitlines()[-1].startswith("config.yaml:") and said.count("\n") <= 2, said


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
