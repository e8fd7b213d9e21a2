"""The picture beneath the lines of a run: nothing of either is lost, and nothing of it is left."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import termios

import pytest
import yaml
from programs import Workflow, random_records, wait_for
from running_runs import A, RunningRun
from terminals import Terminal, rows

from featuremill.status import beneath

PROGRAM = """
import os, signal, subprocess, sys
from pathlib import Path
from featuremill.config.project import Runs
from featuremill.status import beneath
beneath.PICTURE_SECONDS, beneath.MOST_OF_A_CORE = 0.05, 1.0
end = beneath.follow(Runs(Path("results"), [Path("results/test")]))
for line in iter(sys.stdin.readline, ""):
    exec(line)
"""
"""What a run is in these tests: it does what it reads."""
TITLE = "results/test  computing"
TOTALS = "6.2 % of the work · 50 of 800 records · 0 of 8 shards"


@pytest.fixture
def run(tmp_path):
    return RunningRun(tmp_path, 8)


class Program(Terminal):
    """The program on a terminal; the test has it do something."""

    def __init__(self, folder, environment, columns=80, lines=24, **more):
        self.columns = columns
        command = [sys.executable, "-c", PROGRAM]
        more = {"stdin": subprocess.PIPE, "cwd": folder, "start_new_session": True, **more}
        super().__init__(command, columns, lines, env=environment, **more)

    def do(self, line):
        """Have it carry out a line of Python."""
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def write(self, text):
        self.do(f"os.write(2, {text.encode()!r})")

    def shows(self, *lines, unfinished=()):
        """Wait until the terminal has these lines and the picture beneath them, and nothing else;
        return the picture."""
        return wait_for(lambda: self.reads() or self._picture([*lines, *unfinished, "", TITLE]))

    def _picture(self, above):
        shown = rows(self.said, self.columns)
        is_whole = shown[: len(above)] == above and not shown[-1]
        return shown[len(above) : -1] if is_whole else None

    def ends(self):
        """Have it end; return the rows of the terminal."""
        self.process.stdin.close()
        self.read_until(None)
        assert self.process.wait(30) == 0
        return rows(self.said, self.columns)


def test_lines_of_the_process_and_of_its_jobs_stand_above_the_picture(run, tmp_path, environment):
    job = run.start(0, A)
    job.sample(500)
    program = Program(tmp_path, environment, columns=60)
    program.do("print('first')")
    bar, totals, pace, blank, head, row = program.shows("first")
    assert bar == "━━━╸".ljust(60, "━") and totals == TOTALS and not blank
    assert pace.startswith("time left not known") and "RECORDS" in head
    assert re.match(r"GPU \(a000\) L4 +00000000 +50/100 +20.0/23 GB +64 ", row)
    long = "a line that is wider than the terminal: " + "x" * 60
    told = ["first", long[:60], long[60:], "of a job"]
    program.do(f"subprocess.run(['sh', '-c', 'echo {long}; echo of a job >&2'])")
    program.shows(*told)
    program.do(r"os.write(1, b'\x1b[31mred\x1b[0m\n\xff\n')")
    program.shows(*told, "red", "\N{REPLACEMENT CHARACTER}")
    job.sample(510, rows_failed=2)
    job.end("failed", "every device failed 2 times")
    again = run.start(1, A)
    again.sample(100)
    wait_for(lambda: program.reads() or "ended: every device failed 2 times" in program.said)
    assert program.ends() == [*told, "red", "\N{REPLACEMENT CHARACTER}", ""]
    assert "\x1b[31mred\x1b[0m" in program.said, "with its colours"
    assert "\x1b[?" not in program.said, "the cursor was never hidden"


def test_bars_are_one_line_and_clear_nothing(run, tmp_path, environment):
    program = Program(tmp_path, environment)
    program.write("loading")
    program.read_until("loading")
    run.start(0, A).sample(500)
    program.shows(unfinished=["loading"])
    for percent in (10, 20):
        program.write(f"\r{percent} %")
        program.shows(unfinished=[f"{percent} %"])
    program.write("\r100 %\x1b[2A\x1b[J\nnext\r\n")
    program.shows("100 %", "next")
    program.write("x" * 200)
    program.shows("100 %", "next", unfinished=["x" * 79])
    assert program.ends() == ["100 %", "next", "x" * 80, "x" * 80, "x" * 40]


def small(drawn):
    """Return the rows of what was drawn, if it is for the smaller terminal, and whole."""
    *rows, last = drawn.split("\r\n")
    return rows if len(rows) == 5 and not last else None


def test_it_fits_a_terminal_that_becomes_small(run, tmp_path, environment):
    run.start(0, A).sample(500)
    program = Program(tmp_path, environment)
    program.shows()
    program.resize(40, 8)
    drawn = wait_for(lambda: program.reads() or small(program.text.rpartition("\x1b[J")[2]))
    assert drawn == ["", TITLE, "━━╸".ljust(40, "━"), *drawn[3:]] and drawn[3].startswith(
        "6.2 % of the work"
    )
    assert len(drawn) == 8 - beneath.ROWS_OF_LINES
    program.resize(0, 0)  # as of a terminal that does not know it
    program.read_until("LEFT")
    program.ends()


def test_another_command_in_front_is_not_drawn_over(run, tmp_path, environment):
    """As after Ctrl-Z and bg: the terminal is the shell's, and what one types there stays."""
    run.start(0, A).sample(500)
    program = Program(tmp_path, environment, preexec_fn=lambda: fcntl.ioctl(2, termios.TIOCSCTTY))
    program.shows()
    program.do("signal.signal(signal.SIGTTOU, signal.SIG_IGN); terminal = os.open('/dev/tty', 2)")
    program.do("shell = subprocess.Popen(['cat'], stdin=subprocess.PIPE, process_group=0)")
    program.do("os.tcsetpgrp(terminal, shell.pid); os.write(terminal, b'$ typed')")
    program.read_until("$ typed")
    program.write("line\n")
    program.read_until("line\r\n")
    program.do("os.tcsetpgrp(terminal, os.getpgrp()); shell.kill(); shell.wait()")
    assert program.said.rpartition("$ typed")[2] == "line\r\n"
    wait_for(lambda: program.reads() or TITLE in program.text.rpartition("$ typed")[2])
    program.ends()


