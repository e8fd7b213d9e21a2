"""store: what a store of several runs holds and who needs it; add to it, remove from it.

Only this user's own parts are changed. A part is removed before its receipt: a kill leaves both or
no part. The index is then written again.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple, TypeAlias

from featuremill.base.arguments import add_runs
from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.progress import Progress
from featuremill.base.words import counted, human_bytes
from featuremill.config.project import runs_of
from featuremill.merge import store_exchange
from featuremill.store import files, shared
from featuremill.store.files import read_json
from featuremill.store.parts import open_part
from featuremill.store.plan import Settings
from featuremill.store.results import Results
from featuremill.store.shared import Reference
from featuremill.store.shared_index import keep_index
from featuremill.workload.weights import model_name_of

UNREAD_DAYS = 30
OLD_SECONDS = 3600.0
"""A temporary folder in which nothing was written for so long was left by a killed command."""
log = logging.getLogger("featuremill.store")
Acts: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_arguments(parser: argparse.ArgumentParser) -> Sequence[argparse.ArgumentParser]:
    """Add what `featuremill store` can do; return the parsers of that."""
    _add_store(parser)
    acts = parser.add_subparsers(dest="act", metavar="add|export|import|remove")
    adds = _act(acts, "add", "add the finished parts of a run to the store")
    add_runs(adds)
    says = "write a data set that others import: Parquet files and a card for each recipe"
    exports = _act(acts, "export", says)
    exports.add_argument("folder", type=Path, help="where a folder for each recipe goes")
    exports.add_argument("--recipe", default="", help="only this one; its first letters will do")
    exports.add_argument("--licence", default="", help="of the weights, for the card")
    imports = _act(acts, "import", "import a data set of export, or vectors that others published")
    help = "folder of an export; HDF5 of UniProt or bio_embeddings; fair-esm's .pt files"
    imports.add_argument("source", type=Path, help=help)
    imports.add_argument("--fasta", type=Path, help="the sequences of published vectors")
    help = "who published them, of which model and release: all that is known of them"
    imports.add_argument("--declared", default="", metavar="TEXT", help=help)
    imports.add_argument("--layer", type=int, help="of fair-esm's files (default: the last)")
    removes = _act(acts, "remove", "list the parts of yours that no run refers to, and remove them")
    help = "only parts of this recipe; its first letters will do"
    removes.add_argument("--recipe", help=help)
    help = "only what no run has read for so many days"
    removes.add_argument("--unread-days", type=int, default=0, metavar="N", help=help)
    removes.add_argument("--yes", action="store_true", help="remove them; without this, only list")
    return [adds, exports, imports, removes]


def _act(acts: Acts, name: str, says: str) -> argparse.ArgumentParser:
    parser = acts.add_parser(name, help=says, description=f"{says[0].upper()}{says[1:]}.")
    _add_store(parser)
    return parser


def _add_store(parser: argparse.ArgumentParser) -> None:
    help = "the store's folder (default: the first of FEATUREMILL_STORE)"
    parser.add_argument("--store", default=argparse.SUPPRESS, help=help)


def run(arguments: argparse.Namespace) -> None:
    layers = shared.layers([str(arguments.store)] if "store" in arguments else [])
    if "store" in arguments and shared.is_remote(layers[0]):
        raise UserError(
            f"store: {layers[0]}: this command works on a folder, and this is an address; name the "
            "store's folder."
        )
    if not layers or shared.is_remote(layers[0]):
        raise UserError("store: name the store's folder with --store, or set FEATUREMILL_STORE.")
    store = Path(layers[0])
    if arguments.act == "add":
        for folder in runs_of(arguments.run_folder).folders:
            add(store, Results(folder))
        return
    if arguments.act == "import":
        options = arguments.fasta, arguments.declared, arguments.layer
        store_exchange.take(store, arguments.source, *options)
        return
    if not store.is_dir():
        raise UserError(f"{store}: there is no such folder; check the path of the store.")
    if arguments.act == "export":
        store_exchange.export(store, arguments.folder, arguments.recipe, arguments.licence)
    elif arguments.act == "remove":
        remove(store, arguments.recipe or "", arguments.unread_days, arguments.yes)
    else:
        show(store)


class Stored(NamedTuple):
    """A part in a store, and who needs it."""

    user: str
    recipe: str
    path: Path
    bytes: int
    runs: list[str]
    """The existing runs that refer to the part."""
    read: datetime.datetime
    """When a run took it last; when it was published, where none did."""
    is_unsure: bool = False
    """Whether a reference that cannot be read may be to it."""

    @property
    def unread_days(self) -> float:
        return (datetime.datetime.now(datetime.UTC) - self.read).total_seconds() / 86_400


def stored(store: Path) -> Iterator[Stored]:
    """Yield every part in `store`."""
    needs: defaultdict[str, list[Reference]] = defaultdict(list)
    references, unreadable = shared.references(store)
    # Clocks of machines differ.
    known_from = max((each.changed for each in unreadable), default=-inf) + OLD_SECONDS
    for reference in references:
        for name in reference.parts:
            needs[name].append(reference)
    for shelf in shared.all_shelves(store):
        for name, path in shelf.parts().items():
            with contextlib.suppress(FileNotFoundError):  # it is removed just now
                about = path.stat()
                published = datetime.datetime.fromtimestamp(about.st_mtime, datetime.UTC)
                times = [datetime.datetime.fromisoformat(need.noted) for need in needs[name]]
                yield Stored(
                    shelf.folder.parent.name,
                    shelf.folder.name,
                    path,
                    about.st_size,
                    sorted({need.run for need in needs[name] if need.is_there}),
                    max([published, *times]),
                    about.st_mtime <= known_from,
                )


def show(store: Path) -> None:
    """Print what is in `store`: by user and recipe, by run, and what could go."""
    parts = list(stored(store))
    log.info("%s: %s", store, _size(parts))
    by_recipe: defaultdict[tuple[str, str], list[Stored]] = defaultdict(list)
    by_run: defaultdict[str, list[Stored]] = defaultdict(list)
    for part in parts:
        by_recipe[part.user, part.recipe].append(part)
        for name in part.runs:
            by_run[name].append(part)
    for (user, recipe), some in by_recipe.items():
        log.info("%s, %s %s: %s", user, recipe[:8], _what(store / user / recipe), _size(some))
    for name, some in sorted(by_run.items()):
        log.info("run %s refers to %s", name, _size(some))
    free = [part for part in parts if not (part.runs or part.is_unsure)]
    log.info("no run refers to %s", _size(free))
    unread = [part for part in parts if part.unread_days > UNREAD_DAYS]
    log.info("not read for %d days: %s", UNREAD_DAYS, _size(unread))


def _what(folder: Path) -> str:
    """Return what the recipe in `folder` computes, in words."""
    content = read_json(folder / shared.RECIPE) or {}
    try:
        settings = Settings.model_validate(content)
    except ValueError:
        return "(no recipe.json)"
    return " ".join(filter(None, (settings.workload, model_name_of(settings))))


def _size(parts: Sequence[Stored]) -> str:
    return f"{counted(len(parts), 'part')}, {human_bytes(sum(part.bytes for part in parts))}"


def add(store: Path, folder: Results) -> None:
    """Publish the finished parts of the run in `store`.

    Raises:
        UserError: when there is no plan, or the store cannot be written.
    """
    plan = folder.read_plan()
    shared.open_layers([str(store)])
    counts: Counter[bool] = Counter()
    shown = Progress(log, f"adding {folder.root}", "parts")
    for number, shard in enumerate(plan.shards, 1):
        try:
            part = open_part(folder, plan, shard, only_look=True)
        except IntegrityError as problem:
            log.warning("%s", problem)
            continue
        if part:
            settings = plan.settings.as_json()
            counts[shared.publish(store, plan.recipe, settings, part.path, part.receipt)] += 1
        shown.at(number, len(plan.shards))
    keep_index(store, plan.recipe)
    added, there = counted(counts[True], "part"), f"{counts[False]:,}"
    log.info("%s: %s added, %s there already", folder.root, added, there)


def remove(store: Path, recipe: str, unread_days: int, is_meant: bool) -> None:
    """List this user's parts that no run refers to, and leftovers; remove them if `is_meant`. Parts
    that an unreadable reference may name stay."""
    user = shared.own_folder(store).name
    if leftovers := _leftovers(store):
        number = counted(len(leftovers), "leftover")
        effect = "removed" if is_meant else "give --yes to remove them"
        log.info("%s of killed commands, or unread copies of remote indices; %s", number, effect)
    for path in leftovers if is_meant else ():
        with contextlib.suppress(FileNotFoundError):  # its command removes it just now
            files.remove(path)
    free = [
        part
        for part in stored(store)
        if part.user == user
        and part.recipe.startswith(recipe)
        and not part.runs
        and part.unread_days >= unread_days
    ]
    if unsure := [part for part in free if part.is_unsure]:
        log.info("what cannot be read may refer to %s of %s: it stays", _size(unsure), user)
    going = [part for part in free if not part.is_unsure]
    if not going:
        log.info("there is nothing of %s to remove that no run refers to", user)
        return
    if not is_meant:
        log.info("no run refers to %s of %s; give --yes to remove them", _size(going), user)
        return
    for part in going:
        part.path.unlink(missing_ok=True)
        part.path.with_suffix(".json").unlink(missing_ok=True)
    for name in sorted({part.recipe for part in going}):
        keep_index(store, name)
    log.info("removed: %s", _size(going))


def _leftovers(store: Path) -> list[Path]:
    """Return this user's temporary folders and lone receipts of killed commands, and copies of
    remote indices that no plan has read for `UNREAD_DAYS`; the next plan that needs one fetches it
    again."""
    now, own = time.time(), shared.own_folder(store)
    unnamed = [path for path in store.glob(".*") if path.name.startswith(f".{own.name}.")]
    shelves = (shelf for shelf in shared.all_shelves(store) if shelf.folder.parent == own)
    lone = itertools.chain.from_iterable(shelf.lone_receipts() for shelf in shelves)
    temporary = [
        path
        for path in (*own.rglob(".*"), *unnamed, *lone)
        if now - _last_written(path) > OLD_SECONDS
    ]
    oldest = now - UNREAD_DAYS * 86_400
    copies = [path for path in shared.index_copies(store) if path.stat().st_mtime < oldest]
    return temporary + copies


def _last_written(path: Path) -> float:
    """Return the last mtime of any file below `path`; now, if it is being removed."""
    try:
        return max(entry.lstat().st_mtime for entry in (path, *path.rglob("*")))
    except FileNotFoundError:
        return time.time()
