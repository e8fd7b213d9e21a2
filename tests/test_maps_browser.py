"""The map of a report as people use it, in a headless Chromium that reaches no network."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import browser, needs_chromium
from report_runs import FakeRun, make

pytestmark = [pytest.mark.slow, needs_chromium]
NUMBER = 10_000
HOSTILE = "</script><img src=x onerror=console.error(1)>"
DRAWN = "document.querySelector('[data-map]').dataset.drawn"
WIDE = """Array.from(document.querySelectorAll(".map *")).filter(
    each => each.getBoundingClientRect().right > innerWidth + 1 && !each.closest(".scroll")
).map(each => each.outerHTML.slice(0, 200))"""
COUNT = """((colour) => { const canvas = document.querySelector(".map-canvas");
    const box = document.createElement("i"); document.body.append(box);
    box.style.color = "var(--" + colour + ")";
    const wanted = getComputedStyle(box).color.match(/\\d+/g); box.remove();
    const copy = Object.assign(document.createElement("canvas"), {width: canvas.width,
        height: canvas.height}).getContext("2d", {willReadFrequently: true});
    copy.drawImage(canvas, 0, 0);
    const seen = copy.getImageData(0, 0, canvas.width, canvas.height).data;
    let number = 0; for (let i = 0; i < seen.length; i += 4)
    if (wanted.every((value, n) => Math.abs(seen[i + n] - value) < 24)) number++;
    return number; })"""
"""Pixels of about a colour of the style sheet."""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    run = FakeRun(ok=NUMBER, ids="sp|P{0:05d}|FAKE_{0}", width=32)
    root = run.write(tmp_path_factory.mktemp("map") / "demo")
    table = pq.read_table(root / "embeddings.parquet")
    texts = [f"protein number {n} OS=Organism {n % 40} OX=1" for n in range(NUMBER)]
    texts[77] = f"odd {HOSTILE} [Odd]"
    pq.write_table(table.append_column("description", pa.array(texts)), root / "embeddings.parquet")
    lines = [f"sp|P{n:05d}|FAKE_{n}\tfamily {n % 3}" for n in range(0, NUMBER, 2)]
    (root / "labels.tsv").write_text("\n".join(["id\tfamily", *lines]))
    make(root, "--label-file", str(root / "labels.tsv"), "--label", "family")
    return root / "report.html"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as tab:
        yield tab


def opened(tab, page, **window):
    tab.open(page, **window)
    assert tab.wait(DRAWN) == str(NUMBER)
    tab.value("document.querySelector('.map-canvas').scrollIntoView({block: 'center'})")


def typed(tab, text):
    """Type into the box; return what it says of the matches."""
    tab.value(f"document.querySelector('.map-search').value = {text!r}")
    tab.value("document.querySelector('.map-search').dispatchEvent(new Event('input'))")
    return tab.value("document.querySelector('.map-found').textContent")


def card(tab):
    return tab.value("document.querySelector('.map-card').innerText")


def place_of(tab, number):
    return tab.value(f"""(() => {{ const map = document.querySelector("[data-map]");
        const box = map.querySelector("canvas").getBoundingClientRect(), at = map.pointAt({number});
        return [box.left + at[0], box.top + at[1]]; }})()""")


def alone(tab):
    """Return the number of a point that has room around it, and so is the one that is met."""
    return tab.value("""(() => { const map = document.querySelector("[data-map]");
        const all = Array.from({length: +map.dataset.drawn}, (_, n) => map.pointAt(n));
        return all.reduce((best, here, n) => { const room = Math.min(...all.map((each, m) =>
            m === n ? 1e9 : Math.hypot(each[0] - here[0], each[1] - here[1])));
            return room > best[0] ? [room, n] : best; }, [0, -1])[1]; })()""")


def click(tab, x, y):
    for kind in ("mousePressed", "mouseReleased"):
        tab.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_is_drawn_and_fits(page, tab, width, is_dark):
    assert page.stat().st_size < 2e6
    opened(tab, page, width=width, dark=is_dark)
    assert tab.value(WIDE) == []
    assert tab.value("document.documentElement.scrollWidth") <= width
    for colour in ("first", "second", "third", "muted"):
        assert tab.value(f"{COUNT}('{colour}')") > 100, f"{colour}: labelled or not, one sees it"
    chips = tab.value("document.querySelector('.map-legend').innerText").split("\n")
    assert "no label" in chips and "5,000" in chips
    assert tab.console == [] and tab.requests == []


def test_a_search_finds_an_id_an_accession_a_name_and_a_label(page, tab):
    opened(tab, page)
    assert typed(tab, "p00040") == "1 found"
    said = card(tab)
    assert "sp|P00040|FAKE_40" in said and "protein number 40" in said and "family 1" in said
    assert "Organism 0" in said
    assert tab.value("document.querySelector('.map-card a').href").endswith("uniprotkb/P00040")
    assert typed(tab, "number 41") == "111 found"
    assert typed(tab, "organism 39") == "250 found"
    assert typed(tab, "family 2") == "1,667 found"
    tab.value("document.querySelector('.map-take').click()")
    assert "1,667 records" in tab.value("document.querySelector('.map-count').textContent")
    told = tab.value("document.querySelector('.map-found').textContent")
    assert told == "1,667 found, on the list"
    cut = tab.value("getComputedStyle(document.querySelector('.map-rows td')).overflowWrap")
    assert cut == "break-word", "no name is cut into pieces"
    assert tab.value("document.querySelectorAll('.map-rows tbody tr').length") == 500
    assert typed(tab, "") == ""
    tab.value("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    tab.value("document.querySelector('.map-copy').click()")
    lines = tab.wait("window.copied").splitlines()
    assert lines[0].startswith("id\taccession\tdescription\tfamily\tlength") and len(lines) == 1668
    first = ["sp|P00002|FAKE_2", "P00002", "protein number 2", "family 2"]
    assert lines[1].split("\t")[:4] == first


def test_a_point_tells_what_it_is_to_a_mouse_and_to_a_finger(page, tab):
    for width in (1280, 400):
        opened(tab, page, width=width)
        number = alone(tab)
        x, y = place_of(tab, number)
        if width > 500:
            tab.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
            tip = tab.wait("document.querySelector('.map-tip:not([hidden])')?.innerText")
            assert f"protein number {number}" in tip
            click(tab, x, y)
        else:
            tab.ask("Emulation.setTouchEmulationEnabled", enabled=True)
            for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchEnd", [])):
                tab.ask("Input.dispatchTouchEvent", type=kind, touchPoints=points)
            tab.ask("Emulation.setTouchEmulationEnabled", enabled=False)
        tab.wait(f"document.querySelector('.map-card h3')?.innerText.endsWith('FAKE_{number}')")
        assert f"protein number {number}" in card(tab)
        nearest = tab.value("document.querySelectorAll('.map-card ol li').length")
        assert nearest == 5
        first = tab.value("document.querySelector('.map-card ol button').innerText")
        tab.value("document.querySelector('.map-card ol button').click()")
        assert tab.value("document.querySelector('.map-card h3').innerText") == first
    assert tab.console == [] and tab.requests == []


def test_headers_are_text(page, tab):
    opened(tab, page)
    typed(tab, "sp|P00077|FAKE_77")
    assert HOSTILE in card(tab)
    assert tab.value("document.querySelectorAll('.map img').length") == 0
    assert tab.console == []


def test_the_legend_hides_and_the_menu_colours(page, tab):
    opened(tab, page)
    before = tab.value(f"{COUNT}('second')")
    chip = "[...document.querySelectorAll('.map-chip')].find(e => e.innerText.includes('{}'))"
    name = tab.value("document.querySelectorAll('.map-chip bdi')[1].innerText")
    tab.value(f"{chip.format(name)}.click()")
    assert tab.value(f"{chip.format(name)}.ariaPressed") == "false"
    assert tab.value(f"{COUNT}('second')") < before / 10
    titles = tab.value("Array.from(document.querySelector('.map-colour').options, o => o.text)")
    assert titles == ["family", "length", "organism", "note", "distance to the nearest"]
    tab.value("document.querySelector('.map-colour').selectedIndex = 2")
    tab.value("document.querySelector('.map-colour').dispatchEvent(new Event('change'))")
    legend = tab.value("document.querySelector('.map-legend').innerText")
    assert "34 other labels" in legend and "Organism 0" in legend


SAVED = """(async () => { const texts = [], write = CanvasRenderingContext2D.prototype.fillText;
    let link; const click = HTMLAnchorElement.prototype.click;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
        texts.push(text); write.call(this, text, ...at); };
    HTMLAnchorElement.prototype.click = function () { link = this; };
    document.querySelector('.map-save').click();
    CanvasRenderingContext2D.prototype.fillText = write;
    HTMLAnchorElement.prototype.click = click;
    const picture = new Image(); picture.src = link.href; await picture.decode();
    const copy = Object.assign(document.createElement("canvas"), {width: picture.width,
        height: picture.height}).getContext("2d", {willReadFrequently: true});
    copy.drawImage(picture, 0, 0);
    const top = (document.querySelector('.map-canvas').clientHeight + 32) * 3;
    const line = copy.getImageData(0, top, picture.width, 1).data, colours = new Set();
    for (let i = 0; i < line.length; i += 4) colours.add(line.slice(i, i + 3).join());
    return {name: link.download, texts, colours: colours.size}; })()"""
"""What the picture that people save says, and how many colours are in the line of its ramp."""


def coloured_by(tab, title):
    menu = "document.querySelector('.map-colour')"
    tab.value(f"{menu}.value = {title!r}")
    tab.value(f"{menu}.dispatchEvent(new Event('change'))")


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Return a report of 60 records, of whose labels one is far from all others."""
    root = FakeRun(ok=60, width=8).write(tmp_path_factory.mktemp("few") / "demo")
    ids = pq.read_table(root / "embeddings.parquet")["id"].to_pylist()
    values = [1e6, *range(59)]
    lines = [f"{id}\t{values[n]}\tkind {n % 2}" for n, id in enumerate(ids)]
    (root / "labels.tsv").write_text("\n".join(["id\tlength\tkind", *lines]))
    make(root, "--label-file", str(root / "labels.tsv"), "--label", "length")
    return root / "report.html"


