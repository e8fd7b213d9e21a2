"""A workload whose records really do harm: the first letters of a sequence say what happens.

CRASH aborts the process, KILL kills it, QUIT leaves it with status 1, SEGV writes to address 0,
RAISE raises (what it says is in TEXTS), TELL and the name of a kind say that the record fails for
it, NAN delivers a value that is not a number, EAT needs more memory than there is (in any batch of
more than one record), GREED even alone, HANG never ends, GIL hangs in C with the interpreter's lock
held, STICKY breaks the pretend device. CHILD forks a process that never ends, and does what the
letters behind it say. LATE before such a word means: when the batch is collected,
not when it runs; EARLY: when it is prepared. REFVSE is refused as too long. Every batch takes
`batch_seconds`, and is noted in the file `computed`; its beginning and its end in the file `spans`,
with the devices that the process sees.

A batch has five moments: `prepare`, then `run` and `ran`, then `collect` and `collected`, the
beginnings and the ends. They are counted in each process, and noted in the file `moments`.
"""

import atexit
import contextlib
import ctypes
import os
import resource
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from featuremill.inputs import proteins
from featuremill.kit import reasons
from featuremill.workload import RecordFailed, WorkloadOptions

VERSION = "1"
COST_UNIT = "records"
LENGTH_UNIT = "residues"
BYTES_ARE_LENGTHS = True
SCHEMA = pa.schema({"letters": pa.list_(pa.float32(), 1)})
TEXTS = {
    "RAISETALE": RuntimeError("the table changed"),
    "RAISEKEY": KeyError("info"),
    "RAISECLING": RuntimeError("CUDA hangs: out of memory: a worker crashed"),
}
"""Errors whose texts have words of other kinds in them."""
PATIENCE_SECONDS = 30.0
counts = Counter()
"""How often each moment came in this process."""


class Options(WorkloadOptions):
    """What a test sets."""

    batch_seconds: float = 0.0
    """Duration of a batch."""
    collect_seconds: float = 0.0
    """Duration of collecting a batch."""
    full: str = ""
    """While this file exists, the worker may write `file_bytes` into a file, as on a full disk."""
    file_bytes: int = 0
    """See `full`."""
    record_seconds: float = 0.0
    """Duration of reading a record."""
    cost_seconds: float = 0.0
    """Duration of telling what a record costs."""
    batch_records: int = 4
    """Records in a batch."""
    hold: str = ""
    """While this file exists, no batch ends: from that number on which it holds."""
    collect_hold: str = ""
    """While this file exists, no batch is collected."""
    late_beside: bool = False
    """LATE harm is done when the next batch has begun, unless its record is alone."""
    moments: str = ""
    """File that gets a line a moment: the process, the moment, how often it came."""
    children: str = ""
    """File that gets the id of each process that CHILD forks."""
    doom: str = ""
    """File with a moment, how often it came, and whom SIGKILL takes then: the whole `job`, or its
    `supervisor`, in which case nothing goes on here. The file goes as well."""
    computed: str = ""
    """File that gets a line for each record that reaches `run`."""
    spans: str = ""
    """File that gets two lines a batch: time, process, visible devices, begin or end."""
    lost_file: str = ""
    """While this file exists, the device named in it fails in the middle of every batch."""
    hang_at_exit: bool = False
    """Never end after the work is done."""
    broken_load: bool = False
    """Fail in `load`."""
    greedy_load: bool = False
    """Need more memory in `load` than there is."""
    sticky_file: str = ""
    """While this file exists, STICKY breaks the device."""
    crash_file: str = ""
    """If it is named: CRASH aborts only while this file exists, and removes it."""
    cure_file: str = ""
    """While this file exists, no sequence does harm."""


def records(files, options):
    for record in proteins(files):
        time.sleep(options.record_seconds)
        if record.payload.startswith(b"REFVSE"):
            record = record._replace(payload=b"", reason=reasons.LENGTH.reason("7 letters"))
        yield record


def cost(payload, options):
    time.sleep(options.cost_seconds)
    return 1


def weights(options):
    return None


def resolve(options, device, weights):
    return options


def schema(options, weights):
    return SCHEMA


def batch_cost(options, device):
    return options.batch_records


def load(options, devices, weights):
    if options.hang_at_exit:
        atexit.register(time.sleep, 3600)
    if options.full and Path(options.full).exists():
        resource.setrlimit(resource.RLIMIT_FSIZE, (options.file_bytes, resource.RLIM_INFINITY))
    if options.greedy_load:
        bytearray(1 << 60)
    if options.broken_load:
        raise KeyError("no such layer")
    return options


