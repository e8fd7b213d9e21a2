"""README and docs as typed: whoever types a page, word for word, gets what it says."""

import ast
import fcntl
import json
import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import documents
import pytest
from conftest import ROOT
from documents import LACKS, Page, PageError, check, pages, read, type_page
from programs import ran
from reading import house  # noqa: F401  (a fixture)

from featuremill.__main__ import VERBS, main
from featuremill.step.finding import commands

PAGES = {str(path.relative_to(ROOT)): path for path in pages(ROOT)}
NOTEBOOK = ROOT / "examples" / "first-look.ipynb"


def page_of(name):
    return read(PAGES[name].read_text("utf-8"), name)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_of_each_box_what_it_is_and_what_keeps_it_from_being_typed(name):
    check(page_of(name), ROOT)


def test_the_first_commands_of_readme_work_as_typed(house, record_property):  # noqa: F811
    """From a FASTA file to the results that it lists."""
    readme = page_of("README.md")
    kinds = [getattr(step, "kind", "") for step in readme.steps]
    first = Page(readme.name, readme.steps[: kinds.index("files") + 1])
    house.type(first)
    record_property("documents as typed", dict(first.counts()))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_works_as_typed(house, name, request, record_property):  # noqa: F811
    page = page_of(name)
    needs_gpus = "gpus" in page.given()
    house.type(page, request.getfixturevalue("gpu_node") if needs_gpus else None)
    record_property("documents as typed", dict(page.counts()))


@pytest.mark.parametrize("name", PAGES)
def test_verbs_and_options_in_the_prose_exist(name, capsys):
    """Of `featuremill …` between words; `run` and `lease` hand options of others on."""
    prose = re.sub(r"^( *```).*?^\1", "", PAGES[name].read_text("utf-8"), flags=re.M | re.S)
    for command in re.findall(r"`(featuremill\s[^`]*)`", prose):
        words = command.split()
        verbs = [word for word in words[1:2] if re.fullmatch("[a-z-]+", word)]
        assert set(verbs) <= {*VERBS, *commands()}, command
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        if verbs and verbs[0] not in ("run", "lease"):
            with pytest.raises(SystemExit):
                main([verbs[0], "--help"])
            known = capsys.readouterr().out
            assert {option for option in options if option not in known} == set(), command


WORST_WORDS = {
    "tells?|told": "a file does not talk: it contains, lists, reports, shows",
    "says|said": "a file contains, lists, reports, shows",
    "knows?|known to|knew": "a program has, supports or finds things",
    "somebody|someone|nobody|anybody|whoever": "name who acts: a user, a process, featuremill",
    "at hand": "name the place: in memory, in this process, on this machine",
    "of old": "earlier, or leave it out",
    "mends?|mended": "fix, repair",
    "for want of|in want of": "for lack of, without",
    "goes on|go on|going on": "continues",
    "(is|are) at it": "is running, computes",
    "in the way": "prevents, stops",
    "what stands|whatever stands": "name it",
    "begun": "started; interrupted, where no job works on it",
    "rooms?": "package; on a disk: free space",
    "verbs?": "command",
    "strangers?": "another package, a user",
}
"""Of which readers stumbled, each with what to write in its place."""
EDITED = [name for name in PAGES if name not in ("config/README.md", "docs/environment.md")]
"""Without those that the code writes."""


def stumbles(text):
    """Yield the line, the word and the advice of each of the worst words between boxes and code."""
    prose = re.sub(
        r"^( *```).*?^\1|`[^`\n]*`|\]\([^)]*\)|(?<=\n)#+ .*|\*[^*\n]+\*(?=:)|\"[^\"\n]*\"",
        lambda found: "\n" * found[0].count("\n"),
        text,
        flags=re.MULTILINE | re.DOTALL,
    )
    for words, advice in WORST_WORDS.items():
        pattern = rf"\b(?:{words})\b".replace(" ", r"\s+")
        for found in re.finditer(pattern, prose, re.IGNORECASE):
            yield prose.count("\n", 0, found.start()) + 1, found[0], advice


