"""The kinds of reasons why records have no values, and a remedy for each.

A reason is "head: detail". The head is a fixed phrase of one kind, by which records are counted and
sorted; the detail is about one record, in a workload's own words. All code that refuses or fails a
record makes the reason here, also workloads (`featuremill.workload.RecordFailed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Kind(NamedTuple):
    name: str
    """Its name for `featuremill retry --reason`."""
    heads: tuple[str, ...]
    """Phrases without a colon that no other kind has; the first is the default."""
    remedy: str

    def reason(self, detail: str = "", head: str = "") -> str:
        """Return a reason of this kind with a `detail`, and with one of its heads."""
        if not self.heads:
            # A workload's own words: counted by their own head, unless another kind has that.
            return detail if detail and kind_of(detail) is self else f"failed: {detail}"
        head = head or self.heads[0]
        assert head in self.heads, head
        return f"{head}: {detail}" if detail else head


UNPRINTABLE_ID = "control character in the id"
"""The other head of `ID`."""

# fmt: off
PENDING = Kind("pending", ("not computed yet",), "Nothing: the run's own command computes it.")
# The second head is in old stores.
NOT_FINITE = Kind("nan", ("values are missing or not finite", "values are not finite"),
    "A value left the range of its number format, or the workload gave none. In options, set "
    "dtype: fp32 (or bf16, where it was fp16) and, for values per residue, output_dtype: "
    "float32, which computes everything again; or raise max_failed and do without these.")
MISSING = Kind("missing", ("a value is missing",),
    "The workload gave neither all values nor a reason: that is for its author to fix.")
OUT_OF_MEMORY = Kind("oom", ("out of memory",),
    "This record alone does not fit the device. Use one with more memory, or let the options "
    "cut long records (max_residues, long: truncate).")
HANG = Kind("hang", ("hung the worker twice",),
    "The device stopped answering on this record. Run again; if it recurs, try another device "
    "and read the shard's log.")
CRASH = Kind("crash", ("crashed the worker twice",),  # in old stores, hangs as well
    "It brought the worker down twice, alone. Run again on another device; if it recurs, the "
    "shard's log holds the stack for a bug report.")
ERROR = Kind("error", ("error in the workload",),
    "The workload stumbled over this record. The shard's log has the traceback for its author.")
EMPTY = Kind("empty", ("empty sequence",),
    "A header without a sequence. Restore the sequence in the input, or remove the record.")
ABSENT = Kind("no_sequence", ("a word for a missing sequence",),
    "A program wrote NA, nan, None or null where it had no sequence. Restore the sequence in the "
    "input, or remove the record. The peptide of N and A alone can be written NA*.")
# This and the next one are for workloads: nothing here refuses a record for them.
LENGTH = Kind("length", ("too long",),
    "Choose in the options how long records are treated (truncate or chunk), or cut the "
    "record into domains.")
NUCLEOTIDES = Kind("nucleotides", ("nucleotides, not a protein",),
    "The record looks like nucleotides. Translate it first, or take it out of this input.")
STOP = Kind("stop", ("stop codon (*) inside the sequence",),
    "A stop inside a protein suggests a frame shift or a pseudogene. Fix the gene call, or "
    "split the record there.")
LETTERS = Kind("letters", ("not an amino acid",),
    "Fix the named characters in the input; X stands for an unknown residue.")
BASES = Kind("bases", ("not a nucleotide",),
    "Fix the named characters in the input; N stands for an unknown base.")
PROTEIN = Kind("protein", ("a protein, not nucleotides",),
    "The record looks like a protein. Take it out of this input, or give its gene.")
CELLS = Kind("cells", ("not of its column's type",),
    "Fix the named cell in the table, or leave it empty where no value is known.")
ID = Kind("id", ("no id", UNPRINTABLE_ID), "Give the record an id of its own in the input.")
CONFLICT = Kind("conflict", ("the id stands for two different sequences",),
    "Give one of them another id in the input, or remove one; the reason names the other's place. "
    "Where files use the same ids, list the files in a sheet of samples.")
OTHER = Kind("other", (),
    "Look at the record in its source; fix or remove it, then run the same command.")
"""The kind of every reason whose head no other kind has."""
MISSING_WORDS = frozenset(r"na <na> n/a #n/a #na nan -nan nat none null \n".split())  # noqa: SIM905
"""Words of R, pandas, Python, SQL, JSON and spreadsheets for a missing value, in small letters."""
PEPTIDES = ("NAN", "NAT")
"""Words for missing values that no program writes in capitals, and that can be peptides."""
OF_THE_CORE = (PENDING, MISSING, ERROR, CRASH, HANG, CONFLICT)
OF_RECORDS = (NOT_FINITE, OUT_OF_MEMORY, EMPTY, ABSENT, LENGTH, NUCLEOTIDES, STOP, LETTERS, BASES,
    PROTEIN, CELLS, ID, OTHER)
"""The kinds that a workload may use, too."""
# fmt: on
KINDS = (*OF_THE_CORE, *OF_RECORDS)
_of_workloads: dict[str, Kind] = {}
_by_head = {head: kind for kind in KINDS for head in kind.heads}


def is_missing(text: str) -> bool:
    """Return whether the cell is a word for a missing value, in capital or small letters."""
    return text.strip().lower() in MISSING_WORDS


def is_missing_sequence(text: str) -> bool:
    """Return whether a cell of sequences is a word for a missing value and cannot be a peptide."""
    return is_missing(text) and text.strip() not in PEPTIDES


def learn(kinds: Sequence[Kind]) -> None:
    """Register the `kinds` of a workload in this process.

    Raises:
        ValueError: one has the name or a head of another kind, or no head.
    """
    for kind in kinds:
        taken = [known for known in all_kinds() if known.name == kind.name and known != kind]
        taken += [_by_head[head] for head in kind.heads if _by_head.get(head, kind) != kind]
        if taken or not kind.heads or any(":" in head for head in kind.heads):
            why = f"has the name or a head of {taken[0].name!r}" if taken else "needs plain heads"
            raise ValueError(f"the kind of reasons {kind.name!r} {why}")
        _of_workloads[kind.name] = kind
        _by_head.update(dict.fromkeys(kind.heads, kind))


def all_kinds() -> list[Kind]:
    """Return every kind that is known here: the core's, then those of workloads."""
    return [*KINDS, *_of_workloads.values()]


def head_of(reason: str) -> str:
    """Return the head of a reason: the text before its first colon."""
    return reason.partition(":")[0]


def kind_of(reason: str) -> Kind:
    return _by_head.get(head_of(reason), OTHER)


def named(name: str) -> Kind:
    """Return the kind called `name`; raise ValueError if workloads have no such kind."""
    known = [*OF_RECORDS, *_of_workloads.values()]
    for kind in known:
        if kind.name == name:
            return kind
    names = ", ".join(kind.name for kind in known)
    raise ValueError(f"there is no reason {name!r} for a failed record; there are {names}")


def delivered(text: str) -> str:
    """Return the reason in a part for a workload's text; kinds of the core become OTHER."""
    return text if kind_of(text) not in OF_THE_CORE else OTHER.reason(text)
