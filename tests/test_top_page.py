"""top --html: the page has what the telemetry has, and takes the place of no other file."""

import json
import re

import pytest
from browser import browser, needs_chromium
from running_runs import A, B, C, RunningRun

from featuremill.base.errors import UserError
from featuremill.config.project import runs_of
from featuremill.status import page
from featuremill.status.project import ProjectReader

CURVES = "[...document.querySelectorAll('path')].map(each => each.getAttribute('d')).join()"
LENGTHS = "[...document.querySelectorAll('path')].map(each => each.getTotalLength())"
CHOSEN = "document.querySelector('select').selectedOptions[0].text"
CHOOSE = """(() => { const choice = document.querySelector('select'); choice.value = 2;
    choice.dispatchEvent(new Event('change')); })()"""


@pytest.fixture
def run(tmp_path):
    return RunningRun(tmp_path, 8)


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(page, "EVERY_SECONDS", 0.0)


def looked(run):
    return ProjectReader(runs_of(run.folder.root)).poll()


def content(path):
    """Return what is in the page, by the page's own data."""
    text = path.read_text("utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(data)


def gauges(device, use, memory_mb, celsius):
    values = {"utilisation": use, "memory_mb": memory_mb, "temperature_c": celsius}
    return {"devices": [{"uuid": device["uuid"], **values}]}


def test_a_curve_for_each_gpu_and_of_all(run, tmp_path, at_once):
    moment = 1_800_000_000
    jobs = [run.start(number, gpu, clock=moment) for number, gpu in enumerate((A, B))]
    told = {A["uuid"]: [(10, 1024, 40), (90, 2048, 60)], B["uuid"]: [(30, 4096, 50), (50, 512, 70)]}
    for step in (0, 1):
        for job in jobs:
            values = told[job.device["uuid"]][step]
            job.sample(100 * step, seconds=1.0, **gauges(job.device, *values))
    path = tmp_path / "page.html"
    kept = page.Page(path)
    kept.show(looked(run))
    found = content(path)
    assert found["refresh"] == 0 and found["title"].endswith("results/test")
    assert "of the work" in found["lead"]
    every, first, second = found["devices"]
    assert [device["name"] for device in (first, second)] == ["GPU (a000) L4", "GPU (b000) L4"]
    times = [moment, moment + 1, moment + 2]
    assert first["points"][1:] == [[times[1], 10, 1.0, 40], [times[2], 90, 2.0, 60]]
    assert second["points"][1:] == [[times[1], 30, 4.0, 50], [times[2], 50, 0.5, 70]]
    assert every["points"][1:] == [[times[1], 20, 5.0, 50], [times[2], 70, 2.5, 70]]
    assert (every["most"], first["most"]) == ([100, 46.9, None], [100, 23.4, None]), "GB"
    jobs[0].sample(300, seconds=1.0, **gauges(A, 80, 1024, 55))
    kept.show(looked(run), is_last=True)
    assert content(path)["devices"][1]["points"][-1] == [moment + 3, 80, 1.0, 55]
    assert content(path)["refresh"] is None, "nothing follows"


def test_a_long_run_has_no_more_points_but_longer_ones(run, tmp_path):
    job = run.start(0, A, clock=1_800_000_000)
    for step in range(1200):
        job.sample(step // 2, seconds=1.0, **gauges(A, step % 2 * 100, step, 40))
    curves = page.Curves()
    curves.read([job.path])
    found = curves.as_json()
    (gpu,) = found["devices"]
    assert found["every"] == 4 and 290 < len(gpu["points"]) <= 305
    assert {point[1] for point in gpu["points"][1:-1]} == {50}, "the mean"
    assert gpu["points"][-1][2] == round(1199 / 1024, 1), "the highest"
    again = page.Curves()
    for _ in range(3):
        again.read([job.path])
    assert again.as_json() == found, "what was read is not counted again"


def test_texts_of_others_end_no_script(run, tmp_path, at_once):
    hostile = {**A, "name": "</script><script>alert(1)</script>"}
    run.start(0, hostile).sample(100)
    path = tmp_path / "page.html"
    page.Page(path).show(looked(run))
    assert path.read_text().count("<script") == 2
    assert "</script>" in content(path)["devices"][0]["name"]


def test_no_other_file_is_replaced(run, tmp_path, at_once):
    other = tmp_path / "notes.html"
    other.write_text("<p>mine</p>")
    for path in (other, tmp_path):
        with pytest.raises(UserError, match="this is not a page of featuremill top; name another"):
            page.Page(path)
    assert other.read_text() == "<p>mine</p>"
    path = tmp_path / "page.html"
    kept = page.Page(path)
    kept.show(looked(run))
    path.write_text(f"{path.read_text()}<p>a remark</p>")
    with pytest.raises(UserError, match="it was changed meanwhile"):
        kept.show(looked(run))
    assert path.read_text().endswith("<p>a remark</p>")
    page.Page(path).show(looked(run))  # of an earlier top


def test_top_keeps_the_page(run, verbs):
    run.start(0, A).sample(100)
    verbs.type("featuremill", "top", "results/test", "--once", "--html", "top.html", status=1)
    (gpu,) = content(verbs.folder / "top.html")["devices"]
    assert gpu["points"][-1][1:] == [91, 20.0, 64]


@pytest.mark.slow
@needs_chromium
def test_a_browser_draws_it_and_keeps_the_choice(run, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "EVERY_SECONDS", 1.0)
    for number, gpu in enumerate((A, B, C)):
        job = run.start(number, gpu)
        for step in range(20):
            job.sample(step * 10, **gauges(gpu, 30 * number + step, 2048 * (number + 1), 40 + step))
    path = tmp_path / "page.html"
    kept = page.Page(path)
    kept.show(looked(run))
    with browser(tmp_path / "chromium") as tab:
        tab.open(path)
        assert tab.value("document.querySelectorAll('option').length") == 4
        assert len(tab.value(LENGTHS)) == 3 and min(tab.value(LENGTHS)) > 900, "of 1,000"
        of_all = tab.value(CURVES)
        tab.value(CHOOSE)
        of_one = tab.value(CURVES)
        assert of_one != of_all and "GPU (b000)" in tab.value(CHOSEN)
        tab.value("window.isOld = true")
        job.sample(300, **gauges(C, 99, 9999, 80))
        kept.show(looked(run), is_last=True)
        tab.wait("!window.isOld && document.readyState === 'complete'")
        assert "GPU (b000)" in tab.value(CHOSEN), "it reads itself anew, and shows the same"
        assert tab.value(CURVES) not in (of_all, of_one)
        tab.open(path, width=390, dark=True)
        assert tab.value("document.documentElement.scrollWidth") <= 390
        assert not tab.requests and not tab.console, tab.console
