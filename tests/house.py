"""The size and the joints of the house, counted: `python tests/house.py` prints the table.

tests/house.json limits the lines of each unit and the arrows that leave it; tests/test_house.py
checks that. `make format` lowers a limit (`--lower`). A commit that raises a limit gives its reason
in a line `raises: <unit> <why>`. Imports inside functions count as well.
"""

import ast
import functools
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "featuremill"
ROOMS = (
    *("lease", "base", "store", "features", "workload", "inputs", "step", "config", "plan"),
    *("extract", "merge", "status", "doctor", "report", "kit", "flow", "outputs"),
    *("commands", "steps", "workloads"),
)
"""Each may import those before it; docs/architecture.md says what they are."""
RELATIVE = re.compile(r"from (?:\.(?= )|(?=\.\w))(\.?\w*) import")
LIMITS = ROOT / "tests" / "house.json"
SLACK = 0.03
"""The part of a limit by which its unit may stay below it."""
PLUGINS = ("commands", "steps", "workloads")
"""Rooms in which each folder or module is a unit of its own."""
FOR_STEPS = {"step", "features", "inputs"}
"""The rooms that are the contract of a step; what one imports of others stands beside it."""
SAMPLES = re.compile(r"(?<![a-z])samples?(?![a-z])", re.IGNORECASE)
OTHER_SAMPLES = {
    # readings of a job
    *("extract.recorder", "store.receipt", "store.telemetry", "report.shards", "status.jobs"),
    # proteins that are drawn
    *(f"commands.audit.{name}" for name in ("command", "measure", "report")),
    # numbers of a signal
    *("workloads.pac", "workloads.pac.coupling", "workloads.pac.recordings"),
    "workloads.pac.signals",
    # rows that are drawn
    *("report.embedding", "steps.autoencoders.training", "workloads.esm2.fallbacks"),
    "steps.virnucpro.command",  # a run of VirNucPro
}
"""The modules in which a sample is no column of a sheet."""


@functools.cache
def modules():
    """Return the text of each module by its name below featuremill; that of the package is ""."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        found[name] = path.read_text("utf-8")
        if parts[0] == "lease":  # its imports are relative, as it is built under two names
            found[name] = RELATIVE.sub(r"from featuremill.lease\1 import", found[name])
    return found


def imports_of(text, known):
    """Yield each (module, name) that a module imports of the package; the module is "" for the
    package itself, and the name is "" where a module is imported whole. Snakemake is
    ("snakemake", "")."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for top, _, name in (name.partition(".") for name in names):
            if top == "snakemake":
                yield top, ""
            elif top == "featuremill":
                yield (name, "") if name in known else name.rpartition(".")[::2]


def targets_of(text, known):
    """Yield what a module imports of the package, "" for the package itself, and "snakemake"."""
    yield from (module for module, _ in imports_of(text, known))


def room_of(module):
    """Return the module's room; `api`, `__main__` and the package itself are at the root."""
    first = module.partition(".")[0]
    return first if first in ROOMS else "root"


