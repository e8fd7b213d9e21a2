"""The picture of a run on a terminal: totals, jobs, failures, and how the work spread."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from featuremill.base.sizes import counted
from featuremill.base.text import one_line, plain
from featuremill.status.facts import DONE, DONE_WITH_FAILURES
from featuremill.status.top import lines
from featuremill.status.top.scene import Scene
from featuremill.status.top.tables import jobs_table, notes, spread_table

MOST_REASONS = 4
HEADING = 2
"""Lines of a table beside its rows."""
LEAST_FOR_HINT = 18
HINT = "Ctrl-C ends this view, not the run."
QUIET, GOOD, BAD, WARN = "dim", "green", "red", "yellow"


def picture(scene: Scene, width: int, height: int | None = None) -> RenderableType:
    """Return the picture for a terminal of this size; without a height it is as long as it is.

    Where there is no room for everything, remedies give way first, then the rows of devices.
    """
    top = [_title(scene, width), *_totals(scene, width)]
    said = notes(scene)
    below = [*_waiting(scene), *_failures(scene, width, is_brief=False)]
    num_jobs, num_uses = sum(len(job.devices) for job in scene.at_work), len(scene.uses)
    has_hint = scene.facts is None and (height or 0) >= LEAST_FOR_HINT
    hint = [Text(), Text(HINT, QUIET)] if has_hint else []
    if height is not None:
        num_tables = (num_jobs > 0) + (num_uses > 0)
        fixed = _height([*top, *said, *hint], width) + HEADING * num_tables
        if fixed + num_jobs + num_uses + _height(below, width) > height:
            below = [*_waiting(scene), *_failures(scene, width, is_brief=True)]
        room = height - fixed - _height(below, width)
        num_jobs, num_uses = _shared_out(room, num_jobs, num_uses)
    parts = [*top]
    if num_jobs:
        parts += [Text(), *jobs_table(scene, width, num_jobs), *said]
    parts += below
    if num_uses:
        parts += [Text(), *spread_table(scene, width, num_uses)]
    return Group(*parts, *hint)


def _shared_out(room: int, num_jobs: int, num_uses: int) -> tuple[int, int]:
    """Return how many rows each of the two tables gets: the jobs first; a line says what is left
    out, and a table without a row is none."""
    if num_jobs + num_uses <= room:
        return num_jobs, num_uses
    room += HEADING if num_uses else 0
    if num_jobs < room:
        rest = room - num_jobs - HEADING
        return num_jobs, num_uses if num_uses <= rest else max(0, rest - 1)
    return max(1, room - 1), 0


def _height(parts: Sequence[RenderableType], width: int) -> int:
    """Return how many lines the parts take: texts, and bars of one line."""
    texts = [part for part in parts if isinstance(part, Text) and not part.no_wrap]
    return len(parts) + sum(max(1, len(textwrap.wrap(text.plain, width))) - 1 for text in texts)


def _title(scene: Scene, width: int) -> RenderableType:
    said = lines.phase(scene)
    style = WARN if scene.phase in ("unknown", "rest") else GOOD
    if scene.facts:
        status = scene.facts.exit_status
        style = {DONE: GOOD, DONE_WITH_FAILURES: WARN}.get(status, BAD)
    folder = one_line(plain(str(scene.given)))
    room = max(8, width - len(said) - 2)
    folder = folder if len(folder) <= room else f"…{folder[1 - room :]}"
    title = Text.assemble((folder, "bold"), "  ", (said, style))
    title.no_wrap, title.overflow = True, "ellipsis"
    return title


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
    shards = f"{totals.shards_done:,} of {counted(totals.shards, 'shard')}"
    done = lines.SEPARATOR.join([lines.share(scene), lines.records(scene), shards])
    failed = "".join(f"{lines.SEPARATOR}{said}" for said in lines.failed(scene))
    parts.append(Text.assemble(done, (failed, BAD)))
    if scene.phase in ("computing", "between") and scene.rest:
        parts.append(Text(lines.SEPARATOR.join([*lines.speed(scene), lines.left(scene)])))
    return parts


def _waiting(scene: Scene) -> list[RenderableType]:
    """Return the jobs that have no device, in one line."""
    waiting = [job for job in scene.waiting if job.state == "running"]
    lost = [job for job in scene.waiting if job.state != "running"]
    found: list[RenderableType] = []
    if waiting:
        names = ", ".join(job.shard[:8] for job in waiting)
        text = f"{counted(len(waiting), 'job')} waiting for a device: shard {names}"
        found.append(Text(text, QUIET, overflow="ellipsis", no_wrap=True))
    for job in lost:
        ago = lines.duration(job.silent_seconds)
        text = f"shard {job.shard[:8]}: nothing heard from {one_line(job.host)} for {ago}"
        found.append(Text(text, WARN, overflow="ellipsis", no_wrap=True))
    return [Text(), *found] if found else []


def _failures(scene: Scene, width: int, is_brief: bool) -> list[RenderableType]:
    """Return what failed, and what helps; in brief a line each, and no remedies."""
    found: list[RenderableType] = []
    told = lines.reasons(scene)
    for what, remedy in told[:MOST_REASONS]:
        found += _cross(what, width, is_brief)
        found += [] if is_brief else _wrapped(remedy, "  → ", width, QUIET)
    if len(told) > MOST_REASONS:
        found.append(Text(f"  and {len(told) - MOST_REASONS:,} more reasons", QUIET))
    for one in scene.ended[:MOST_REASONS]:
        message = f"shard {one.shard[:8]} ended: {one_line(one.message)}"
        found += _cross(message, width, is_brief)
    if scene.facts and scene.facts.next:
        found += [Text()] if found else []
        found += [Text("Type next"), *(Text(f"  {plain(one)}") for one in scene.facts.next)]
    return [Text(), *found] if found else []


def _cross(text: str, width: int, is_brief: bool) -> list[Text]:
    found = _wrapped(text, "✗ ", width)
    if is_brief:
        found = [Text(f"✗ {text}", no_wrap=True, overflow="ellipsis")]
    found[0].stylize(BAD, 0, 1)
    return found


def _wrapped(text: str, first: str, width: int, style: str = "") -> list[Text]:
    """Return a text as lines, those after the first indented as that is behind its mark."""
    indented = textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * len(first))
    return [Text(line, style) for line in indented or [first]]