def prepare(options, payloads, batch_cost):
    batch = [payload.decode() for payload in payloads]
    _moment(options, "prepare")
    for sequence in batch:
        if sequence.startswith("EARLY"):
            _harm(sequence.removeprefix("EARLY"), len(batch), options)
    return batch


def run(options, batch):
    if options.computed:
        with Path(options.computed).open("a") as computed:
            computed.write("".join(f"{sequence}\n" for sequence in batch))
    _moment(options, "run")
    number = counts["run"]
    for sequence in batch:
        _harm(sequence, len(batch), options)
    _note(options, "begin")
    while options.hold and _holds(Path(options.hold), number):
        time.sleep(0.01)
    time.sleep(options.batch_seconds / 2)
    lost = Path(options.lost_file) if options.lost_file else None
    if lost and lost.exists() and lost.read_text() in os.environ["CUDA_VISIBLE_DEVICES"]:
        raise RuntimeError("CUDA error: device not ready")
    time.sleep(options.batch_seconds / 2)
    _note(options, "end")
    _moment(options, "ran")
    is_bad = "NAN" if not _is_cured(options) else "\n"
    lengths = np.array([np.nan if s.startswith(is_bad) else len(s) for s in batch], np.float32)
    # Not by `pa.array`, which would import pandas in every worker.
    flat = pa.Array.from_buffers(pa.float32(), len(batch), [None, pa.py_buffer(lengths)])
    values = pa.record_batch([pa.FixedSizeListArray.from_arrays(flat, 1)], schema=SCHEMA)
    return number, batch, values


def collect(options, result):
    number, batch, values = result
    _moment(options, "collect")
    while options.collect_hold and Path(options.collect_hold).exists():
        time.sleep(0.01)
    time.sleep(options.collect_seconds)
    for sequence in batch:
        if sequence.startswith("LATE"):
            if options.late_beside and len(batch) > 1:
                _wait_for_batch(number + 1)
            _harm(sequence.removeprefix("LATE"), len(batch), options)
    _moment(options, "collected")
    return values


def _wait_for_batch(number):
    """Wait until so many batches have begun; not for ever, as this one may be the last."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while counts["run"] < number and time.monotonic() < deadline:
        time.sleep(0.002)


def _holds(hold, number):
    with contextlib.suppress(FileNotFoundError):
        return number >= int(hold.read_text() or 0)
    return False


def _moment(options, what):
    counts[what] += 1
    moment = f"{what} {counts[what]}"
    if options.moments:
        with Path(options.moments).open("a") as moments:
            moments.write(f"{os.getpid()} {moment}\n")
    doom = Path(options.doom) if options.doom else None
    if doom and doom.exists() and doom.read_text().startswith(f"{moment} "):
        whom = doom.read_text().split()[-1]
        doom.unlink()
        if whom == "job":
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)


def _note(options, what):
    if options.spans:
        words = (time.monotonic(), os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], what)
        with Path(options.spans).open("a") as spans:
            spans.write(" ".join(map(str, words)) + "\n")


def _is_cured(options):
    return bool(options.cure_file) and Path(options.cure_file).exists()


def _harm(sequence, batch_size, options):
    if _is_cured(options):
        return
    if sequence.startswith("CHILD"):
        child = os.fork()
        if not child:
            time.sleep(3600)
        with Path(options.children).open("a") as children:
            children.write(f"{child}\n")
        sequence = sequence.removeprefix("CHILD")
    if sequence.startswith("CRASH") and options.crash_file:
        if Path(options.crash_file).exists():
            Path(options.crash_file).unlink()
            os.abort()
    elif sequence.startswith("CRASH"):
        os.abort()
    if sequence.startswith("QUIT"):
        os._exit(1)
    if sequence.startswith("KILL"):
        os.kill(os.getpid(), signal.SIGKILL)
    if sequence.startswith("SEGV"):
        ctypes.memset(0, 0, 1)
    if sequence.startswith("RAISE"):
        raise TEXTS.get(sequence, ValueError(f"I don't like {sequence}"))
    if sequence.startswith("TELL"):
        kind = sequence.removeprefix("TELL").lower()
        raise RecordFailed(kind, f"error in the workload: {kind} hangs")
    if sequence.startswith("GREED") or (sequence.startswith("EAT") and batch_size > 1):
        bytearray(1 << 60)
    if sequence.startswith("HANG"):
        time.sleep(3600)
    if sequence.startswith("GIL"):
        ctypes.PyDLL(None).sleep(3600)
    if sequence.startswith("STICKY") and options.sticky_file and Path(options.sticky_file).exists():
        if Path(options.sticky_file).is_file():
            Path(options.sticky_file).unlink()
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
