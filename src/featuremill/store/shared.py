"""A store of finished parts that runs and people share: by publisher, then by recipe.

<store>/<user>/<recipe>/recipe.json       the settings that the recipe is the digest of
<store>/<user>/<recipe>/<part>.arrows     a part, named by the digest of its bytes
<store>/<user>/<recipe>/<part>.json       its receipt
<store>/<user>/<recipe>/index/            where each payload is (shared_index.py)
<store>/<user>/<recipe>/remote/<digest>/  a copy of the index of a remote store (remote.py)
<store>/<user>/runs/<run>.json            which parts a run of this user refers to

A part is written once and is read-only, and only its publisher changes a publisher's folder. So no
process waits for another one, and no user can remove another user's parts.
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
from featuremill.base.words import listed
from featuremill.store import files
from featuremill.store.files import Identity, identity_of, read_json, write_json
from featuremill.store.journal_log import digest_of_file
from featuremill.store.plan import Plan
from featuremill.store.receipt import Receipt
from featuremill.store.results import Results

RECIPE = "recipe.json"
REMOTE = "remote"
RUNS = "runs"
"""The folder of a publisher with the references of runs, beside those of recipes."""
LOST_FOUND = "lost+found"
"""Folder of the file system, at the root of a disk."""
FOLDER_MODE, FILE_MODE = 0o755, 0o444
"""Modes of published folders and files in a store that all users may read."""
LAYER = re.compile(r"\w+://[^:/]*(?::\d+)?[^:]*|[^:]+")
"""One of several stores, separated by `:`: an address, perhaps with a port, or a folder."""
SCHEMES = ("file", "http", "https", "s3")
"""Of addresses that are read; where fsspec is installed, also those that it lists."""
ADDRESS = re.compile(r"(\w[\w+.-]*):/(/?)")
ONE_SLASH = re.compile(r"(?:^|:)((?:ftp|https?|s3):/(?!/)[^:]*)")
"""In several stores with `:` between, which would be read as two folders."""
DIGEST = re.compile(r"[0-9a-f]{32}")
"""In the names of parts, their receipts, index files and references."""
WITH_USER = re.compile(r"://[^/]*@")
WITHOUT_USER = (
    "an address has a user or password in it, which files of the run would show; leave them out of "
    "it, and give them to fsspec in its own configuration"
)
log = logging.getLogger("featuremill.store")
_noting = threading.Lock()


def layers(configured: Sequence[str]) -> list[str]:
    """Return the stores of a config, or else of the environment. All are read, and the first is
    written.

    Raises:
        UserError: what `problem_with` finds.
    """
    text = "" if configured else STORE.value()
    stores = configured or LAYER.findall(text)
    split = [*filter(WITH_USER.search, [text]), *ONE_SLASH.findall(text)]  # which `stores` hides
    if problem := problem_with([*split, *stores]):
        raise UserError(f"{'store' if configured else STORE}: {problem}.")
    return [path if is_remote(path) else str(Path(path).expanduser().absolute()) for path in stores]


def problem_with(stores: Sequence[str]) -> str:
    """Return what is wrong with the names of stores: a user or password, which files of the run
    would show, or an address that nothing reads; "" if nothing is."""
    for store in stores:
        if WITH_USER.search(store):
            return WITHOUT_USER
        match = ADDRESS.match(store)
        if match and not match[2]:
            return (
                f"{store}: an address begins with {match[1]}://, and a folder of such a name with "
                "./; write one of both"
            )
        if match and match[1] not in SCHEMES and not _is_read_by_fsspec(match[1]):
            return (
                f"{store}: no address begins with {match[1]}://; known are {listed(SCHEMES)}, and "
                "those of fsspec where it is installed (pip install 'featuremill[remote]'), so "
                "write one of these, or a folder"
            )
    return ""


def _is_read_by_fsspec(scheme: str) -> bool:
    try:
        import fsspec
    except ImportError:
        return False
    return scheme in fsspec.available_protocols()


def is_remote(layer: str) -> bool:
    """Return whether a store is an address that fsspec reads (`remote.py`), and no folder."""
    return "://" in layer


def user() -> str:
    """Return the name of this user, and so of the user's folder in a store."""
    with contextlib.suppress(KeyError):  # a container may have no name
        return pwd.getpwuid(os.geteuid()).pw_name
    return str(os.geteuid())


