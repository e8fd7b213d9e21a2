"""Make the pictures that README and docs show, from the demo and the examples: `make pictures`.

It computes them in a temporary folder, photographs their pages in a headless Chromium, and keeps
one frame of `featuremill top`. line.svg beside this file is drawn by hand.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from Bio import SeqIO
from PIL import Image
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
HERE = ROOT / "docs" / "pictures"
sys.path.insert(0, str(ROOT / "tests"))

from browser import CHROMIUM, Tab, browser  # noqa: E402  (of the tests)

NARROW, WIDE = 440, 860
"""Widths of a window, in CSS pixels; NARROW is a phone's, for two pictures side by side."""
SCALE = 1.6
"""Screen pixels for one of them."""
COLOURS = 240
COLUMNS = 66
"""Of the terminal in which `featuremill top` is shown."""
TOP = ""
MARGIN = 12
"""Above a section, in CSS pixels."""
PICTURES = {
    "report": ("results/demo/report.html", NARROW, TOP, 700),
    "map": ("results/demo/report.html", NARROW, "The embedding space", 700),
    "nearest": ("results/demo/report.html", 1000, "The embedding space", 740),
    "head": ("heads/virus/head.html", WIDE, TOP, 780),
    "verdicts": ("results/contigs/verdicts.html", WIDE, TOP, 780),
    "scores": ("results/contigs/verdicts.html", WIDE, "Scores for", 860),
    "heat-map": ("results/scan/report.html", WIDE, "Scores of", 640),
    "autoencoder": ("results/residues/autoencoders/residues/report.html", WIDE, TOP, 860),
}
"""Of each picture: the page, the window's width, the heading of the section with which it begins
(TOP: the page's top), and its height."""
ACTIONS = {
    "nearest": """const box = document.querySelector(".map-search");
        box.value = "ribosomal protein";
        box.dispatchEvent(new Event("input"));
        box.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));"""
}
"""What a person does before the picture is taken."""
SVG = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""A terminal of rich's, without fonts from a network."""


def main() -> None:
    """Compute, photograph, write."""
    if not CHROMIUM:
        sys.exit("make pictures: there is no chromium; on Debian: apt install chromium")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "config", folder / "config")
        top = compute(folder)
        (HERE / "top.svg").write_text(as_svg(top, "featuremill top results/demo"), "utf-8")
        with browser(folder / "profile") as tab:
            for picture, (page, width, heading, height) in PICTURES.items():
                for scheme in ("light", "dark"):
                    dark = scheme == "dark"
                    tab.open_drawn(folder / page, width=width, dark=dark, scale=SCALE)
                    tab.value(ACTIONS.get(picture, ""))
                    path = HERE / f"{picture}-{scheme}.png"
                    path.write_bytes(small(shot(tab, width, heading, height)))
                    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} KB")


def compute(folder: Path) -> str:
    """Compute the demo and the examples in `folder`; return what `top` shows of the demo."""
    with subprocess.Popen(["featuremill", "run", "config/config.yaml"], cwd=folder) as process:
        top = frame(folder, process)
    assert process.returncode == 0
    page = (ROOT / "docs" / "heads.md").read_text("utf-8")
    labels = re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert labels, "docs/heads.md no longer begins with the labels of the demo"
    subprocess.run([sys.executable, "-c", labels[1]], cwd=folder, check=True)
    first = next(SeqIO.parse(folder / "config" / "demo.fasta", "fasta"))
    SeqIO.write(first, folder / "scan.fasta", "fasta")
    scan = {"run": "scan", "inputs": "scan.fasta", "workload": "scores", "outputs": ["parquet"]}
    (folder / "scan.yaml").write_text(yaml.safe_dump(scan), "utf-8")
    for command in (
        "featuremill head train results/demo --labels labels.tsv --column kind --group organism "
        "--output heads/virus",
        "python config/examples/contigs.py made",
        "featuremill run config/examples/contigs.yaml",
        "featuremill run config/examples/autoencoders.yaml",
        "featuremill run scan.yaml",
    ):
        subprocess.run(shlex.split(command), cwd=folder, check=True)
    return top


def frame(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """Return what `top` shows, with its colours, once the run is half done."""
    top = ["featuremill", "top", "results/demo", "--once"]
    as_terminal = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    while process.poll() is None:
        time.sleep(1)
        if (folder / "results" / "demo" / "plan.json").exists():
            seen = subprocess.run([*top, "--json"], cwd=folder, capture_output=True, text=True)
            now = json.loads(seen.stdout)
            if now["share"] > 0.4 and any(job["speed"] for job in now["jobs"]):
                shown = subprocess.run(top, cwd=folder, env=as_terminal, stdout=subprocess.PIPE)
                return shown.stdout.decode()
    raise AssertionError("the demo ended before it was seen at work")


def as_svg(frame: str, title: str) -> str:
    """Return what a terminal showed as a drawing."""
    console = Console(record=True, file=io.StringIO(), width=COLUMNS)
    console.print(Text.from_ansi(frame.rstrip()))
    return console.export_svg(title=title, code_format=SVG, unique_id="top")


def shot(tab: Tab, width: int, heading: str, height: int) -> bytes:
    """Return a PNG of the page's top, or of what begins with the section of that heading."""
    y = 0.0
    if heading:
        find = (
            f"[...document.querySelectorAll('h2')].find(h => h.textContent.startsWith('{heading}'))"
        )
        y = tab.value(f"{find}.closest('section').getBoundingClientRect().top") - MARGIN
    return tab.screenshot_of({"x": 0, "y": y, "width": width, "height": height})


def small(png: bytes) -> bytes:
    """Return the picture in few colours."""
    file = io.BytesIO()
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


if __name__ == "__main__":
    main()
