"""`python -m killed NUMBER PROGRAM WORDS…`: a program that SIGKILL takes just before that change of
a file, lock or process, whichever of its processes comes to it."""

import os
import runpy
import signal
import sys

CHANGES = {"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.chmod", "os.fsync"}
CHANGES |= {"fcntl.flock", "fcntl.lockf", "subprocess.Popen"}
WRITES = os.O_WRONLY | os.O_RDWR
left = int(sys.argv[1])
fsync = os.fsync


def count(event, given):
    global left
    if event in CHANGES or (event == "open" and given[2] & WRITES):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def counted_fsync(file):
    count("os.fsync", ())
    fsync(file)


sys.addaudithook(count)
os.fsync = counted_fsync
program, *sys.argv[1:] = sys.argv[2:]
runpy.run_module(program, run_name="__main__", alter_sys=True)
