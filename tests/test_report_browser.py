"""report: the page as people see it, in a headless Chromium that reaches no network.

Screenshots of a page, to look at: `python tests/browser.py results/demo/report.html FOLDER`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Tab, browser
from report_runs import CPU, FIGURES, H200, HOSTILE, FakeRun, make

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH"),
]
L4 = {"kind": "cuda", "uuid": "GPU-9f0c2a3b-0000-4444-8888-000000000009", "name": "NVIDIA L4"}
TOO_WIDE = """Array.from(document.querySelectorAll("main *")).filter(
    each => each.getBoundingClientRect().right > innerWidth + 1
).filter(each => !each.closest("pre, .scroll, svg, details"))
.map(each => each.outerHTML.slice(0, 200))"""
INK = """(() => { const canvas = document.querySelector("[data-map] canvas");
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const seen = new Set(); for (let i = 0; i < pixels.length; i += 4)
    seen.add(pixels[i] + "," + pixels[i + 1] + "," + pixels[i + 2]); return seen.size; })()"""
SMALLEST = """Math.min(...Array.from(document.querySelectorAll("main *, svg text")).filter(
    each => each.childNodes.length && each.textContent.trim() && each.getClientRects().length
).map(each => parseFloat(getComputedStyle(each).fontSize)))"""

AXES = """Array.from(document.querySelectorAll("[data-chart]")).filter(
    each => /^(timeline|usage|throughput)/.test(each.dataset.chart)
).map(each => Array.from(each.querySelectorAll(".role-axis-domain line"))
    .map(line => line.getBoundingClientRect()).find(box => box.width > 100))
.map(box => [box.left, box.right])"""
MENUS = """Array.from(document.querySelectorAll(".vega-embed")).filter(each => {
    const menu = each.querySelector("summary").getBoundingClientRect();
    return Array.from(each.querySelectorAll(".role-legend")).some(legend => {
        const box = legend.getBoundingClientRect();
        return box.right > menu.left && box.top < menu.bottom; }); }).length"""
CUT = """Array.from(document.querySelectorAll("pre"))
.filter(each => each.scrollWidth > each.clientWidth).length"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with everything that the page can show, ids by an attacker included."""
    folder = tmp_path_factory.mktemp("report")
    run = FakeRun(ok=990, failed=3, refused=5, duplicate=2, devices=(H200, L4, CPU), num_shards=12)
    run.ids, run.telemetry, run.stopped_attempts = "x" + HOSTILE + "{0}", "files", 2
    run.oom_splits = run.resumed_batches = 3
    labels = ["id\tfamily"] + [f"x{HOSTILE}{n}\t{HOSTILE} {n % 9}" for n in range(900)]
    (folder / "labels.tsv").write_text("\n".join(labels))
    colours = ("--label-file", str(folder / "labels.tsv"), "--label", "family")
    make(run.write(folder / "demo"), "--figures", str(folder / "figures"), *colours)
    return folder


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("chromium")) as tab:
        yield tab


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_is_drawn_whole_and_fits(root: Path, tab: Tab, width: int, is_dark: bool) -> None:
    page = root / "demo/report.html"
    num_charts = len(re.findall(r"data-chart=", page.read_text()))
    assert tab.open_drawn(page, width=width, dark=is_dark) == num_charts >= 11
    drawn = "document.querySelectorAll('[data-chart] svg.marks, [data-chart] canvas.marks').length"
    assert tab.value(drawn) == num_charts
    assert tab.value("document.querySelector('[data-map]').dataset.drawn") == "990"
    assert tab.value(INK) > 50, "the map has colours"
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value(TOO_WIDE) == []
    assert tab.value(SMALLEST) >= 11
    axes = tab.value(AXES)
    assert len(axes) > 5 and axes == [axes[0]] * len(axes), "one clock, one place"
    assert tab.value(MENUS) == tab.value(CUT) == 0
    assert tab.console == [] and tab.requests == []


def test_a_wide_chart_keeps_its_right_side_on_paper(root: Path, tab: Tab) -> None:
    """A page is drawn for the window and printed on less: charts become smaller, not cut."""
    tab.open_drawn(root / "demo/report.html", width=1280)
    over = """(() => { const main = document.querySelector("main"); main.style.width = "700px";
        const right = main.getBoundingClientRect().right + 1;
        return Array.from(document.querySelectorAll(".vega-embed svg, .vega-embed canvas")).filter(
            each => each.getBoundingClientRect().right > right).length; })()"""
    assert tab.value(over) > 5, "on a screen they would be cut"
    tab.ask("Emulation.setEmulatedMedia", media="print")
    cut = tab.value(over)
    tab.ask("Emulation.setEmulatedMedia", media="")
    assert cut == 0


def test_a_chart_answers_to_a_pointer(root: Path, tab: Tab) -> None:
    tab.open_drawn(root / "demo/report.html", width=1200)
    place = tab.value("""(() => { const bar = document.querySelector(
        "[data-chart=timeline] .mark-rect path"); bar.scrollIntoView({block: "center"});
        const box = bar.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2]; })()""")
    tab.ask("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    said = tab.wait("document.querySelector('#vg-tooltip-element.visible')?.innerText")
    assert "shard" in said and "device" in said
    assert tab.value("document.querySelectorAll('#vg-tooltip-element img, main img').length") == 0


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_each_figure_stands_alone(root: Path, tab: Tab, name: str) -> None:
    drawn = tab.open_drawn(root / "figures" / f"{name}.html", width=800)
    assert (drawn > 0) == (name not in ("accounting", "embeddings"))
    assert tab.console == [] and tab.requests == []


def test_what_would_leave_the_machine_is_noticed(tmp_path: Path, tab: Tab) -> None:
    """The witness of the tests above: a page that does what ours must not."""
    page = tmp_path / "bad.html"
    page.write_text("<img src=http://example.org/x.png><script>console.error('no')</script>")
    tab.open(page)
    assert tab.requests == ["http://example.org/x.png"]
    assert any("no" in said for said in tab.console)
    tab.requests.clear()
    tab.console.clear()
