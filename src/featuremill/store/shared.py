"""A store that runs and people share: finished parts by recipe, each in a folder of its publisher.

<store>/<user>/<recipe>/recipe.json       the settings that the recipe is the digest of
<store>/<user>/<recipe>/<part>.arrows     a part, named by the digest of its bytes
<store>/<user>/<recipe>/<part>.json       its receipt
<store>/<user>/<recipe>/index/            where each payload is (shared_index.py)
<store>/<user>/runs/<run>.json            which parts a run of this user refers to

A part is written once, read-only, and only its publisher changes anything in the publisher's
folder: so nobody waits for anybody, and nobody can remove what another published.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import pwd
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.base.environment import STORE
from featuremill.base.errors import UserError
from featuremill.store import files
from featuremill.store.files import read_json, write_json
from featuremill.store.journal_log import digest_of_file
from featuremill.store.plan import Plan
from featuremill.store.receipt import Receipt
from featuremill.store.results import Results

RECIPE = "recipe.json"
RUNS = "runs"
"""The folder of a publisher that is of no recipe."""
FOLDER_MODE, FILE_MODE = 0o755, 0o444
"""Of what is published, where the store's own folder lets everybody read."""
LAYER = re.compile(r"\w+://[^:/]*(?::\d+)?[^:]*|[^:]+")
"""One of several stores with `:` between: an address, perhaps with a port, or a folder."""
WITH_USER = re.compile(r"://[^/]*@")
WITHOUT_USER = (
    "an address has a user or password in it, which files of the run would show; leave them out of "
    "it, and give them to fsspec in its own configuration"
)
log = logging.getLogger("featuremill.store")
AGAIN = "its records were computed again"
_noting = threading.Lock()
Identity = tuple[int, int, int] | None
"""What changes when a file is written again: bytes, time, number; None of one that is not there."""


def layers(asked: Sequence[str]) -> list[str]:
    """Return the stores that a config asks for, or else the environment: all are read, and the
    first is written; none where a run keeps its parts to itself.

    Raises:
        UserError: for an address with a password, which would be written to files.
    """
    if any(map(WITH_USER.search, asked or [STORE.value()])):
        raise UserError(f"store: {WITHOUT_USER}.")
    found = asked or LAYER.findall(STORE.value())
    return [path if is_remote(path) else str(Path(path).expanduser().absolute()) for path in found]


def is_remote(layer: str) -> bool:
    """Tell whether a store is read through fsspec (`remote.py`) and is no folder."""
    return "://" in layer


def user() -> str:
    """Return the name of this user, by which the publisher's folder is called."""
    with contextlib.suppress(KeyError):  # as in a container
        return pwd.getpwuid(os.geteuid()).pw_name
    return str(os.geteuid())


class Shelf(NamedTuple):
    """The parts of one recipe of one publisher in a store."""

    folder: Path

    @property
    def levels(self) -> Path:
        return self.folder / "index"

    def parts(self) -> dict[str, Path]:
        """Return the parts that are there, by name; what cannot be listed has none."""
        try:
            found = sorted(entry.name for entry in os.scandir(self.folder))
        except OSError:
            return {}
        names = [name for name in found if name.endswith(".arrows") and name[0] != "."]
        return {name.removesuffix(".arrows"): self.folder / name for name in names}

    def part(self, part: str) -> Path:
        return self.folder / f"{part}.arrows"

    def receipt(self, part: str) -> Path:
        return self.folder / f"{part}.json"


def own_folder(store: Path) -> Path:
    """Return the folder of this user in `store`."""
    return store / user()


def shelves(store: Path, recipe: str) -> list[Shelf]:
    """Return where `store` has parts of `recipe`, this user's first."""
    found = [path for path in publishers(store) if _is_folder(path / recipe)]
    found.sort(key=lambda path: (path != own_folder(store), path))
    return [Shelf(path / recipe) for path in found]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # in a folder that its owner keeps closed
        return False


def all_shelves(store: Path) -> list[Shelf]:
    """Return where `store` has parts of any recipe and user, as far as it can be read."""
    found = []
    for folder in publishers(store):
        with contextlib.suppress(OSError):
            found += [Shelf(path) for path in sorted(folder.iterdir()) if path.name != RUNS]
    return found


