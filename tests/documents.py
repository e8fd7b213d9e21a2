"""Documents as typed: what a page shows in boxes becomes one bash script that does it, in order.

A box says behind its fence what it is:

    bash       typed, a command after the other, each in the folder that the last one left
    python     given to a Python of its own, or text for a file
    yaml, snakemake, toml, json, jinja   text for a file; the comment above says for which
    output     what the box before it printed, on both streams
    files      a folder, and what stands in it: the first word of each further line
    text, see  nothing that one types

Comments, which nobody sees in the rendered page, stand directly above a fence:

    <!-- not run: a cluster -->          none of it can be done here, for want of one of LACKS;
                                         what this machine has, HERE, is no want
    <!-- not run: a cluster: sbatch -->  only the commands that begin so cannot
    <!-- ends with 2 -->                 the exit status of its last command
    <!-- saved as my.yaml -->, <!-- added to my.yaml -->
    <!-- set in my.yaml -->              those keys of a config, which must be valid with them
    <!-- part of examples/…/Snakefile --> nothing is done: that file of the checkout has this
    <!-- numbers: one machine's -->      of an output, no number is compared

and these anywhere:

    <!-- typed in: an empty folder -->   from here on; PLACES has the others
    <!-- given: my.fa results/my -->     what the reader has there already

In an output "…" stands for anything, and alone on its line for any number of lines. Not compared
are how wide a gap is, numbers with a unit of time, size or speed, dates, and digests.
"""

import contextlib
import difflib
import importlib.util
import os
import re
import shlex
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from featuremill.base import devices

LACKS = (
    *("a GPU", "a processor with bf16", "a cluster", "a network", "a container engine", "scanpy"),
    *("software that is not installed", "many minutes", "root", "what .ci/run types"),
)
HERE = {"a processor with bf16"} if devices.cpu().has_bf16 else set()
HERE |= {"scanpy"} if importlib.util.find_spec("scanpy") else set()
"""What this machine has of it."""
PLACES = ("a checkout", "an empty folder")
TYPED = ("bash", "python")
FOR_FILES = ("yaml", "snakemake", "toml", "json", "jinja")
NOT_TYPED = ("text", "see", "output", "files")
END = "THE_END_OF_THE_BOX"
WAY = re.compile(r"(saved as|added to|set in|part of) (\S+)")
VARIES = re.compile(
    r"\d{4}-\d\d-\d\d(T[\d:.]+Z?)?"
    r"|\b[0-9a-f]{8,}\b"
    r"|\d[\d,.]*( ms| s| min| h| [kMGT]?B| bytes|/s| °C| W)\b"
)


class PageError(AssertionError):
    """What is wrong with a page, and in which line."""


@dataclass
class Box:
    page: str
    line: int
    """Of the opening fence, from 1."""
    kind: str
    lines: list[str]
    lacks: dict[str, str] = field(default_factory=dict)
    """By the beginning of the commands that cannot be typed: "" for all of them."""
    file: str = ""
    way: str = ""
    """How a box for a file gets there: "saved as", "added to", "set in", "part of"."""
    status: int = 0
    has_any_numbers: bool = False

    def fault(self, sentence, line=None):
        return PageError(f"{self.page}:{line or self.line}: {sentence}")

    def commands(self):
        """Yield the line and the text of each command of a bash box."""
        begin = 0
        for end in range(1, len(self.lines) + 1):
            text = "\n".join(self.lines[begin:end])
            if text.endswith("\\") or not is_whole(text):
                continue
            if re.sub(r"^\s*(#.*)?$", "", text, flags=re.MULTILINE).strip():
                yield self.line + 1 + begin, text
            begin = end
        if begin < len(self.lines):
            raise self.fault("this is no whole command", self.line + 1 + begin)

    def lack(self, command=""):
        """Return what keeps a command from being typed here; "" where nothing does."""
        found = [lack for begin, lack in self.lacks.items() if command.startswith(begin)]
        return found[0] if found else ""


def is_whole(text):
    return subprocess.run(["bash", "-n", "-c", text], stderr=subprocess.DEVNULL).returncode == 0


@dataclass
class Page:
    name: str
    steps: list
    """Boxes, and between them ("typed in", place) and ("given", things), in order."""

    @property
    def boxes(self):
        return [step for step in self.steps if isinstance(step, Box)]

    def given(self):
        steps = [step for step in self.steps if not isinstance(step, Box)]
        return [thing for kind, things in steps if kind == "given" for thing in things]

    def counts(self):
        """Return how many commands are typed (key "") and how many are not, by what they lack."""
        found = Counter()
        for box in self.boxes:
            if box.kind == "bash":
                found.update(box.lack(text) for _, text in box.commands())
            elif box.kind not in NOT_TYPED:
                found[box.lack()] += 1
        return found


