"""The site: README, docs and what they link to, as Sphinx builds them (`make docs`).

Its root is the checkout, so that a link is the same here, in a folder and on a forge. The
navigation is docs/index.md: a page that it does not list is an error, as is a link that leads
nowhere.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx
from sphinx.util import logging

import featuremill

ROOT = Path(__file__).parents[1]
WARN = logging.getLogger(__name__).warning
"""An error, as `make docs` asks for it."""
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img (?:width="(?P<width>\d+)" )?alt="(?P<alt>[^"]+)" src="(?P<light>[^"]+)">\s*</picture>'
)
"""As README and docs show a picture in two schemes."""

FURTHER = (
    *("../examples/README.md", "../examples/plugin/README.md", "../config/demo.md"),
    "../src/featuremill/workloads/esm2/bundled/mill_t6_8M.md",
    *("../training/README.md", "../bench/README.md", "../bench/figures.md", "../CHANGELOG.md"),
    "../packages/snakemake-executor-plugin-gpu-local/README.md",
    "../packages/snakemake-executor-plugin-gpu-local/PROTOCOL.md",
)
"""Pages beside those that the index lists."""

project = "featuremill"
release = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
copyright = "the authors of featuremill, MIT"

root_doc = "docs/index"
include_patterns = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md"),
    *("docs/*.md", "config/*.md", "examples/**.md", "examples/*.ipynb"),
    *("bench/*.md", "training/README.md", "src/**.md", "packages/*/*.md"),
]
exclude_patterns = [".*", "results"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_typehints = "none"
nitpick_ignore_regex = [("py:exc", ".*Error")]
"""Exceptions have no entries: docstrings name them by their last name."""
myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "text"

html_theme = "furo"
html_title = f"featuremill {release}"
html_show_sphinx = False
html_copy_source = False


class NotebookParser(MystParser):
    """Reads a notebook as the Markdown and the code of its cells; it is kept without outputs."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(as_markdown(json.loads(inputstring)), document)


def as_markdown(notebook: dict[str, Any]) -> str:
    """Return a notebook's cells one after the other."""
    cells = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        cells.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(cells)


def prepare(app: Sphinx, name: str, source: list[str]) -> None:
    """Put in place what Markdown on a forge says otherwise: pictures, and the navigation."""
    source[0] = PICTURE.sub(as_images, source[0])
    if "<picture" in source[0]:
        WARN("a <picture> that is not as PICTURE in docs/conf.py has it", location=name)
    if name == root_doc:
        source[0] += navigation(source[0])
    if name == "docs/api":
        source[0] += functions()


def as_images(found: re.Match[str]) -> str:
    """Return a picture in two schemes as the theme's two images."""
    width = f" width={found['width']}px" if found["width"] else ""
    images = ((found[scheme], f"only-{scheme}") for scheme in ("light", "dark"))
    return " ".join(f"![{found['alt']}]({path}){{.{kind}{width}}}" for path, kind in images)


def navigation(index: str) -> str:
    """Return the index's lists of links as the sidebar's, each below what stands above it."""
    lists: dict[str, list[str]] = {}
    heading = caption = ""
    for line in index.splitlines():
        if found := re.match(r"## (.+)", line):
            heading = caption = found[1]
        elif line.endswith(":") and not line.startswith(("*", " ")):
            caption = f"{heading}: {line[0].lower()}{line[1:-1]}"
        elif caption:
            pages = re.findall(r"\]\(([^)#:]+\.(?:md|ipynb))\)", line)
            lists.setdefault(caption, []).extend(pages)
    listed = {page for pages in lists.values() for page in pages}
    lists["Further"] = [page for page in FURTHER if page not in listed]
    return "".join(
        f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```"
        for caption, pages in lists.items()
    )


def functions() -> str:
    """Return directives that show the docstring of each public name."""
    public = {name: getattr(featuremill, name) for name in featuremill.__all__}
    kinds = {
        name: "class" if isinstance(it, type) else "function"
        for name, it in public.items()
        if callable(it)
    }
    shown = "".join(f".. auto{kind}:: featuremill.{name}\n\n" for name, kind in kinds.items())
    return f"\n\n```{{eval-rst}}\n{shown}```\n"


def begin_at_the_index(app: Sphinx, error: Exception | None) -> None:
    """Lead from the site's root to its first page."""
    page = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
    (Path(app.outdir) / "index.html").write_text(page, "utf-8")


def setup(app: Sphinx) -> None:
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    app.connect("source-read", prepare)
    app.connect("build-finished", begin_at_the_index)
