"""README and docs as typed: whoever types a page, word for word and in its order, gets what it says."""

import contextlib
import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections import Counter

import psutil
import pytest
from conftest import ROOT
from documents import LACKS, Fault, check, pages, read, type_page
from hatchling.build import build_wheel
from test_house import files

PAGES = {str(path.relative_to(ROOT)): path for path in pages(ROOT)}
FAST = ["README.md"]
LINES_OF_MY_FA = 190
"""Of the demo: whole records, as README's `head` has them."""
FOLD = """\
#!/bin/sh
echo "$CUDA_VISIBLE_DEVICES" > "$2"
"""
PACKAGE = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "my-package"
version = "1"

"""


def page_of(name):
    return read(PAGES[name].read_text("utf-8"), name)


class House:
    """What stands around the pages: checkouts, the wheel, and what a reader has already."""

    def __init__(self, folder):
        self.folder = folder
        home, wheels, self.site = folder / "home", folder / "wheels", folder / "site"
        home.mkdir()
        path = os.pathsep.join([f"{sys.prefix}/bin", os.defpath])
        self.environment = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8"}
        with contextlib.chdir(ROOT):
            name = build_wheel(str(wheels))
        zipfile.ZipFile(wheels / name).extractall(self.site)

    def type(self, page, gpu_node=None):
        """Type `page`, beginning in a fresh checkout."""
        folder = self.folder / "pages" / re.sub(r"\W", "-", page.name)
        record, empty = folder / "record", folder / "empty"
        record.mkdir(parents=True)
        checkout = self.checkout(folder / "checkout")
        places = {
            "a checkout": f"cd {checkout}; export PYTHONPATH={checkout / 'src'}",
            "an empty folder": f"mkdir -p {empty}; cd {empty}; export PYTHONPATH={self.site}",
        }
        givens = {thing: self.give(thing, gpu_node) for thing in page.given()}
        type_page(page, places, givens, record, self.environment, timeout=280)

    def checkout(self, folder):
        """Make a checkout as `make run` leaves it, but for what that computes."""
        for path in files():
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
        (folder / ".venv").symlink_to(sys.prefix)
        return folder

    def give(self, thing, gpu_node):
        """Return the bash that gives a thing: it copies what is made here once."""
        if thing == "gpus":
            variables = gpu_node(4).environment.items()
            return "; ".join(
                f"export {name}={shlex.quote(value)}"
                for name, value in variables
                if os.environ.get(name) != value
            )
        folder = self.folder / "given" / re.sub(r"\W", "_", thing)
        if not folder.exists():
            folder.mkdir(parents=True)
            getattr(self, f"make_{folder.name}")(folder)
        site = "prefix/lib/python{}.{}/site-packages".format(*sys.version_info)
        more = {
            "fold": "PATH=$PWD:$PATH",
            "my_package": "export PIP_NO_BUILD_ISOLATION=0 PIP_NO_DEPS=1 PIP_PREFIX=$PWD/prefix "
            f"PYTHONPATH=$PWD:$PWD/{site}:$PYTHONPATH",
        }
        return f"cp -a {folder}/. .; {more.get(thing, '')}"

    def run(self, folder, *words):
        """Let a program of .venv work in `folder`."""
        done = subprocess.run(
            words,
            cwd=folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout

    def make_my_fa(self, folder):
        (folder / "my.fa").write_text(demo(0, LINES_OF_MY_FA))

    def make_new_fasta(self, folder):
        (folder / "new.fasta").write_text(demo(LINES_OF_MY_FA, LINES_OF_MY_FA + 17))

    def make_my_yaml(self, folder):
        self.make_my_fa(folder)
        self.run(folder, "featuremill", "init", "my.fa")

    def make_results_my(self, folder):
        self.make_my_yaml(folder)
        self.run(folder, "featuremill", "run", "my.yaml")

    def make_results_demo(self, folder):
        """The demo's run of a few of its proteins, which stand in place of all of them."""
        checkout = self.checkout(self.folder / "demo")
        (checkout / "config" / "demo.fasta").write_text(demo(0, LINES_OF_MY_FA))
        self.run(checkout, "snakemake", "--cores", "all")
        for name in ("config", "results", "weights", "logs", ".snakemake"):
            (checkout / name).rename(folder / name)

    def make_families_tsv(self, folder):
        heads = re.findall(r"^>(\S+) (\S+)", demo(0, LINES_OF_MY_FA), re.MULTILINE)
        lines = ["id\tfamily", *("\t".join(head) for head in heads)]
        (folder / "families.tsv").write_text("\n".join(lines) + "\n")

    def make_parts(self, folder):
        (folder / "parts").mkdir()
        for number, begin in enumerate((0, LINES_OF_MY_FA)):
            name = folder / "parts" / f"uniparc.part_{number:03}.fasta.gz"
            name.write_bytes(gzip.compress(demo(begin, begin + 17).encode()))

    def make_sequences(self, folder):
        shutil.copytree(ROOT / "examples" / "lease" / "sequences", folder / "sequences")

    def make_fold(self, folder):
        (folder / "fold").write_text(FOLD)
        (folder / "fold").chmod(0o755)

    def make_train_py(self, folder):
        (folder / "train.py").write_text("import os\nprint(os.environ['RANK'])\n")

    def make_my_package(self, folder):
        (folder / "my_package").mkdir()
        workload = ROOT / "src" / "featuremill" / "workloads" / "composition.py"
        shutil.copy2(workload, folder / "my_package" / "my_module.py")
        (folder / "pyproject.toml").write_text(PACKAGE)