@pytest.mark.parametrize(
    "more", [{"TERM": "dumb"}, {"stdout": subprocess.PIPE}], ids=["a dumb terminal", "a pipe"]
)
def test_where_it_is_not_drawn_a_job_has_the_terminal_itself(run, tmp_path, environment, more):
    run.start(0, A).sample(500)
    streams = {name: more[name] for name in more if name == "stdout"}
    variables = {name: more[name] for name in more.keys() - streams}
    program = Program(tmp_path, {**environment, **variables}, **streams)
    program.do("os.write(2, b'on a terminal\\n' * os.isatty(2))")
    program.read_until("on a terminal")
    assert program.ends() == ["on a terminal", ""]
    if program.process.stdout:
        program.process.stdout.close()


def test_of_a_run_that_ends_before_a_job_computes_there_are_its_lines(run, tmp_path, environment):
    program = Program(tmp_path, environment)
    program.do("print('one'); end(); print('two')")
    assert program.ends() == ["one", "two", ""]
    assert program.said == "one\r\ntwo\r\n", "no sequence that moves anything"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_it_the_terminal_is_as_it_was(run, tmp_path, environment, number):
    run.start(0, A).sample(500)
    program = Program(tmp_path, environment)
    before = termios.tcgetattr(program.ours)
    program.shows()
    program.process.send_signal(number)
    program.read_until(None)
    assert program.process.wait(30) == -number
    program.process.stdin.close()
    shown = rows(program.said, program.columns)
    assert ("KeyboardInterrupt" in shown) != (TITLE in shown) == (number == signal.SIGKILL)
    assert termios.tcgetattr(program.ours) == before and "\x1b[?" not in program.said


class RunOnTerminal(Terminal):
    """`featuremill run` of two sets of features; a job of the first waits for the test."""

    def __init__(self, folder, environment):
        self.hold = folder / "hold"
        self.hold.touch()
        records = [*random_records(9), ("bad", "RAISEK")]
        workflow = Workflow(folder, environment, records, hold=str(self.hold))
        config = yaml.safe_load((folder / "config.yaml").read_text())
        one = {name: config.pop(name) for name in ("workload", "options", "device", "shards")}
        two = {"workload": "composition", "device": "cpu"}
        config["features"] = {"one": {**one, "max_failed": 1}, "two": two}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "featuremill", "run", "config.yaml", "--cores", "1"]
        more = {"env": workflow.environment, "cwd": folder, "start_new_session": True}
        made = [f"results/test/{name}/manifest.json" for name in config["features"]]
        super().__init__([*command, "--", *made], 60, 24, **more)
        self.read_until("RECORDS")

    def ends(self):
        """Wait for its end; return its exit status, and the rows of the terminal."""
        self.read_until(None)
        shown = rows(self.said, 60)
        assert not any("RECORDS" in row or row.startswith("━") for row in shown), shown
        assert "\x1b[?" not in self.said, "the cursor was never hidden"
        return self.process.wait(60), shown


def test_a_run_on_a_terminal_leaves_its_lines_there(tmp_path, environment):
    """And the number of all steps stays the same, once it is known."""
    terminal = RunOnTerminal(tmp_path, environment)
    assert re.search(r"^config.yaml  \d+ of 20 records of its runs", terminal.text, re.MULTILINE)
    terminal.hold.unlink()
    status, shown = terminal.ends()
    assert status == 0, shown
    numbers = re.findall(r"^(\d+) of (\d+) steps done", "\n".join(shown), re.MULTILINE)
    assert len(numbers) > 1 and {total for _, total in numbers} == {numbers[-1][0]}, shown
    assert any("9 of 10 records have features, 1 failed" in row for row in shown), shown


@pytest.mark.slow
def test_ctrl_c_of_a_run_leaves_the_command_that_continues(tmp_path, environment):
    terminal = RunOnTerminal(tmp_path, environment)
    os.killpg(terminal.process.pid, signal.SIGINT)
    status, shown = terminal.ends()
    assert status in (1, 130), "as Snakemake hears of its job's end first, or of the key"
    assert any("Nothing computed is lost." in row for row in shown), shown
    assert any("featuremill run config.yaml --cores 1" in row for row in shown), shown
