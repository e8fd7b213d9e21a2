"""The picture of a run on a terminal: totals, jobs, failures, and how the work spread."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from featuremill.base.sizes import counted
from featuremill.base.text import one_line, plain
from featuremill.status.state import DONE, DONE_WITH_FAILURES
from featuremill.status.top import lines
from featuremill.status.top.scene import Scene
from featuremill.status.top.tables import QUIET, WARN, jobs_table, notes, spread_table
from featuremill.status.view import duration

MOST_REASONS = 4
LEAST_FOR_HINT = 18
HINT = "Ctrl-C ends this view, not the run."
GOOD, BAD = "green", "red"


def picture(scene: Scene, width: int, height: int | None = None) -> RenderableType:
    """Return the picture for a terminal of this size; without a height it is as long as it is.

    Where there is no room for everything, remedies give way first, then how the work spread, then
    rows of devices.
    """
    has_hint = scene.state is None and (height or 0) >= LEAST_FOR_HINT
    hint = [Text(), Text(HINT, QUIET)] if has_hint else []
    num_jobs = sum(len(job.devices) for job in scene.at_work)

    def drawn(most_jobs: int, *, is_brief: bool, has_spread: bool) -> list[RenderableType]:
        parts = [_title(scene, width), *_totals(scene, width)]
        if num_jobs:
            parts += [Text(), *jobs_table(scene, width, most_jobs), *notes(scene)]
        parts += [*_waiting(scene), *_failures(scene, width, is_brief)]
        if has_spread and scene.uses:
            parts += [Text(), spread_table(scene, width)]
        return [*parts, *hint]

    shown = drawn(num_jobs, is_brief=False, has_spread=True)
    if height is None or _height(shown, width) <= height:
        return Group(*shown)
    shown = drawn(num_jobs, is_brief=True, has_spread=True)
    if _height(shown, width) > height:
        shown = drawn(num_jobs, is_brief=True, has_spread=False)
    if (surplus := _height(shown, width) - height) > 0:  # and a line says how many are left out
        shown = drawn(max(1, num_jobs - surplus - 1), is_brief=True, has_spread=False)
    return Group(*shown)


def _height(parts: Iterable[RenderableType], width: int) -> int:
    """Return how many lines the parts take."""
    total = 0
    for part in parts:
        if isinstance(part, Table):
            total += part.row_count + part.show_header
        elif isinstance(part, Text) and not part.no_wrap:
            total += max(1, len(textwrap.wrap(part.plain, width)))
        else:
            total += 1
    return total


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


def _failures(scene: Scene, width: int, is_brief: bool) -> list[RenderableType]:
    """Return what failed, and what helps; in brief a line each, and no remedies."""
    found: list[RenderableType] = []
    told = lines.reasons(scene)
    for what, remedy in told[:MOST_REASONS]:
        found += _cross(what, width, is_brief)
        found += [] if is_brief else _wrapped(remedy, "  → ", width, QUIET)
    if len(told) > MOST_REASONS:
        found.append(Text(f"  and {len(told) - MOST_REASONS:,} more reasons", QUIET))
    for message in lines.ended(scene)[:MOST_REASONS]:
        found += _cross(message, width, is_brief)
    if scene.state and scene.state.next:
        found += [Text()] if found else []
        found += [Text("Type next"), *(Text(f"  {plain(one)}") for one in scene.state.next)]
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
