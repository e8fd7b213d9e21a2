"""Read contigs for gLM2: proteins in capitals and bases between them in small letters, each element
after its strand.

An entry of a flat file is a contig. It is converted like the training data (TattaBio/OMG, scripts
jgi_preprocessor.py, omg_generator.py, tokenize_omg.py): each CDS with a /translation is a protein
on its strand, in the order of the left ends. Bases that no CDS covers, between the first and the
last CDS, are elements of the + strand. Their <+> is as in the model's card; tokenize_omg.py writes
none there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from featuremill.inputs import residues
from featuremill.inputs.fasta import as_unicode
from featuremill.inputs.letters import NO_WHITESPACE, Cleaned, first_other, show_at, wrong_id
from featuremill.kit.reasons import LENGTH, Kind
from featuremill.workload import Record
from featuremill.workloads.encoder import joined

if TYPE_CHECKING:
    from featuremill.workloads.encoder.options import Options

__all__ = ["REASONS", "clean", "fitted", "of_entry"]
STRAND = re.compile("<([+-])([^<>]*)>")
"""The mark before each element, which may contain its name."""
PROTEIN = "ACDEFGHIKLMNPQRSTVWYXBUZO"
BASES = "acgtryswkmbdhvn"
STOPS = "* dropped"
U_AS_T = "U read as T"
MINUS = "bases on <->, which the training had on <+> alone"
NO_ELEMENT = Kind(
    "no_element",
    ("no element of a contig",),
    "Write elements behind <+> or <->. An entry of a flat file needs its sequence, and a CDS with "
    "a /translation.",
)
WRONG_ELEMENT = Kind(
    "element",
    ("not an element of a contig", "an empty element", "an element without its strand"),
    "An element is a protein in capitals or bases in small letters, behind <+> or <->. Fix the one "
    "that is named.",
)
REASONS = (NO_ELEMENT, WRONG_ELEMENT)
NONE, EMPTY, NO_STRAND = WRONG_ELEMENT.heads


def clean(letters: str) -> Cleaned:
    """Return the joined elements of a contig, and their names: `<+name>`, or the number of an
    element without a unique name."""
    before, *rest = STRAND.split(letters.translate(NO_WHITESPACE))
    if before:
        return Cleaned(b"", WRONG_ELEMENT.reason(f"{show_at(before, 0)} at letter 1", NO_STRAND))
    if not rest:
        return Cleaned(b"", NO_ELEMENT.reason())
    strands, elements = rest[::3], rest[2::3]
    names, notes_of_names = zip(*map(as_unicode, rest[1::3]), strict=True)
    payloads, notes = list[bytes](), dict.fromkeys(filter(None, notes_of_names))
    for number, (strand, element) in enumerate(zip(strands, elements, strict=True), 1):
        payload, wrong, note = _element(element, strand)
        if wrong:
            label = " ".join(filter(None, (f"element {number}", names[number - 1])))
            return Cleaned(b"", WRONG_ELEMENT.reason(f"{note}{label}", wrong))
        payloads.append(strand.encode() + payload)
        notes |= dict.fromkeys(filter(None, note.split("; ")))
    return Cleaned(joined.named(b"".join(payloads), _names(names)), "", "; ".join(notes))


def _element(element: str, strand: str) -> Cleaned:
    """Return the letters of an element, or a head of `WRONG_ELEMENT` with a detail as note."""
    if not element.strip("*"):
        return Cleaned(b"", EMPTY)
    small = element.islower()
    written, notes = element, list[str]()
    if small:
        written = element.replace("u", "t")
        notes += [U_AS_T] if written != element else []
        notes += [MINUS] if strand == "-" else []
    else:
        written = element.replace("*", "")
        notes += [STOPS] if written != element else []
        notes += [residues.J_AS_X] if "J" in written else []
        written = written.replace("J", "X")
    alphabet = BASES if small else PROTEIN
    if (index := first_other(element, alphabet + ("u" if small else "J*"))) >= 0:
        return Cleaned(b"", NONE, f"{show_at(element, index)} at letter {index + 1} of ")
    if not small and residues.NUCLEOTIDES in residues.clean(written).note:
        notes.append(residues.NUCLEOTIDES)
    return Cleaned(written.encode(), "", "; ".join(notes))


def _names(names: Sequence[str]) -> list[str]:
    """Return a name for each element: its own if unique and not a number, else its number."""
    counts = Counter(names)
    return [
        name if counts[name] == 1 and not name.isdecimal() and not wrong_id(name) else str(number)
        for number, name in enumerate(names, 1)
    ]


def fitted(records: Iterator[Record], options: Options) -> Iterator[Record]:
    """Yield contigs that fit the network; longer ones are cut between elements, by the option
    `long`. Names of elements become ids, `<id>/<name>`."""
    most = options.max_residues
    for record in records:
        if record.reason:
            yield record
            continue
        letters, names = joined.parts_named(record.payload)
        ids = [f"{record.id}/{name}" for name in names]
        record = record._replace(payload=joined.named(letters, ids), length=len(letters))
        if most is None or len(letters) <= most or options.long == "refuse":
            yield record
        else:
            yield from _cut(record, letters, ids, most, options)


def _cut(
    record: Record, letters: bytes, ids: Sequence[str], most: int, options: Options
) -> Iterator[Record]:
    """Yield the windows of a contig with more than `most` tokens. Without `split`, yield the first
    window, and the elements after it as refused records."""
    elements = [
        letters[match.start() - 1 : match.end()]
        for match in joined.STRETCH[joined.STRANDS].finditer(letters)
    ]
    starts, room = [0], most
    for number, element in enumerate(elements):
        if len(element) > room and number > starts[-1]:
            starts.append(number)
            room = most
        room -= len(element)
    is_split = options.long == "split"
    cut = f"longer than {most} tokens, " + (
        "cut between elements" if is_split else "elements behind them left out"
    )
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True), 1):
        if number > 1 and not is_split:
            if options.parts:
                reason = LENGTH.reason(f"an element behind the first {most:,} tokens")
                for id in ids[start:]:
                    yield record._replace(id=id, payload=b"", reason=reason)
            return
        window = b"".join(elements[start:end])
        notes = [record.note, cut if len(starts) > 1 else ""]
        if len(window) > most:
            notes.append(f"an element longer than {most} tokens, truncated")
        payload = joined.named(window[:most], ids[start:end])
        id = f"{record.id}/window{number}" if len(starts) > 1 and is_split else record.id
        yield record._replace(
            id=id,
            payload=payload,
            note="; ".join(filter(None, notes)),
            length=min(len(window), most),
        )


class Coding(NamedTuple):
    """A protein that is coded in an entry."""

    start: int
    """The left end of the CDS, from 0."""
    strand: str
    stretches: list[tuple[int, int]]
    """The covered bases: [start, end) from 0."""
    names: list[str]
    """Possible names, the preferred one first."""
    letters: str


def of_entry(entry: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the id, description and elements of an entry that Biopython read. The elements are ""
    if it has no sequence or no CDS with a /translation."""
    codings = list(_codings(entry)) if entry.seq.defined else []
    elements = [(each.start, 0, each.strand, each.names, each.letters) for each in codings]
    covered = sorted(stretch for each in codings for stretch in each.stretches)
    end = covered[0][0] if covered else 0
    for start, next_end in covered:
        if start > end:
            bases = str(entry.seq[end:start]).lower()
            elements.append((end, 1, "+", [f"{end + 1}-{start}"], bases))
        end = max(end, next_end)
    elements.sort(key=lambda element: element[:2])
    taken = Counter(name for element in elements for name in set(element[3]))
    text = []
    for _, _, strand, names, letters in elements:
        name = next((name for name in names if taken[name] == 1), "")
        text.append(f"<{strand}{name}>{letters}")
    yield entry.id, entry.description, "".join(text)


