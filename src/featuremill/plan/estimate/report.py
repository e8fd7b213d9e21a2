"""From records, shards and speeds to hours, memory and disk by plain formulas: one model, which
`--json` dumps and whose lines people are shown."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from featuremill.base.space import nearest_folder
from featuremill.base.text import one_line, plain, wrapped
from featuremill.base.this_process import num_cores
from featuremill.base.words import counted, duration, human_bytes
from featuremill.config import Run
from featuremill.plan import speeds
from featuremill.plan.announce import large_outputs
from featuremill.plan.estimate import overheads
from featuremill.plan.estimate.work import Work
from featuremill.plan.needs import needs_of_run
from featuremill.plan.shard_cost import choose, work_of
from featuremill.plan.speeds import Asked, Speed
from featuremill.plan.speeds.assumed import Range
from featuremill.store.disk_space import expected_bytes
from featuremill.store.plan import Counts, Lengths, Settings
from featuremill.store.results import Results
from featuremill.workload import Device, EstimatesMemory, Weights, find_workload, plugin_errors
from featuremill.workload.recipe import precision_told
from featuremill.workload.weights import model_told

WIDTH = 96
MOST_WASTED = 0.1
"""Share of the slot hours that start-up and idling take, from which on it is worth a word."""


class Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class Row(Model):
    """What so many slots come to."""

    slots: int
    """GPUs, or jobs side by side on a CPU."""
    jobs: int
    threads: int
    """Of each job on a CPU; 0 on GPUs."""
    speed: Speed
    hours: Range
    """Of all of the run, from plan to report."""
    extract_hours: Range
    """From the first shard's start to the last one's end; `device_hours` are the same of all slots,
    and the shares are of those."""
    device_hours: Range
    startup_share: float
    idle_share: float
    shards_left: int
    best_cost: int | None
    """Of a shard, as `shards.cost: auto` would cut what is left; None where nothing is."""
    advice: str
    """Why it would, where it does or where much of the slots' time is wasted."""

    @property
    def is_ranged(self) -> bool:
        """Whether something is assumed: then the least and the most are said as well."""
        return self.speed.is_assumed or not self.speed.is_startup_measured