def read(text, name):
    """Return a page's boxes with what their comments say; refuse what nobody could type."""
    page, comments, box, fence, previous = Page(name, []), [], None, "", ""
    for number, line in enumerate(text.splitlines(), 1):
        if box is not None:
            if line.strip() == fence.strip():
                box.lines = [text.removeprefix(fence[: -len(fence.strip())]) for text in box.lines]
                page.steps.append(box)
                box = None
            else:
                box.lines.append(line)
        elif found := re.fullmatch(r"( *```+)(.*)", line):
            fence, box = found[1], Box(name, number, found[2].strip(), [])
            heed(comments, box, page)
            comments = []
        elif found := re.fullmatch(r" *<!-- (typed in|given): (.*) -->", line):
            if found[1] == "given":
                page.steps.append(("given", found[2].split()))
            elif found[2] in PLACES:
                page.steps.append(("typed in", found[2]))
            else:
                raise PageError(f"{name}:{number}: '{found[2]}' is none of {', '.join(PLACES)}")
        elif found := re.fullmatch(r" *<!-- (.*) -->", line):
            comments.append((number, found[1]))
        else:
            refuse_lost(comments, name)
            comments = []
            if line.startswith("    ") and not previous.strip():
                unclear = "a box without a fence: nobody can tell what it is"
                raise PageError(f"{name}:{number}: {unclear}")
        previous = line
    if box is not None:
        raise box.fault("this fence is never closed")
    return page


def refuse_lost(comments, name):
    for number, comment in comments:
        if WAY.match(comment) or re.match("not run|ends with|numbers", comment):
            raise PageError(f"{name}:{number}: there is no fence below '{comment}'")


def heed(comments, box, page):
    """Put into `box` what the comments above it say, and check that it can be done."""
    for number, comment in comments:
        if found := re.fullmatch(r"not run: ([^:]*)(?:: (.+))?", comment):
            if found[1] not in LACKS:
                known = f"these are: {', '.join(LACKS)}"
                raise box.fault(f"'{found[1]}' is no lack that is known; {known}", number)
            if found[1] not in HERE:
                box.lacks[found[2] or ""] = found[1]
        elif found := WAY.fullmatch(comment):
            box.way, box.file = found.groups()
        elif comment == "numbers: one machine's":
            box.has_any_numbers = True
        elif found := re.fullmatch(r"ends with (\d+)", comment):
            box.status = int(found[1])
        else:
            raise box.fault(f"nobody knows what '{comment}' asks for", number)
    if box.kind in FOR_FILES:
        if not box.way and not box.lacks:
            raise box.fault(f"nothing says to which file this {box.kind} goes")
    elif box.kind not in (*TYPED, *NOT_TYPED):
        raise box.fault(f"a box of kind '{box.kind}': nobody can tell whether one types it")
    elif box.kind in ("output", "files") and not page.boxes:
        raise box.fault("there is no box before this one that could have printed it")


def check(page, root):
    """Refuse what nobody can type as it is printed, a lack that excuses nothing, and a part that is
    none of its file."""
    for box in page.boxes:
        commands = list(box.commands()) if box.kind == "bash" else []
        for line, text in commands:
            if "…" in text:
                raise box.fault(f"nobody can type '…': {text}", line)
        for begin in filter(None, box.lacks):
            if not any(text.startswith(begin) for _, text in commands):
                raise box.fault(f"no command begins with '{begin}'")
        if box.way == "part of":
            there = (root / box.file).read_text("utf-8")
            for part in "\n".join(box.lines).split("\n\n"):
                if part.strip() not in there:
                    raise box.fault(f"this is not in {box.file}:\n{part}")


SET = """
import sys, yaml
from pathlib import Path
from featuremill import config
path = Path(sys.argv[1])
run = yaml.safe_load(path.read_text())
for key, value in yaml.safe_load(sys.stdin).items():
    run[key] = {**(run.get(key) or {}), **value} if isinstance(value, dict) else value
path.write_text(yaml.safe_dump(run))
config.read(path)
"""
WAYS = {"saved as": "cat >", "added to": "cat >>", "set in": f"python -c {shlex.quote(SET)} "}
PREAMBLE = """\
exec </dev/null
__at() { echo "$1" > "$RECORD/at"; }
__check() { local status=$?; [ $status = "$1" ] || { echo $status > "$RECORD/status"; exit 1; }; }
"""


