"""featuremill init: what it says of an input, and the config that it writes."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from pathlib import Path

import pytest
import yaml
from broken_inputs import GENE, GOOD, INSULIN_A, UBIQUITIN
from conftest import PLUGINS
from programs import written

from featuremill import config
from featuremill.__main__ import main
from featuremill.base.errors import UserError
from featuremill.workload import find_workload

DEMO = Path(__file__).parent.parent / "config" / "demo.fasta"
ESM2 = [
    *("esm2_t6_8M_UR50D", "esm2_t12_35M_UR50D", "esm2_t30_150M_UR50D"),
    *("esm2_t33_650M_UR50D", "esm2_t36_3B_UR50D", "esm2_t48_15B_UR50D"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("featuremill"), "handlers", [])
    return tmp_path


def write(name: str, content: str) -> str:
    Path(name).write_text(content, "utf-8")
    return name


def test_the_demo_becomes_a_valid_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(DEMO)]) == 0
    run = config.read(Path("demo.yaml"))
    assert run == config.validate({"inputs": [str(DEMO)]})
    text = Path("demo.yaml").read_text()
    keys = [line.partition(":")[0] for line in text.splitlines() if line[:1].isalpha()]
    assert keys == ["run", "inputs", "workload", "options", "device", "outputs"]
    assert len(text.splitlines()) < 40 and "--full" in text
    assert main(["init", str(DEMO), "--force", "--full"]) == 0
    assert run == config.read(Path("demo.yaml"))
    assert "\n  cost: auto\n" in Path("demo.yaml").read_text()
    said = capsys.readouterr().err
    assert "1,000 protein records, 363,884 residues" in said
    assert "median length 296, longest 1,488 (sp|Q7TXL6|PPSE_MYCBO)" in said
    assert said.endswith("wrote demo.yaml; next: featuremill run demo.yaml\n")


def test_names_the_command_that_computes_it_here(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    write("a.fa", GOOD)
    write("Snakefile", "# somebody else's\n")
    main(["init", "a.fa", "--output", "my run.yaml"])
    assert capsys.readouterr().err.endswith("next: featuremill run 'my run.yaml'\n")


def test_every_key_is_explained_and_every_ready_option_is_valid() -> None:
    main(["init", str(DEMO), "--full"])
    text = Path("demo.yaml").read_text("utf-8")
    assert all(name in text for name in ESM2)
    assert max(len(line) for line in text.splitlines()) <= 100
    words = " ".join(text.replace("#", " ").split())
    models = (config.Config, config.Shards, find_workload("esm2").Options)
    described = {name: text for model in models for name, text in model.descriptions().items()}
    assert len(described) > 20
    for name in described.keys() - {"options", "shards"}:
        assert " ".join(described[name].split()) in words, name
    assert '\n  # file: ""\n' in text, "what is optional sleeps"
    woken = re.sub(r"^  # (\w+: \S+)$", r"  \1", text, flags=re.MULTILINE)
    options = yaml.safe_load(woken)["options"]
    assert options.keys() == find_workload("esm2").Options.model_fields.keys()
    assert config.validate(yaml.safe_load(woken)) == config.read(Path("demo.yaml"))


def test_says_what_is_odd(capsys: pytest.CaptureFixture[str]) -> None:
    records = f"{GOOD}>P1\n>P2\nMKJV\n>P3\n>P4\nMK*V\n"
    assert main(["init", write("odd.fa", records)]) == 0
    said = capsys.readouterr().err
    assert "5 protein records, 80 residues" in said
    assert "1 of them: J read as X" in said
    assert "2 refused: empty sequence (first: odd.fa:3)" in said
    assert "1 refused: stop codon (*) inside the sequence (first: odd.fa:7)" in said


def test_refuses_nucleotides_with_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", write("genes.fna", f">g1\n{GENE}\n>g2\n{GENE}A\n>p\n{UBIQUITIN}\n")]) == 2
    said = capsys.readouterr().err
    assert "3 nucleotide records" in said
    assert "error: genes.fna: most of the records look like nucleotides, not proteins" in said
    translate = "featuremill translate genes.fna --by orfs --output translated"
    made = "translated/proteins.faa.gz"
    assert f"; translate them first: {translate}, and then featuremill init {made}; " in said
    assert main(translate.split()[1:]) == 0 and Path(made).exists()


def test_takes_an_esm2_that_is_on_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is none, it says that the bundled network is none."""
    for name, place in (("TORCH_HOME", "torch"), ("HF_HOME", "hf"), ("FEATUREMILL_CACHE", "cache")):
        monkeypatch.setenv(name, place)
    caution = f"mill_t6_8M is a demonstration model, not ESM-2. For science: model: {ESM2[3]}"
    main(["init", write("a.fa", GOOD)])
    assert f"warning: {caution}\n" in capsys.readouterr().err
    assert f"  # {caution}\n  model: mill_t6_8M\n" in Path("a.yaml").read_text()
    about = {"version": 1, "name": "m", "path": "m", "bytes": 1, "sha256": "m", "metadata": {}}
    Path("m").write_text("1")
    places = {
        ESM2[5]: f"torch/hub/checkpoints/{ESM2[5]}.pt",
        ESM2[1]: f"weights/{ESM2[1]}.json",
        ESM2[3]: f"cache/esm2-1/{ESM2[3]}.safetensors",
    }
    for model, place in places.items():
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).write_text(json.dumps(about))
        main(["init", "a.fa", "--force"])
        assert f"\n  model: {model}\n" in Path("a.yaml").read_text()
        said = capsys.readouterr().err
        assert f"{model} is on this machine" in said and "demonstration" not in said
    main(["init", "a.fa", "--force", "--model", "mill_t6_8M"])
    assert "\n  model: mill_t6_8M\n" in Path("a.yaml").read_text()


