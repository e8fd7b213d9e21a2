"""Why records have no values: the kinds of reasons, and what a person can do about each.

A reason is stable up to its first colon, so that it can be counted; the rest is about one record.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Kind(NamedTuple):
    """One kind of reason."""

    name: str
    """A word to ask for it by."""
    pattern: str
    remedy: str
    """What to do about it, one or two sentences."""


KINDS = (
    Kind("pending", r"^not computed yet$", "Nothing: the run's own command computes it."),
    Kind(
        "nan",
        r"not finite|\bnan\b|\binf",
        "A value left the range of its number format, or the workload gave none. In options, set "
        "dtype: fp32 (or bf16, where it was fp16) and, for values per residue, output_dtype: "
        "float32, which computes everything again; or raise max_failed and do without these.",
    ),
    Kind(
        "oom",
        r"out of memory|\boom\b",
        "This record alone does not fit the device. Use one with more memory, or let the options "
        "cut long records (truncate).",
    ),
    Kind(
        "hang",
        r"stall|hang|hung|time ?out|timed out",
        "The device stopped answering on this record. Run again; if it recurs, try another device "
        "and read the shard's log.",
    ),
    Kind(
        "crash",
        r"worker|crash|signal|died|killed|segfault",
        "It brought the worker down twice, alone. Run again on another device; if it recurs, the "
        "shard's log holds the stack for a bug report.",
    ),
    Kind(
        "error",
        r"error in the workload",
        "The workload stumbled over this record. The shard's log has the traceback for its author.",
    ),
    Kind(
        "empty",
        r"empty|no (residues|sequence)",
        "A header without a sequence. Restore the sequence in the input, or remove the record.",
    ),
    Kind(
        "length",
        r"too long|longer than|exceeds|at most",
        "Choose in the options how long records are treated (truncate or chunk), or cut the "
        "record into domains.",
    ),
    Kind(
        "nucleotides",
        r"nucleotide|\bdna\b|\brna\b",
        "The record looks like nucleotides. Translate it first, or take it out of this input.",
    ),
    Kind(
        "stop",
        r"stop|\*",
        "A stop inside a protein suggests a frame shift or a pseudogene. Mend the gene call, or "
        "split the record there.",
    ),
    Kind(
        "letters",
        r"amino acid|letter|character|residue|alphabet|digit",
        "Mend the named characters in the input; X stands for an unknown residue.",
    ),
    Kind(
        "id",
        r"\bid\b|identifier|\bname\b",
        "Give the record an id of its own in the input.",
    ),
)
OTHER = Kind(
    "other",
    "",
    "Look at the record in its source; mend or remove it, then run the same command.",
)


def kind_of(reason: str) -> Kind:
    """Return the kind of `reason`: the first whose pattern is in it."""
    found = (kind for kind in KINDS if re.search(kind.pattern, reason, re.IGNORECASE))
    return next(found, OTHER)