class Estimate(Model):
    version: int = 2
    run: str
    workload: str
    model: str | None
    dtype: str | None
    cost_unit: str
    source: str
    """Where records and shards are from."""
    is_planned: bool
    counts: Counts
    lengths: Lengths
    cost_left: int
    shards: int
    shards_left: int
    is_cut: bool
    """Whether shards are of one size whatever the devices; else each row has its own."""
    slot: str
    """What a slot is: a GPU, or a slot of this CPU."""
    rows: list[Row]
    around_seconds: dict[str, float]
    """What comes before and after the shards, one after the other."""
    has_weights: bool
    device_mb: int | None
    """Memory of a job on its GPUs, or in all on a CPU: measured on the fullest one, or reckoned for
    all together; None where nobody knows."""
    is_device_measured: bool
    gpus_a_job: int
    host_mb: int
    disk: dict[str, int]
    """Bytes that will be written, by what they are."""
    num_files: int
    free_bytes: int
    warnings: list[str]
    """What does not fit."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of the page: what it rests on, a line a number of devices, the rest."""
        about = ", ".join(filter(None, (self.model and _safe(self.model), self.dtype)))
        model = f" ({about})" if about else ""
        shards = f"{counted(self.shards_left, 'shard')} to compute, " if self.is_cut else ""
        yield from wrapped(
            f"{counted(self.counts.input, 'record')}, {self.counts.unique:,} distinct; "
            f"{shards}{self.cost_left:,} {self.cost_unit}; {self.workload}{model}",
            width=WIDTH,
        )
        yield from wrapped(_safe(self.source), "  ", "  ", width=WIDTH)
        if not self.shards_left:
            yield "Nothing is left to compute; the times are those of the merge and the report."
        # What is taken for granted: once where it is the same for every number of slots.
        for block in dict.fromkeys(tuple(self._speed(row)) for row in self.rows):
            yield from block
        yield from ["", *self._table(), ""]
        for note in [*self._notes(), *self.warnings, *(row.advice for row in self.rows)]:
            yield from wrapped(note, width=WIDTH)

    def _speed(self, row: Row) -> Iterator[str]:
        speed, rate, startup = row.speed, row.speed.cost_per_second, row.speed.startup_seconds
        threads = f", {counted(row.threads, 'thread')} a job" if row.threads else ""
        spread = _spread(
            rate, lambda each: f"{each:,.0f}", speed.is_assumed and rate.low < rate.high
        )
        known = "measured or given"
        if not speed.is_startup_measured:
            known = f"{startup.low:g} to {startup.high:g}, an assumption"
        for text, indent in (
            (f"{speed.device}{threads}: {spread} {self.cost_unit} a second a job", ""),
            (speed.source, "  "),
            (f"and {startup.middle:.1f} s to start and end a job ({known})", "  "),
        ):
            yield from wrapped(_safe(text), indent, indent, width=WIDTH)

    def _table(self) -> list[str]:
        last = "auto's shards.cost" if self.is_cut else "shards.cost"
        lines = [(f"{self.slot}s", "time", f"{self.slot} hours", "shards", last)]
        for row in self.rows:
            lines.append(
                (
                    f"{row.slots:,}",
                    _spread(row.hours, _time, row.is_ranged),
                    _spread(row.device_hours, _hours, row.is_ranged),
                    f"{row.shards_left:,}",
                    f"{row.best_cost:_}" if row.best_cost else "",
                )
            )
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return ["  ".join(map(str.rjust, line, widths)).rstrip() for line in lines]

    def _notes(self) -> Iterator[str]:
        """Yield what it takes besides the shards' time, a paragraph each."""
        weights = "" if self.has_weights else "; to fetch and convert the weights comes on top"
        around = ", ".join(f"{key} {duration(each)}" for key, each in self.around_seconds.items())
        yield f"In the time, besides the shards: {around} (at rates measured on 2 cores){weights}."
        parts = ["not known yet"] if self.slot == "slot" else []
        if self.device_mb:
            where = "of the GPU" if self.slot == "GPU" else "in all"
            if self.gpus_a_job > 1 and not self.is_device_measured:
                where = f"of its {self.gpus_a_job} GPUs"
            known = "measured" if self.is_device_measured else "the doctor's estimate"
            parts = [f"about {self.device_mb:,} MB {where} ({known})"]
        if self.slot == "GPU":
            parts.append(f"about {self.host_mb:,} MB of the host (reckoned)")
        yield f"Memory of a job: {', '.join(parts)}."
        needs = ", ".join(f"{what} {human_bytes(size)}" for what, size in self.disk.items() if size)
        yield (
            f"Disk: {human_bytes(sum(self.disk.values()))} ({needs}) in {self.num_files:,} files; "
            f"{human_bytes(self.free_bytes)} are free."
        )


def _spread(quantity: Range, words: Callable[[float], str], is_ranged: bool) -> str:
    spread = f" ({words(quantity.low)} to {words(quantity.high)})" if is_ranged else ""
    return f"{words(quantity.middle)}{spread}"


def _time(hours: float) -> str:
    return duration(3600 * hours)


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def _safe(text: str) -> str:
    """Return a stranger's text so that it can neither act on a terminal nor begin a line."""
    return plain(one_line(text))


