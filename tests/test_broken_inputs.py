"""`featuremill plan` on every kind of broken input: the documented outcome, and never a
traceback."""

import contextlib
import json
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from broken_inputs import BROKEN, as_ordinary_user

from featuremill.__main__ import main


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_plan_ends_as_documented(case, tmp_path, capsys, request):
    if case.unprivileged:  # pytest's own folders are closed to other users
        place = tempfile.TemporaryDirectory()
        request.addfinalizer(place.cleanup)
        tmp_path = Path(place.name)
    path = case.make(tmp_path)
    outcome = case.plan or case.outcome
    fragment = case.plan_fragment or case.fragment
    config = {"inputs": [str(path)], "workload": "composition", "device": "cpu"}
    folder = tmp_path / "run"
    folder.mkdir()
    if case.unprivileged:
        tmp_path.chmod(0o755)
        folder.chmod(0o777)
    with as_ordinary_user() if case.unprivileged else contextlib.nullcontext():
        status = main(["plan", str(folder), "--config-json", json.dumps(config)])
    said = capsys.readouterr().err
    if outcome == "error":
        assert status == 2
        (sentence,) = [line for line in said.splitlines() if "error:" in line]
        assert fragment in sentence
        assert not (folder / "plan.json").exists()
        return
    assert status == 0, said
    plan = json.loads((folder / "plan.json").read_text())
    counts = plan["counts"]
    assert counts["planned"] >= 1
    assert counts["input"] == counts["planned"] + counts["refused"] + counts["duplicate"]
    rows = pq.read_table(folder / "manifest.parquet").to_pylist()
    told = [row["reason" if outcome == "refused" else "note"] or "" for row in rows]
    if outcome in ("refused", "note"):
        assert any(fragment in text for text in told)
        assert "record" in said and "warning" in said
    else:
        assert counts["refused"] == 0
