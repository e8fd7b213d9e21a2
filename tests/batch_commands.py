"""Stand-ins for LSF's and PBS's commands: bsub, bjobs, bkill, qsub, qstat, qdel.

Jobs really run, in the background, each with GPUs of its own. The folder of the environment
variable BATCH_FOLDER holds all there is: `gpus` (the UUIDs to give out), `silent` (so many queries
get no answer), `forgets` (ended jobs are unknown at once), and a folder a job: `state`, `group`
(its process group).
"""

import fcntl
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("bsub", "bjobs", "bkill", "qsub", "qstat", "qdel")
VARIABLES = {"bsub": "LSB_JOBID", "qsub": "PBS_JOBID"}


def install(folder, uuids=()):
    """Put the commands into `folder`/bin; return what the environment needs."""
    (folder / "bin").mkdir(parents=True)
    (folder / "gpus").write_text("\n".join(uuids))
    for name in COMMANDS:
        path = folder / "bin" / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {__file__} {name} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "BATCH_FOLDER": str(folder)}


def jobs(folder):
    """Return the folders of all jobs, in the order in which they were submitted."""
    return sorted(folder.glob("job.*"), key=lambda path: int(path.name.split(".")[1]))


def _submit(name, words, folder):
    script = sys.stdin.read()
    with (folder / "numbers").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("x")
        file.flush()
        number = str(file.tell())
        job = folder / f"job.{number}"
        job.mkdir()
    (job / "script").write_text(script)
    (job / "options").write_text("\n".join(words))
    (job / "state").write_text("PEND")
    number += ".server" * (name == "qsub")
    if os.fork() == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        _run(job, VARIABLES[name], number, _num_gpus(words), (folder / "gpus").read_text().split())
        os._exit(0)
    print(number if name == "qsub" else f"Job <{number}> is submitted to default queue <normal>.")


def _num_gpus(words):
    found = re.search(r"num=(\d+)|ngpus=(\d+)", " ".join(words))
    return int(found[1] or found[2]) if found else 0


def _run(job, variable, number, num_gpus, uuids):
    held = []
    while len(held) < num_gpus:
        for uuid in uuids:
            file = (job.parent / f"{uuid}.taken").open("a")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            held.append((uuid, file))
            if len(held) == num_gpus:
                break
        time.sleep(0.1)
    given = ",".join(uuid for uuid, _ in held)
    environment = {**os.environ, variable: number, "CUDA_VISIBLE_DEVICES": given}
    with (job / "log").open("w") as log:
        process = subprocess.Popen(
            ["/bin/sh", str(job / "script")],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        (job / "group").write_text(str(process.pid))
        (job / "state").write_text("RUN")
        status = process.wait()
    (job / "state").write_text("EXIT" if status else "DONE")


def _ask(name, number, folder):
    silent = folder / "silent"
    if silent.exists() and (left := int(silent.read_text())):
        silent.write_text(str(left - 1))
        print(
            "LSF is down. Please wait ..." if name == "bjobs" else "qstat: cannot connect to server"
        )
        sys.exit(255)
    job = folder / f"job.{number.split('.')[0]}"
    state = (job / "state").read_text() if job.exists() else ""
    if not state or (state in ("DONE", "EXIT") and (folder / "forgets").exists()):
        unknown = {
            "bjobs": f"Job <{number}> is not found",
            "qstat": f"qstat: Unknown Job Id {number}",
        }
        print(unknown[name], file=sys.stderr)
        sys.exit(255 if name == "bjobs" else 153)
    if name == "bjobs":
        print(state)
    elif state in ("DONE", "EXIT"):
        print(f"qstat: {number} Job has finished, use -x or -H", file=sys.stderr)
        sys.exit(35)
    else:
        print(
            f"Job Id: {number}\n    Job_Name = x\n    job_state = {'Q' if state == 'PEND' else 'R'}"
        )


def main(name, *words):
    folder = Path(os.environ["BATCH_FOLDER"])
    if name in VARIABLES:
        _submit(name, words, folder)
    elif name in ("bjobs", "qstat"):
        _ask(name, words[-1], folder)
    else:
        for number in words:
            group = folder / f"job.{number.split('.')[0]}" / "group"
            if group.exists():
                os.killpg(int(group.read_text()), 15)


if __name__ == "__main__":
    main(*sys.argv[1:])
