"""From contigs to verdicts in one config: translate, heads and verdicts around features."""

import csv
import json
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import yaml
from programs import Desk, jobs_listed

from featuremill.base.errors import UserError
from featuremill.config import project
from featuremill.flow import refusals
from featuremill.flow.context import validated
from featuremill.flow.screen import RefusedError
from featuremill.steps.heads.card import CARD, Card, Part
from featuremill.store.plan import Settings

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

    def configure(self, head=None, **more):
        config = {"run": "my", "inputs": "contigs.fa", "translate": {"by": "chunks", "window": 90}}
        trained = {"labels": "kinds.csv", "column": "kind", "vectors": "composition"}
        config |= {"features": {"proteins": RUN}, "heads": {"kinds": head or trained}}
        config |= {"verdicts": {"by": "max"}, **more}
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

    def __call__(self, *words, status=0):
        return self.type("featuremill", "run", "config.yaml", *words, status=status).text

    def head(self, *features):
        """Write a head that takes such features."""
        folder = self.folder / "known" / "kinds"
        folder.mkdir(parents=True)
        about = {"kind": "mlp", "classes": list(CLASSES), "features": [*features], "sha256": ""}
        Card(version=Card.NEWEST, **about).write(folder / CARD)
        (folder / "head.safetensors").touch()

    def label(self, told):
        lines = [f"{id},{CLASSES[int(id[1:]) % 2]}\n" for id in told]
        (self.folder / "kinds.csv").write_text("id,kind\n" + "".join(lines))

    def fragments(self):
        return pq.read_table(self.folder / "results/my/translate/fragments.parquet").to_pylist()

    def verdicts(self):
        with (self.folder / "results" / "my" / "verdicts.tsv").open(newline="") as file:
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
    assert "1 labelled contig has no fragment in results/my/translate" in said
    found = line.verdicts()
    assert set(found) == {*contigs(16), *others}
    assert found["c98"]["status"] == "without" and found["c98"]["verdict"] == "-"
    assert {id for id, row in found.items() if row["seen_in_training"] == "yes"} == {*contigs(16)}
    right = sum(found[id]["verdict"] == CLASSES[int(id[1:]) % 2] for id in contigs(16))
    assert right >= 14
    counted = {id: int(row["fragments"]) for id, row in found.items()}
    rows = [row["contig"] for row in line.fragments()]
    assert counted == {id: rows.count(id) for id in found}
    card = json.loads((line.folder / "results/my/heads/kinds/head.json").read_text())
    assert card["counts"]["groups"] == 16 and card["labels"]["group"] == "contig"
    assert "Nothing to be done" in line("-n")
    assert "Nothing to do." in line.type("featuremill", "status", "config.yaml").out


def test_labels_that_are_of_no_contig_are_one_sentence(line):
    line.label(["c77", "c78"])
    said = line(status=2)
    sentence = "kinds.csv: none of its 2 ids is a contig of results/my/translate, whose first is '"
    assert sentence in " ".join(said.split())