class Shelf(NamedTuple):
    """The parts of one recipe of one publisher in a store."""

    folder: Path

    @property
    def levels(self) -> Path:
        return self.folder / "index"

    def parts(self) -> dict[str, Path]:
        """Return the paths of the parts, by name; none if the folder cannot be listed."""
        try:
            listed = sorted(entry.name for entry in os.scandir(self.folder))
        except OSError:
            return {}
        names = [name for name in listed if name.endswith(".arrows") and name[0] != "."]
        return {name.removesuffix(".arrows"): self.folder / name for name in names}

    def lone_receipts(self) -> list[Path]:
        """Return the receipts without a part: a command was killed, or the disk was full."""
        parts = self.parts()
        paths = [path for path in self.folder.glob("*.json") if DIGEST.fullmatch(path.stem)]
        return sorted(path for path in paths if path.stem not in parts)

    def part(self, part: str) -> Path:
        return self.folder / f"{part}.arrows"

    def receipt(self, part: str) -> Path:
        return self.folder / f"{part}.json"


def own_folder(store: Path) -> Path:
    return store / user()


def index_copies(store: Path) -> list[Path]:
    """Return the folders in `store` with copies that this user's runs made of remote indices."""
    return sorted(own_folder(store).glob(f"*/{REMOTE}/*"))


def shelves(store: Path, recipe: str) -> list[Shelf]:
    """Return the parts of `recipe` in `store` by publisher, this user's first."""
    folders = [path for path in publishers(store) if _is_folder(path / recipe)]
    folders.sort(key=lambda path: (path != own_folder(store), path))
    return [Shelf(path / recipe) for path in folders]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # its owner lets no other user look into the folder
        return False


def all_shelves(store: Path) -> list[Shelf]:
    """Return the parts of all recipes and publishers in `store`, as far as it can be read."""
    shelves = []
    for folder in publishers(store):
        with contextlib.suppress(OSError):
            shelves += [Shelf(path) for path in sorted(folder.iterdir()) if path.name != RUNS]
    return shelves


def publishers(store: Path) -> list[Path]:
    try:
        folders = [Path(entry.path) for entry in os.scandir(store) if entry.is_dir()]
        return sorted(path for path in folders if path.name[0] != "." and path.name != LOST_FOUND)
    except OSError:
        return []


# ---- opening and writing ----


def open_layers(configured: Sequence[str]) -> list[Path]:
    """Return the folders of the stores, without remote ones, after a check that the first can be
    written and the others can be read.

    Raises:
        UserError: with the store and the reason.
    """
    refuse_unwritable(configured)
    stores = [Path(layer) for layer in layers(configured) if not is_remote(layer)]
    for number, store in enumerate(stores):
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
    return stores


def refuse_unwritable(stores: Sequence[str]) -> None:
    """Raise UserError if the first of `stores`, which is written, is an address."""
    if remote := next(filter(is_remote, layers(stores)[:1]), ""):
        key = "store" if stores else STORE
        raise UserError(f"{key}: {remote}: it is only read; name a folder of yours before it.")


def _try_to_write(store: Path) -> None:
    """Make this user's folder in `store`, and check that files can be renamed in it."""
    try:
        store.mkdir(parents=True, exist_ok=True)
        own = own_folder(store)
        open_folder(own, store)
        if own.lstat().st_uid != os.geteuid() or own.is_symlink():
            raise UserError(
                f"store: {own}: it is a link or another user's, so nothing can be published in it; "
                "ask its owner, or name another store first."
            )
        _repair(own, store)
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
    """Make a folder of this user in `store`, and its parents, with the permissions of the store. It
    gets its name only when its readers can enter it."""
    if folder.is_dir():
        return
    if folder.parent != store:
        open_folder(folder.parent, store)
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        _open_to_readers(new, store, FOLDER_MODE)
        new.rename(folder)
    except OSError:
        with contextlib.suppress(OSError):
            new.rmdir()
        if not folder.is_dir():  # no other process of this user has just made it
            raise


