"""Tests for all workloads and steps: subclass `WorkloadContract` or `StepContract` in your
package's tests, and run pytest.

    class TestMine(WorkloadContract):
        workload = "mine"
        inputs = ("tests/few.csv",)
        options = {"vocabulary": "tests/words.json"}

The commands of a run are started in processes of their own, with pytest's Python. The test of a
step has a whole config:

    class TestMine(StepContract):
        step = "mine"
        config = {"inputs": "tests/few.fa", "workload": "composition", "mine": {"of": "letters"}}
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from featuremill.api import compute
from featuremill.base.arrays import not_finite
from featuremill.base.devices import cpu, with_processors
from featuremill.base.errors import UserError
from featuremill.config import project, yaml_lines
from featuremill.flow import internals
from featuremill.step import finding
from featuremill.store import failed
from featuremill.store.formats import kind_of
from featuremill.store.journal import Journal, part_schema
from featuremill.store.journal_log import read_log
from featuremill.store.plan import Plan
from featuremill.store.results import Results
from featuremill.workload import Record, Weights, find_workload, option_files, weights
from featuremill.workload.compute import values_in_batches

HEAVY = ("torch", "pandas", "transformers", "tensorflow", "jax", "scipy", "sklearn")
MANY_SHARDS = 3
TRIES = 5
"""Attempts to kill a shard; a fast workload may finish first."""
MOST_MERGE_MB = 1_200
PATIENCE_SECONDS = 300.0
MEASURED = """
import sys
from featuremill.__main__ import main
from featuremill.base.this_process import peak_of_process_mb
status = main(sys.argv[1:])
print(peak_of_process_mb())
sys.exit(status)
"""
"""Runs a command and prints the peak memory of its process in MB. For a child process, the system
reports the larger peak of child and parent."""


def _ignore(*_: object) -> None:
    """Ignore records that cannot be computed: both sides of the comparison lack them."""


class Finished(NamedTuple):
    """A merged run."""

    folder: Results
    plan: Plan
    table: pa.Table
    merge_peak_mb: int


def _heavy_after(code: str) -> list[str]:
    """Return the packages of HEAVY that a new Python process has imported after `code`."""
    code = f"import json, sys; {code}; print(json.dumps(sorted(set({HEAVY!r}) & set(sys.modules))))"
    process = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    return list(json.loads(process.stdout))


def _left_out(run: Finished) -> dict[str, str]:
    return {record.id: record.reason for record in failed.read(run.folder.root / "failed.tsv")}


class WorkloadContract:
    """The tests of a workload with some options and inputs."""

    workload: str
    """The name of the workload in a config."""
    inputs: Sequence[str | Path]
    """Files with at least twelve records that can be computed, relative to pytest's folder."""
    options: Mapping[str, Any] = {}
    poison: str | Path | None = None
    """A file with one record that the workload cannot compute, or None."""
    tolerance: float = 0.0
    """The largest difference between batches, relative to the largest value; 0 for equal bits."""

    # ---- declarations ----

    def test_importing_it_costs_nothing(self) -> None:
        code = (
            "from featuremill.workload import find_workload; "
            f"find_workload({self.workload!r}).Options.model_json_schema()"
        )
        assert _heavy_after(code) == [], "imports belong in load"

    def test_its_options_are_described_and_survive_json(self) -> None:
        options = self._module.Options
        assert options.model_fields.keys() - options.descriptions() == set()
        values = json.loads(json.dumps(self._options.model_dump(mode="json")))
        assert self._module.Options.model_validate(values) == self._options

    def test_values_have_the_declared_kinds(self) -> None:
        types = [field.type for field in self._schema]
        assert not any(map(pa.types.is_null, types)), "a column of type null holds no value"
        assert {*map(kind_of, types)} == self._options.delivers()

    def test_records_have_costs_and_are_the_same_when_read_twice(self) -> None:
        records = self._records
        assert records == list(self._module.records(self._paths, self._options))
        good = [record for record in records if not record.reason]
        assert len({record.payload for record in good}) >= 12, "give at least twelve records"
        costs = [self._module.cost(record.payload, self._options) for record in good]
        assert min(costs) >= 1 and all(isinstance(cost, int) for cost in costs)

    # ---- runs ----

    def test_each_record_has_its_id_and_values_or_a_reason(self, tmp_path_factory: Any) -> None:
        run = self._finished(tmp_path_factory)
        left_out = _left_out(run)
        assert all(left_out.values()), "a record that has no values has a reason"
        first = dict.fromkeys(record.id for record in self._records)  # without duplicates
        assert run.table["id"].to_pylist() == [id for id in first if id not in left_out]
        assert run.table.num_rows > 0, "all failed"
        for rows in run.table.select(self._schema.names).to_batches():
            assert not not_finite(rows).any(), "a value is missing or not finite"

    def test_a_failed_record_does_not_affect_others(self, tmp_path_factory: Any) -> None:
        """Runs only if `poison` is set."""
        if self.poison is None:
            return
        path = Path(self.poison).absolute()
        (record,) = self._module.records([path], self._options)
        folder = tmp_path_factory.mktemp("poisoned")
        run = self._merged(*self._planned(folder, more_inputs=[path]))
        assert record.id in _left_out(run)
        self._compare(self._finished(tmp_path_factory).table, run.table)

    def test_values_do_not_depend_on_the_shards(self, tmp_path_factory: Any) -> None:
        single = self._finished(tmp_path_factory)
        many = self._finished(tmp_path_factory, MANY_SHARDS)
        assert len(single.plan.shards) == 1 < len(many.plan.shards)
        self._compare(single.table, many.table)

    def test_values_do_not_depend_on_the_batch(self) -> None:
        payloads = list(dict.fromkeys(r.payload for r in self._records if not r.reason))
        device = with_processors([cpu()])
        model = self._module.load(self._resolved, device, self._weights)

        def values(budget: int) -> pa.Table:
            row_of: dict[int, pa.RecordBatch] = {}
            batches = values_in_batches(
                self._module, model, self._resolved, payloads, budget, _ignore, _ignore
            )
            for indices, rows in batches:
                for row, equal in enumerate(indices):
                    row_of |= dict.fromkeys(equal, rows.slice(row, 1))
            return pa.Table.from_batches([row_of[index] for index in sorted(row_of)])

        usual = self._module.batch_cost(self._resolved, device[0])
        self._compare(values(usual), values(1))

    def test_compute_returns_the_table_of_a_run(self, tmp_path_factory: Any) -> None:
        run = self._finished(tmp_path_factory)
        with warnings.catch_warnings():  # about truncated and failed records
            warnings.simplefilter("ignore", UserWarning)
            frame = compute(
                self._paths,
                self.workload,
                self._options.model_dump(mode="json"),
                device="cpu",
                max_failed=len(self._records),
            )
        rows = frame.reset_index().to_dict("records")
        self._compare(run.table, pa.Table.from_pylist(rows, run.table.schema))
        assert [row["id"] for row in frame.attrs["failed"]] == list(_left_out(run))

    def test_a_killed_shard_resumes(self, tmp_path_factory: Any) -> None:
        for _ in range(TRIES):
            folder, plan = self._planned(tmp_path_factory.mktemp("killed"))
            num_left = self._killed(folder, plan)
            self._compare(self._finished(tmp_path_factory).table, self._merged(folder, plan).table)
            if 0 < num_left < plan.shards[0].records:
                return
        raise AssertionError(f"it was never killed in mid-shard, in {TRIES} tries")

    def _killed(self, folder: Results, plan: Plan) -> int:
        """Start the only shard and kill its process; return the number of records left."""
        (entry,) = plan.shards
        path = folder.journal(plan.recipe, entry.shard)
        path.parent.mkdir(parents=True)
        # A resumed journal keeps its batch budget: with 1, each batch has one record.
        Journal(path, part_schema(self._schema), 1).close()
        command = self._command("extract", folder.root, entry.shard)
        process = subprocess.Popen(command, start_new_session=True)
        log = path.with_suffix(".log")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while process.poll() is None and not (log.exists() and b"commit" in log.read_bytes()):
            assert time.monotonic() < deadline, "no batch was ever committed"
            time.sleep(0.001)
        if process.poll() is not None:
            return 0
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        state = read_log(log)
        return entry.records - (len(state.commits) if state else 0)

    def test_merge_needs_little_memory(self, tmp_path_factory: Any) -> None:
        assert self._finished(tmp_path_factory).merge_peak_mb < MOST_MERGE_MB

    # ---- helpers ----

    @cached_property
    def _module(self) -> Any:
        return find_workload(self.workload)

    @cached_property
    def _paths(self) -> list[Path]:
        return [Path(path).absolute() for path in self.inputs]

    @cached_property
    def _options(self) -> Any:
        kinds = option_files.kinds_of(self._module.Options)
        options = {
            name: str(Path(value).absolute()) if name in kinds and value else value
            for name, value in self.options.items()
        }
        return self._module.Options.model_validate(options)

    @cached_property
    def _records(self) -> list[Record]:
        return list(self._module.records(self._paths, self._options))

    @cached_property
    def _weights(self) -> Weights | None:
        model = self._module.weights(self._options)
        if model is None:
            return None
        return weights.weights_of(weights.convert(model, workload=self.workload))

    @cached_property
    def _resolved(self) -> Any:
        return self._module.resolve(self._options, cpu(), self._weights)

    @cached_property
    def _schema(self) -> pa.Schema:
        return self._module.schema(self._resolved, self._weights)

    def _command(self, *words: str | Path, by: Sequence[str] = ("-m", "featuremill")) -> list[str]:
        return [sys.executable, *by, *map(str, words), "--quiet"]

    def _run_measured(self, *words: str | Path) -> int:
        command = self._command(*words, by=("-c", MEASURED))
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0, f"featuremill {words[0]} ended with {done.returncode}"
        return int(done.stdout.split()[-1])

    def _planned(
        self, parent: Path, num_shards: int = 1, more_inputs: Sequence[Path] = ()
    ) -> tuple[Results, Plan]:
        folder = Results(parent / "results" / "contract")
        cost = sum(self._module.cost(r.payload, self._options) for r in self._records)
        config = {
            "run": "contract",
            "inputs": list(map(str, [*self._paths, *more_inputs])),
            "workload": self.workload,
            "options": self._options.model_dump(mode="json"),
            "device": "cpu",
            "outputs": "parquet",
            "shards": {"cost": max(1, cost // num_shards + 1)},
        }
        more: list[str | Path] = []
        if (model := self._module.weights(self._options)) is not None:
            weights_path = parent / "weights.json"
            weights.convert(model, workload=self.workload).write(weights_path)
            more = ["--weights", weights_path]
        config_path = parent / "config.yaml"
        config_path.write_text(yaml.safe_dump(config))
        self._run_measured("plan", folder.root, "--config", config_path, *more)
        return folder, folder.read_plan()

    def _merged(self, folder: Results, plan: Plan) -> Finished:
        for entry in plan.shards:
            self._run_measured("extract", folder.root, entry.shard)
        most = str(plan.counts.input)
        peak = self._run_measured(
            "merge", folder.root, "--outputs", "parquet", "--max-failed", most
        )
        return Finished(folder, plan, pq.read_table(folder.root / "embeddings.parquet"), peak)

    def _finished(self, tmp_path_factory: Any, num_shards: int = 1) -> Finished:
        """Return a merged run, which all tests of this class share."""
        cache: dict[int, Finished] = type(self).__dict__.get("_runs") or {}
        type(self)._runs = cache  # type: ignore[attr-defined]
        if num_shards not in cache:
            parent = tmp_path_factory.mktemp(f"shards{num_shards}")
            cache[num_shards] = self._merged(*self._planned(parent, num_shards))
        return cache[num_shards]

    def _compare(self, expected: pa.Table, actual: pa.Table) -> None:
        assert expected.schema.equals(actual.schema) and expected.num_rows == actual.num_rows
        for name in expected.column_names:
            first, second = expected[name].combine_chunks(), actual[name].combine_chunks()
            if self.tolerance == 0 or kind_of(first.type) == "table":
                assert repr(first.to_pylist()) == repr(second.to_pylist()), f"{name} differs"
                continue
            while pa.types.is_nested(first.type):  # lists: structs only occur in tables
                first, second = first.flatten(), second.flatten()
            a, b = (each.to_numpy(zero_copy_only=False) for each in (first, second))
            assert a.shape == b.shape, f"{name} differs in length"
            largest = np.abs(a).max(initial=0)
            assert np.abs(a - b).max(initial=0) <= self.tolerance * largest, f"{name} differs"


class StepContract:
    """The tests of a step with a config."""

    step: str
    """The step's key in a config."""
    config: Mapping[str, Any]
    """A config with the step that runs in seconds; `inputs` is relative to pytest's folder."""
    files: Mapping[str, str] = {}
    """Texts of other files that the config names, such as a table of labels, by relative path."""

    def test_importing_it_costs_nothing(self) -> None:
        code = (
            "from featuremill.step import finding; "
            f"finding.sections([{self.step!r}]); finding.step_of({self.step!r}).COMMANDS"
        )
        assert _heavy_after(code) == []

    def test_every_key_is_described(self) -> None:
        schema = finding.sections([self.step]).model_json_schema()
        assert schema["properties"][self.step]["description"]
        for name, section in schema["$defs"].items():
            fields = section.get("properties", {})
            lacking = [key for key, field in fields.items() if not field.get("description")]
            assert lacking == [], name

    def test_a_key_that_it_does_not_have_is_refused_with_its_line(self) -> None:
        section = self.config[self.step]
        is_named = all(isinstance(value, Mapping) for value in section.values())
        first, inside = next(iter(section.items())) if is_named else ("", section)
        wrong = {**inside, "nonesuch": 1}
        raw = {**self.config, self.step: {**section, first: wrong} if is_named else wrong}
        text = yaml.safe_dump(raw)
        line = 1 + text[: text.index("nonesuch")].count("\n")
        message = ""
        try:
            loaded, places = yaml_lines.load("my.yaml", text)
            project.validate(loaded, "my.yaml", places)
        except UserError as error:
            message = str(error)
        assert message.startswith(f"my.yaml:{line}: {self.step}.")

    def test_names_in_its_rules_begin_with_its_key(self) -> None:
        names = internals.names_in(finding.step_of(self.step).RULES)
        others = [
            name for name in names if name != self.step and not name.startswith(f"{self.step}_")
        ]
        assert others == [], f"all rule files share their names; let these begin with {self.step}_"

    def test_products_are_distinct_files_of_the_project(self) -> None:
        config = project.validate(self._absolute_config)
        products, project_ = config.products, config.for_steps
        assert products and all(each.label.partition(".")[0] == self.step for each in products)
        files = [file for each in products for file in each.files]
        assert len(set(files)) == len(files) and all(each.files for each in products)
        assert all(file.startswith(f"{project_.folder}/") for file in files)
        logs = [log for each in products for log in each.logs]
        assert logs and all(log.startswith(f"{project_.logs}/{self.step}/") for log in logs)
        removable = [path for each in products for path in each.removable]
        assert all(path.startswith(f"{project_.folder}/") for path in removable)
        assert [each.progress() for each in products] == [""] * len(products), "nothing has started"

    def test_products_are_made_once_shown_by_status_and_removed(self, tmp_path: Path) -> None:
        (tmp_path / "my.yaml").write_text(yaml.safe_dump(self._absolute_config))
        for name, text in self.files.items():
            (tmp_path / name).write_text(text)
        config = project.validate(self._absolute_config)

        command = partial(self._run, tmp_path)
        command("run", "my.yaml", "--cores", "2")
        for product in config.products:
            for file in (*product.files, *product.logs):
                assert (tmp_path / file).exists(), f"{product.label}: {file}"
        printed = command("status", "my.yaml")
        assert all(f"{product.label} " in printed for product in config.products)
        assert "Nothing to be done" in command("run", "my.yaml", "--cores", "2")
        last = tmp_path / config.products[-1].files[-1]
        if last.is_file():
            last.unlink()
            command("status", "my.yaml", status=1)
            command("run", "my.yaml", "--cores", "2")
            assert last.exists()
        command("clean", "my.yaml", "--keep", "nothing", "--yes")
        left = [path for product in config.products for path in (*product.removable, *product.logs)]
        assert not any((tmp_path / path).exists() for path in left)

    def _run(self, folder: Path, *words: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "featuremill", *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    @property
    def _absolute_config(self) -> dict[str, Any]:
        paths = self.config["inputs"]
        inputs = [paths] if isinstance(paths, str | Path) else paths
        return {**self.config, "inputs": [str(Path(path).absolute()) for path in inputs]}