@pytest.mark.parametrize("width", [1280, 400])
def test_the_saved_picture_has_a_caption_and_the_ramp(few, tab, width):
    tab.open(few, width=width)
    tab.wait(DRAWN)
    tab.value("Array.from(document.querySelectorAll('.map-places button')).at(-1).click()")
    coloured_by(tab, "length")
    lengths = sorted(pq.read_table(few.parent / "embeddings.parquet")["length"].to_pylist())
    saved = tab.value(SAVED)
    assert saved["name"] == "map.png"
    assert saved["texts"][0] == f"PCA, by length: {lengths[0]:,} to {lengths[-1]:,} residues"
    ends = [re.sub("[≤≥] ", "", text) for text in saved["texts"][1:]]
    assert ends == [f"{lengths[1]:,}", f"{lengths[-2]:,} residues"]
    legend = tab.value("document.querySelector('.map-legend').innerText")
    assert legend.split() == " ".join(saved["texts"][1:]).split()
    assert saved["colours"] > 100
    coloured_by(tab, "kind")
    saved = tab.value(SAVED)
    assert saved["texts"] == ["PCA, by kind", "kind 0", "kind 1"]


def test_one_outlier_leaves_the_colours_to_the_others(few, tab):
    tab.open(few)
    tab.wait(DRAWN)
    menu = tab.value("Array.from(document.querySelector('.map-colour').options, o => o.text)")
    assert menu[:2] == ["length (labels.tsv)", "length"]
    seen = tab.value("""(() => { const canvas = document.querySelector(".map-canvas");
        const copy = Object.assign(document.createElement("canvas"), {width: canvas.width,
            height: canvas.height}).getContext("2d", {willReadFrequently: true});
        copy.drawImage(canvas, 0, 0);
        const map = document.querySelector("[data-map]"), scale = devicePixelRatio || 1;
        return Array.from({length: 60}, (_, n) => map.pointAt(n)).map(([x, y]) => copy.getImageData(
            Math.round(x * scale), Math.round(y * scale), 1, 1).data.slice(0, 3).join()); })()""")
    assert len(set(seen)) > 15, "shades of the ramp"
    caption, *ends = tab.value(SAVED)["texts"]
    assert caption.endswith(", by length (labels.tsv): 0 to 1,000,000")
    assert ends == ["≤ 1", "≥ 58"]