def publishers(store: Path) -> list[Path]:
    """Return the folders of all users in `store`."""
    try:
        return sorted(Path(e.path) for e in os.scandir(store) if e.is_dir() and e.name[0] != ".")
    except OSError:
        return []


# ---- opening and writing ----


def open_layers(asked: Sequence[str]) -> list[Path]:
    """Return the folders that a run reads, once it is seen that the first can be written; remote
    stores are not among them.

    Raises:
        UserError: where it cannot, or another one cannot be read; says what is lacking.
    """
    found = [Path(layer) for layer in layers(asked) if not is_remote(layer)]
    if remote := next(filter(is_remote, layers(asked)[:1]), ""):
        raise UserError(f"store: {remote}: it is only read; name a folder of yours before it.")
    for number, store in enumerate(found):
        if number == 0:
            _try_to_write(store)
            continue
        try:
            os.scandir(store).close()
        except OSError as error:
            raise UserError(
                f"store: {store}: it cannot be read ({error.strerror}); fix the path, or leave "
                "this one out."
            ) from None
    return found


def _try_to_write(store: Path) -> None:
    """Make this user's folder in `store`, and see that a file gets its name there at once."""
    try:
        store.mkdir(parents=True, exist_ok=True)
        own = own_folder(store)
        open_folder(own, store)
        if own.lstat().st_uid != os.geteuid() or own.is_symlink():
            raise UserError(
                f"store: {own}: it is a link or another user's, so nothing can be published in it; "
                "ask its owner, or name another store first."
            )
        with tempfile.TemporaryDirectory(dir=own, prefix=".try.") as folder:
            path = Path(folder, "whole")
            with files.replacing(path) as new:
                new.write_bytes(b"whole")
            if path.read_bytes() != b"whole":
                raise OSError("a renamed file is not what was written")
    except OSError as error:
        raise UserError(
            f"store: {store}: nothing can be published there ({error.strerror or error}); name a "
            "folder first in which you may write, and that one after it."
        ) from None


def open_folder(folder: Path, store: Path) -> None:
    """Make a folder of this user's in `store` and those above it, as open to readers as the store
    itself."""
    if not folder.is_dir():
        if folder.parent != store:
            open_folder(folder.parent, store)
        folder.mkdir(exist_ok=True)
        _open_to_readers(folder, store, FOLDER_MODE)


def _open_to_readers(path: Path, store: Path, mode: int) -> None:
    """Let those read `path` who may read the folder `store`, whatever the umask says.

    Raises:
        PermissionError: where this user may not give it to the store's group.
    """
    about, own = store.stat(), path.stat()
    readers = about.st_mode & (stat.S_IRGRP | stat.S_IROTH)
    if readers == stat.S_IRGRP and own.st_gid != about.st_gid:
        os.chown(path, -1, about.st_gid)
    may = stat.S_IRWXU | readers | readers >> 2  # who reads a folder also passes it
    path.chmod(mode & may | own.st_mode & stat.S_ISGID)


def publish(
    store: Path, recipe: str, settings: Mapping[str, Any], part: Path, receipt: Receipt
) -> bool:
    """Put the finished `part` of a run into `store`, by a hard link where that can be; tell whether
    it was not there yet. A reader finds all of it or nothing.

    Raises:
        OSError: where the store cannot be written.
    """
    shelf = Shelf(own_folder(store) / recipe)
    target = shelf.part(receipt.part)
    is_there = target.exists() and _is_whole(shelf.receipt(receipt.part))
    if is_there and (target.samefile(part) or digest_of_file(target) == receipt.part):
        return False  # else it is damaged, and this one takes its place
    open_folder(shelf.folder, store)
    # The receipt before the part: what has its name always has its receipt beside it.
    told = {shelf.receipt(receipt.part): receipt.as_json()}
    if not (shelf.folder / RECIPE).exists():
        told[shelf.folder / RECIPE] = dict(settings)
    for path, value in told.items():
        with publishing(path, store) as new:
            new.write_text(files.as_text(files.sealed(value)), "utf-8")
    with publishing(target, store) as new:
        try:
            os.link(part, new)
            _open_to_readers(new, store, FILE_MODE)
        except OSError:  # another file system or group, or one without links
            new.unlink(missing_ok=True)
            shutil.copyfile(part, new)
    return True


