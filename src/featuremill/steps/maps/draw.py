"""Draw the map of the report: positions, colours and descriptions of the records.

The data in the page are compressed JSON, with columns of 16-bit numbers or texts: 10,000 records
take a third of a megabyte.
"""

from __future__ import annotations

import base64
import gzip
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
import numpy.typing as npt

from featuremill.features.nearest import NotFiniteError, nearest_in_memory
from featuremill.features.records import MOST_SHOWN, Labels, Shown
from featuremill.kit.ids import accessions
from featuremill.kit.pages import Figure
from featuremill.kit.text import clipped, count, listed, one_line, records, share
from featuremill.steps.maps import plane
from featuremill.steps.maps.command import Kept, keep, made_of, read_kept
from featuremill.steps.maps.section import Maps

FIELDS = re.compile(r"\s(?:OS|OX|GN|PE|SV|Tax|TaxID|RepID|n)=")
"""The beginnings of UniProt's and UniRef's fields (https://www.uniprot.org/help/fasta-headers)."""
UNIPROT_ORGANISM = re.compile(r"(?:^|\s)(?:OS|Tax)=(.+?)(?=\s(?:OX|GN|PE|SV|TaxID|RepID)=|$)")
NCBI_ORGANISM = re.compile(r"\[([^\[\]=]+(?:\[[^\[\]]+\])?[^\[\]=]*)\]\s*$")
"""The organism in brackets at the end; not a field of a coding region such as `[gene=dnaA]`."""
UNIPROT, NCBI = "UniProt", "NCBI"
LINKS = (
    (UNIPROT, "https://www.uniprot.org/uniprotkb/"),
    (NCBI, "https://www.ncbi.nlm.nih.gov/protein/"),
)
OF_UNIPROT = re.compile(
    "(?:[OPQ][0-9][A-Z0-9]{3}[0-9]|[A-NR-Z][0-9](?:[A-Z][A-Z0-9]{2}[0-9]){1,2})(?:-[0-9]+)?"
)
OF_NCBI = re.compile(r"(?:[A-Z]P_[0-9]{6,}|[A-Z]{3}[0-9]{5}(?:[0-9]{2})?)(?:\.[0-9]+)?")
"""Accessions of proteins in RefSeq and GenBank."""


class Header(NamedTuple):
    name: str
    organism: str | None
    accession: str
    link: int
    """The number in `LINKS`, from 1, of the site with its page; 0 for none."""


def headers_of(ids: list[str], descriptions: list[str]) -> list[Header]:
    """Return name, organism, accession and link of each record."""
    import pyarrow as pa

    headers, accessions_of_ids = list[Header](), accessions(pa.array(ids, pa.string())).to_pylist()
    for description, accession in zip(descriptions, accessions_of_ids, strict=True):
        link = 2 if OF_NCBI.fullmatch(accession) else 0
        link = 1 if OF_UNIPROT.fullmatch(accession) else link
        headers.append(Header(*_described(description), accession, link))
    return headers


def _described(description: str) -> tuple[str, str | None]:
    if (known := UNIPROT_ORGANISM.search(description)) is not None:
        return FIELDS.split(f" {description}", maxsplit=1)[0].strip(), known[1].strip()
    if (known := NCBI_ORGANISM.search(description)) is not None:
        return description[: known.start()].strip(), known[1].strip()
    return description.strip(), None


ASSETS = Path(__file__).parent / "assets"
_FILES = {"template": "html", "style": "css", "script": "js"}
NEAREST = 5
MOST_NAMED = 7
"""Names with a colour of their own: the number of colours that are easy to distinguish."""
MOST_DESCRIBED = 160
NONE = "no label"
OWN_TITLES = LENGTH, ORGANISM, NOTE, DISTANCE = (
    *("length", "organism", "note"),
    "distance to the nearest",
)
"""The titles of colours that are not labels."""
LEVELS = 65_535
log = logging.getLogger("featuremill.report")
Shorts = npt.NDArray[np.uint16]


class Colour(NamedTuple):
    """Values by which points are coloured."""

    title: str
    texts: Sequence[str | None]
    none: str = NONE
    """The name of records without a value."""