FOLDER = {"folder": "known/kinds"}
ESM2 = {"workload": "esm2", "options": {"model": "mill_t6_8M"}, "device": "cpu"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"heads": None}, "verdicts: these are made of a head's predictions; add `heads:`."),
        ({"head_": "x"}, "head_: there is no such key here; did you mean 'heads'?"),
        ({"run": "a b"}, "run: use letters, digits"),
        ({"features": {"proteins": {"workload": "composition", "shards": 3}}}, "shards: give"),
        (
            {"features": {"proteins": {"workload": "compositon"}}},
            "workload: there is no workload 'compositon'",
        ),
        (
            {"features": {"a": {**RUN, "of": "protein"}}},
            "of: there are no records 'protein'; there are proteins and nucleotides.",
        ),
        ({"head": {"labels": "kinds.csv"}}, "heads.kinds: labels and column belong together"),
        ({"head": {"folder": "a", "labels": "b"}}, "heads.kinds: give labels and column to train"),
        (
            {"head": {"folder": "a", "kind": "mlp"}},
            "heads.kinds: group, task, kind and threshold are of the train",
        ),
        ({"head": {**FOLDER, "of": "dna"}}, "heads.kinds.of: there are no features 'dna'"),
        ({"head": {**FOLDER, "vectors": ["a", "b"]}}, "heads.kinds.vectors: give one for all"),
        ({"head": {**FOLDER, "predict": {"x": ["a/b", "c/d"]}}}, "predict.x: give 1 folder"),
        ({"inputs": []}, "inputs: "),
        ({"inputs": "gone.fa"}, "inputs: gone.fa: this file does not exist"),
        (
            {"head": {"labels": "gone.csv", "column": "x", "vectors": "composition"}},
            "heads.kinds: gone.csv: there is no such file; name what is there.",
        ),
        (
            {"head": {"labels": "kinds.csv", "column": "knd"}},
            "heads.kinds.column: kinds.csv: there is no column 'knd'",
        ),
        (
            {"head": {"labels": "kinds.csv", "column": "kind", "group": "genus"}},
            "heads.kinds.group: kinds.csv: there is no column 'genus'",
        ),
        ({"head": {"folder": "gone"}}, "heads.kinds.folder: gone: there is no head here"),
        (
            {"virnucpro": {}, "translate": {"by": "orfs"}},
            "virnucpro: its files are of windows, not of orfs",
        ),
        ({"virnucpro": {"files": "them"}}, "virnucpro.files: give one of `predictions`, `all`"),
        ({"translate": None}, "translate.by: this is missing; give one of `chunks`"),
        ({"verdicts": {"by": "meen"}}, "verdicts.by: give one of `max`, `mean`, not 'meen'"),
        ({"verdicts": {"head": "kind"}}, "verdicts.head: there is no head 'kind'"),
        (
            {"verdicts": {"prefer": "phage"}, "head": FOLDER},
            "verdicts.prefer: prefer: phage: known/kinds has others and virus; name one.",
        ),
        ({"translate": {"by": "chunks", "windw": 9}}, "translate.windw: there is no such key here"),
        ({"translate": {"by": "chunks", "window": 2}}, "translate: window: 2: this must be at le"),
        (
            {"translate": {"by": "chunks", "code": 4}},
            "translate: code has no effect with by: chunks; leave it out, or take by: orfs.",
        ),
        (
            {"features": {"nucleotides": RUN, "proteins": RUN}, "head": FOLDER},
            "takes features of 1 kind (20 numbers), and here are nucleotides and proteins;",
        ),
        (
            {"features": {"proteins": ESM2}, "head": FOLDER},
            "heads.kinds.folder: proteins: there is no column 'composition' with one vector a "
            "record; it has mean_layer_6.",
        ),
    ],
)
def test_what_a_late_job_would_refuse_is_refused_before_the_first_with_its_line(
    line, monkeypatch, change, sentence
):
    line.label(["c1"])
    line.head(Part(width=20, column="composition"))
    line.configure(**change)
    monkeypatch.chdir(line.folder)
    with pytest.raises(RefusedError) as error:
        begun(Path("config.yaml"))
    assert error.value.status == 2
    said = str(error.value)
    assert re.match(r"config\.yaml:(\d+| features\.\w+):|config\.yaml:", said)
    assert sentence in said, said


def begun(path):
    """Validate the config, as the main process does before the first job."""
    workflow = SimpleNamespace(
        configfiles=[path],
        is_main_process=True,
        modifier=SimpleNamespace(is_main_snakefile=lambda: True),
    )
    found = validated(yaml.safe_load(path.read_text()), workflow)
    refusals.refuse_missing_of_steps(workflow, found)
    return found


@pytest.mark.parametrize(
    ("known", "any_recipe", "sentence"),
    [
        (Part(width=320, column="mean_layer_6"), False, ""),
        (Part(width=320), True, ""),
        (
            Part(width=2560),
            True,
            "2,560 numbers, and the features given have 320 (proteins, ",
        ),
        (Part(width=320, settings=OTHERS), True, ""),
        (
            Part(width=320, column="mean_layer_6", settings=OTHERS),
            False,
            "proteins: the recipe of its features is another one, and known/kinds was made with an "
            "unknown one (here model mill_t6_8M and not None, ",
        ),
    ],
)
def test_a_head_is_held_against_the_features_that_there_will_be(
    line, monkeypatch, known, any_recipe, sentence
):
    line.head(known)
    options = {"model": "mill_t6_8M", "dtype": "fp32"}
    features = {"proteins": {**ESM2, "options": options}}
    line.configure(head={**FOLDER, "any_recipe": any_recipe}, features=features)
    monkeypatch.chdir(line.folder)
    if not sentence:
        begun(Path("config.yaml"))
        return
    with pytest.raises(RefusedError, match=re.escape(sentence)):
        begun(Path("config.yaml"))


