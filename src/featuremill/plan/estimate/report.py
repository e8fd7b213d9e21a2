"""From records, shards and speeds to hours, memory and disk by plain formulas: one model, which
`--json` prints, and whose lines are the page."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from featuremill.base.text import one_line, plain, wrapped
from featuremill.base.this_process import nearest_folder, num_cores
from featuremill.base.words import counted, duration, human_bytes, listed
from featuremill.config import Run
from featuremill.plan import needs, speeds
from featuremill.plan.announce import large_outputs
from featuremill.plan.estimate.work import Work
from featuremill.plan.shard_cost import choose, work_of
from featuremill.plan.speeds import JobSpec, Speed, cards_called
from featuremill.store.disk_space import expected_bytes
from featuremill.store.plan import Counts, Lengths, Settings
from featuremill.store.results import Results
from featuremill.store.row_order import MOST_JOBS, num_jobs_of, will_be_by_shard
from featuremill.workload import (
    Device,
    EstimatesMemory,
    Weights,
    optional,
    plugin_errors,
)
from featuremill.workload.recipe import precision_name_of
from featuremill.workload.weights import model_name_of

WIDTH = 96
MOST_WASTED = 0.1
"""Share of the slot hours that start-up and idling take, from which on it is worth a word."""


KNOWN = {
    "given": "At the speed that was given.",
    "earlier run": "Measured in an earlier run.",
    "assumption": "Assumed, not measured.",
}


class Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class Row(Model):
    """The estimate for one number of slots."""

    slots: int
    """Number of GPUs, or of jobs side by side on a CPU."""
    jobs: int
    threads: int
    """Threads of each job on a CPU; 0 on GPUs."""
    speed: Speed
    hours: float
    """Hours of the run, from plan to report."""
    extract_hours: float
    """Hours from the start of the first shard to the end of the last."""
    device_hours: float
    """`extract_hours` of all slots together; the shares are of these."""
    startup_share: float
    idle_share: float
    shards_left: int
    best_cost: int | None
    """Cost of a shard as `shards.cost: auto` would cut the rest; None without a rest."""
    advice: str
    """Reason for that cost; empty where it saves little."""

    def speed_lines(self, unit: str) -> Iterator[str]:
        speed = self.speed
        threads = f", {counted(self.threads, 'thread')} a job" if self.threads else ""
        rate = _spread(speed.cost_per_second, speed.uncertainty, lambda each: f"{each:,.0f}")
        known = "measured or given" if speed.is_startup_measured else "an assumption"
        yield from _wrapped(f"{_safe(speed.device)}{threads}: {rate} {unit} a second a job")
        yield from _wrapped(_safe(speed.source), "  ")
        yield from _wrapped(
            f"and {speed.startup_seconds:.1f} s to start and end a job ({known})", "  "
        )

    def time(self) -> str:
        """Return the time of the whole run in words."""
        return _spread(self.hours, self.speed.uncertainty, _time)


class Estimate(Model):
    version: int = 4
    run: str
    workload: str
    model: str | None
    dtype: str | None
    cost_unit: str
    source: str
    """Source of records and shards, in words."""
    is_planned: bool
    counts: Counts
    lengths: Lengths
    cost_left: int
    shards: int
    shards_left: int
    is_cut: bool
    """Whether all rows have the same shards."""
    slot: str
    """"GPU", or "slot" of this CPU."""
    rows: list[Row]
    around_seconds: dict[str, float]
    """Seconds before and after the shards, by command."""
    device_mb: int | None
    """Memory of a job on its GPUs, or in all on a CPU: measured or calculated; None if unknown."""
    host_mb: int
    disk: dict[str, int]
    """Bytes that will be written, by file."""
    num_files: int
    free_bytes: int
    notes: list[str]
    """Time around the shards, memory, disk, and what does not fit, in words."""

    def answer(self, device: str | None) -> Iterator[str]:
        """Yield the answer in a sentence; `device` is the GPU as it was typed."""
        speed = self.rows[0].speed
        about = f"{counted(self.counts.input, 'record')} with {_safe(self.model or self.workload)}"
        times = [f"{counted(row.slots, self.slot)}: about {row.time()}" for row in self.rows]
        text = f"{about} on {_safe(speed.device)}, {'; '.join(times)}. {KNOWN[speed.kind]}"
        if not self.shards_left:
            time = f"about {self.rows[0].time()}"
            text = f"Nothing is left to compute of {about}; what comes after takes {time}."
        yield from _wrapped(text)
        if device and len(cards := cards_called(device)) > 1:
            others = listed(card.name for card in cards if card.name != speed.device)
            yield from _wrapped(f"{_safe(device)} may also be {others}: then name that one.")
        yield ""

    def lines(self) -> Iterator[str]:
        """Yield the lines of the page."""
        about = ", ".join(filter(None, (self.model and _safe(self.model), self.dtype)))
        model = f" ({about})" if about else ""
        shards = f"{counted(self.shards_left, 'shard')} to compute, " if self.is_cut else ""
        yield from _wrapped(
            f"{counted(self.counts.input, 'record')}, {self.counts.unique:,} distinct; "
            f"{shards}{self.cost_left:,} {self.cost_unit}; {self.workload}{model}"
        )
        yield from _wrapped(_safe(self.source), "  ")
        if not self.shards_left:
            yield "Nothing is left to compute; the times are those of the merge and the report."
        for block in dict.fromkeys(tuple(row.speed_lines(self.cost_unit)) for row in self.rows):
            yield from block
        table = [(f"{self.slot}s", "time", f"{self.slot} hours", "shards")]
        for row in self.rows:
            device_hours = _spread(row.device_hours, row.speed.uncertainty, _hours)
            table.append((f"{row.slots:,}", row.time(), device_hours, f"{row.shards_left:,}"))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        yield from ["", *("  ".join(map(str.rjust, line, widths)) for line in table), ""]
        for note in [*self.notes, *(row.advice for row in self.rows)]:
            yield from _wrapped(note)


def _wrapped(text: str, indent: str = "") -> list[str]:
    return wrapped(text, indent, indent, width=WIDTH)


def _safe(text: str) -> str:
    """Return an untrusted text, safe for a terminal and on one line."""
    return plain(one_line(text))


def _spread(quantity: float, uncertainty: float, words: Callable[[float], str]) -> str:
    low, middle, high = map(words, (quantity / uncertainty, quantity, quantity * uncertainty))
    return middle if low == high else f"{middle} ({low} to {high})"


def _time(hours: float) -> str:
    return duration(3600 * hours)


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


@dataclass(frozen=True)
class Case:
    """A run, the rest of its work, and its devices."""

    config: Run
    folder: Results
    settings: Settings
    weights: Weights | None
    """Weights, without a digest if they are not converted; None for a workload without."""
    device: Device
    device_name: str
    """Name of the GPU, "" for any; name of the CPU."""
    work: Work

    def estimate(
        self, slots: Sequence[int], given_rate: float | None = None, startup: float | None = None
    ) -> Estimate:
        """Return the estimate for each number of `slots`; `given_rate` (cost a second) and
        `startup` (seconds) of a job replace what is known.

        Raises:
            UserError: nothing is known of the speed.
        """
        plan, config, is_gpu = self.work.plan, self.config, self.device.kind == "cuda"
        workload = config.module
        # Not the settings', which lack the options that no recipe holds.
        about = config.options, self.device, self.weights
        resolved = plugin_errors.resolved(config.workload, workload, *about)
        values = workload.schema(resolved, self.weights)
        around = _around_seconds(self.work, values, config)
        estimates = [self._row(number, values, around, given_rate, startup) for number in slots]
        _, work = estimates[0]  # what follows hardly depends on the number of slots
        too_large = needs.too_large(config, self.device, self.weights, plan)
        cost, weights_mb = plan.lengths.costliest, 0.0
        device_mb = needs.memory_mb(config, self.device, self.weights, cost)
        if self.weights and isinstance(workload, EstimatesMemory):
            weights_mb = workload.weights_mb(self.weights)
        parts, _ = speeds.earlier_parts(self._job(slots[0]), self.folder.root.parent)
        measured_mb = max((part.peak_memory_mb for part in parts), default=0)
        shard_mb = max((shard.bytes for shard in work.plan.shards), default=0) / 2**20
        host_mb = round(speeds.host_mb(shard_mb, weights_mb, on_cpu=not is_gpu))
        disk, num_files = self._disk(work, values)
        free_bytes = shutil.disk_usage(nearest_folder(self.folder.root.absolute())).free
        return Estimate(
            run=config.run,
            workload=config.workload,
            model=model_name_of(self.settings) or None,
            dtype=precision_name_of(self.settings) or None,
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
            rows=[row for row, _ in estimates],
            around_seconds=around,
            device_mb=measured_mb or device_mb or None,
            host_mb=host_mb,
            disk=disk,
            num_files=num_files,
            free_bytes=free_bytes,
            notes=[
                self._note_on_time(around),
                *self._notes_on_memory(device_mb, measured_mb, host_mb, too_large),
                *_notes_on_disk(disk, num_files, free_bytes),
                *large_outputs(plan.counts.planned, config.outputs),
            ],
        )

    def _note_on_time(self, around_seconds: Mapping[str, float]) -> str:
        around = ", ".join(f"{what} {duration(each)}" for what, each in around_seconds.items())
        weights, module, model = "", self.config.module, self.config.model
        if model and not self.settings.weights_sha256:
            how = "read"
            if checkpoints := optional(module, "CHECKPOINTS"):
                is_there = checkpoints.locate(model).kind != "published"
                how = "convert" if is_there else "fetch and convert"
            weights = f"; to {how} the weights comes on top"
        return f"In the time, besides the shards: {around} (at rates measured on 2 cores){weights}."

    def _notes_on_memory(
        self, device_mb: int, measured_mb: int, host_mb: int, too_large: str
    ) -> Iterator[str]:
        """Yield the memory of a job, on the fullest GPU or for all, and what does not fit."""
        on_cpu, mb = self.device.kind == "cpu", measured_mb or device_mb
        gpus = 1 if on_cpu or measured_mb else self.config.gpus
        where = "in all" if on_cpu else f"of its {gpus} GPUs" if gpus > 1 else "of the GPU"
        known = "measured" if measured_mb else "the doctor's estimate"
        parts = [f"about {mb:,} MB {where} ({known})"] if mb else []
        parts += [] if on_cpu else [f"about {host_mb:,} MB of the host (reckoned)"]
        yield f"Memory of a job: {', '.join(parts) or 'not known yet'}."
        has_mb = self.device.memory_mb
        if too_large:
            yield f"{too_large[0].upper()}{too_large[1:]}"
        elif has_mb and mb > gpus * has_mb:
            remedy = "take larger ones"
            if optional(self.config.module, "spreads")(self.config.options):
                remedy = f"set gpus_per_job: {math.ceil(mb / has_mb)} or more, or {remedy}"
            count = counted(gpus, "such GPU")
            yield f"This model does not fit {count} of {has_mb:,} MB: {remedy}."

    def _job(self, slots: int) -> JobSpec:
        if self.device.kind == "cuda":
            return JobSpec(self.settings, self.device_name, True, self.config.gpus)
        threads = max(1, num_cores() // slots)
        return JobSpec(self.settings, self.device_name, is_gpu=False, threads=threads)

    def _row(
        self,
        slots: int,
        values: pa.Schema,
        around: Mapping[str, float],
        given_rate: float | None,
        startup: float | None,
    ) -> tuple[Row, Work]:
        """Return the estimate for so many slots, and the work in its shards for them."""
        work, plan, job = self.work, self.work.plan, self._job(slots)
        results = self.folder.root.parent
        speed = speeds.find(job, results, self.weights, work.mean_cost, given_rate=given_rate)
        if startup is not None:
            speed = replace(speed, startup_seconds=startup, is_startup_measured=True)
        jobs, best, advice = slots // job.num_devices, None, ""
        if work.cost:
            num_records = max(1, round(work.cost / max(1.0, work.mean_cost)))
            size = round(plan.lengths.total * num_records / max(1, plan.counts.planned))
            to_cut = work_of(work.cost, num_records, size, values, plan.cost_unit)
            best = choose(to_cut, speed, jobs)
            if not work.is_cut:
                work = work.in_shards(best.num_shards)
        rate, starting = speed.cost_per_second, speed.startup_seconds
        seconds = seconds_of_shards(work, jobs, rate, starting)
        slot_seconds = max(seconds * jobs, 1e-9)
        starting_share = starting * len(work.left) / slot_seconds
        busy_share = starting_share + self.work.cost / rate / slot_seconds
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
            threads=job.threads,
            speed=speed,
            hours=(seconds + sum(around.values())) / 3600,
            extract_hours=seconds / 3600,
            device_hours=seconds * slots / 3600,
            startup_share=starting_share,
            idle_share=idle_share,
            shards_left=len(work.left),
            best_cost=best.cost if best else None,
            advice=advice,
        )
        return row, work

    def _disk(self, work: Work, values: pa.Schema) -> tuple[dict[str, int], int]:
        """Return the bytes that will be written, by file, and the number of files."""
        counts, residues = work.plan.counts, work.plan.lengths.total
        run = self.config
        writes = needs.needs_of_run(self.folder, work.plan, values, run.outputs, run.order)
        disk = {need.what: need.num_bytes for need in writes}
        if not work.is_planned:
            disk["store/shards"] = residues + speeds.PLAN_BYTES_A_RECORD * counts.unique
            disk["records.parquet"] = speeds.ROW_BYTES_A_RECORD * counts.input
            disk["temporary files while planning"] = speeds.SPOOL_BYTES_A_RECORD * counts.input
        num_files = sum(need.num_files for need in writes)
        return disk, num_files + speeds.FILES_A_SHARD * len(work.left)


def _notes_on_disk(disk: Mapping[str, int], num_files: int, free_bytes: int) -> Iterator[str]:
    each = ", ".join(f"{what} {human_bytes(size)}" for what, size in disk.items() if size)
    total, free = human_bytes(sum(disk.values())), human_bytes(free_bytes)
    yield f"Disk: {total} ({each}) in {num_files:,} files; {free} are free."
    if sum(disk.values()) > free_bytes:
        yield (
            f"What will be written, {total}, is more than the {free} that are free on the disk; "
            "plan will refuse it."
        )


def _around_seconds(work: Work, values: pa.Schema, config: Run) -> dict[str, float]:
    """Return the seconds before and after the shards. Of the jobs that deliver only the last one
    counts: the others run while devices compute."""
    counts, residues = work.plan.counts, work.plan.lengths.total
    start, a_record = speeds.PLAN_SECONDS
    merge, merge_a_record, merge_a_byte = speeds.MERGE_SECONDS
    num_bytes = expected_bytes(values, counts.planned, residues)
    if will_be_by_shard(config.order, config.outputs, work.plan):
        merge_a_record = speeds.MERGE_BY_SHARD_SECONDS
        merge_a_byte = speeds.DELIVER_SECONDS / num_jobs_of(work.plan, MOST_JOBS)
    return {
        "plan": 0.0 if work.is_planned else start + a_record * counts.input,
        "merge": merge + merge_a_record * counts.input + merge_a_byte * num_bytes,
        "report": speeds.REPORT_SECONDS,
        "Snakemake": speeds.SNAKEMAKE_SECONDS,
    }


def seconds_of_shards(work: Work, jobs: int, rate: float, startup: float) -> float:
    """Return the seconds of the remaining shards on so many `jobs` side by side: rounds of mean
    shards at `rate` (cost a second), but at least the largest shard."""
    if not work.left:
        return 0.0
    mean, longest = work.cost / len(work.left), max(shard.cost for shard in work.left)
    rounds = math.ceil(len(work.left) / jobs)
    return max(rounds * (startup + mean / rate), startup + longest / rate)


class Sum(Model):
    """All runs on so many slots, one after the other."""

    slots: int
    hours: float
    device_hours: float


class WholeEstimate(Model):
    version: int = 2
    run: str
    runs: list[Estimate]
    sums: list[Sum]
    """Sums by number of slots; none if one run computes on GPUs and another does not."""
    besides: str = Field(default="", exclude=True)
    """Steps that are not estimated, in words."""

    @classmethod
    def of(cls, name: str, runs: Sequence[Estimate], besides: str = "") -> WholeEstimate:
        sums = [
            Sum(
                slots=rows[0].slots,
                hours=sum(row.hours for row in rows),
                device_hours=sum(row.device_hours for row in rows),
            )
            for rows in zip(*(run.rows for run in runs), strict=False)
            if len({run.slot for run in runs}) == len({row.slots for row in rows}) == 1
        ]
        return cls(run=name, runs=list(runs), sums=sums, besides=besides)

    def lines(self) -> Iterator[str]:
        """Yield the lines of each run, then the sums."""
        for run in self.runs:
            yield from (f"{run.run}:", *(f"  {line}".rstrip() for line in run.lines()), "")
        slot = self.runs[0].slot
        for each in self.sums:
            yield (
                f"In all, with {counted(each.slots, slot)}: {_time(each.hours)}, {slot} hours "
                f"{_hours(each.device_hours)}."
            )
        yield f"Disk in all: {human_bytes(sum(sum(run.disk.values()) for run in self.runs))}."
        if self.besides:
            yield self.besides
