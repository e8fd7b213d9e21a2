"""The picture of a run on a terminal: totals, jobs, failures, and how the work spread."""

from __future__ import annotations

import textwrap

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from featuremill.base.text import one_line, plain
from featuremill.base.words import counted
from featuremill.status.state import DONE, DONE_WITH_FAILURES
from featuremill.status.top import lines
from featuremill.status.top.scene import Scene
from featuremill.status.top.tables import QUIET, WARN, jobs_table, notes, spread_table
from featuremill.status.view import duration

MOST_REASONS = 4
HINT = "Ctrl-C ends this view, not the run."
GOOD, BAD = "green", "red"


def picture(scene: Scene, width: int, is_live: bool = False) -> RenderableType:
    """Return the picture for a terminal of this width, with what counts most above: a terminal that
    is too low shows the beginning."""
    parts = [_title(scene, width), *_totals(scene, width)]
    if scene.at_work:
        parts += [Text(), jobs_table(scene, width), *notes(scene)]
    parts += [*_waiting(scene), *_failures(scene, width)]
    if scene.uses:
        parts += [Text(), spread_table(scene, width)]
    if is_live:
        parts += [Text(), Text(HINT, QUIET)]
    return Group(*parts)


def _title(scene: Scene, width: int) -> RenderableType:
    said = lines.phase(scene)
    style = WARN if scene.phase in ("unknown", "rest") else GOOD
    if scene.state:
        status = scene.state.exit_status
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
    bar = ProgressBar(1.0, totals.share, width, complete_style="cyan", finished_style=GOOD)
    line = Table.grid()  # a bar alone does not end its line
    line.add_row(bar)
    parts.append(line)
    if scene.state:
        parts.append(Text(lines.accounting(scene)))
        return parts
    shards = f"{totals.shards:,} of {counted(totals.of.shards, 'shard')}"
    done = lines.SEPARATOR.join([lines.share(scene), lines.records(scene), shards])
    failed = "".join(f"{lines.SEPARATOR}{said}" for said in lines.failed(scene))
    parts.append(Text.assemble(done, (failed, BAD)))
    if scene.phase in ("computing", "between") and scene.rest:
        parts.append(Text(lines.SEPARATOR.join([*lines.speed(scene), lines.left(scene)])))
    return parts


def _waiting(scene: Scene) -> list[RenderableType]:
    """Return the jobs that have no device, in one line, and those that nobody hears of."""
    said = []
    if waiting := [job.shard[:8] for job in scene.waiting if job.state == "running"]:
        jobs = counted(len(waiting), "job")
        said.append((f"{jobs} waiting for a device: shard {', '.join(waiting)}", QUIET))
    for job in scene.waiting:
        if job.state != "running":
            where, ago = one_line(job.host), duration(job.silent_seconds)
            said.append((f"shard {job.shard[:8]}: nothing heard from {where} for {ago}", WARN))
    found = [Text(text, style, overflow="ellipsis", no_wrap=True) for text, style in said]
    return [Text(), *found] if found else []


def _failures(scene: Scene, width: int) -> list[RenderableType]:
    """Return what failed, and what helps."""
    found: list[RenderableType] = []
    told = lines.reasons(scene)
    for what, remedy in told[:MOST_REASONS]:
        found += [*_cross(what, width), *_wrapped(remedy, "  → ", width, QUIET)]
    if len(told) > MOST_REASONS:
        found.append(Text(f"  and {len(told) - MOST_REASONS:,} more reasons", QUIET))
    for message in lines.ended(scene)[:MOST_REASONS]:
        found += _cross(message, width)
    if scene.state and scene.state.next:
        found += [Text()] if found else []
        found += [Text("Type next"), *(Text(f"  {plain(one)}") for one in scene.state.next)]
    return [Text(), *found] if found else []


def _cross(text: str, width: int) -> list[Text]:
    found = _wrapped(text, "✗ ", width)
    found[0].stylize(BAD, 0, 1)
    return found


def _wrapped(text: str, mark: str, width: int, style: str = "") -> list[Text]:
    """Return a text as lines, those after the first indented as that is behind its mark."""
    wrapped = textwrap.wrap(text, width, initial_indent=mark, subsequent_indent=" " * len(mark))
    return [Text(line, style) for line in wrapped]
