"""A store behind a web server or in a bucket: listed and read through fsspec, and never written.

What a run needs of it is copied into this user's folder of a local store: index files under the
names of their content, and parts as if a run here had computed them. Only parts that their
publisher's index lists are used.
"""

from __future__ import annotations

import errno
import logging
import os
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
"""Seconds without data after which a connection counts as broken."""
PAUSES = (1.0, 4.0)
"""Seconds to wait before each retry of a broken connection."""
CLOSED = (401, 403, 410)
"""HTTP status codes for a file that this user may not read."""
NOT_REMOTE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of the disk that is written."""
PACKAGES = {"http": "'featuremill[remote]'", "https": "'featuremill[remote]'", "s3": "s3fs"}
"""The package for pip to install, by protocol."""
log = logging.getLogger("featuremill.store")


def shelves(url: str, recipe: str) -> list[RemoteShelf]:
    """Return the folder for `recipe` of each publisher in the store at `url`.

    Raises:
        UserError: the store cannot be read, or has no folders.
    """
    try:
        import fsspec

        options: dict[str, Any] = {}
        if url.startswith("http"):
            import aiohttp

            seconds = SILENT_SECONDS
            limits = aiohttp.ClientTimeout(None, sock_connect=seconds, sock_read=seconds)
            options = {"client_kwargs": {"timeout": limits}}
        files, root = fsspec.core.url_to_fs(url, **options)
        files.invalidate_cache()  # some protocols keep what they listed before
    except ImportError as error:
        package = PACKAGES.get(url.partition("://")[0])
        needed = f"it needs a package; pip install {package}" if package else f"{error}; do so"
        raise UserError(f"store: {url}: {needed}, or leave this store out.") from None
    except (ValueError, OSError) as error:  # some protocols connect here
        raise UserError(f"store: {url}: {error}; fix it, or leave this store out.") from None
    store = RemoteShelf(url.rstrip("/"), files, root.rstrip("/"))
    publishers = store.listed("")
    if not publishers:
        raise UserError(
            f"store: {url}: no folder is listed there; check the address, and that the server "
            "lists folders."
        )
    return [store.below(name).below(recipe) for name in publishers]


class RemoteShelf(NamedTuple):
    """A folder of a remote store, usually the parts of one recipe of one publisher."""

    url: str
    files: Any
    """The file system of fsspec."""
    path: str
    """The path of the folder in that file system."""

    @property
    def recipe(self) -> str:
        return self.path.rpartition("/")[2]

    def below(self, name: str) -> RemoteShelf:
        return RemoteShelf(f"{self.url}/{name}", self.files, f"{self.path}/{name}")

    def listed(self, suffix: str) -> list[str]:
        """Return the names in the folder that end with `suffix`, without it. A folder that is
        missing or closed has none."""
        try:
            paths = self._request(self.url, self.files.ls, f"{self.path}/", False)
        except PermissionError:
            log.warning("%s: it is closed, so what it has is not taken.", self.url)
            return []
        except FileNotFoundError:
            return []
        names = {unquote(path.rstrip("/").rpartition("/")[2]) for path in paths}
        # Apache lists links that sort its list, "?C=N;O=D".
        shown = [name for name in names if name.endswith(suffix) and name[:1] not in (".", "?", "")]
        return sorted(name.removesuffix(suffix) for name in shown)

    def parts(self) -> Collection[str]:
        return {name for name in self.listed(".arrows") if shared.DIGEST.fullmatch(name)}

    def part(self, name: str) -> str:
        return f"{self.url}/{name}.arrows"

    def levels(self, store: Path) -> list[Level]:
        """Fetch those files of the index that `store` lacks, and return all of them.

        Raises:
            UserError: the index cannot be read.
        """
        index = self.below("index")
        names = [name for name in index.listed(".arrow") if shared.DIGEST.fullmatch(name)]
        copies = shared.own_folder(store) / self.recipe / shared.REMOTE
        folder = copies / digest_of([self.url.encode()])
        shared.open_folder(folder, store)
        os.utime(folder)  # `featuremill store remove` removes copies that no plan reads
        levels = []
        for path in {*folder.glob("*.arrow"), *(folder / f"{name}.arrow" for name in names)}:
            if path.stem not in names:  # the publisher merged it with others
                path.unlink(missing_ok=True)
            elif level := index._level(path, store):
                levels.append(level)
        return sorted(levels)

    def _level(self, path: Path, store: Path) -> Level | None:
        try:
            if not path.exists():
                with shared.publishing(path, store) as new:
                    self._fetch(path.name, new)
        except FileNotFoundError:  # the publisher has just merged it with others
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
        """Fetch a part whose columns must be `values`, and publish it in `store`. Return why it
        cannot be used; "" if it can.

        Raises:
            UserError: the connection breaks.
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
        self._request(f"{self.url}/{name}", self.files.get_file, f"{self.path}/{name}", str(to))

    def _request(self, url: str, ask: Callable[..., Any], *arguments: Any) -> Any:
        """Call `ask`; retry after a pause if the connection breaks.

        Raises:
            FileNotFoundError, PermissionError: there is no such file, or it is closed.
            UserError: the connection broke each time.
        """
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
                    reason = " ".join(f"{type(error).__name__} {error}".split())
                    raise UserError(
                        f"store: {url}: it cannot be read ({reason}); run the same command again, "
                        "which keeps what it fetched, or leave this store out."
                    ) from None
                time.sleep(pause)
        raise AssertionError("the last try returns or raises")
