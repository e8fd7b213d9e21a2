"""The picture of a run on a terminal: totals, jobs, failures, and how the work spread."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from featuremill.report import words
from featuremill.status.facts import DONE, DONE_WITH_FAILURES
from featuremill.text import one_line, plain
from featuremill.top import lines
from featuremill.top.scene import Scene
from featuremill.top.tables import jobs_table, notes, spread_table

MOST_REASONS = 4
HINT = "Ctrl-C ends this view, not the run."
QUIET, GOOD, BAD, WARN = "dim", "green", "red", "yellow"


def picture(scene: Scene, width: int, height: int | None = None) -> RenderableType:
    """Return the picture for a terminal of this size; without a height it is as long as it is.

    Where there is not room for everything, the rows of jobs and devices give way.
    """
    top = [_title(scene), *_totals(scene, width)]
    below = [*_waiting(scene), *_failures(scene)]
    room = None
    if height is not None:
        # Each table has a heading and an empty line, and a line for what is left out.
        room = max(2, height - _height(top + below, width) - 8)
    num_jobs, num_devices = _shared_out(room, len(scene.at_work), len(scene.uses))
    parts = [*top]
    if scene.at_work:
        parts += [Text(), *jobs_table(scene, width, num_jobs), *notes(scene)]
    parts += below
    if scene.uses:
        parts += [Text(), *spread_table(scene, width, num_devices)]
    if scene.facts is None and height is not None:
        parts += [Text(), Text(HINT, QUIET)]
    return Group(*parts)


def _shared_out(room: int | None, num_jobs: int, num_devices: int) -> tuple[int, int]:
    """Return how many rows each of the two tables gets: the jobs first, but not all."""
    if room is None or num_jobs + num_devices <= room:
        return num_jobs, num_devices
    for_devices = min(num_devices, max(1, room // 3))
    return max(1, room - for_devices), for_devices


def _height(parts: list[RenderableType], width: int) -> int:
    """Return how many lines the parts take, which are texts but for the bar."""
    texts = (part for part in parts if isinstance(part, Text) and not part.no_wrap)
    return len(parts) + sum(max(0, -(-part.cell_len // width) - 1) for part in texts)


def _title(scene: Scene) -> RenderableType:
    said = lines.phase(scene)
    style = {True: GOOD}.get(scene.phase in ("computing", "merging", "planning"), WARN)
    if scene.facts:
        status = scene.facts.exit_status
        style = {DONE: GOOD, DONE_WITH_FAILURES: WARN}.get(status, BAD)
    return Text.assemble((plain(str(scene.given)), "bold"), "  ", (said, style))


def _totals(scene: Scene, width: int) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if scene.trouble:
        parts.append(Text(one_line(scene.trouble), BAD))
    if scene.plan is None:
        return parts
    totals = scene.totals
    bar = ProgressBar(
        total=1.0,
        completed=totals.share,
        width=width,
        complete_style="cyan",
        finished_style=GOOD,
    )
    line = Table.grid()  # a bar alone does not end its line
    line.add_row(bar)
    parts.append(line)
    if scene.facts:
        parts.append(Text(lines.accounting(scene)))
        return parts
    shards = f"{totals.shards_done:,} of {words.plural(totals.shards, 'shard')}"
    done = [lines.share(scene), lines.records(scene), shards]
    parts.append(Text(lines.SEPARATOR.join(done)))
    if scene.phase == "computing":
        parts.append(Text(lines.SEPARATOR.join([*lines.speed(scene), lines.left(scene)])))
    return parts


def _waiting(scene: Scene) -> list[RenderableType]:
    """Return the jobs that have no device, in one line."""
    waiting = [job for job in scene.waiting if job.state == "running"]
    lost = [job for job in scene.waiting if job.state != "running"]
    found: list[RenderableType] = []
    if waiting:
        names = ", ".join(job.shard[:8] for job in waiting)
        text = f"{words.plural(len(waiting), 'job')} waiting for a device: shard {names}"
        found.append(Text(text, QUIET, overflow="ellipsis", no_wrap=True))
    for job in lost:
        ago = lines.duration(job.silent_seconds)
        text = f"shard {job.shard[:8]}: nothing heard from {one_line(job.host)} for {ago}"
        found.append(Text(text, WARN, overflow="ellipsis", no_wrap=True))
    return [Text(), *found] if found else []


def _failures(scene: Scene) -> list[RenderableType]:
    found: list[RenderableType] = []
    told = _reasons(scene)
    for number, reason, remedy in told[:MOST_REASONS]:
        what = Text.assemble(("✗ ", BAD), f"{words.records(number)} failed: {reason}")
        found += [what, Text(f"  → {remedy}", QUIET)]
    if len(told) > MOST_REASONS:
        found.append(Text(f"  and {len(told) - MOST_REASONS:,} more reasons", QUIET))
    for one in scene.ended[:MOST_REASONS]:
        message = f"shard {one.shard[:8]} ended: {one_line(one.message)}"
        found.append(Text.assemble(("✗ ", BAD), message))
    if scene.facts and scene.facts.next:
        found += [Text("Type next"), *(Text(f"  {plain(one)}") for one in scene.facts.next)]
    return [Text(), *found] if found else []


def _reasons(scene: Scene) -> list[tuple[int, str, str]]:
    """Return number, reason and remedy: of a run at rest those of status, which counts the records
    of the input."""
    if scene.facts:
        groups = [one for one in scene.facts.groups if one.key.status == "failed"]
        return [(one.number, one_line(one.key.reason), one.remedy) for one in groups]
    return [(one.number, one_line(one.reason), one.remedy) for one in scene.reasons]
