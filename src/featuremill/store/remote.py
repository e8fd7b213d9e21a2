"""A store behind a web server or in a bucket: listed and read through fsspec, and never written.

What is needed of it is fetched whole into this user's folder of a store that is here: index files
once, under the names of their content, and parts as if a run here had computed them. Only parts
that their publisher's index has are found.
"""

from __future__ import annotations

import errno
import logging
import re
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from featuremill.base.errors import IntegrityError, UserError
from featuremill.store import shared
from featuremill.store.files import digest_of
from featuremill.store.parts import OTHER_COLUMNS, checked
from featuremill.store.plan import Settings
from featuremill.store.receipt import Receipt
from featuremill.store.shared_index import Level, opened

SILENT_SECONDS = 60.0
"""A web server that sends nothing for so long is given up."""
PAUSES = (1.0, 4.0)
"""Seconds until a file is asked for again when the connection broke."""
CLOSED = (401, 403, 410)
"""What a web server answers for what it does not give."""
NOT_REMOTE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of the disk that is written."""
DIGEST = re.compile(r"[0-9a-f]{32}")
log = logging.getLogger("featuremill.store")


def shelves(url: str, recipe: str) -> list[RemoteShelf]:
    """Return where the store at `url` may have parts of `recipe`.

    Raises:
        UserError: when it cannot be read, or nothing is listed there.
    """
    try:
        import fsspec

        files, root = fsspec.core.url_to_fs(url, **_limits(url))
    except (ImportError, ValueError, OSError) as error:  # that of ftp connects
        raise UserError(
            f"store: {url}: {error}; pip install 'featuremill[remote]' for https, and what fsspec "
            "names for other addresses."
        ) from None
    store = RemoteShelf(url.rstrip("/"), files, root.rstrip("/"))
    publishers = store.listed("")
    if not publishers:
        raise UserError(
            f"store: {url}: no folder is listed there; check the address, and that the server "
            "lists folders."
        )
    return [store.below(name).below(recipe) for name in publishers]


def _limits(url: str) -> dict[str, Any]:
    if not url.startswith("http"):
        return {}
    import aiohttp

    limits = aiohttp.ClientTimeout(None, sock_connect=SILENT_SECONDS, sock_read=SILENT_SECONDS)
    return {"client_kwargs": {"timeout": limits}}


class RemoteShelf(NamedTuple):
    """A folder of a remote store; with the parts of one recipe of one publisher."""

    url: str
    files: Any
    """The file system of fsspec."""
    path: str
    """What that calls the folder."""

    @property
    def recipe(self) -> str:
        """That of the parts."""
        return self.path.rpartition("/")[2]

    def below(self, name: str) -> RemoteShelf:
        return RemoteShelf(f"{self.url}/{name}", self.files, f"{self.path}/{name}")

    def listed(self, suffix: str) -> list[str]:
        """Return the names in the folder that end so, without that; none where it is not there."""
        try:
            paths = self._ask(self.url, self.files.ls, f"{self.path}/", False)
        except PermissionError:
            log.warning("%s: it is closed, so what it has is not taken.", self.url)
            return []
        except FileNotFoundError:
            return []
        names = {unquote(path.rstrip("/").rpartition("/")[2]) for path in paths}
        # Apache lists links that sort its list, "?C=N;O=D".
        found = [name for name in names if name.endswith(suffix) and name[:1] not in (".", "?", "")]
        return sorted(name.removesuffix(suffix) for name in found)

    def parts(self) -> Collection[str]:
        """Return the names of the parts."""
        return {name for name in self.listed(".arrows") if DIGEST.fullmatch(name)}

    def part(self, name: str) -> str:
        """Return the address of a part."""
        return f"{self.url}/{name}.arrows"

    def levels(self, store: Path) -> list[Level]:
        """Fetch the index into `store` as far as it is not there, and return it.

        Raises:
            UserError: when it cannot be read.
        """
        index = self.below("index")
        names = [name for name in index.listed(".arrow") if DIGEST.fullmatch(name)]
        folder = shared.own_folder(store) / self.recipe / "remote" / digest_of([self.url.encode()])
        shared.open_folder(folder, store)
        found = []
        for path in {*folder.glob("*.arrow"), *(folder / f"{name}.arrow" for name in names)}:
            if path.stem not in names:  # became one with others
                path.unlink(missing_ok=True)
            elif level := index._level(path, store):
                found.append(level)
        return sorted(found)

    def _level(self, path: Path, store: Path) -> Level | None:
        try:
            if not path.exists():
                with shared.publishing(path, store) as new:
                    self._fetch(path.name, new)
        except FileNotFoundError:  # its publisher made it one with others just now
            return None
        except PermissionError:
            log.warning("%s/%s: it is closed, so its parts are not taken.", self.url, path.name)
            return None
        level = opened(path)
        if level is None or not level.is_sound():
            path.unlink(missing_ok=True)
            log.warning("%s/%s: it is damaged, so its parts are not taken.", self.url, path.name)
            return None
        return level

    def take(self, name: str, store: Path, settings: Settings, values: pa.Schema) -> str:
        """Publish a part with these `values` in `store`; return what is wrong with it, "" where
        nothing is.

        Raises:
            UserError: when the connection breaks.
        """
        own = shared.own_folder(store)
        with tempfile.TemporaryDirectory(dir=own, prefix=".fetch.") as folder:
            path = Path(folder, f"{name}.arrows")
            try:
                for file in (path, path.with_suffix(".json")):
                    self._fetch(file.name, file)
            except FileNotFoundError:
                return f"{self.part(name)}: it is gone"
            except PermissionError:
                return f"{self.part(name)}: it is closed"
            try:
                receipt = Receipt.read(path.with_suffix(".json"))
                part = checked(path, [receipt], receipt.rows)
            except UserError:
                return f"{self.part(name)}: a newer featuremill wrote its receipt"
            except IntegrityError:
                return f"{self.part(name)}: it is not what was published"
            if (receipt.part, receipt.recipe) != (name, self.recipe):
                return f"{self.part(name)}: it is another part"
            if not part.values.equals(values):
                return f"{self.part(name)}: {OTHER_COLUMNS}"
            shared.publish(store, self.recipe, settings.as_json(), path, receipt)
        return ""

    def _fetch(self, name: str, to: Path) -> None:
        self._ask(f"{self.url}/{name}", self.files.get_file, f"{self.path}/{name}", str(to))

    def _ask(self, url: str, ask: Callable[..., Any], *arguments: Any) -> Any:
        for pause in (*PAUSES, None):
            try:
                return ask(*arguments)
            except (FileNotFoundError, NotADirectoryError):
                raise FileNotFoundError(url) from None
            except PermissionError:
                raise
            except Exception as error:  # each protocol raises its own
                if isinstance(error, OSError) and error.errno in NOT_REMOTE:
                    raise
                if getattr(error, "status", None) in CLOSED:
                    raise PermissionError(url) from None
                if pause is None:
                    told = " ".join(f"{type(error).__name__} {error}".split())
                    raise UserError(
                        f"store: {url}: it cannot be read ({told}); run the same command again, "
                        "which keeps what it fetched, or leave this store out."
                    ) from None
                time.sleep(pause)
        raise AssertionError("the last try returns or raises")