def demo(begin, end):
    """Return lines of the demo's proteins."""
    lines = (ROOT / "config" / "demo.fasta").read_text().splitlines(keepends=True)
    assert lines[begin].startswith(">") and lines[end].startswith(">")
    return "".join(lines[begin:end])


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    return House(tmp_path_factory.mktemp("documents"))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_of_each_box_what_it_is_and_what_keeps_it_from_being_typed(name):
    check(page_of(name), ROOT)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in PAGES]
)
def test_a_page_works_as_typed(house, name, request, record_property):
    page = page_of(name)
    needs_gpus = "gpus" in page.given()
    house.type(page, request.getfixturevalue("gpu_node") if needs_gpus else None)
    record_property("documents as typed", dict(page.counts()))


def test_ci_types_what_readme_says_first_and_in_its_order():
    readme = page_of("README.md")
    left = [
        text.partition("#")[0].strip()
        for box in readme.boxes
        if box.kind == "bash"
        for _, text in box.commands()
        if box.lack(text) == "what .ci/run types"
    ]
    typed = re.findall(r"^(?:exec )?(make \w+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert left == ["make run", "make test"]
    assert typed == left


def type_text(folder, text, **environment):
    """Type a made-up page in `folder`."""
    page = read(text, "made-up.md")
    check(page, folder)
    record = folder / "record"
    record.mkdir(exist_ok=True)
    places = {"a checkout": f"cd {folder}", "an empty folder": "mkdir -p empty; cd empty"}
    givens = {"my.fa": "echo '>p' > my.fa"}
    environment = {"PATH": os.environ["PATH"], **environment}
    type_page(page, places, givens, record, environment, timeout=60)
    return page


GOOD = """\
<!-- given: my.fa -->
```bash
for name in a b; do
  echo $name \\
    and more                # a remark
done
export KEPT=1; cd ..; cd -
```

Words, and the output that they are about:

```output
a and more
…
```

<!-- not run: a cluster: sbatch -->
```bash
sbatch no.sh
test "$KEPT" = 1 && cat my.fa
```

<!-- typed in: an empty folder -->
<!-- saved as my.yaml -->
```yaml
inputs: my.fa
```

<!-- added to my.yaml -->
```yaml
workload: composition
```

<!-- set in my.yaml -->
```yaml
device: cpu
```

<!-- ends with 3 -->
```python
import os
print("took 12 s, 3.5 MB", 7, sorted(os.listdir()))
raise SystemExit(3)
```

```output
took 4 s, 99 MB 7 ['my.yaml']
```

```files
./
  my.yaml    the config
```

<!-- not run: a GPU -->
```python
import never
```
"""


def test_a_page_is_typed_as_it_stands(tmp_path):
    page = type_text(tmp_path, GOOD)
    assert page.counts() == Counter({"": 7, "a cluster": 1, "a GPU": 1})
    written = (tmp_path / "empty" / "my.yaml").read_text()
    assert "inputs: my.fa" in written and "workload: composition" in written


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("```bash\ntrue\nls gone.fa\n```\n", 3, "ls gone.fa\nended with 2:"),
        ("```bash\nls gone.fa && true\ntrue\n```\n", 2, "No such file"),
        ("```bash\necho one\n```\n\n```output\ntwo\n```\n", 5, "-two\n+one"),
        ("```bash\necho 3 shards\n```\n```output\n4 shards\n```\n", 4, "-4 shards\n+3 shards"),
        ("```bash\ntrue\n```\n```output\nmore\n```\n", 4, "-more"),
        ("<!-- ends with 2 -->\n```bash\ntrue\n```\n", 3, "true\nended with 0"),
        ("```python\n1 / 0\n```\n", 1, "ZeroDivisionError"),
        ("<!-- set in a.yaml -->\n```yaml\nouputs: npy\n```\n", 2, "ended with 1"),
        ("```bash\ntrue\n```\n```files\n./\ngone.h5\n```\n", 4, "gone.h5"),
        ("```bash\nkill -9 $$\n```\n", 2, "ended with -9"),
        ("Words.\n\n```\nls\n```\n", 3, "a box of kind ''"),
        ("Words.\n\n    ls\n", 3, "a box without a fence"),
        ("<!-- not run: no time -->\n```bash\nls\n```\n", 1, "'no time' is no lack that is known"),
        ("<!-- not run: a GPU: cd -->\n```bash\nls\n```\n", 2, "no command begins with 'cd'"),
        ("<!-- not run: a GPU -->\nWords.\n", 1, "there is no fence below"),
        ("<!-- not runn: a GPU -->\n```bash\nls\n```\n", 1, "nobody knows what 'not runn"),
        ("<!-- typed in: a cellar -->\n", 1, "'a cellar' is none of"),
        ("```yaml\na: 1\n```\n", 1, "nothing says to which file"),
        ("```output\none\n```\n", 1, "no box before this one"),
        ("```bash\nls … now\n```\n", 2, "nobody can type '…'"),
        ("```bash\nls 'half\n```\n", 2, "this is no whole command"),
        ("```bash\nls\n", 1, "this fence is never closed"),
        ("<!-- part of a.smk -->\n```snakemake\nrule b:\n```\n", 2, "this is not in a.smk"),
    ],
)  # fmt: skip
def test_a_page_that_is_wrong_is_told_with_its_line(tmp_path, text, line, sentence):
    (tmp_path / "a.yaml").write_text("inputs: a.fa\n")
    (tmp_path / "a.smk").write_text("rule a:\n")
    with pytest.raises(Fault) as fault:
        type_text(tmp_path, text)
    said = str(fault.value)
    assert said.startswith(f"made-up.md:{line}: ")
    assert sentence in said


def test_what_a_page_starts_ends_with_it(tmp_path):
    type_text(tmp_path, "```bash\nsleep 600 &\necho $! > pid\n```\n")
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_every_lack_is_some_pages():
    assert set(LACKS) == {lack for name in PAGES for lack in page_of(name).counts() if lack}
