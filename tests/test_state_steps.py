"""Each step that cuts, learns, judges or draws is done only as long as it is what the config and
the files ask for now."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from conftest import ROOT
from programs import Desk, fasta, random_records
from test_contigs import contigs
from test_state import VECTORS, copied, edited, files_made, keys_of, look, unnoticed

from featuremill.config import project
from featuremill.flow import internals, reruns
from featuremill.flow.context import Flow, validated
from featuremill.flow.reruns import awaits_rerun
from featuremill.status.project import ProjectReader
from featuremill.step.finding import step_of
from featuremill.steps.autoencoders import DELIVERED, Autoencoder

FEATURES = {"workload": "composition", "device": "cpu", "outputs": "parquet"}
HEAD = {"labels": "kinds.csv", "column": "kind", "of": "proteins", **VECTORS}
ENCODER = {"features": 8, "k": 2, "batch": 16, "steps": 20, "device": "cpu", **VECTORS}
CONFIG = {
    "run": "my",
    "inputs": "contigs.fa",
    "translate": {"by": "chunks", "window": 90},
    "features": {"proteins": FEATURES},
    "heads": {"h": {**HEAD, "predict": {"others": "results/known"}}},
    "verdicts": {"head": "h"},
    "virnucpro": {"head": "h", "proteins": "proteins"},
    "transfer": {
        "t": {
            "labels": "known.csv",
            "column": "kind",
            "of": "proteins",
            "reference": "results/known",
            **VECTORS,
        }
    },
    "autoencoders": {"s": {**ENCODER, "of": "proteins", "encode": "results/known"}},
    "maps": {"perplexity": 5.0},
}


def write(**changes):
    keys = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    Path("my.yaml").write_text(yaml.safe_dump(keys))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, environment):
    """Return the folder of a finished project of contigs, and of a run of known proteins."""
    folder = tmp_path_factory.mktemp("steps")
    (folder / "contigs.fa").write_text(fasta(contigs(12).items()))
    kinds = "".join(f"{id},{'xy'[n % 2]}\n" for n, id in enumerate(contigs(12)))
    (folder / "kinds.csv").write_text("id,kind\n" + kinds)
    known = random_records(30)
    (folder / "known.fa").write_text(fasta(known))
    kinds = "".join(f"{id},{'ab'[n % 2]}\n" for n, (id, _) in enumerate(known))
    (folder / "known.csv").write_text("id,kind\n" + kinds)
    of_known = {"run": "known", "inputs": "known.fa", **FEATURES}
    (folder / "known.yaml").write_text(yaml.safe_dump(of_known))
    (folder / "my.yaml").write_text(yaml.safe_dump(CONFIG))
    desk = Desk(folder, environment)
    desk.type("featuremill", "run", "known.yaml", "-c", "2", "merge")
    desk.type("featuremill", "run", "my.yaml", "-c", "2")
    return folder


@pytest.fixture
def desk(finished, tmp_path, environment, monkeypatch):
    return copied(finished, tmp_path / "desk", environment, monkeypatch)


def of_step(key, name="", **changes):
    section = CONFIG[key][name] if name else CONFIG[key]
    section = {name: value for name, value in {**section, **changes}.items() if value is not None}
    return {key: {**CONFIG[key], name: section} if name else section}


COPY = "results/copy"
"""The results of the known proteins once more."""
OTHER_HEAD = {"heads": {**CONFIG["heads"], "k": HEAD}}
EDITS = {
    "translate.by": ("translate", of_step("translate", by="virnucpro")),
    "translate.window": ("translate", of_step("translate", window=120)),
    "heads.of": ("heads.h", of_step("heads", "h", of=COPY)),
    "heads.predict": ("predictions.h.others", of_step("heads", "h", predict={"others": COPY})),
    "verdicts.head": ("verdicts", OTHER_HEAD | of_step("verdicts", head="k")),
    "verdicts.by": ("verdicts", of_step("verdicts", by="mean")),
    "verdicts.prefer": ("verdicts", of_step("verdicts", prefer="x")),
    "virnucpro.head": ("virnucpro", OTHER_HEAD | of_step("virnucpro", head="k")),
    "virnucpro.files": ("virnucpro", of_step("virnucpro", files="all")),
    "virnucpro.nucleotides": ("virnucpro", of_step("virnucpro", nucleotides=COPY)),
    "virnucpro.proteins": ("virnucpro", of_step("virnucpro", proteins=COPY)),
    "virnucpro.folder": ("virnucpro", of_step("virnucpro", folder="elsewhere")),
    "transfer.of": ("transfer.t", of_step("transfer", "t", of=COPY)),
    "transfer.reference": ("transfer.t", of_step("transfer", "t", reference=COPY)),
    "maps.seed": ("maps.proteins", of_step("maps", seed=1)),
    "maps.perplexity": ("maps.proteins", of_step("maps", perplexity=6.0)),
    "autoencoders.encode": ("autoencoders.s.copy", of_step("autoencoders", "s", encode=COPY)),
    "autoencoders.kind": ("autoencoders.s", of_step("autoencoders", "s", kind="relu", k=None)),
    **{
        f"autoencoders.{key}": ("autoencoders.s", of_step("autoencoders", "s", **{key: value}))
        for key, value in {
            "of": COPY,
            "vectors": "mean",
            "features": 9,
            "k": 3,
            "batch": 8,
            "steps": 21,
            "seed": 1,
            "learning_rate": 1e-3,
            "dead_after": 5,
            "held_out": 0.2,
            "dtype": "bf16",
            "device": "auto",
            "threads": 2,
            "checkpoint_minutes": 3.0,
        }.items()
    },
}
"""By key, which result is another one with what config."""
OF_OTHER_WAYS = {
    "translate.code": ({"by": "orfs"}, {"code": 11}),
    "translate.min_residues": ({"by": "orfs"}, {"min_residues": 20}),
    "translate.orf": ({"by": "orfs"}, {"orf": "between-stops"}),
    "translate.procedure": ({"by": "genes"}, {"procedure": "single"}),
    "autoencoders.sparsity": ({"kind": "relu"}, {"sparsity": 2.0}),
    "autoencoders.bandwidth": ({"kind": "jumprelu"}, {"bandwidth": 0.1}),
}
"""By key of another way to cut or to learn, that way and another value."""
WITHOUT_EFFECT = {"autoencoders.gpus"}
READ = ("contigs.fa", "kinds.csv", "known.csv", "results/known/manifest.json")
"""Every file that the steps read, and that is not of the project."""
MADE = (
    *(f"translate/{kind}" for kind in ("proteins.faa.gz", "nucleotides.fna.gz", "translate.json")),
    *("translate/fragments.parquet", "translate/untranslated.tsv"),
    *("proteins/manifest.json", "proteins/map.parquet"),
    *(f"heads/h/{file}" for file in ("head.safetensors", "head.json", "head.html", "missing.tsv")),
    *("heads/h/held_out.parquet", "predictions/h.tsv", "predictions/h.missing.tsv"),
    *("predictions/h.others.tsv", "predictions/h.others.missing.tsv"),
    *("verdicts.tsv", "verdicts.html", "virnucpro/failed_files.txt"),
    *(f"virnucpro/my_merged/prediction_results{end}" for end in (".txt", "_highestscore.csv")),
    *("transfer/t.tsv", "transfer/t.missing.tsv", "transfer/t.json"),
    *(f"autoencoders/s/{file}" for file in ("sae_weights.safetensors", "cfg.json", "sae.json")),
    *("autoencoders/s/features.tsv", "autoencoders/s/report.html", "autoencoders/s.known.parquet"),
)


def stands():
    """Return the state of each result of a step, by its label."""
    state = ProjectReader(project.runs_of(Path("my.yaml"))).inspect()
    return dict(zip((made.label for made in state.runs.steps), state.steps, strict=True))


def test_each_key_of_the_steps_is_among_the_edits():
    sections = {key: step_of(key).SECTION for key in ("translate", "verdicts", "virnucpro", "maps")}
    keys = keys_of(autoencoders=Autoencoder, **sections)
    more = {"heads.of", "heads.predict", "transfer.of", "transfer.reference"}
    assert keys | more == {*EDITS, *OF_OTHER_WAYS} | WITHOUT_EFFECT


def test_a_result_is_not_done_once_a_key_is_another_one(desk):
    assert {*stands().values()} == {"yes"} and look()[0] == 0
    shutil.copytree("results/known", COPY)
    manifest = Path(COPY, "manifest.json")
    manifest.write_text(manifest.read_text() + "\n")  # of the same features
    wrong = []
    for key, (label, changes) in EDITS.items():
        write(**changes)
        if stands()[label] == "yes":
            wrong.append(key)
    assert not wrong
    write(**of_step("autoencoders", "s", gpus=2))
    assert {*stands().values()} == {"yes"}


@pytest.mark.parametrize("key", OF_OTHER_WAYS)
def test_what_is_asked_for_has_each_key_of_other_ways(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    way, more = OF_OTHER_WAYS[key]
    step = key.partition(".")[0]
    for name in READ[:1]:
        Path(name).write_text(">a\nACGT\n")
    asked = []
    for changes in (way, way | more):
        if step == "translate":
            write(translate=changes, virnucpro=None)
        else:
            write(**of_step(step, "s", k=None, **changes))
        every = {each.label: each.config for each in project.runs_of(Path("my.yaml")).steps}
        asked.append(every[{"autoencoders": "autoencoders.s"}.get(step, step)])
    assert asked[0] != asked[1]


@pytest.mark.parametrize("way", ["newer", "older", "same"])
def test_a_step_is_not_done_once_a_file_that_it_read_is_another_one(desk, way):
    assert unnoticed(READ, way) == []
    assert look()[0] == 0, "with other times, and the same content"


@pytest.mark.parametrize("way", ["cut", "older", "away"])
def test_a_step_is_not_done_once_a_file_that_it_made_is_not_whole(desk, way):
    assert unnoticed(files_made(MADE, way), way) == []
    assert look()[0] == 0


OTHERS = {
    "translate": "contigs.fa",
    "heads.h": "kinds.csv",
    "predictions.h.others": "results/known/manifest.json",
    "transfer.t": "known.csv",
    "autoencoders.s.known": "results/known/manifest.json",
}
"""By result, a file that it was made of and that is another one now."""
CHANGED = {
    **of_step("verdicts", by="mean"),
    **of_step("virnucpro", files="all"),
    **of_step("maps", perplexity=6.0),
    **of_step("autoencoders", "s", k=3),
}


@pytest.mark.parametrize("dry", ["-n", "--executor=dryrun"])
def test_a_dry_run_names_each_step_that_is_made_again(desk, dry):
    write(**CHANGED)
    for name in READ:
        edited(Path(name), "older")
    before = {path: path.stat().st_mtime_ns for path in desk.folder.rglob("results/my/*")}
    said = desk.type("featuremill", "run", "my.yaml", "-c", "2", dry).text
    for label, file in OTHERS.items():
        assert f"{label}: {file}" in said
    for label in ("verdicts", "virnucpro", "maps.proteins", "autoencoders.s"):
        assert f"{label}: the config has changed" in said
    assert before == {path: path.stat().st_mtime_ns for path in desk.folder.rglob("results/my/*")}


def test_inputs_that_are_put_away_once_all_is_done_make_nothing_again(desk):
    for name in READ:
        Path(name).unlink()
    assert look()[0] == 0
    said = desk.type("featuremill", "run", "my.yaml", "-c", "2", "-n").text
    assert "Nothing to be done" in said


def test_all_files_of_a_result_are_made_again_but_for_damage(desk, monkeypatch):
    """A training and its report are two jobs."""
    monkeypatch.setattr(internals, "compare_times_of", lambda _: True)
    write(**of_step("autoencoders", "s", k=3))
    with Path("results/my/heads/h/head.html").open("a") as page:
        page.write("mine")
    workflow = SimpleNamespace(
        is_main_process=True,
        modifier=SimpleNamespace(is_main_snakefile=lambda: True),
        output_settings=SimpleNamespace(dryrun=False),
    )
    flow = Flow(workflow, validated(yaml.safe_load(Path("my.yaml").read_text()), workflow), None)
    reruns.rerun_steps(workflow, flow._config)
    older = {file for each in flow.products for file in each.files if awaits_rerun(Path(file))}
    of_training = [f"results/my/autoencoders/s/{file}" for file in DELIVERED]
    assert older == {*of_training, "results/my/heads/h/head.html"}
    flow.look_at_steps()
    noted = Path("results/my/.state/autoencoders.s.json")
    before = noted.read_bytes()
    for file in of_training[:3]:  # as after a training whose report was interrupted
        os.utime(file)
    flow.note_steps()
    assert noted.read_bytes() == before and stands()["autoencoders.s"] == "older"
    for file in of_training:
        os.utime(file)
    flow.note_steps()
    assert noted.read_bytes() != before and stands()["autoencoders.s"] == "yes"


@pytest.mark.parametrize("touching", ["--touch", "--executor=touch", "--workflow-profile=own"])
def test_a_touch_makes_no_step_current(desk, touching):
    Path("own").mkdir()
    Path("own", "config.yaml").write_text("touch: true\n")
    edited(Path("kinds.csv"), "newer")
    assert stands()["heads.h"] == "older"
    desk.type("featuremill", "run", "my.yaml", "-c", "2", touching)
    assert stands()["heads.h"] == "older"


def damage():
    """Change two tables and the tensors of an autoencoder, as a person may."""
    for name in ("transfer/t.tsv", "predictions/h.tsv", "autoencoders/s/sae_weights.safetensors"):
        with Path("results/my", name).open("ab") as file:
            file.write(b"mine")


@pytest.mark.slow
@pytest.mark.parametrize("program", ["snakemake", "without_internals"])
def test_what_was_damaged_is_made_again_whatever_snakemake_has_recorded(desk, program):
    damage()
    words = ("--snakefile", ROOT / "Snakefile", "--configfile", "my.yaml", "--cores", "2")
    names = ["compare_times_of"] * (program == "without_internals")
    desk.type(program, *names, *words)
    assert look()[0] == 0
    kept = {path.name for path in Path("results/my").rglob("*.yours-1.*")}
    assert kept == {"t.yours-1.tsv", "h.yours-1.tsv", "sae_weights.yours-1.safetensors"}


@pytest.mark.slow
def test_an_older_manifest_trains_an_autoencoder_again(desk):
    shutil.copytree("results/known", COPY)
    write(**of_step("autoencoders", "s", of=COPY))
    desk.type("featuremill", "run", "my.yaml", "-c", "2")
    weights = Path("results/my/autoencoders/s/sae_weights.safetensors")
    before = weights.stat().st_ino
    manifest = Path(COPY, "manifest.json")
    edited(manifest, "older")
    manifest.write_bytes(Path("results/known/manifest.json").read_bytes() + b"\n")
    os.utime(manifest, (1_500_000_000, 1_500_000_000))
    assert look()[0] == 1
    desk.type("featuremill", "run", "my.yaml", "-c", "2")
    assert weights.stat().st_ino != before and look()[0] == 0


@pytest.mark.slow
def test_a_run_makes_each_step_again_and_then_all_is_done(desk):
    write(**CHANGED)
    made = [Path("results/my", name) for name in MADE]
    before = {path: path.stat().st_ino for path in made}
    for name in READ:
        edited(Path(name), "older")
    desk.type("featuremill", "run", "my.yaml", "-c", "2")
    kept = {str(path) for path in made if path.stat().st_ino == before[path]}
    assert not kept and look()[0] == 0
    assert "Nothing to be done" in desk.type("featuremill", "run", "my.yaml", "-c", "2").text
