"""`featuremill translate`: translate contigs or reads to proteins, with their nucleotides.

Reads FASTA, FASTQ, GenBank or tables. Writes proteins.faa.gz and nucleotides.fna.gz (with the same
ids and order), fragments.parquet (their positions on the contigs), untranslated.tsv and, last,
translate.json. A folder that is complete for the same files and options is not changed. With a
sheet of samples, each sample has a folder, and further sheets list the files of fragments.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.inputs import Record, samples, source
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering, digest_of, sha256_of, sync_folder, vacate
from featuremill.kit.tables import add_options
from featuremill.kit.text import Progress, counted, listed
from featuremill.steps.translate import folder as layout
from featuremill.steps.translate import genes
from featuremill.steps.translate.chunks import Chunks
from featuremill.steps.translate.contigs import Fragment, Ids, contigs_in
from featuremill.steps.translate.folder import Contigs, InputFile, Outputs, Translation
from featuremill.steps.translate.genetic_code import genetic_code
from featuremill.steps.translate.options import (
    CODON,
    DEFAULTS,
    KINDS,
    METHODS,
    OF_SAMPLE,
    SECTION,
    SHEETS,
    SINGLE_DEFAULTS,
    SUMMARY,
    UNTRANSLATED,
    settled,
    typed,
)
from featuremill.steps.translate.orfs import Orfs

MOST_NAMED = 5
"""The most samples without a fragment that a message names."""
Way = Chunks | genes.Genes | Orfs
"""A method to divide contigs into fragments: `cut` yields those of contigs; refused contigs have
none. `why_none` is the reason for contigs without fragments."""
log = logging.getLogger("featuremill.translate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("inputs", nargs="*", type=Path, metavar="INPUT", help="FASTA, FASTQ, GenBank, table")
    add(
        "--samples",
        type=Path,
        metavar="SHEET",
        help="instead of INPUT, a sheet of samples with their files; each is translated separately",
    )
    add("--output", type=Path, required=True, metavar="FOLDER", help="output folder")
    add_options(parser, SECTION, *SECTION.model_fields)


def run(arguments: argparse.Namespace) -> None:
    keys = {key for defaults in (*DEFAULTS.values(), SINGLE_DEFAULTS) for key in defaults}
    options = {key: value for key in keys if (value := getattr(arguments, key)) is not None}
    if bool(arguments.inputs) == bool(arguments.samples):
        raise UserError("name files, or a sheet with --samples, and not both.")
    inputs = arguments.samples or arguments.inputs
    translate(inputs, arguments.output, arguments.by, **options)


def translate(
    inputs: Sequence[Path] | Path,
    folder: Path,
    by: str,
    elsewhere: Path | None = None,
    **chosen: int | str,
) -> Translation:
    """Translate the contigs of files or of a sheet of samples; return the summary.

    Writes to `folder`, unless it is complete. If `elsewhere` is given, it is written instead, and
    `folder` is only read. `chosen` are options of the command line, by name.

    Raises:
        UserError: an option, an input or the folder is wrong.
    """
    options = settled(by, chosen, typed)
    way, program = _way(by, options, elsewhere or folder)
    about: dict[str, Any] = {"by": by, "options": options, "program": program}
    about["method"] = METHODS.get(by, 1)
    if isinstance(inputs, Path):
        done, folder, is_new = _translated_samples(inputs, folder, about, way, elsewhere)
    else:
        done, folder, is_new = _translated(inputs, folder, about, way, elsewhere)
    if not is_new:
        log.info("%s is done already, of these files and options.", folder)
        return done
    contigs = done.contigs
    log.info(
        "%s of %s in %s",
        counted(done.fragments, "fragment"),
        counted(contigs.read, "contig"),
        folder,
    )
    if contigs.without_fragments or contigs.refused:
        log.info(
            "without a fragment: %s, refused: %s; %s has the reasons",
            f"{contigs.without_fragments:,}",
            f"{contigs.refused:,}",
            folder / UNTRANSLATED if done.samples is None else "each sample's own list",
        )
    if not done.fragments:
        log.warning("there is no fragment: %s.", way.why_none)
    return done


class _Result(NamedTuple):
    summary: Translation
    folder: Path
    is_new: bool
    """False for a translation that existed before the call."""


def _translated(
    paths: Sequence[Path],
    folder: Path,
    about: Mapping[str, Any],
    way: Way,
    elsewhere: Path | None,
    of_sample: bool = False,
) -> _Result:
    """Translate files, as `translate` does; `about` are fields of the summary.

    Samples may lack contigs that are long enough. Their files are not synced one by one; if a loss
    of power damages some, their digests differ from the summary, and they are translated again.
    """
    for path in paths:
        source.check(path)
    layout.check(folder, paths)
    about = {**about, "inputs": _inputs(paths)}
    done = Translation.find(folder / SUMMARY)
    if done and done.is_of(about) and not any(done.damaged(folder)):
        return _Result(done, folder, False)
    folder = elsewhere or folder
    with layout.locked(folder):
        with layout.writing(folder, not of_sample) as outputs:
            contigs, num_letters = _cut(paths, way, outputs, of_sample)
        done = Translation(
            version=1,
            **about,
            contigs=contigs,
            nucleotides=num_letters,
            fragments=outputs.num_fragments,
            residues=outputs.num_residues,
            files=outputs.sha256,
        )
        done.write(folder / SUMMARY, not of_sample)
    return _Result(done, folder, True)


def _translated_samples(
    path: Path, folder: Path, about: Mapping[str, Any], way: Way, elsewhere: Path | None
) -> _Result:
    """Translate each sample of the sheet at `path`, and write the sheets of fragments."""
    sheet = samples.read(path)
    sheet.refuse_missing()
    files: dict[int, list[Path]] = {}
    for row in sheet.rows:
        files.setdefault(row.owner, []).append(Path(row.file))
    every = dict.fromkeys(chain.from_iterable(files.values()))
    layout.check(folder, [path, *every])
    known = sheet.about[samples.SAMPLE]
    inside = [f"{OF_SAMPLE}{sample}" for sample in known]
    progress = Progress(log, "translating", "samples")
    translations: list[_Result] = []
    with layout.locked(elsewhere or folder):
        for number, name in enumerate(inside):
            there = elsewhere / name if elsewhere else None
            translations.append(_translated(files[number], folder / name, about, way, there, True))
            progress.at(number + 1, len(known))
        folder = elsewhere or folder
        vacate(folder / SUMMARY)
        layout.remove_others(folder, {*inside, *SHEETS.values()})
        summaries = [each.summary for each in translations]
        contigs = Contigs(
            **{
                key: sum(getattr(each.contigs, key) for each in summaries)
                for key in Contigs.model_fields
            }
        )
        if not contigs.with_fragments:
            raise UserError(
                f"{path}: no sample has a fragment ({contigs.refused:,} of "
                f"{counted(contigs.read, 'contig')} refused; {UNTRANSLATED} of each sample "
                "has the reasons); check the files that this sheet names."
            )
        digests = {
            f"{name}/{SUMMARY}": sha256_of(each.folder / SUMMARY)
            for name, each in zip(inside, translations, strict=True)
        }
        digests |= _write_sheets(folder, sheet.about, translations)
        done = Translation(
            version=1,
            **about,
            inputs=_inputs([path, *every]),
            contigs=contigs,
            nucleotides=sum(each.nucleotides for each in summaries),
            fragments=sum(each.fragments for each in summaries),
            residues=sum(each.residues for each in summaries),
            files=digests,
            samples=list(known),
        )
        sync_folder(folder)
        done.write(folder / SUMMARY)
    return _Result(done, folder, any(each.is_new for each in translations))


def _write_sheets(
    folder: Path, about: Mapping[str, Sequence[str]], translations: Sequence[_Result]
) -> dict[str, str]:
    """Write a sheet per kind of fragments, without empty samples; return digests by name."""
    with_fragments = [number for number, each in enumerate(translations) if each.summary.fragments]
    without = [
        name
        for name, each in zip(about[samples.SAMPLE], translations, strict=True)
        if not each.summary.fragments
    ]
    if without:
        log.warning(
            "%s no fragment: %s.",
            counted(len(without), "sample has", "samples have"),
            ", ".join([*without[:MOST_NAMED], *(["…"] if without[MOST_NAMED:] else [])]),
        )
    digests: dict[str, str] = {}
    for kind, name in SHEETS.items():
        file = KINDS[kind]
        columns = {key: [each[number] for number in with_fragments] for key, each in about.items()}
        columns[layout.FILE] = [
            str(translations[number].folder / file) for number in with_fragments
        ]
        contents = digest_of(
            translations[number].summary.files[file].encode() for number in with_fragments
        )
        with delivering(folder / name) as temporary:
            layout.write_sheet(temporary, columns, contents)
        digests[name] = sha256_of(folder / name)
    return digests


def _inputs(paths: Sequence[Path]) -> list[InputFile]:
    return [
        InputFile(path=str(path), bytes=path.stat().st_size, sha256=sha256_of(path))
        for path in paths
    ]


def _way(by: str, options: Mapping[str, Any], folder: Path) -> tuple[Way, str]:
    """Return the method, and the version of the program that it uses or ""."""
    if by in ("chunks", "virnucpro"):
        return Chunks(options["window"], by == "virnucpro"), ""
    if by == "genes":
        program, version = genes.find_program()
        code = genetic_code(options["code"]).number if "code" in options else 0
        return genes.Genes(program, options["procedure"], code, folder), version
    genetic = genetic_code(options["code"])
    if genetic.ambiguous_stops:
        log.warning(
            "in genetic code %d, %s may be a stop or a residue; read as residues here.",
            genetic.number,
            listed(genetic.ambiguous_stops),
        )
    return Orfs(genetic, options["min_residues"], options["orf"] == "from-start"), ""


def _cut(
    paths: Sequence[Path], way: Way, outputs: Outputs, may_have_none: bool
) -> tuple[Contigs, int]:
    """Write the fragments of all contigs; return the numbers of contigs and nucleotides."""
    progress = Progress(log, "translating", "nucleotides")
    refused: Record | None = None
    num_letters = longest = before = 0
    counts = Counter[str]()
    cuts = way.cut(Ids().checked(contigs_in(paths)))
    end: tuple[None, list[Fragment]] = (None, [])
    for (contig, fragments), (following, _) in pairwise(chain(cuts, [end])):
        assert contig  # only the end is None
        outputs.add(contig, fragments)
        if following is contig:  # more of its fragments follow
            continue
        num_letters += len(contig.payload)
        progress.at(num_letters)
        longest = max(longest, len(contig.payload))
        if contig.reason:
            counts["refused"] += 1
            refused = refused or contig
            outputs.leave_out(contig, "refused", contig.reason)
        elif outputs.num_fragments == before:
            counts["without_fragments"] += 1
            is_short = len(contig.payload) < CODON
            outputs.leave_out(
                contig, "without", "shorter than a codon" if is_short else way.why_none
            )
        else:
            counts["with_fragments"] += 1
        before = outputs.num_fragments
    if longest < CODON and not may_have_none:
        if refused and not longest:
            raise UserError(
                f"{refused.source}:{refused.line}: every contig is refused, this first one as "
                f"{refused.reason}; give DNA or RNA."
            )
        raise UserError(
            f"{paths[0]}: no contig is as long as a codon (3 nucleotides); check the step that "
            "made this file."
        )
    names_of_counts = ("with_fragments", "without_fragments", "refused")
    numbers = {name: counts[name] for name in names_of_counts}
    return Contigs(read=counts.total(), **numbers), num_letters
