"""Files over HTTP, whole or not at all: resumed where a connection ends, and compared with the size
and the digest that are known. Proxies are those of the environment (`https_proxy`, `no_proxy`).
"""

from __future__ import annotations

import http.client
import logging
import re
import time
import urllib.error
import urllib.request
from pathlib import Path

from featuremill.base.locking import locked
from featuremill.base.progress import Progress
from featuremill.store.files import sha256_of, sync

ATTEMPTS = 4
"""Connections in a row that may bring nothing new."""
STALL_SECONDS = 60.0
"""A connection without a byte for so long is given up."""
PAUSE_SECONDS = 1.0
"""Between one connection and the next; each is twice as long."""
BLOCK = 2**20
BUSY = (429, 500, 502, 503, 504)
"""Statuses of a server that may answer later."""
log = logging.getLogger("featuremill.weights")


def download(url: str, path: Path, sha256: str = "") -> None:
    """Download `url` to `path`, which then has this `sha256`, if it is known.

    What an earlier call left in `<path>.partial` is continued, if the server still has the same
    file (by its ETag). Of several processes one downloads, and the others wait.

    Raises:
        OSError: there is no such file, the server or the network failed, or the bytes differ.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    lock = path.with_name(f"{path.name}.lock")
    try:
        with locked(lock):
            if not path.exists():
                _complete(url, partial)
                if sha256 and (found := sha256_of(partial)) != sha256:
                    partial.unlink()
                    raise OSError(f"its sha256 is {found[:12]}… and not {sha256[:12]}…")
                sync(partial)
                partial.rename(path)
    finally:
        if not partial.exists():
            _tag(partial).unlink(missing_ok=True)
        lock.unlink(missing_ok=True)


def _tag(partial: Path) -> Path:
    """Return the file with the ETag of what is in `partial`."""
    return partial.with_name(f"{partial.name}.etag")


def _complete(url: str, partial: Path) -> None:
    """Bring all of `url` into `partial`, over several connections if needed."""
    shown, failures = Progress(log, "downloading", "MB"), 0
    while True:
        before = _size(partial)
        try:
            total = _receive(url, partial, shown)
            if total is None or _size(partial) == total:
                return
            problem = OSError(f"it ended after {_size(partial):,} of {total:,} bytes")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in BUSY:
                raise
            problem = error
        except (OSError, http.client.HTTPException) as error:
            problem = error if isinstance(error, OSError) else OSError(str(error))
        failures = 1 if _size(partial) > before else failures + 1
        if failures >= ATTEMPTS:
            raise problem
        time.sleep(PAUSE_SECONDS * 2**failures)


def _receive(url: str, partial: Path, shown: Progress) -> int | None:
    """Append to `partial` what a connection brings; return the size of the whole file, if the
    server names it."""
    start, tag = _size(partial), _tag(partial)
    headers = {"User-Agent": "featuremill", "Accept-Encoding": "identity"}
    etag = tag.read_text("utf-8") if tag.exists() else ""
    if start and etag and not etag.startswith("W/"):  # a weak one does not mean equal bytes
        headers |= {"Range": f"bytes={start}-", "If-Range": etag}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  (an address of ours)
    opener = urllib.request.build_opener()  # with the proxies of now
    with opener.open(request, timeout=STALL_SECONDS) as answer:
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
        if answer.status == http.client.PARTIAL_CONTENT and span and int(span[1]) == start:
            total: int | None = int(span[2])
        else:
            length = answer.headers.get("Content-Length")
            total = int(length) if length else None
            partial.unlink(missing_ok=True)
            tag.write_text(answer.headers.get("ETag", ""), "utf-8")
        with partial.open("ab") as file:
            while block := answer.read(BLOCK):
                file.write(block)
                shown.at(file.tell() // 10**6, total and total // 10**6)
    return total


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