def _codings(entry: Any) -> Iterator[Coding]:
    for feature in entry.features:
        if feature.type != "CDS" or "translation" not in feature.qualifiers:
            continue
        qualifiers = {key: values[0] for key, values in feature.qualifiers.items() if values}
        names = [qualifiers.get("locus_tag", ""), qualifiers.get("protein_id", "")]
        names = ["".join(name.split()).translate(str.maketrans("", "", "<>")) for name in names]
        names = list(filter(None, names))
        parts = feature.location.parts if feature.location else []
        if not parts or not all(
            isinstance(end, int) for part in parts for end in (part.start, part.end)
        ):
            yield Coding(0, "+", [], names, "")  # no position, so the contig is refused
            continue
        parts = [part for part in parts if not part.ref]
        if not parts:  # all in another entry
            continue
        is_minus = parts[0].strand == -1
        if is_minus:
            parts = parts[::-1]
        stretches = [(int(part.start), int(part.end)) for part in parts]
        if stretches == sorted(stretches):  # else it crosses the origin of a circular entry
            stretches = [(stretches[0][0], max(end for _, end in stretches))]
        names.append(f"{stretches[0][0] + 1}-{stretches[-1][1]}")
        letters = qualifiers.get("translation", "").upper()
        yield Coding(stretches[0][0], "-" if is_minus else "+", stretches, names, letters)