def test_names_with_spaces_and_letters_of_all_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    name = write("mein Prot\u00e9om: no, 'v2'.faa", GOOD)
    assert main(["init", name, "--output", "my run.yaml"]) == 0
    run = config.read(Path("my run.yaml"))
    assert run.inputs == (name,)
    assert run.run == "my_run"
    assert "featuremill run 'my run.yaml'" in capsys.readouterr().err


def test_a_file_of_a_format_that_its_workload_alone_knows_names_the_run_without_its_suffix() -> (
    None
):
    assert main(["init", write("day.1.h5ad", ""), "--workload", "geneformer"]) == 0
    assert "run: day.1\n" in Path("day.1.yaml").read_text()


def test_each_of_several_files_is_a_sample(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write("b.csv", f"id,sequence\nP1,{INSULIN_A}\n")
    assert main(["init", write("a.b.fasta", GOOD), table, "--model", ESM2[0]]) == 0
    run = config.read(Path("a.b.yaml"))
    assert (run.inputs, run.samples) == ((), "a.b.tsv")
    assert Path("a.b.tsv").read_text() == "sample\tfile\na.b\ta.b.fasta\nb\tb.csv\n"
    assert run.options.model == ESM2[0]
    Path("many").mkdir()
    for name in ("late.fa", "early.faa", ".hidden.fa", "notes.md"):
        Path("many", name).write_text(GOOD)
    assert main(["init", "many"]) == 0
    assert "wrote many.tsv and many.yaml; next: " in capsys.readouterr().err
    assert (
        Path("many.tsv").read_text() == "sample\tfile\nearly\tmany/early.faa\nlate\tmany/late.fa\n"
    )
    assert config.read(Path("many.yaml")).samples == "many.tsv"
    Path("many", "late.faa").write_text(">P1\nMKV*V\n")
    assert main(["init", "many", "--force"]) == 2
    assert "many/late.fa and many/late.faa would both be sample 'late'" in capsys.readouterr().err
    assert Path("many.tsv").read_text().count("many/") == 2


def keys_of(text: str) -> list[str]:
    """Return the options that are set, and not commented out."""
    options = text.partition("\noptions:\n")[2].partition("\nshards:\n")[0]
    return re.findall(r"^  (\w+):", options, re.MULTILINE)


@pytest.mark.parametrize(("workload", "keys"), [("esm2", ["model"]), ("composition", [])])
def test_another_workload(workload: str, keys: list[str]) -> None:
    assert main(["init", write("a.fa", GOOD), "--workload", workload]) == 0
    run, text = config.read(Path("a.yaml")), Path("a.yaml").read_text()
    assert run.workload == workload and run.outputs == ("parquet", "per_protein_h5")
    assert keys_of(text) == keys


@pytest.mark.parametrize(
    ("words", "outputs"),
    [
        (["scores", "--model", "mill_t6_8M"], ("parquet", "variant_scores")),
        (["contacts"], ("parquet", "contacts_tsv")),
    ],
)
def test_what_a_workload_is_for_is_among_the_outputs(
    words: list[str], outputs: tuple[str, ...]
) -> None:
    assert main(["init", write("a.fa", GOOD), "--workload", *words]) == 0
    asked = yaml.safe_load(Path("a.yaml").read_text())
    assert tuple(asked["outputs"]) == outputs
    if words == ["contacts"]:
        named = "model: this is empty; give a text. The network: .* `esm2_t33_650M_UR50D`"
        with pytest.raises(UserError, match=named):
            config.read(Path("a.yaml"))


@pytest.mark.parametrize(
    ("workload", "option", "words", "kind"),
    [
        ("numbered", "number", "A file with a number.", "the path of a file"),
        (
            "weighed",
            "network",
            "A file with a number, or a folder of such files.",
            "the path of a file or folder",
        ),
    ],
)
def test_what_a_workload_cannot_do_without_is_left_to_be_filled_in(
    workload: str,
    option: str,
    words: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS))
    assert main(["init", write("a.fa", GOOD), "--workload", workload]) == 0
    told = f"wrote a.yaml; fill in options.{option}, then: featuremill run a.yaml\n"
    assert capsys.readouterr().err.endswith(told)
    text = Path("a.yaml").read_text()
    assert f"  # {words}\n  # Required: {kind}.\n  {option}:\n" in text
    assert keys_of(text) == [option] and "\noutputs: [parquet]\n" in text
    line = text[: text.index(f"\n  {option}:")].count("\n") + 2
    with pytest.raises(UserError) as refusal:
        config.read(Path("a.yaml"))
    said = f"a.yaml:{line}: options.{option}: this is empty; give {kind}. {words}"
    assert str(refusal.value) == said
    filled = text.replace(f"  {option}:", f"  {option}: {write('number.txt', '7')}")
    write("a.yaml", filled)
    assert config.read(Path("a.yaml")).options_given[option] == "number.txt"


