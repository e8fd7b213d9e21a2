"""Standard streams that are closed, that nobody reads, or in an encoding without our letters:
commands end as they would without a reader, and without a traceback."""

import subprocess
import sys

import pytest

from featuremill.base import this_process

PROGRAM = "featuremill"
SNAKEMAKE = "featuremill.flow.start_snakemake"
SET_UP = (
    "import subprocess, sys; from featuremill.base import this_process; "
    "this_process.set_up_streams(); "
)


def typed(words, folder, environment, after):
    """Let a shell type it; return the status of the command, and what came on standard error."""
    script = f'"$@" {after}; exit ${{PIPESTATUS[0]}}'
    command = ["bash", "-c", script, "bash", sys.executable, *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("words", "after", "status"),
    [
        ((PROGRAM, "status"), ">&-", 2),  # there is none: its message is on standard error
        ((PROGRAM, "--help"), "| true", 0),
        ((PROGRAM, "init", "in.fa"), ">&- 2>&-", 0),
        ((SNAKEMAKE, "--version"), "| true", 0),
    ],
)
def test_a_command_ends_as_always_whatever_its_output_is(
    words, after, status, tmp_path, environment
):
    (tmp_path / "in.fa").write_text(">p\nMKTAYIAKQR\n")
    ended, said = typed(["-m", *words], tmp_path, environment, after)
    assert ended == status, said
    assert "Traceback" not in said and "roken pipe" not in said and "ignored" not in said


def test_a_closed_stream_is_no_file_that_is_opened_later(tmp_path, environment):
    code = (
        "file = open('data', 'w'); subprocess.run(['echo', 'not data'], check=True); "
        "print('nor this', flush=True); file.write('data')"
    )
    assert typed(["-c", SET_UP + code], tmp_path, environment, "<&- >&-") == (0, "")
    assert (tmp_path / "data").read_text() == "data"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_nobody_reads_is_dropped_and_known(unbuffered, tmp_path, environment):
    environment = {**environment, "PYTHONUNBUFFERED": unbuffered}
    code = (
        "assert this_process.is_output_read(); "
        "[print('x' * 100_000, flush=True) for _ in range(9)]; "
        "sys.exit(7 * (not this_process.is_output_read()))"
    )
    assert typed(["-c", SET_UP + code], tmp_path, environment, "| true") == (7, "")


def test_what_a_test_put_in_their_place_stays(capsys):
    before = sys.stdout, sys.stderr
    this_process.set_up_streams()
    assert (sys.stdout, sys.stderr) == before


def test_a_full_disk_is_no_reader_that_has_enough(tmp_path, environment):
    code = "print('x'); sys.stdout.flush()"
    ended, said = typed(["-c", SET_UP + code], tmp_path, environment, ">/dev/full")
    assert ended == 1 and said.endswith("OSError: [Errno 28] No space left on device\n")
    assert "ignored" not in said, "once, and not again while Python shuts down"


@pytest.mark.parametrize(
    ("encoding", "wanted"), [("latin-1", b"\\u2717 \xe9\n"), ("ascii", b"\\u2717 \\xe9\n")]
)
def test_letters_that_an_encoding_lacks_are_written_out(encoding, wanted, environment):
    """As on a terminal of ISO 8859-1; a letter that it has stays what it is."""
    variables = {**environment, "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-c", SET_UP + r"print('\u2717 \xe9')"]
    done = subprocess.run(command, env=variables, capture_output=True)
    assert (done.returncode, done.stdout) == (0, wanted), done.stderr
