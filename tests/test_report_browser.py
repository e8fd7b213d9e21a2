"""report: the page as people see it, in a headless Chromium that reaches no network.

Screenshots of a page, to look at: `python tests/browser.py results/demo/report.html FOLDER`.
"""

import re

import numpy as np
import pytest
from browser import browser, needs_chromium
from report_runs import CPU, H200, HOSTILE, FakeRun, make

from featuremill.kit.ids import IdColumns
from featuremill.steps.heads.card import Calibration, Card, Part, TableUsed
from featuremill.steps.heads.fitting import Rows
from featuremill.steps.heads.page import Judged, write_page
from featuremill.steps.heads.train import of_classes

pytestmark = [pytest.mark.slow, needs_chromium]
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

MENUS = """Array.from(document.querySelectorAll(".vega-embed")).filter(each => {
    const menu = each.querySelector("summary").getBoundingClientRect();
    return Array.from(each.querySelectorAll(".role-legend")).some(legend => {
        const box = legend.getBoundingClientRect();
        return box.right > menu.left && box.top < menu.bottom; }); }).length"""
CUT_COLUMNS = """Array.from(document.querySelectorAll(".scroll")).filter(
    each => each.scrollWidth > each.clientWidth + 1).map(each => each.outerHTML.slice(0, 200))"""
CELLS = """(() => { const read = colour => colour.match(/[0-9]+/g).slice(0, 3).map(Number);
    const cells = Array.from(document.querySelectorAll("#confusion .mark-rect path"))
        .map(each => read(getComputedStyle(each).fill));
    const card = read(getComputedStyle(document.querySelector(".card")).backgroundColor);
    const far = colour => Math.abs(colour[0] + colour[1] + colour[2] - card[0] - card[1] - card[2]);
    cells.sort((a, b) => far(a) - far(b));
    return [cells[0], cells[cells.length - 1], card]; })()"""
CUT = """Array.from(document.querySelectorAll("pre"))
.filter(each => each.scrollWidth > each.clientWidth).length"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a run with everything that the page can show, ids by an attacker included."""
    folder = tmp_path_factory.mktemp("report")
    run = FakeRun(ok=990, failed=3, refused=5, duplicate=2, devices=(H200, L4, CPU), num_shards=12)
    run.ids, run.telemetry, run.stopped_attempts = "x" + HOSTILE + "{0}", "files", 2
    run.oom_splits = run.resumed_batches = 3
    labels = ["id\tfamily"] + [f"x{HOSTILE}{n}\t{HOSTILE} {n % 9}" for n in range(900)]
    (folder / "labels.tsv").write_text("\n".join(labels))
    colours = ("--label-file", str(folder / "labels.tsv"), "--label", "family")
    make(run.write(folder / "demo"), *colours)
    return folder


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as tab:
        yield tab


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_the_page_is_drawn_whole_and_fits(root, tab, width, is_dark):
    page = root / "demo/report.html"
    num_charts = len(re.findall(r"data-chart=", page.read_text()))
    assert tab.open_drawn(page, width=width, dark=is_dark) == num_charts >= 2
    drawn = "document.querySelectorAll('[data-chart] svg.marks, [data-chart] canvas.marks').length"
    assert tab.value(drawn) == num_charts
    assert tab.value("document.querySelector('[data-map]').dataset.drawn") == "990"
    assert tab.value(INK) > 50, "the map has colours"
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value(TOO_WIDE) == []
    assert tab.value(SMALLEST) >= 11
    assert tab.value(MENUS) == tab.value(CUT) == 0
    assert tab.console == [] and tab.requests == []


def test_a_wide_chart_keeps_its_right_side_on_paper(root, tab):
    """A page is drawn for the window and printed on less: charts become smaller, not cut."""
    tab.open_drawn(root / "demo/report.html", width=1280)
    over = """(() => { const main = document.querySelector("main"); main.style.width = "700px";
        const right = main.getBoundingClientRect().right + 1;
        return Array.from(document.querySelectorAll(".vega-embed svg, .vega-embed canvas")).filter(
            each => each.getBoundingClientRect().right > right).length; })()"""
    assert tab.value(over) > 0, "on a screen they would be cut"
    tab.ask("Emulation.setEmulatedMedia", media="print")
    cut = tab.value(over)
    tab.ask("Emulation.setEmulatedMedia", media="")
    assert cut == 0