def test_the_worst_words_are_found_in_prose_alone():
    text = "Somebody\n```text\nsaid\n```\n`told` 'x' [x](rooms.md) is at\nhand; mend it."
    found = [(number, word) for number, word, _ in stumbles(text)]
    assert sorted(found) == [(1, "Somebody"), (5, "at\nhand"), (6, "mend")]


@pytest.mark.parametrize("name", EDITED)
def test_a_page_has_none_of_the_worst_words(name):
    found = [*stumbles(PAGES[name].read_text("utf-8"))]
    assert not found, "\n".join(f"{name}:{at}: {word}; {advice}" for at, word, advice in found)


CODE = ROOT / "src" / "featuremill"
TEXTS_ON_DISK = {"no gene of the cell is known to the model"}
"""Heads of reasons, which stores contain."""


SPOKEN = ("tells?|told", "says|said", "knows?|known to|knew", "of old", "rooms?", "in the way")
"""Of the worst words those that docstrings may still have."""
EDITED_CODE = "base inputs steps"
"""Packages whose docstrings have none of the others."""
PLAIN_CODE = (
    "extract flow lease status step steps/autoencoders steps/heads steps/transfer store"
    " workload workloads outputs commands"
)
"""Packages whose docstrings have none at all."""


def texts(path):
    """Yield the line of each text of several words of a module, the text, and if it is a
    docstring."""
    tree = ast.parse(path.read_text("utf-8"))
    bodies = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list)]
    lines = [line.value for body in bodies for line in body if isinstance(line, ast.Expr)]
    docstrings = {id(line) for line in lines}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and " " in node.value.strip():
            yield node.lineno, node.value.replace('"', ""), id(node) in docstrings


def stumbles_in_code(path):
    is_plain = any((CODE / package) in path.parents for package in PLAIN_CODE.split())
    is_edited = is_plain or any((CODE / name) in path.parents for name in EDITED_CODE.split())
    spoken = {WORST_WORDS[words] for words in SPOKEN}
    for number, text, is_docstring in texts(path):
        if text not in TEXTS_ON_DISK and (is_edited or not is_docstring):
            for _, word, advice in stumbles(text):
                if is_plain or not is_docstring or advice not in spoken:
                    yield f"{path.relative_to(ROOT)}:{number}: {word}; {advice}"


def test_no_message_has_one_of_the_worst_words_nor_has_a_docstring_of_edited_code():
    paths = sorted(CODE.rglob("*.py"))
    found = [stumble for path in paths for stumble in stumbles_in_code(path)]
    assert len(paths) > 100 and not found, "\n".join(found)


