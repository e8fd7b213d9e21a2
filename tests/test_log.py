"""What verbs say and where: the screen, quiet and verbose; log files; lines of long work."""

import json
import logging

import pytest
from conftest import PLUGINS
from programs import fasta, written

from featuremill.__main__ import VERBS, main
from featuremill.base import log, progress, this_process
from featuremill.base.environment import DIE_WITH_PARENT
from featuremill.base.progress import Progress
from featuremill.step.finding import commands

GOOD = [(f"good{n}", "MKV" + "L" * n) for n in range(8)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "featuremill: say what to do: featuremill --help lists the commands."),
        (["serch", "x"], "there is no command 'serch'; did you mean search? featuremill --help"),
        (["qqq"], "there is no command 'qqq'; featuremill --help lists them."),
    ],
)
def test_a_wrong_verb_gets_the_nearest_and_the_way_to_all(words, said, capsys):
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_a_word_that_a_verb_does_not_take_is_named_with_its_help(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["status", "results/my", "--resluts", "x"])
    assert ended.value.code == 2
    assert "status takes no --resluts x; see featuremill status --help." in capsys.readouterr().err


@pytest.fixture
def clock(monkeypatch):
    """Return a list whose one entry is the time."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("verb", [*VERBS, *commands()])
def test_every_verb_takes_the_same_words(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert told.startswith(f"usage: featuremill {verb} ")
    for word in ("-q, --quiet", "-v, --verbose", "--log-file LOG_FILE"):
        assert word in told


def test_quiet_and_verbose_exclude_each_other(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["status", "-q", "-v", "results/x"])
    assert ended.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_what_the_screen_and_the_file_get(verbs):
    plan = verbs.plan(GOOD, "poison", {"broken_load": True})
    words = ("extract", verbs.run_folder.root, plan["shards"][0]["shard"])
    path = verbs.folder / "x.log"

    usual = verbs(*words, "--log-file", path, status=1)
    assert "error: " in usual and "worker: " not in usual and "leased" not in usual
    kept = path.read_text()
    assert "worker: Traceback" in kept and "leased the CPU" in kept
    assert kept.count(log.BEGIN) == 1 and f"begin: featuremill extract {words[1]}" in kept
    verbs("plan", words[1], "--config", "no.yaml", "-q", "--log-file", path, status=2)
    assert path.read_text().count(log.BEGIN) == 2

    verbs.environment = {**verbs.environment, "FEATUREMILL_QUIET": "1"}
    quiet = verbs("merge", words[1], "--partial").splitlines()
    assert quiet and all("│ warning: " in line for line in quiet)
    loud = verbs(*words, "-v", status=1)
    assert "worker: Traceback" in loud and "leased the CPU" in loud


def test_long_work_says_how_far_it_is_off_a_terminal(verbs, monkeypatch, capsys):
    """What it would say after ten seconds, it says at once here."""
    monkeypatch.chdir(verbs.folder)
    monkeypatch.setenv("PYTHONPATH", verbs.environment["PYTHONPATH"])
    monkeypatch.syspath_prepend(PLUGINS)
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)

    def hasty(*words):
        assert main(list(map(str, words))) == 0
        return capsys.readouterr().err

    config = {"inputs": "in.fa", "workload": "poison", "shards": {"cost": 4}, "device": "cpu"}
    config["options"] = {"batch_seconds": 0.7, "batch_records": 1}
    (verbs.folder / "in.fa").write_text(fasta(GOOD))
    root = verbs.run_folder.root
    planned = hasty("plan", root, "--config", written(config))
    assert "plan │ reading: 8 records, " in planned
    assert "plan │ cutting new shards: 2 of 2 shards, " in planned
    assert "plan │ writing records.parquet: 8 of 8 records, " in planned
    plan = json.loads(verbs.run_folder.plan.read_text())
    first, second = (shard["shard"] for shard in plan["shards"])
    alone = hasty("extract", root, first)
    assert f"extract │ shard {first[:8]}: " in alone and " of 4 records, " in alone
    kept = verbs.folder / "x.log"
    with monkeypatch.context() as under_snakemake:
        under_snakemake.setattr(this_process, "die_with_starter", lambda *_: None)
        under_snakemake.setenv(DIE_WITH_PARENT.name, "1@elsewhere")
        beside = hasty("extract", root, second, "--log-file", kept)
    assert " of 4 records, " not in beside, "other jobs say the same beside it"
    assert " of 4 records, " in kept.read_text()
    merged = hasty("merge", root)
    for line in ("checking the parts: 2 of 2", "reading the parts: 2 of 2", "writing: 8 of 8"):
        assert f"merge │ {line} " in merged
    assert "clean │ removing: 1 files, " in hasty("clean", root, "--keep", "nothing", "--yes")
    assert " left" in planned and "/s, " in planned


def test_lines_come_every_ten_seconds_with_an_honest_rate(clock, caplog):
    caplog.set_level(logging.DEBUG)
    shown = Progress(logging.getLogger("a"), "reading")
    for second in range(1, 26):
        clock[0] = 1000.0 + second
        shown.at(100 * second, 10_000)
    shown.at(0)
    assert caplog.messages == [
        "reading: 1,000 of 10,000 records, 100/s, 0:01:30 left",
        "reading: 2,000 of 10,000 records, 100/s, 0:01:20 left",
    ]
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_what_takes_no_time_says_nothing(clock, caplog):
    caplog.set_level(logging.DEBUG)
    shown = Progress(logging.getLogger("a"), "reading")
    shown.at(10**9)
    event = {"rows": 1, "of": 2, "cost_run": 1, "cost_left": 1, "seconds": 1.0}
    shown.show(event)
    assert not caplog.messages
    clock[0] += 10
    shown.show(event | {"cost_run": 0})
    assert not caplog.messages
    shown.show(event)
    assert caplog.messages == ["reading: 1 of 2 records, 1 records/s, 0:00:01 left"]


def test_the_last_error_of_a_log_is_that_of_its_last_attempt(tmp_path, capsys):
    path = tmp_path / "logs" / "x.log"
    assert main(["plan", str(tmp_path / "run"), "--config", written("["), "--log", str(path)]) == 2
    assert "my.yaml:1: this is not valid YAML" in log.last_error(path)
    with path.open("a") as file:
        file.write("\n2026-01-01 00:00:00,000 DEBUG   featuremill.plan: begin: another\nrubbish \n")
    assert log.last_error(path) == ""
    words = ["plan", str(tmp_path / "run"), "--config", "no.yaml", "--log-file", str(path)]
    assert main(words) == 2
    assert "no.yaml: this config cannot be read" in log.last_error(path)
    assert log.last_error(tmp_path / "none.log") == ""


def test_an_error_that_nobody_foresaw_is_in_the_log_with_its_traceback(
    tmp_path, monkeypatch, capsys
):
    from featuremill.status import command

    def stumble(_arguments):
        raise KeyError("nobody knows \x1b[2J")

    monkeypatch.setattr(command, "run", stumble)
    path = tmp_path / "x.log"
    assert main(["status", "results/x", "--log-file", str(path)]) == 1
    for said in (path.read_text(), capsys.readouterr().err):
        assert "KeyError: 'nobody knows \\x1b[2J'; please report this." in said
        assert "in stumble" in said and "\x1b" not in said