def unit_of(module):
    """Return the module's room, or its plug-in: `steps.heads`, `workloads.pac`."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] in PLUGINS else room_of(module)


def arrows(of=unit_of):
    """Return the pairs of units, or of what `of` says, of which one imports the other."""
    known = modules()
    imports = {(name, target) for name, text in known.items() for target in targets_of(text, known)}
    pairs = {(of(name), of(target)) for name, target in imports if target != "snakemake"}
    return {(one, other) for one, other in pairs if one != other}


def circles():
    """Return the groups of modules that import one another in a circle (strongly connected)."""
    known = modules()
    below = {
        name: {*targets_of(text, known)} & known.keys() - {name} for name, text in known.items()
    }

    def reached(start):
        seen, waiting = set(), [start]
        while waiting:
            for target in below[waiting.pop()] - seen:
                seen.add(target)
                waiting.append(target)
        return seen

    reach = {name: reached(name) for name in below}
    groups = {
        frozenset({name} | {other for other in reach[name] if name in reach[other]})
        for name in below
        if name in reach[name]
    }
    return sorted(groups, key=sorted)


def undeclared():
    """Yield (module, (module of another plug-in, name)) for each name that a plug-in takes of
    another one and that is not in the `__all__` of its module. A package itself is public: it is
    what the core sees of a step or a workload."""
    known = modules()
    declared = functools.cache(lambda name: _declared(known[name]))
    for name, text in known.items():
        if room_of(name) not in PLUGINS:
            continue
        for home, what in used_of(text, known):
            of_another = room_of(home) in PLUGINS and unit_of(home) != unit_of(name)
            if of_another and home != unit_of(home) and what not in declared(home):
                yield name, (home, what)


def used_of(text, known):
    """Yield each (module, name) that a module uses of the package; of a module that it imports
    whole, its attributes."""
    whole = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "featuremill":
            home = node.module.partition(".")[2]
            for alias in node.names:
                if f"{home}.{alias.name}" in known:
                    whole[alias.asname or alias.name] = f"{home}.{alias.name}"
                else:
                    yield home, alias.name
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and (home := whole.get(ast.unparse(node.value))):
            yield home, node.attr


def _declared(text):
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def beside_the_contract():
    """Return what modules of steps import that is no part of their contract, by module."""
    known, found = modules(), {}
    for name, text in known.items():
        if room_of(name) != "steps":
            continue
        names = {
            (module, what)
            for module, what in imports_of(text, known)
            if room_of(module) not in {*FOR_STEPS, "kit", "steps"} and module
        }
        if names:
            found[name] = names
    return found


def lines(texts):
    return sum(len(text.splitlines()) for text in texts)


def sizes():
    """Return the lines of each unit, and the arrows that leave it."""
    size, leaving = Counter(), Counter(first for first, _ in arrows())
    for name, text in modules().items():
        size[unit_of(name)] += len(text.splitlines())
    return {unit: {"lines": size[unit], "arrows": leaving[unit]} for unit in sorted(size)}


def limits():
    """Return the limits of each unit, as tests/house.json has them."""
    return json.loads(LIMITS.read_text("utf-8"))


def lower_limits():
    """Lower each limit that its unit undercuts by 3 % or more; remove those of units that left."""
    known, now = limits(), sizes()
    lowered = {
        unit: {
            what: now[unit][what] if now[unit][what] <= (1 - SLACK) * limit else limit
            for what, limit in limit_of_unit.items()
        }
        for unit, limit_of_unit in known.items()
        if unit in now
    }
    write_limits(lowered)


def write_limits(values):
    rows = (f"  {json.dumps(unit)}: {json.dumps(value)}" for unit, value in values.items())
    LIMITS.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")


def unexplained_raises():
    """Yield (commit, unit) for each limit that a commit since the last one with the line `limits:
    settled` raised without a line `raises: <unit> <why>` in its message."""

    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout

    def at(commit):
        text = git("show", f"{commit}:tests/house.json")
        return json.loads(text) if text else None

    settled = git("log", "-1", "--format=%H", "--grep=^limits: settled").strip()
    since = f"{settled}..HEAD" if settled else "HEAD"
    changes = git("log", since, "--format=%H %P", "--", "tests/house.json").splitlines()
    for commit, *parents in map(str.split, changes):
        before = [known for parent in parents if (known := at(parent)) is not None]
        said = re.findall(r"^raises: (\S+) \S", git("log", "-1", "--format=%B", commit), re.M)
        for unit, limit in at(commit).items() if before else ():
            highest = Counter()
            for known in before:
                highest |= Counter(known.get(unit, {}))
            if Counter(limit) - highest and unit not in said:
                yield commit[:12], unit


def core_lines():
    """Return the lines of all but steps and workloads."""
    return lines(text for name, text in modules().items() if room_of(name) not in PLUGINS)


def knows_samples():
    """Return the modules that know of sheets of samples, each with the number of its conditions on
    them. Such a module has a name of any kind, or a text without a blank (a key, a column, a file),
    with the word; sentences and docstrings do not count. Modules in which a sample is something
    else are left out."""
    found = {}
    for name, text in modules().items():
        if name in OTHER_SAMPLES:
            continue
        tree = ast.parse(text)
        if any(map(SAMPLES.search, words_in(tree))):
            tests = [node.test for node in ast.walk(tree) if hasattr(node, "test")]
            tests += [test for node in ast.walk(tree) for test in getattr(node, "ifs", ())]
            found[name] = sum(any(map(SAMPLES.search, words_in(test))) for test in tests)
    return found


def words_in(tree):
    """Yield the names in a syntax tree, and its texts without a blank."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(word := getattr(node, field, None), str):
                yield word
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and not re.search(r"\s", text):
            yield text


def table():
    """Return the rows of the table: what is counted, and the number."""
    beside, samples = beside_the_contract(), knows_samples()
    steps = [name for name in modules() if room_of(name) == "steps"]
    return {
        "lines of the package": lines(modules().values()),
        "lines of the core (all but commands, steps and workloads)": core_lines(),
        "arrows between rooms": len(arrows(room_of)),
        "arrows between units (each step and workload is one)": len(arrows()),
        "circles of modules": len(circles()),
        f"names that steps import beside the contract (in {len(beside)} of {len(steps)} modules)": (
            sum(map(len, beside.values()))
        ),
        f"modules that know of samples ({sum(samples.values())} conditions)": len(samples),
    }


if __name__ == "__main__":
    if "--lower" in sys.argv:
        lower_limits()
        sys.exit()
    for what, number in table().items():
        print(f"{number:>8,}  {what}")
    for circle in circles():
        print("  circle:", ", ".join(sorted(circle)))
