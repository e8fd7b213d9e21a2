"""What README and docs show, and the site that is made of them."""

import re
import shutil
import subprocess
import sys
from collections import Counter
from xml.etree import ElementTree

import pytest
from conftest import ROOT
from documents import pages
from test_house import files

PICTURES = ROOT / "docs" / "pictures"
INDEX = ROOT / "docs" / "index.md"
MOST_BYTES = 150_000
FEWEST_LETTERS = 30
"""Of the text in place of a picture."""
BESIDE_THE_LINE = {"not_installed", "common", "weights", "deliver", "export", "partial"}
"""Rule files that the figure leaves out: helpers, weights, what large runs alone have, and what has
to be asked for."""
SVG = "{http://www.w3.org/2000/svg}"
FENCE = re.compile(r"^( *```+).*?^\1$", re.MULTILINE | re.DOTALL)
IN_HTML = re.compile(r'<img\b[^>]*?\balt="([^"]*)"[^>]*?\bsrc="([^"]*)"')
IN_MARKDOWN = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")


def prose_of(path):
    return FENCE.sub("", path.read_text("utf-8"))


def shown_on(text):
    """Return the text and the path of each picture of a page."""
    return IN_HTML.findall(text) + IN_MARKDOWN.findall(text)


def faults_of(page, text):
    """Yield what is wrong with the pictures of a page."""
    for tag in re.findall(r"<img\b[^>]*>", text):
        if not IN_HTML.match(tag):
            yield f"{tag}: give it alt, then src"
    dark = [("", path) for path in re.findall(r'srcset="([^"]*)"', text)]
    for alt, path in (shown := shown_on(text)) + dark:
        file = page.parent / path
        if not file.is_file():
            yield f"{path}: is not there"
        elif file.stat().st_size > MOST_BYTES:
            yield f"{path}: {file.stat().st_size} bytes"
        elif (alt, path) in shown and len(alt) < FEWEST_LETTERS:
            yield f"{path}: '{alt}' does not say what it shows"


def test_each_picture_is_there_small_and_said_in_words():
    found = {path: list(faults_of(path, prose_of(path))) for path in pages(ROOT)}
    assert {path: faults for path, faults in found.items() if faults} == {}


def test_each_picture_is_shown():
    shown = set()
    for page in pages(ROOT):
        text = prose_of(page)
        paths = [path for _, path in shown_on(text)] + re.findall(r'srcset="([^"]*)"', text)
        shown |= {(page.parent / path).resolve() for path in paths}
    made = {path for path in PICTURES.iterdir() if path.suffix in (".png", ".svg")}
    assert made and made - shown == set()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"![{'a' * 30}](gone.png)", "gone.png: is not there"),
        ("![a map](small.svg)", "small.svg: 'a map' does not say what it shows"),
        (f"![{'a' * 30}](large.png)", "large.png: 150001 bytes"),
        ('<img src="small.svg">', '<img src="small.svg">: give it alt, then src'),
        ('<source srcset="gone-dark.png">', "gone-dark.png: is not there"),
        (f'<img alt="{"a" * 30}" src="small.svg">', None),
    ],
)
def test_a_picture_that_is_wrong_is_found(tmp_path, text, fault):
    (tmp_path / "small.svg").write_text("<svg/>")
    (tmp_path / "large.png").write_bytes(bytes(MOST_BYTES + 1))
    assert list(faults_of(tmp_path / "page.md", text)) == ([fault] if fault else [])


def test_the_figure_names_the_rules_of_the_workflow_in_their_order():
    figure = ElementTree.parse(PICTURES / "line.svg").getroot()
    named = [text.text for text in figure.iter(f"{SVG}text") if text.get("class") == "rule"]
    snakefile = (ROOT / "workflow" / "Snakefile").read_text("utf-8")
    included = re.findall(r'^ *include: "rules/(\w+)\.smk"', snakefile, re.MULTILINE)
    assert named == [name for name in included if name not in BESIDE_THE_LINE]


@pytest.mark.parametrize("name", ["line", "top"])
def test_a_drawing_has_a_size_and_asks_nothing_of_a_network(name):
    drawing = ElementTree.parse(PICTURES / f"{name}.svg").getroot()
    assert drawing.tag == f"{SVG}svg" and drawing.get("viewBox")
    everything = "".join([*drawing.itertext(), *(str(part.attrib) for part in drawing.iter())])
    assert "http" not in everything and "@font-face" not in everything


def test_the_figure_has_a_dark_scheme_and_says_what_it_shows():
    figure = ElementTree.parse(PICTURES / "line.svg").getroot()
    style, title, said = (figure.find(f"{SVG}{tag}") for tag in ("style", "title", "desc"))
    light, dark = style.text.split("@media (prefers-color-scheme: dark)")
    names = [re.findall(r"(--\w+):", scheme) for scheme in (light, dark.partition("}")[0])]
    assert names[0] and names[0] == names[1]
    assert figure.get("aria-labelledby").split() == [title.get("id"), said.get("id")]


def test_the_index_lists_every_page():
    links = re.findall(r"\]\(([^)#:]+)\)", INDEX.read_text("utf-8"))
    listed = {(INDEX.parent / link).resolve() for link in links}
    assert set(INDEX.parent.glob("*.md")) - listed == {INDEX}


def build(root, site):
    """Build the site of the files in `root`, with the flags of `make docs`."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    flags = re.search(r"-m sphinx (-\w+) ", makefile)[1]
    sphinx = [sys.executable, "-m", "sphinx", flags, "-d", site / "doctrees", "-c", root / "docs"]
    return subprocess.run([*sphinx, root, site], capture_output=True, text=True)


@pytest.mark.slow
def test_the_site_is_built_with_its_pictures_its_notebook_and_its_search(tmp_path):
    built = build(ROOT, tmp_path)
    assert built.returncode == 0, built.stderr
    readme = (tmp_path / "README.html").read_text("utf-8")
    assert "<picture>" not in readme
    assert Counter(re.findall(r'<img [^>]*class="(only-\w+)', readme)) == {
        "only-dark": 2,
        "only-light": 2,
    }
    images = re.findall(r'<img [^>]*src="([^"]+)"', readme)
    assert images and all((tmp_path / path).is_file() for path in images)
    notebook = (tmp_path / "examples" / "first-look.html").read_text("utf-8")
    assert "featuremill.embed" in re.sub("<[^>]+>", "", notebook)
    assert '"docs/troubleshooting"' in (tmp_path / "searchindex.js").read_text("utf-8")
    assert "docs/index.html" in (tmp_path / "index.html").read_text("utf-8")
    captions = re.findall(r'class="caption-text">([^:<]+)', readme)
    groups = ["Get started", "How to", "Reference", "Explanation", "Further"]
    assert list(dict.fromkeys(captions)) == groups


@pytest.mark.slow
def test_a_link_that_leads_nowhere_and_a_page_that_is_not_listed_stop_the_site(tmp_path):
    for path in files():
        copy = tmp_path / "copy" / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    with (tmp_path / "copy/docs/top.md").open("a") as page:
        page.write("\n[x](gone.md), [y](status.md#gone)\n")
    (tmp_path / "copy/docs/lost.md").write_text("# Lost\n")
    built = build(tmp_path / "copy", tmp_path / "site")
    assert built.returncode == 1
    assert "not found: 'gone.md'" in built.stderr and "docs/status': 'gone'" in built.stderr
    assert "lost.md: WARNING: document isn't included in any toctree" in built.stderr