def test_no_output_that_has_no_place_for_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the schema too, where the options promise vectors that do not come."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    for promised in ({"table"}, {"pooled", "table"}):
        workload = find_workload("bulky")
        monkeypatch.setattr(workload.Options, "delivers", lambda _, found=promised: found)
        assert main(["init", write("a.fa", GOOD), "--workload", "bulky", "--force"]) == 0
        assert config.read(Path("a.yaml")).outputs == ("parquet",)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a.fa", "--output", "a.fa", "--force"], "this is the input itself"),
        (["a.fa", "--output", "there.yaml"], "it exists already; add --force"),
        (["a.fa", "--output", "."], "this is a folder"),
        (["a.fa", "--output", "there.yaml/a.yaml"], "choose another place"),
        (["a.fa", "--workload", "esm3"], "there is no workload 'esm3'"),
        (["a.fa", "--workload", "composition", "--model", "x"], "there is no such key"),
        (["gone.fa"], "this file does not exist"),
        (["gone.fa", "--workload", "numbered"], "gone.fa: there is no such file; check the path"),
        (["-"], "-: records are read twice, so not from a pipe; save them to a file and name it"),
        (["a.fa", "--workload", "numbered", "--model", "x"], "options.model: there is no such key"),
        (["empty.fa"], "empty.fa: this file is empty"),
        (["a{b}.fa"], "'a{b}.fa' has a name in braces"),
        (["late.fa"], "late.fa: it was last changed in the future"),
        (["a.fa", "--model", "esm2_t99"], "options.model: there is no model 'esm2_t99'; did you"),
        (["a.fa", "--model", "nets/my.pt"], "nets/my.pt: this file does not exist; check the path"),
        (["bad.fa"], "every record is refused"),
    ],
)
def test_refusals(
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS))
    write("a.fa", GOOD)
    write("bad.fa", ">P1\n>P2\nMK*V\n")
    write("there.yaml", "mine")
    write("empty.fa", "")
    write("a{b}.fa", GOOD)
    os.utime(write("late.fa", GOOD), (2**32, 2**32))
    before = set(folder.iterdir())
    assert main(["init", *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert Path("there.yaml").read_text() == "mine"
    assert set(folder.iterdir()) == before


def test_what_the_jobs_lack_here_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And no more: with --sdm conda they have it from elsewhere."""
    monkeypatch.setattr("featuremill.workload.find_spec", lambda module: None)
    assert main(["init", write("a.fa", GOOD)]) == 0
    assert "init │ warning: torch is not installed in this Python" in capsys.readouterr().err


def test_says_which_columns_of_a_table_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    write("t.csv", f"Entry,name,sequence\nP1,n,{INSULIN_A}\n")
    assert main(["init", write("a.fa", GOOD), "t.csv"]) == 0
    assert "init │ id from column 'Entry', sequence from 'sequence'\n" in capsys.readouterr().err
    write("both.csv", f"acc,entry,product,letters\nP1,Q1,ubiquitin,{INSULIN_A}\n")
    assert main(["init", "both.csv"]) == 2
    assert (
        "both.csv: 'acc', 'entry' may each be the id column; set id_column under options to the "
        "right one (featuremill init takes --id-column)."
    ) in capsys.readouterr().err
    chosen = ["--id-column", "entry", "--sequence-column", "letters"]
    assert main(["init", "both.csv", *chosen]) == 0
    said = capsys.readouterr().err
    assert "id from column 'entry', sequence from 'letters', description from 'product'" in said
    options = config.read(Path("both.yaml")).options_given
    assert (options["id_column"], options["sequence_column"]) == ("entry", "letters")


def test_a_sheet_of_samples_is_taken_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.fa", GOOD)
    write("soils.tsv", "sample\tfile\tsite\nnorth\ta.fa\tforest\n")
    assert main(["init", "soils.tsv"]) == 0
    assert config.read(Path("soils.yaml")).samples == "soils.tsv"
    assert not capsys.readouterr().err.count("warning: there")


def test_an_id_that_all_records_have_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """As foldcomp writes them; the run names it as well."""
    write("e.fa", "".join(f">ESMFOLD V0 PREDICTION FOR MGYP{n}\nMKV{'L' * n}\n" for n in range(4)))
    assert main(["init", "--workload", "composition", "e.fa"]) == 0
    said = capsys.readouterr().err
    assert "'ESMFOLD' is the id of all 4 records, and they are different, so a run refuses" in said
    asked = json.dumps({"inputs": ["e.fa"], "workload": "composition", "outputs": ["parquet"]})
    assert main(["plan", "run", "--config", written(asked)]) == 2
    said = capsys.readouterr().err
    assert (
        "two different sequences, such as 'ESMFOLD' (an id is the first word of a header)" in said
    )


def test_force_overwrites() -> None:
    write("a.yaml", "old")
    assert main(["init", write("a.fa", GOOD), "--force"]) == 0
    assert config.read(Path("a.yaml")).run == "a"


def test_the_command_has_a_path_where_the_shell_finds_no_featuremill(tmp_path, monkeypatch, capsys):
    """As when it is called by its path, out of an environment that is not active."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "bin" / "python"))
    program = tmp_path / "env" / "bin" / "featuremill"
    program.parent.mkdir(parents=True)
    program.touch()
    assert main(["init", write("a.fa", GOOD)]) == 0
    assert capsys.readouterr().err.endswith("next: env/bin/featuremill run a.yaml\n")
