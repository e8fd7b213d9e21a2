"""Break the code on purpose, one change at a time, and see that a test notices: `make mutants`.

mutants.toml lists the changes. Each is made in a copy of the tree, where the tests named beside it
must fail; one that survives means that a promise has no guard. All of them pass first, unchanged.
"""

import argparse
import itertools
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LIST = ROOT / "tests" / "mutants.toml"
PASSED, FAILED = 0, 1
"""Exit statuses of pytest; any other one means that no test ran to its end."""
SECONDS_A_MUTANT = 300


class Mutant(NamedTuple):
    """One change, and who must notice."""

    name: str
    file: str
    text: str
    other: str
    tests: list[str]


class Tree:
    """A copy of the project, in which one mutant at a time lives."""

    def __init__(self, folder):
        self.folder = folder
        self._times = itertools.count(int(time.time()) + 10)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
            if (ROOT / name).is_file() or (ROOT / name).is_symlink():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)

    def write(self, file, text):
        path = self.folder / file
        path.write_text(text, "utf-8")
        moment = next(self._times)  # or a .pyc of the last second would pass for this text's
        os.utime(path, (moment, moment))

    def test(self, tests, *more):
        """Return the exit status of pytest, and what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not gpu", *more, *tests],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder / "src")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_A_MUTANT * max(1, len(tests) if more else 1),
        )
        return done.returncode, done.stdout + done.stderr


def read_list():
    """Return the mutants of the list; refuse one whose text is not in its file exactly once."""
    mutants = [Mutant(**entry) for entry in tomllib.loads(LIST.read_text("utf-8"))["mutant"]]
    for mutant in mutants:
        count = (ROOT / mutant.file).read_text("utf-8").count(mutant.text)
        if count != 1:
            sys.exit(f"{mutant.name}: its text is {count} times in {mutant.file}, not once.")
    return mutants


def verdict(tree, mutant):
    """Return what becomes of `mutant` in `tree`: killed, survived, or that no test could tell."""
    text = (ROOT / mutant.file).read_text("utf-8")
    tree.write(mutant.file, text.replace(mutant.text, mutant.other))
    try:
        status, said = tree.test(mutant.tests)
    except subprocess.TimeoutExpired:
        return f"no verdict: longer than {SECONDS_A_MUTANT} s"
    finally:
        tree.write(mutant.file, text)
    if status == FAILED:
        return "killed"
    return "survived" if status == PASSED else f"no verdict: pytest ended with {status}\n{said}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names; default: all mutants")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    arguments = parser.parse_args()
    mutants = read_list()
    if arguments.names:
        mutants = [m for m in mutants if any(part in m.name for part in arguments.names)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = queue.SimpleQueue()
        for number in range(arguments.jobs):
            trees.put(Tree(Path(folder, str(number))))
        tree = trees.get()
        named = sorted({test for mutant in mutants for test in mutant.tests})
        status, said = tree.test(named, "-n", str(arguments.jobs))
        trees.put(tree)
        if status != PASSED:
            sys.exit(f"{said}\nThe tests have to pass before anything is changed.")

        def judged(mutant):
            tree, begun = trees.get(), time.monotonic()
            try:
                return verdict(tree, mutant), time.monotonic() - begun
            finally:
                trees.put(tree)

        ends = []
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for mutant, (end, seconds) in zip(mutants, pool.map(judged, mutants), strict=True):
                print(f"{end.splitlines()[0]:<10} {seconds:5.0f} s  {mutant.name}", flush=True)
                ends.append((mutant, end))
    left = [(mutant, end) for mutant, end in ends if end != "killed"]
    for mutant, end in left:
        print(f"\n{mutant.name} ({mutant.file}): {end}")
    print(f"{len(ends) - len(left)} of {len(ends)} mutants killed")
    return bool(left)


if __name__ == "__main__":
    sys.exit(main())