def test_a_map_moves_grows_and_takes_a_box(page, tab):
    opened(tab, page)
    before = np.array(place_of(tab, 5))
    tab.value("document.querySelector('.map-in').click()")
    assert not np.allclose(place_of(tab, 5), before)
    tab.value("document.querySelector('.map-all').click()")
    assert np.allclose(place_of(tab, 5), before, atol=0.1)
    canvas = "document.querySelector('.map-canvas').getBoundingClientRect()"
    box = tab.value(f"JSON.parse(JSON.stringify({canvas}))")
    x, y = box["left"] + 10, box["top"] + 10

    def drag(dx, dy):
        moves = (("mousePressed", 0), ("mouseMoved", 0.5), ("mouseMoved", 1), ("mouseReleased", 1))
        for kind, part in moves:
            place = {"x": x + dx * part, "y": y + dy * part}
            tab.ask("Input.dispatchMouseEvent", type=kind, **place, button="left", clickCount=1)

    drag(40, 30)
    assert np.allclose(place_of(tab, 5), before + np.array([40, 30]), atol=1)
    tab.value("document.querySelector('.map-all').click()")
    tab.value("document.querySelector('.map-area').click()")
    drag(box["width"] - 20, box["height"] - 20)
    told = tab.wait("document.querySelector('.map-count').textContent")
    assert told == "10,000 records on the list"
    assert tab.console == []