def _repair(own: Path, store: Path) -> None:
    """Give the permissions of `store` to the files in this user's folder `own` that lack them: an
    earlier command could not, or those of the store have changed.

    Raises:
        PermissionError: this user is not in the store's group.
    """
    for name, folders, names in os.walk(own):
        folders[:] = [folder for folder in folders if folder[0] != "."]
        folder = Path(name)
        status = folder.stat()
        mode, group = _as_for_readers(folder, store, FOLDER_MODE)
        if status.st_uid != os.geteuid() or (status.st_gid == group and not mode & ~status.st_mode):
            continue
        for path in [folder / name for name in names if name[0] != "."]:
            with contextlib.suppress(FileNotFoundError):  # another process merges an index
                if path.lstat().st_uid == status.st_uid and not path.is_symlink():
                    _open_to_readers(path, store, FILE_MODE)
        _open_to_readers(folder, store, FOLDER_MODE)


def _as_for_readers(path: Path, store: Path, mode: int) -> tuple[int, int]:
    """Return the mode and the group that let the readers of the folder `store` read `path`."""
    parent, own = store.stat(), path.stat()
    readers = parent.st_mode & (stat.S_IRGRP | stat.S_IROTH)
    group = parent.st_gid if readers == stat.S_IRGRP else own.st_gid
    may = stat.S_IRWXU | readers | readers >> 2  # readers of a folder may enter it
    return mode & may | own.st_mode & stat.S_ISGID, group


def _open_to_readers(path: Path, store: Path, mode: int) -> None:
    """Give `path` the readers of the folder `store`.

    Raises:
        PermissionError: this user is not in the store's group.
    """
    mode, group = _as_for_readers(path, store, mode)
    if path.stat().st_gid != group:
        os.chown(path, -1, group)
    path.chmod(mode)


def publish(
    store: Path, recipe: str, settings: Mapping[str, Any], part: Path, receipt: Receipt
) -> bool:
    """Put the finished `part` of a run into `store`, by a hard link where possible; return whether
    it is new there. Readers see it complete or not at all.

    Raises:
        OSError: the store cannot be written.
    """
    shelf = Shelf(own_folder(store) / recipe)
    target = shelf.part(receipt.part)
    is_there = target.exists() and _is_whole(shelf.receipt(receipt.part))
    if is_there and (target.samefile(part) or digest_of_file(target) == receipt.part):
        return False  # a damaged one is replaced
    open_folder(shelf.folder, store)
    # The receipt is written before the part: no part is without its receipt.
    contents = {shelf.receipt(receipt.part): receipt.as_json()}
    if not (shelf.folder / RECIPE).exists():
        contents[shelf.folder / RECIPE] = dict(settings)
    for path, value in contents.items():
        with publishing(path, store) as new:
            new.write_text(files.as_text(files.sealed(value)), "utf-8")
    with publishing(target, store) as new:
        try:
            os.link(part, new)
            _open_to_readers(new, store, FILE_MODE)
        except OSError:  # another file system or group, or no hard links
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
    """Yield a temporary path. After the block the file there is synced, made read-only and becomes
    `path` in `store`."""
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


# ---- runs and their parts ----


class Reference(NamedTuple):
    """The parts that a run has in a store or takes from it."""

    run: str
    recipe: str
    parts: Sequence[str]
    noted: str
    """The time of this reference: ISO 8601, UTC."""

    @property
    def is_there(self) -> bool:
        """Whether the run exists; true where this user cannot see that."""
        try:
            Path(self.run, "store", "plan.json").stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True