def test_a_chart_answers_to_a_pointer(root, tab):
    tab.open_drawn(root / "demo/report.html", width=1200)
    place = tab.value("""(() => { const bar = document.querySelector(
        "[data-chart=timeline] .mark-rect path"); bar.scrollIntoView({block: "center"});
        const box = bar.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2]; })()""")
    tab.ask("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    said = tab.wait("document.querySelector('#vg-tooltip-element.visible')?.innerText")
    assert "shard" in said and "device" in said
    assert tab.value("document.querySelectorAll('#vg-tooltip-element img, main img').length") == 0


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("num_classes", [2, 12])
def test_a_heads_page_has_no_cut_column_on_a_phone(tmp_path, tab, num_classes, is_dark):
    """And its colours mean the same in both themes: full is far from the page, empty near it."""
    page = head_page(tmp_path / "head.html", num_classes)
    assert tab.open_drawn(page, width=400, dark=is_dark) == 5
    tab.value("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    assert tab.value("document.documentElement.scrollWidth") <= 400
    assert tab.value(TOO_WIDE) == tab.value(CUT_COLUMNS) == []
    assert tab.value(SMALLEST) >= 11
    assert tab.value(MENUS) == tab.value(CUT) == 0
    empty, full, card = (sum(colour) for colour in tab.value(CELLS))
    assert abs(full - card) > 300, "of most of a row"
    assert abs(empty - card) < 120 or num_classes == 2, "of nearly none of one"
    assert tab.console == [] and tab.requests == []


def head_page(path, num_classes):
    """Write the page of a head of that many classes, some with long names or by an attacker."""
    random = np.random.default_rng(0)
    names = sorted([f"class {n} with a rather long name"[: 9 + 4 * n] for n in range(num_classes)])
    names[0] = HOSTILE
    y = random.integers(0, num_classes, 600)
    scores = random.dirichlet(np.ones(num_classes), 600)
    scores[np.arange(600), y] += 0.4
    scores /= scores.sum(1, keepdims=True)
    ids, each = [f"sample {n % 20}/{HOSTILE}{n}" for n in range(600)], np.arange(600)
    rows = Rows(np.empty((600, 0)), y, each, each, num_classes)
    found = of_classes(rows, names, scores, [])
    about = {"version": Card.NEWEST, "kind": "logistic", "sha256": "b" * 64, "seed": 0}
    about |= {"setting": {"penalty": 1.0}, "setting_bounds": [10, 1e-6], "permutation_p": 0.005}
    about["counts"] = {"records": 600, "groups": 600, "missing": 0}
    made = Card(
        **about,
        classes=names,
        features=[Part(width=20, column="mean", recipe="a" * 32, run="results/my")],
        scores={name: [*estimate] for name, estimate in found.scores.items()},
        guesses=found.guesses,
        warnings=[HOSTILE],
        calibration=Calibration(scale=1.0, shift=[0.0] * num_classes),
        labels=TableUsed(file="labels.csv", sha256="c" * 64, column="kind", group="family"),
        **found.on_card,
    )
    assert found.judged
    write_page(path, HOSTILE, made, Judged(ids, y, *found.judged, IdColumns(("sample",))))
    return path


def test_what_would_leave_the_machine_is_noticed(tmp_path, tab):
    """The witness of the tests above: a page that does what ours must not."""
    page = tmp_path / "bad.html"
    page.write_text("<img src=http://example.org/x.png><script>console.error('no')</script>")
    tab.open(page)
    assert tab.requests == ["http://example.org/x.png"]
    assert any("no" in said for said in tab.console)
    tab.requests.clear()
    tab.console.clear()