@dataclass(frozen=True)
class Case:
    """A run, what is left of it, and the devices that it would be computed on."""

    config: Run
    folder: Results
    settings: Settings
    weights: Weights | None
    """None for a workload without; without a digest where they were not converted yet."""
    device: Device
    device_name: str
    """Of the GPU, as far as anybody said; "" for any. Of a CPU, its own."""
    work: Work

    def estimate(
        self, slots: Sequence[int], given: float | None = None, startup: float | None = None
    ) -> Estimate:
        """Return all of it for each of these numbers of `slots`.

        A `given` speed of a job, in cost a second, and its `startup` in seconds go before what is
        known of them.

        Raises:
            UserError: where nothing is known of the speed.
        """
        plan, config, is_gpu = self.work.plan, self.config, self.device.kind == "cuda"
        workload = find_workload(config.workload)
        # Not the settings', which lack the options that no recipe holds.
        resolved = plugin_errors.resolved(
            config.workload, workload, config.options, self.device, self.weights
        )
        values = workload.schema(resolved, self.weights)
        around = _around_seconds(self.work, values)
        cuts = [self._row(number, values, around, given, startup) for number in slots]
        work = cuts[0][1]  # what follows hardly depends on the number of slots
        device_mb, weights_mb = 0, 0.0
        if self.weights and isinstance(workload, EstimatesMemory):
            budget = workload.batch_cost(resolved, self.device)
            device_mb = workload.memory_mb(resolved, self.device, self.weights, budget)
            weights_mb = workload.weights_mb(self.weights)
        parts, _ = speeds.earlier_parts(self._asked(slots[0]), self.folder.root.parent)
        measured_mb = max((part.peak_memory_mb for part in parts), default=0)
        shard_mb = max((shard.bytes for shard in work.plan.shards), default=0) / 2**20
        disk, num_files = self._disk(work, values)
        free_bytes = shutil.disk_usage(nearest_folder(self.folder.root.absolute())).free
        gpus = config.gpus if is_gpu else 1
        warnings = large_outputs(plan.counts.planned, config.outputs)
        warnings += self._too_little(
            measured_mb or device_mb, 1 if measured_mb else gpus, sum(disk.values()), free_bytes
        )
        return Estimate(
            run=config.run,
            workload=config.workload,
            model=model_told(self.settings) or None,
            dtype=precision_told(self.settings) or None,
            cost_unit=plan.cost_unit,
            source=work.source,
            is_planned=work.is_planned,
            counts=plan.counts,
            lengths=plan.lengths,
            cost_left=self.work.cost,
            shards=len(work.plan.shards),
            shards_left=len(work.left),
            is_cut=work.is_cut,
            slot="GPU" if is_gpu else "slot",
            rows=[row for row, _ in cuts],
            around_seconds=around,
            has_weights=self.weights is None or bool(self.settings.weights_sha256),
            device_mb=measured_mb or device_mb or None,
            is_device_measured=bool(measured_mb),
            gpus_a_job=gpus,
            host_mb=round(overheads.host_mb(shard_mb, weights_mb, on_cpu=not is_gpu)),
            disk=disk,
            num_files=num_files,
            free_bytes=free_bytes,
            warnings=warnings,
        )

    def _too_little(
        self, needed_mb: int, num_gpus: int, num_bytes: int, free_bytes: int
    ) -> Iterator[str]:
        """Yield a sentence on memory, and on disk, where there is not enough."""
        has_mb = self.device.memory_mb
        if has_mb and needed_mb > num_gpus * has_mb:
            yield (
                f"This model does not fit {num_gpus} such GPU{'s' * (num_gpus > 1)} of {has_mb:,} "
                f"MB: set gpus: {math.ceil(needed_mb / has_mb)} or more, or take larger ones."
            )
        if num_bytes > free_bytes:
            yield (
                f"What will be written, {human_bytes(num_bytes)}, is more than the "
                f"{human_bytes(free_bytes)} that are free on the disk; plan will refuse it."
            )

    def _asked(self, slots: int) -> Asked:
        if self.device.kind == "cuda":
            return Asked(self.settings, self.device_name, True, self.config.gpus)
        threads = max(1, num_cores() // slots)
        return Asked(self.settings, self.device_name, is_gpu=False, threads=threads)

    def _row(
        self,
        slots: int,
        values: pa.Schema,
        around: dict[str, float],
        given: float | None,
        startup: float | None,
    ) -> tuple[Row, Work]:
        """Return what so many slots come to, and the work as it is cut for them."""
        work, plan, asked = self.work, self.work.plan, self._asked(slots)
        results = self.folder.root.parent
        speed = speeds.find(asked, results, self.weights, work.mean_cost, given=given)
        if startup is not None:
            speed = replace(speed, startup_seconds=Range.of(startup), is_startup_measured=True)
        jobs, best, advice = slots // asked.num_devices, None, ""
        if work.cost:
            num_records = max(1, round(work.cost / max(1.0, work.mean_cost)))
            size = round(plan.lengths.total * num_records / max(1, plan.counts.planned))
            whole = work_of(work.cost, num_records, size, values, plan.cost_unit)
            best = choose(whole, speed, jobs)
            if not work.is_cut:
                work = work.in_shards(best.num_shards)
        rate, starting = speed.cost_per_second, speed.startup_seconds
        seconds = Range(
            seconds_of_shards(work, jobs, rate.high, starting.low),
            seconds_of_shards(work, jobs, rate.middle, starting.middle),
            seconds_of_shards(work, jobs, rate.low, starting.high),
        )
        slot_seconds = max(seconds.middle * jobs, 1e-9)
        starting_share = starting.middle * len(work.left) / slot_seconds
        busy_share = starting_share + self.work.cost / rate.middle / slot_seconds
        idle_share = max(0.0, 1 - busy_share) if work.left else 0.0
        is_wasteful = max(starting_share, idle_share) > MOST_WASTED
        if best and (not work.is_cut or (is_wasteful and best.num_shards != len(work.left))):
            advice = (
                f"With {slots:,}, `shards: {{cost: auto}}` cuts "
                f"{counted(best.num_shards, 'shard')} of {best.cost:_} {plan.cost_unit}: "
                f"{best.why}."
            )
        row = Row(
            slots=slots,
            jobs=jobs,
            threads=asked.threads,
            speed=speed,
            hours=seconds.map(lambda each: (each + sum(around.values())) / 3600),
            extract_hours=seconds.map(lambda each: each / 3600),
            device_hours=seconds.map(lambda each: each * slots / 3600),
            startup_share=starting_share,
            idle_share=idle_share,
            shards_left=len(work.left),
            best_cost=best.cost if best else None,
            advice=advice,
        )
        return row, work

    def _disk(self, work: Work, values: pa.Schema) -> tuple[dict[str, int], int]:
        """Return the bytes that will be written, by what they are, and in how many files."""
        counts, residues = work.plan.counts, work.plan.lengths.total
        needs = needs_of_run(self.folder, work.plan, values, self.config.outputs)
        disk = {need.what: need.num_bytes for need in needs}
        if not work.is_planned:
            disk["store/shards"] = residues + overheads.PLAN_BYTES_A_RECORD * counts.unique
            disk["records.parquet"] = overheads.ROW_BYTES_A_RECORD * counts.input
            disk["temporary files while planning"] = overheads.SPOOL_BYTES_A_RECORD * counts.input
        num_files = sum(need.num_files for need in needs)
        return disk, num_files + overheads.FILES_A_SHARD * len(work.left)


def _around_seconds(work: Work, values: pa.Schema) -> dict[str, float]:
    """Return what comes before and after the shards, one after the other."""
    counts, residues = work.plan.counts, work.plan.lengths.total
    start, a_record = overheads.PLAN_SECONDS
    merge, merge_a_record, merge_a_byte = overheads.MERGE_SECONDS
    merge += merge_a_record * counts.input
    return {
        "plan": 0.0 if work.is_planned else start + a_record * counts.input,
        "merge": merge + merge_a_byte * expected_bytes(values, counts.planned, residues),
        "report": overheads.REPORT_SECONDS,
        "Snakemake": overheads.SNAKEMAKE_SECONDS,
    }


def seconds_of_shards(work: Work, jobs: int, rate: float, startup: float) -> float:
    """Return the seconds until the shards that are left are done on so many `jobs` side by side.

    Rounds of shards as large as they are on average, each of which starts up and is computed at
    `rate`, in cost a second; the largest shard alone at least.
    """
    if not work.left:
        return 0.0
    mean, longest = work.cost / len(work.left), max(shard.cost for shard in work.left)
    rounds = math.ceil(len(work.left) / jobs)
    return max(rounds * (startup + mean / rate), startup + longest / rate)


class Sum(Model):
    """What all runs come to on so many slots, one run after the other: they share the devices."""

    slots: int
    hours: Range
    device_hours: Range


class WholeEstimate(Model):
    version: int = 1
    run: str
    runs: list[Estimate]
    sums: list[Sum]
    """A number of slots each; none where one run computes on GPUs and the other does not."""
    besides: str = Field(default="", exclude=True)
    """What is not estimated."""

    @classmethod
    def of(cls, name: str, runs: Sequence[Estimate], besides: str = "") -> WholeEstimate:
        sums = [
            Sum(
                slots=rows[0].slots,
                hours=Range.sum(row.hours for row in rows),
                device_hours=Range.sum(row.device_hours for row in rows),
            )
            for rows in zip(*(run.rows for run in runs), strict=False)
            if len({run.slot for run in runs}) == len({row.slots for row in rows}) == 1
        ]
        return cls(run=name, runs=list(runs), sums=sums, besides=besides)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the page: each run's, then the sums."""
        for run in self.runs:
            yield from (f"{run.run}:", *(f"  {line}".rstrip() for line in run.lines()), "")
        slot = self.runs[0].slot
        for each in self.sums:
            hours, is_ranged = each.hours, _time(each.hours.low) != _time(each.hours.high)
            yield (
                f"In all, with {each.slots:,} {slot}{'s' * (each.slots != 1)}: "
                f"{_spread(hours, _time, is_ranged)}, {slot} hours {each.device_hours.middle:.3g}."
            )
        yield f"Disk in all: {human_bytes(sum(sum(run.disk.values()) for run in self.runs))}."
        if self.besides:
            yield self.besides
