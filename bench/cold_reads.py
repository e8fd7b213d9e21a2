"""What the storage of a folder gives when nothing is in the page cache: rows one by one, and whole
files.

    python -m bench.cold_reads FOLDER --row-bytes 5120 --rows 20000

It is why merge reads every part from its beginning to its end (bench/figures.md). FOLDER holds
large files, such as results/<run>/store/parts; it is only read, and only its pages leave the cache.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path

SEQUENTIAL_BYTES = 4 * 2**20


def main() -> None:
    """Measure both and print two lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--row-bytes", type=int, default=5120)
    parser.add_argument("--rows", type=int, default=20_000)
    arguments = parser.parse_args()
    files = sorted(path for path in arguments.folder.rglob("*") if path.is_file())
    os.sync()
    forget(files)
    rate = rows_a_second(files, arguments.row_bytes, arguments.rows)
    print(f"rows of {arguments.row_bytes} bytes, one by one: {rate:,.0f} rows/s")
    forget(files)
    print(f"whole files: {bytes_a_second(files) / 1e6:,.0f} MB/s")


def forget(files: list[Path]) -> None:
    """Drop the pages of `files` from the page cache."""
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def rows_a_second(files: list[Path], row_bytes: int, num_rows: int) -> float:
    """Read rows at random places, as a merge in input order would have to."""
    handles = [os.open(path, os.O_RDONLY) for path in random.Random(0).sample(files, 100)]
    for handle in handles:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
    sizes = [os.fstat(handle).st_size for handle in handles]
    rng = random.Random(1)
    started = time.monotonic()
    for _ in range(num_rows):
        which = rng.randrange(len(handles))
        os.pread(handles[which], row_bytes, rng.randrange(max(1, sizes[which] - row_bytes)))
    seconds = time.monotonic() - started
    for handle in handles:
        os.close(handle)
    return num_rows / seconds


def bytes_a_second(files: list[Path], seconds: float = 20.0) -> float:
    """Read files from their beginnings to their ends, for about so long."""
    started, num_bytes = time.monotonic(), 0
    for path in files:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(SEQUENTIAL_BYTES):
                num_bytes += len(piece)
        if time.monotonic() - started > seconds:
            break
    return num_bytes / (time.monotonic() - started)


if __name__ == "__main__":
    main()