def _is_whole(receipt: Path) -> bool:
    try:
        return Receipt.find(receipt) is not None
    except UserError:  # a newer featuremill wrote it
        return True


@contextlib.contextmanager
def publishing(path: Path, store: Path) -> Iterator[Path]:
    """Yield a free name for what becomes `path` in `store`, synced and for readers only."""
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        new = folder / path.name
        yield new
        _open_to_readers(new, store, FILE_MODE)
        files.sync(new)
        new.replace(path)
        files.sync(path.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- what a run takes ----


class Reference(NamedTuple):
    """What a run has or takes of a store."""

    run: str
    recipe: str
    parts: Sequence[str]
    noted: str
    """When, ISO 8601, UTC."""

    @property
    def is_there(self) -> bool:
        """Whether the run exists, as far as this user may look."""
        try:
            Path(self.run, "store", "plan.json").stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True


def note_run(folder: Results, plan: Plan, own: Sequence[str] = ()) -> None:
    """Write down which parts the run refers to, in this user's folder of each store that may be
    written: those that `plan` takes, and its `own` ones, which are in the first."""
    root = folder.root.resolve()
    for store in map(Path, plan.store):
        parts = [one.shard for one in plan.taken if Path(one.path).is_relative_to(store)]
        parts += own if str(store) == plan.store[0] else ()
        path = own_folder(store) / RUNS / f"{files.digest_of([os.fsencode(root)])}.json"
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        told = Reference(str(root), plan.recipe, sorted(parts), now)
        with contextlib.suppress(OSError):
            open_folder(path.parent, store)
            with publishing(path, store) as new:
                new.write_text(files.as_text(told._asdict()), "utf-8")


def references(store: Path, must_know: bool = False) -> list[Reference]:
    """Return what runs refer to in `store`; what cannot be read is said, and left out.

    Raises:
        UserError: where something is left out and one `must_know` all.
    """
    found = []
    for folder in publishers(store):
        path = folder / RUNS
        try:
            entries = sorted(path.iterdir()) if path.exists() else []
            for path in [entry for entry in entries if entry.suffix == ".json"]:
                one = read_json(path) or {}
                noted = datetime.datetime.fromisoformat(one["noted"]).astimezone()
                found.append(Reference(one["run"], one["recipe"], one["parts"], noted.isoformat()))
        except (OSError, KeyError, TypeError, ValueError) as error:
            problem = (
                f"{path}: which parts runs refer to cannot be read here ({type(error).__name__})"
            )
            if must_know:
                raise UserError(f"{problem}; let its owner open or remove it.") from None
            log.warning("%s.", problem)
    return found


def identity_of(path: Path) -> Identity:
    """Return what tells this file from a later one of its name."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_size, about.st_mtime_ns, about.st_ino


def _unusable_path(folder: Results) -> Path:
    return folder.store / "unusable.json"


def note_unusable(folder: Results, found: Mapping[str, tuple[Identity, str]]) -> None:
    """Write down which parts of stores, by their paths, the run cannot use, and why."""
    told = {
        path: {"identity": identity and list(identity), "problem": problem}
        for path, (identity, problem) in found.items()
    }
    if told:
        with _noting:  # parts are opened by several threads
            known = read_json(_unusable_path(folder)) or {}
            write_json(_unusable_path(folder), {**known, **told})


def unusable(folder: Results) -> set[str]:
    """Return the paths of parts of stores that the run cannot use; those that were put there anew
    since are not among them."""
    return {
        path
        for path, told in (read_json(_unusable_path(folder)) or {}).items()
        if (now := identity_of(Path(path))) is None or list(now) == told["identity"]
    }


def forget_remote(folder: Results) -> None:
    """Forget which remote parts could not be used: each plan asks for them again."""
    known = read_json(_unusable_path(folder)) or {}
    if any(map(is_remote, known)):
        kept = {path: told for path, told in known.items() if not is_remote(path)}
        write_json(_unusable_path(folder), kept)


def problems(folder: Results) -> list[str]:
    """Return, in a sentence each, what was wrong with parts of stores that the run would have
    taken."""
    return [
        f"{told['problem']}; {'it was not taken' if is_remote(path) else AGAIN}."
        for path, told in (read_json(_unusable_path(folder)) or {}).items()
    ]