def script(page, places, givens):
    """Return the bash script that does what the page says.

    `places` and `givens` have the bash that goes there, or that gives it.
    """
    lines = [PREAMBLE, places["a checkout"]]
    for step in page.steps:
        if isinstance(step, Box):
            lines += box_script(step)
        elif step[0] == "typed in":
            lines.append(places[step[1]])
        else:
            lines += [givens[thing] for thing in step[1]]
    return "\n".join(lines) + "\n"


def box_script(box):
    lines = [f'exec >"$RECORD/{box.line}" 2>&1', f"__at {box.line}"]
    if box.kind == "bash":
        typed = [(line, text) for line, text in box.commands() if not box.lack(text)]
        for number, (line, text) in enumerate(typed, 1):
            status = box.status if number == len(typed) else 0
            lines += [f"__at {line}", text, f"__check {status}"]
    elif "" in box.lacks or box.way == "part of":
        return []
    elif box.kind == "python" and not box.way:
        lines += [f"python - <<'{END}'", *box.lines, END, f"__check {box.status}"]
    elif box.kind in FOR_FILES or box.kind == "python":
        lines += [f"{WAYS[box.way]}{box.file} <<'{END}'", *box.lines, END, "__check 0"]
    elif box.kind == "files":
        folder, *rest = (line.split()[0] for line in box.lines if line.strip())
        lines += [f"ls -d {shlex.join(folder + name for name in rest)}", "__check 0"]
    else:
        return []
    return lines


def type_page(page, places, givens, record, environment, timeout):
    """Do what the page says; raise a PageError with the line and what was said there.

    `record` is an empty folder that gets what each box printed.
    """
    (record / "typed.sh").write_text(script(page, places, givens))
    words = ["bash", "--norc", "--noprofile", str(record / "typed.sh")]
    quiet = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    environment = {**environment, "RECORD": str(record)}
    process = subprocess.Popen(words, env=environment, start_new_session=True, **quiet)
    try:
        status = process.wait(timeout)
        ended = f"ended with {status}"
    except subprocess.TimeoutExpired:
        status, ended = 1, f"did not end within {timeout} s"
    finally:
        stop(process)
    if status:
        raise failure(page, record, ended)
    for before, box in zip(page.boxes, page.boxes[1:], strict=False):
        if box.kind == "output" and "" not in before.lacks:
            compare(box, (record / str(before.line)).read_text("utf-8"))


def stop(process):
    """End what the page has left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def failure(page, record, ended):
    at = int((record / "at").read_text())
    box = max((box for box in page.boxes if box.line <= at), key=lambda box: box.line)
    command = dict(box.commands()).get(at, "this") if box.kind == "bash" else "this"
    if (record / "status").exists():
        ended = f"ended with {(record / 'status').read_text().strip()}"
    said = (record / str(box.line)).read_text("utf-8", "replace")
    return box.fault(f"{command}\n{ended}:\n{said}", at)


def compare(box, said):
    """Raise a PageError unless `said` is what the box shows."""
    varies = re.compile(r"\d[\d.,e+-]*") if box.has_any_numbers else VARIES
    shown = [normal(line, varies) for line in box.lines]
    said = [normal(line, varies) for line in said.splitlines()]
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + r"\n"
        for line in strip(shown)
    )
    if not re.fullmatch(pattern, "".join(f"{line}\n" for line in strip(said))):
        diff = "\n".join(difflib.unified_diff(shown, said, "shown", "said", lineterm=""))
        raise box.fault(f"this is not what was said:\n{diff}")


def normal(line, varies):
    return varies.sub("#", " ".join(line.split()))


def strip(lines):
    """Return the lines without empty ones at either end."""
    return "\n".join(lines).strip("\n").split("\n")


def pages(root):
    """Return the paths of the pages that people type from."""
    found = [root / "README.md", root / "CONTRIBUTING.md", root / "config" / "README.md"]
    found += sorted(root.glob("packages/*/README.md"))
    return [*found, *sorted(root.glob("docs/*.md")), *sorted(root.glob("examples/**/*.md"))]


def read_page(path, root):
    return read(Path(path).read_text("utf-8"), str(Path(path).relative_to(root)))


def section(path, heading):
    """Return what a page has below a heading of the second level, up to the next one."""
    _, found, text = path.read_text("utf-8").partition(f"\n## {heading}\n")
    assert found, f"{path}: no section {heading}"
    return text.partition("\n## ")[0]