def test_a_head_that_names_no_column_is_held_against_features_of_several(line, monkeypatch):
    line.head(Part(width=320))
    features = {"proteins": {**ESM2, "options": {"model": "mill_t6_8M", "layers": [5, 6]}}}
    line.configure(head={**FOLDER, "any_recipe": True}, features=features)
    monkeypatch.chdir(line.folder)
    with pytest.raises(RefusedError, match="choose one of mean_layer_5, mean_layer_6 with vec"):
        begun(Path("config.yaml"))


def test_what_the_config_says_is_what_the_jobs_are_told(line):
    line.write(contigs(4))
    line.label(contigs(4))
    text = (line.folder / "kinds.csv").read_text().splitlines()
    text = [f"{row},{'genus' if n == 0 else f'g{n}'}" for n, row in enumerate(text)]
    (line.folder / "kinds.csv").write_text("\n".join(text) + "\n")
    line.head(Part(width=20, column="composition"))
    trained = {"labels": "kinds.csv", "column": "kind", "group": "genus", "kind": "mlp"}
    trained["vectors"] = "composition"
    known = {**FOLDER, "any_recipe": True}
    heads = {"trained": trained, "known": known}
    line.configure(heads=heads, verdicts={"head": "known", "by": "mean", "prefer": "others"})
    said = line("-n", "-p")
    assert {"translate", "heads_train", "heads_predict", "verdicts"} <= jobs_listed(said)
    assert re.search("featuremill translate .*--by=chunks --window=90", said)
    assert re.search(
        "featuremill head train .*--vectors=composition --column=kind --group=genus --kind=mlp "
        "--fragments=results/my/translate",
        said,
    )
    assert re.search("featuremill verdict .*known.tsv .*--by=mean --prefer=others", said)
    assert re.search("featuremill head predict known/kinds .*--any-recipe", said)
    assert not re.search("featuremill head predict results/my/heads/trained .*--any-recipe", said)


def test_a_step_with_nothing_below_its_key_has_its_defaults_and_one_of_no_names_is_none():
    plain = {"run": "my", "inputs": "a.fa", "workload": "composition"}
    heads = {"kinds": {"folder": "known"}}
    asked = {"translate": {"by": "orfs"}, "heads": heads, "verdicts": None}
    found = project.validate({**plain, **asked, "autoencoders": None})
    assert list(found.sections) == ["heads", "translate", "verdicts"]
    assert found.sections["verdicts"].by == "max"
    with pytest.raises(UserError, match=r"translate\.by: this is missing"):
        project.validate({**plain, "translate": None})


def test_a_run_without_sets_is_of_the_first_kind_of_records_or_of_the_one_it_names():
    plain = {"run": "my", "inputs": "a.fa", "workload": "composition", "translate": {"by": "orfs"}}
    with pytest.raises(UserError, match=r"of: there are no records \['proteins'\]; there are prot"):
        project.validate({**plain, "of": ["proteins"]})
    for more, file in (({}, "proteins.faa.gz"), ({"of": "nucleotides"}, "nucleotides.fna.gz")):
        (run,) = project.validate({**plain, **more}).runs.values()
        assert run.inputs == (f"results/my/translate/{file}",)


@pytest.mark.slow
def test_all_of_it_has_its_place_below_the_prefix_of_a_module(line):
    below = line.folder / "below"
    below.mkdir()
    line.label(contigs(16))
    for name in ("contigs.fa", "kinds.csv"):
        (line.folder / name).rename(below / name)
    line.configure(virnucpro={"files": "all"})
    config = yaml.safe_load((line.folder / "config.yaml").read_text())
    (line.folder / "Snakefile").write_text(
        "from featuremill import SNAKEFILE\n\n\n"
        "module soil:\n    snakefile:\n        SNAKEFILE\n    config:\n"
        f"        {config!r}\n    prefix:\n"
        '        "below"\n\n\nuse rule * from soil as soil_*\n'
    )
    targets = ["verdicts.tsv", "virnucpro/failed_files.txt"]
    line.type("snakemake", "--cores", 2, *(f"below/results/my/{name}" for name in targets))
    assert not (line.folder / "results").exists()
    with (below / "results/my/verdicts.tsv").open(newline="") as file:
        assert len(list(csv.DictReader(file, delimiter="\t"))) == 16