def anchors(page):
    """Return what a link may name in a page: its headings, as the web pages call them."""
    text = re.sub(r"^( *```).*?^\1", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_links_of_a_page_lead_somewhere(name):
    text = re.sub(r"^( *```).*?^\1", "", PAGES[name].read_text("utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not link.startswith("http"):
            path, _, anchor = link.partition("#")
            target = (PAGES[name].parent / path).resolve() if path else PAGES[name]
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


BROUGHT_BY = {"hf": "huggingface_hub", "pytest": "pytest"}
"""Programs that the extra esm2 does not bring, and the packages that do."""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_installs_a_program_before_it_types_it(name):
    boxes = [box for box in page_of(name).boxes if box.kind == "bash"]
    commands = [text.split() for box in boxes for _, text in box.commands()]
    for number, (program, *_) in enumerate(commands):
        if program in BROUGHT_BY:
            installs = ["pip", "install", BROUGHT_BY[program]]
            assert any({*installs} <= {*words} for words in commands[:number]), program


def test_ci_types_what_readme_says_first_and_in_its_order():
    readme = page_of("README.md")
    boxes = [box for box in readme.boxes if box.kind == "bash"]
    typed = [(box.lack(text), text) for box in boxes for _, text in box.commands()]
    left = [t.partition("#")[0].strip() for lack, t in typed if lack == "what .ci/run types"]
    typed = re.findall(r"^(?:exec )?(make \w+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert left == ["make run", "make test"]
    assert typed == left


AS_JUPYTER = """
import ast, json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, cell["id"], "exec"), names)
        value = last and eval(compile(ast.Expression(last.value), cell["id"], "eval"), names)
        show = getattr(value, "_repr_mimebundle_", lambda: {"text/plain": repr(value)})
        shown = show()
        print(cell["id"], *shown, *shown.values())
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_installed", [False, True], ids=["checkout", "wheel"])
def test_the_notebook_runs_from_its_first_cell_to_its_last(house, tmp_path, is_installed):  # noqa: F811
    """In one process, cell by cell; what stands last in a cell is shown, as Jupyter does."""
    notebook = shutil.copy2(NOTEBOOK, tmp_path)
    checkout = house.site if is_installed else house.checkout(tmp_path / "checkout") / "src"
    demonstration = "ignore:mill_t6_8M is a demonstration:UserWarning"
    words = ("-Werror::UserWarning", f"-W{demonstration}", "-c", AS_JUPYTER, notebook)
    variables = {**house.environment, "PYTHONPATH": str(checkout)}
    done = ran("python", *words, cwd=tmp_path, env=variables, timeout=280)
    assert done.returncode == 0, done.stderr
    shown = dict(re.findall(r"^(cell-\d\d) (\S+)", done.stdout, re.MULTILINE))
    assert "image/svg+xml" in shown.values(), "the map"
    assert "https://cdn" not in (tmp_path / "first-look" / "map.html").read_text("utf-8")
    assert re.search(r"^ribosomal protein +0\.\d+ +\d+", done.stdout, re.MULTILINE)
    assert (tmp_path / "first-look/results/some/embeddings.parquet").exists()


LINK = re.compile(r'\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"')


def dead_links(folder):
    """Yield the page and the link where a page below `folder` links to a file that is not there."""
    for page in folder.rglob("*.md"):
        text = re.sub(r"^( *```).*?^\1|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.M | re.S)
        for found in LINK.finditer(text):
            path = (found[1] or found[2]).partition("#")[0]
            if path and "://" not in path and not (page.parent / path).exists():
                yield f"{page.relative_to(folder)}: {path}"


def test_each_link_of_a_page_in_the_wheel_leads_to_a_file(house):  # noqa: F811
    pages = house.site / "featuremill" / "smk"
    assert len([*pages.glob("docs/*.md")]) == len([*(ROOT / "docs").glob("*.md")])
    assert [*dead_links(pages)] == [], "add the file to pyproject.toml, below README.md"
    away = (pages / "CITATION.cff").rename(pages / "away")
    links = ["README.md: CITATION.cff", "docs/how-do-i.md: ../CITATION.cff"]
    assert sorted(dead_links(pages)) == links
    away.rename(pages / "CITATION.cff")


def test_the_notebook_keeps_no_output_that_could_lie():
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and not any(cell["outputs"] or cell["execution_count"] for cell in code)


def type_text(folder, text, **environment):
    """Type a made-up page in `folder`."""
    page = read(text, "made-up.md")
    check(page, folder)
    record = folder / "record"
    record.mkdir(exist_ok=True)
    places = {"a checkout": f"cd {folder}", "an empty folder": "mkdir -p empty; cd empty"}
    givens = {"my.fa": "echo '>p' > my.fa"}
    ours = str(Path(sys.executable).parent)
    environment = {"PATH": os.pathsep.join([ours, os.environ["PATH"]]), **environment}
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
    with pytest.raises(PageError) as fault:
        type_text(tmp_path, text)
    said = str(fault.value)
    assert said.startswith(f"made-up.md:{line}: ")
    assert sentence in said


@pytest.mark.timeout(60)
def test_what_a_page_starts_ends_with_it(tmp_path):
    type_text(tmp_path, "```bash\nexec 9>lock\nflock 9\nsleep 600 &\n```\n")
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # nobody holds it any more, or this never ends


def test_what_a_machine_has_is_typed_there(monkeypatch):
    text = "<!-- not run: a processor with bf16 -->\n```bash\nls\n```\n"
    for here, lack in ((set(), "a processor with bf16"), ({"a processor with bf16"}, "")):
        monkeypatch.setattr(documents, "HERE", here)
        (box,) = read(text, "a.md").boxes
        assert box.lack("ls") == lack


def test_every_lack_is_some_pages():
    lacks = {lack for name in PAGES for lack in page_of(name).counts() if lack}
    assert set(LACKS) - documents.HERE == lacks