def note_run(folder: Results, plan: Plan, own: Sequence[str] = ()) -> None:
    """Write the reference of the run into each store, if it can be written: the parts that `plan`
    takes, and in the first store the run's `own` parts."""
    root = folder.root.resolve()
    for store in map(Path, plan.store):
        parts = [part.shard for part in plan.taken if Path(part.path).is_relative_to(store)]
        parts += own if str(store) == plan.store[0] else ()
        path = own_folder(store) / RUNS / f"{files.digest_of([os.fsencode(root)])}.json"
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        reference = Reference(str(root), plan.recipe, sorted(parts), now)
        with contextlib.suppress(OSError):
            open_folder(path.parent, store)
            with publishing(path, store) as new:
                new.write_text(files.as_text(reference._asdict()), "utf-8")


class Unreadable(NamedTuple):
    """A file with a reference, or a folder of them, that cannot be read."""

    path: Path
    changed: float
    """Time of its last change in seconds since 1970; infinite if unknown. It refers to no part that
    was written later."""


def references(store: Path) -> tuple[list[Reference], list[Unreadable]]:
    """Return the references of all runs in `store`, and what cannot be read, after a warning."""
    listed: list[Reference] = []
    unreadable: list[Unreadable] = []
    for folder in publishers(store):
        path = folder / RUNS
        entries: list[Path] = []
        with _noting_unreadable(path, unreadable):
            entries = sorted(path.iterdir()) if path.exists() else []
        for path in entries:
            if path.suffix == ".json" and DIGEST.fullmatch(path.stem):
                with _noting_unreadable(path, unreadable):
                    listed.append(_reference_of(read_json(path) or {}))
    return listed, unreadable


def _reference_of(value: dict[str, Any]) -> Reference:
    noted = datetime.datetime.fromisoformat(value["noted"]).astimezone().isoformat()
    run, parts = value["run"], value["parts"]
    if not (isinstance(run, str) and isinstance(parts, list)):
        raise TypeError("a reference has a run and a list of parts")
    return Reference(run, value["recipe"], [*map(str, parts)], noted)


@contextlib.contextmanager
def _noting_unreadable(path: Path, unreadable: list[Unreadable]) -> Iterator[None]:
    try:
        yield
    except (OSError, KeyError, TypeError, ValueError) as error:
        try:
            changed = path.stat().st_mtime
        except FileNotFoundError:  # it is removed just now
            return
        except OSError:
            changed = float("inf")
        unreadable.append(Unreadable(path, changed))
        problem = f"which parts runs refer to cannot be read here ({type(error).__name__})"
        log.warning("%s: %s; let its owner open or remove it.", path, problem)


def _unusable_path(folder: Results) -> Path:
    return folder.store / "unusable.json"


def note_unusable(folder: Results, problems: Mapping[str, tuple[Identity, str]]) -> None:
    """Record in the run the parts of stores that it cannot use, by path or address."""
    new = {
        path: {"identity": identity and list(identity), "problem": problem}
        for path, (identity, problem) in problems.items()
    }
    if new:
        with _noting:  # several threads open parts
            known = read_json(_unusable_path(folder)) or {}
            write_json(_unusable_path(folder), {**known, **new})


def unusable(folder: Results) -> set[str]:
    """Return the paths of the parts that `note_unusable` recorded and that were not written again
    since."""
    return {
        path
        for path, noted in (read_json(_unusable_path(folder)) or {}).items()
        if (now := identity_of(Path(path))) is None or list(now) == noted["identity"]
    }


def forget_remote(folder: Results) -> None:
    """Remove the records of unusable remote parts: each plan tries them again."""
    known = read_json(_unusable_path(folder)) or {}
    if any(map(is_remote, known)):
        kept = {path: noted for path, noted in known.items() if not is_remote(path)}
        write_json(_unusable_path(folder), kept)


def problems(folder: Results, plan: Plan) -> list[str]:
    """Return a sentence for each part of a store that `plan` could not take."""
    taken = {part.path for part in plan.taken}
    noted = read_json(_unusable_path(folder)) or {}
    unused = [note for path, note in noted.items() if path not in taken]
    return [f"{note['problem']}; it was not taken." for note in unused]