def draw(shown: Shown) -> Figure:
    """Return the map of the records."""
    if not np.isfinite(shown.vectors).all():
        return Figure("map", "The map", f"{shown.column} has numbers that are not finite: no map.")
    axes, shares = plane.components(shown.vectors, 2)
    kept = _stored_or_new(shown)
    headers = headers_of([shown.id_columns.cells(id)[-1] for id in shown.ids], shown.descriptions)
    colours = list(_colours(shown, headers))
    by = [_packed_colour(colour) for colour in colours]
    length = _packed_numbers(LENGTH, shown.lengths, unit=shown.unit, log=True)
    is_labelled = bool(shown.labels) and shown.labels[0].num_found > 0
    by.insert(1 if is_labelled else 0, length)
    nearest, closeness = _nearest(shown.vectors)
    if nearest.shape[1]:
        far = [float(f"{1 - row[0] / LEVELS:.3g}") for row in closeness.tolist()]
        by.append(_packed_numbers(DISTANCE, far))
    data = {
        "ids": [one_line(id) for id in shown.ids],
        "accessions": [header.accession for header in headers],
        "descriptions": [clipped(header.name, MOST_DESCRIBED) for header in headers],
        "links": LINKS,
        "linked": _base64(np.array([header.link for header in headers], np.uint8)),
        "k": nearest.shape[1],
        "nearest": _base64(nearest),
        "closeness": _base64(closeness),
        "places": [*_layouts(axes, shares, kept, shown)],
        "colours": by,
    }
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 9, mtime=0)
    sentence = _sentence(shown, float(shares.sum()), kept)
    files = {name: (ASSETS / f"map.{end}").read_text("utf-8") for name, end in _FILES.items()}
    template = jinja2.Environment(autoescape=True).from_string(files.pop("template"))
    texts = {"name": "embeddings", "label": sentence, "agreed": _agreement(shown)}
    html = template.render(**files, **texts, data=base64.b64encode(packed).decode())
    return Figure("map", "The map", sentence, html=html)


def _base64(numbers: npt.NDArray[Any]) -> str:
    little = numbers.astype(numbers.dtype.newbyteorder("<"))
    return base64.b64encode(little.tobytes()).decode()


def _stored_or_new(shown: Shown) -> Kept | None:
    """Return the stored map; if there are few records and openTSNE is installed, compute it."""
    if kept := read_kept(shown.folder, shown.column):
        return kept
    is_few = plane.LEAST_RECORDS <= shown.total == len(shown.ids) <= MOST_SHOWN
    digest = made_of(shown.folder)
    if not (is_few and plane.is_installed() and digest):
        return None
    table = (shown.folder, digest, shown.column, shown.ids, shown.vectors, shown.total)
    try:
        return keep(*table, Maps())
    except OSError as error:  # the folder of results may be read-only
        log.warning("%s; so the map is without t-SNE.", error)
        return None


def _layouts(
    axes: plane.Plane, shares: plane.Plane, kept: Kept | None, shown: Shown
) -> Iterator[dict[str, Any]]:
    """Yield the layouts; t-SNE is first, as it preserves neighbours."""
    row_of = {id: row for row, id in enumerate(kept.ids)} if kept else {}
    rows = [row_of.get(id, -1) for id in shown.ids]
    if kept and -1 not in rows:
        about = kept.card
        perplexity = plane.perplexity_of(about["records"], about["perplexity"])
        caption = f"t-SNE, perplexity {perplexity:.3g}, seed {about['seed']}"
        if about["records"] < about["of"]:
            caption += f", of {about['records']:,} of {about['of']:,} records"
        caption += (
            ". Near records are alike; distances between groups, sizes and directions mean nothing."
        )
        yield {"name": "t-SNE", "axes": caption, "xy": _quantised(kept.xy[rows])}
    across, up = (f"component {n} ({share(part, 1)})" for n, part in enumerate(shares.tolist(), 1))
    yield {"name": "PCA", "axes": f"across: {across}; up: {up}", "xy": _quantised(axes)}


def _quantised(xy: plane.Plane) -> str:
    """Return `xy` (N, 2) as 16-bit numbers, with the same scale for both axes, in base64."""
    lowest = xy.min(0)
    longest = float((xy.max(0) - lowest).max()) or 1.0
    return _base64(np.round((xy - lowest) / longest * LEVELS).astype(np.uint16))


def _nearest(vectors: np.ndarray) -> tuple[Shorts, Shorts]:
    """Return the indices (N, k) and 16-bit cosines of the nearest other vectors."""
    k = min(NEAREST, len(vectors) - 1)
    neighbours = np.zeros((len(vectors), k), np.uint16)
    cosines = np.zeros((len(vectors), k))
    try:
        nearest = nearest_in_memory(vectors, vectors, k + 1, "cosine")
        for row, (rows, scores) in enumerate(nearest):
            others = np.flatnonzero(rows != row)[:k]
            neighbours[row], cosines[row] = rows[others], scores[others]
    except NotFiniteError:
        return neighbours[:, :0], neighbours[:, :0]
    return neighbours, np.round(np.clip(cosines, 0, 1) * LEVELS).astype(np.uint16)


