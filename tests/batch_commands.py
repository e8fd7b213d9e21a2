"""Stand-ins for the commands of LSF (bsub, bjobs, bkill, badmin, lsclusters, bhist) and of PBS
(qsub, qstat, qdel).

Jobs really run, in the background, each with GPUs of its own. The folder of the environment
variable BATCH_FOLDER holds all there is: `gpus` (the UUIDs to give out), `silent` (so many queries
get no answer), and a folder a job: `state`, `group` (its process group), `name`.
"""

import fcntl
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("bsub", "bjobs", "bkill", "badmin", "lsclusters", "bhist", "qsub", "qstat", "qdel")
VARIABLES = {"bsub": "LSB_JOBID", "qsub": "PBS_JOBID"}


def install(folder, uuids=()):
    """Put the commands into `folder`/bin; return what the environment needs."""
    (folder / "bin").mkdir(parents=True)
    (folder / "gpus").write_text("\n".join(uuids))
    parameters = folder / "lsbatch" / "here" / "configdir" / "lsb.params"
    parameters.parent.mkdir(parents=True)
    parameters.write_text("Begin Parameters\nDEFAULT_QUEUE = normal\nEnd Parameters\n")
    for name in COMMANDS:
        path = folder / "bin" / name
        words = shlex.join([sys.executable, "-S", "-E", __file__, name])
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "BATCH_FOLDER": str(folder)}


def jobs(folder):
    """Return the folders of all jobs, in the order in which they were submitted."""
    return sorted(folder.glob("job.*"), key=lambda path: int(path.name.split(".")[1]))


def _submit(name, words, folder):
    with (folder / "numbers").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("x")
        file.flush()
        number = str(file.tell())
        job = folder / f"job.{number}"
        job.mkdir()
    if name == "qsub":
        shutil.copy(words[-1], job / "script")
    else:
        (job / "script").write_text(words[-1])
    (job / "options").write_text("\n".join(words[:-1]))
    (job / "state").write_text("PEND")
    number += ".server" * (name == "qsub")
    if os.fork() == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        gpus = (folder / "gpus").read_text().split()
        _run(job, VARIABLES[name], number, _num_gpus(words[:-1]), gpus)
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
        streams = {"stdout": log, "stderr": log, "start_new_session": True}
        process = subprocess.Popen(["/bin/sh", str(job / "script")], env=environment, **streams)
        (job / "group").write_text(str(process.pid))
        (job / "state").write_text("RUN")
        status = process.wait()
    (job / "state").write_text("EXIT" if status else "DONE")


def _is_silent(folder):
    silent = folder / "silent"
    if not silent.exists() or not (left := int(silent.read_text())):
        return False
    silent.write_text(str(left - 1))
    return True


def _bjobs(words, folder):
    """Answer for all jobs of the name that a query with `-aJ '*…*'` has."""
    if _is_silent(folder):
        sys.exit("LSF is down. Please wait ...")
    wanted = words[-1].strip("*")
    for job in jobs(folder):
        if wanted in (job / "options").read_text():
            print(job.name.split(".")[1], (job / "state").read_text())


def _qstat(words, folder):
    """Answer for one job, also for one that ended, as with `-x` where PBS keeps a history."""
    if _is_silent(folder):
        sys.exit("qstat: cannot connect to server")
    job = folder / f"job.{words[-1].split('.')[0]}"
    if not job.exists():
        print(f"qstat: Unknown Job Id {words[-1]}", file=sys.stderr)
        sys.exit(153)
    state = {"PEND": "Q", "RUN": "R"}.get((job / "state").read_text(), "F")
    ended = {"DONE": "    Exit_status = 0\n", "EXIT": "    Exit_status = 271\n"}
    more = ended.get((job / "state").read_text(), "")
    print(f"Job Id: {words[-1]}\n    Job_Name = x\n    job_state = {state}\n{more}", end="")


def main(name, *words):
    folder = Path(os.environ["BATCH_FOLDER"])
    if name in VARIABLES:
        _submit(name, words, folder)
    elif name == "bjobs":
        _bjobs(words, folder)
    elif name == "qstat":
        _qstat(words, folder)
    elif name == "badmin":
        print(f"LSF parameters:\n  LSB_SHAREDIR = {folder}\n  LSF_CONFDIR = {folder}")
    elif name == "lsclusters":
        print("CLUSTER_NAME STATUS\nhere ok")
    elif name == "bhist":
        print("Project <default>")
    else:
        for number in words:
            group = folder / f"job.{number.split('.')[0]}" / "group"
            if group.exists():
                os.killpg(int(group.read_text()), 15)


if __name__ == "__main__":
    main(*sys.argv[1:])