def _colours(shown: Shown, headers: Sequence[Header]) -> Iterator[Colour]:
    for labels in shown.labels:
        if labels.num_found:
            is_own_title = labels.title in OWN_TITLES
            title = f"{labels.title} ({Path(labels.file).name})" if is_own_title else labels.title
            yield Colour(title, labels.texts)
    if any(organisms := [header.organism for header in headers]):
        yield Colour(ORGANISM, organisms, "not in the header")
    if any(shown.notes):
        yield Colour(NOTE, [note or "none" for note in shown.notes])


def _packed_numbers(title: str, values: Sequence[float | None], **more: Any) -> dict[str, Any]:
    return {"title": title, "values": values, "none": NONE, **more}


def _packed_colour(colour: Colour) -> dict[str, Any]:
    if (numbers := _numbers(colour.texts)) is not None:
        return _packed_numbers(colour.title, numbers)
    counts = Counter(text for text in colour.texts if text is not None)
    names = sorted(counts, key=lambda name: (-counts[name], name))
    code_of = {name: code for code, name in enumerate(names, 1)}
    codes = [0 if text is None else code_of[text] for text in colour.texts]
    return {
        "title": colour.title,
        "names": [clipped(name, MOST_DESCRIBED) for name in names],
        "codes": _base64(np.array(codes, np.uint16)),
        "none": colour.none,
    }


def _numbers(texts: Sequence[str | None]) -> list[float | None] | None:
    """Return labels as numbers, or None if some are not numbers or they are few."""
    known = {text for text in texts if text is not None}
    if len(known) <= MOST_NAMED:
        return None
    if any("_" in text for text in known):  # Python reads the name 1_2 as 12
        return None
    try:
        number_of = {text: float(text) for text in known}
    except ValueError:
        return None
    if not np.isfinite(list(number_of.values())).all():
        return None
    return [None if text is None else number_of[text] for text in texts]


def _sentence(shown: Shown, explained: float, kept: Kept | None) -> str:
    num_shown, total = len(shown.ids), shown.total
    text = f"All {num_shown:,} records"
    if num_shown < total:
        text = f"{num_shown:,} of {total:,} records, evenly spaced in the file"
    text += f", by {shown.column}: "
    text += "t-SNE, and " if kept else ""
    text += f"the two principal components (PCA), which have {share(explained, 1)} of the variance."
    if shown.others:
        text += f" The file also holds {listed(shown.others)}."
    if not kept and shown.total >= plane.LEAST_RECORDS:
        install = "" if plane.is_installed() else "pip install 'featuremill[maps]', then "
        text += f" For t-SNE too: {install}featuremill map {shown.folder} and featuremill report "
        text += f"{shown.folder}."
    if shown.labels:
        text += _about_labels(shown, shown.labels[0])
    return text


def _about_labels(shown: Shown, labels: Labels) -> str:
    if not labels.num_found:
        return f" Coloured by length: {labels.file} has no row with the id of one of them."
    text = f" Coloured by {labels.title} of {labels.file}"
    if labels.num_found < len(shown.ids):
        text += f", which has a label for {count(labels.num_found)} of them"
    is_numbers = _numbers(labels.texts) is not None
    if not is_numbers and (more := len({*labels.texts} - {None}) - MOST_NAMED) > 0:
        text += f"; {more:,} rarer labels are grey, point at one to read it"
    return f"{text}."


def _agreement(shown: Shown) -> str:
    """Return a sentence with the metrics of the labels; "" without labels or with numbers."""
    if not shown.labels or _numbers(shown.labels[0].texts) is not None:
        return ""
    labels = shown.labels[0]
    if not (agreed := plane.agreement(shown.vectors, labels.texts)):
        return ""
    purity, chance = (share(part, 1) for part in (agreed.purity, agreed.chance))
    return (
        f"By these {agreed.num_labels:,} labels, the silhouette of {records(agreed.num_records)} "
        f"is {agreed.silhouette:.3f} (from -1 to 1, the larger the better labels are apart), and "
        f"of each record's {agreed.num_neighbours} nearest, {purity} have its label (kNN purity; "
        f"{chance} by chance); distances are Euclidean, between all numbers of the vectors."
    )
