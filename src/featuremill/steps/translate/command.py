"""translate: turn contigs or reads into proteins, with the nucleotides that code each.

Reads FASTA, FASTQ, GenBank or tables once; writes into a folder proteins.faa.gz, nucleotides.fna.gz
(the same ids in the same order), fragments.parquet (where on which contig each of them stands),
untranslated.tsv and, last, translate.json. A folder that is done for the same files and options is
left as it is. Of a sheet of samples, each is translated so into a folder of its own, and further
sheets name the files of fragments.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.kit.text import Progress, counted, listed

if TYPE_CHECKING:
    from featuremill.inputs import Record
    from featuremill.steps.translate.folder import Contigs, InputFile, Outputs, Translation
    from featuremill.steps.translate.fragments import Fragment, Way

__all__ = ["CODON"]
log = logging.getLogger("featuremill.translate")
DEFAULTS: dict[str, dict[str, int | str]] = {
    "chunks": {"window": 500},
    "virnucpro": {"window": 500},
    "orfs": {"code": 1, "min_residues": 30, "orf": "from-start"},
    "genes": {"procedure": "meta"},
}
"""What each way may be told, and what it does if it is not."""
SINGLE_DEFAULTS: dict[str, int | str] = {"procedure": "single", "code": 11}
CODON = 3
MOST_NAMED = 5
"""Samples without a fragment that are named."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("inputs", nargs="*", type=Path, metavar="INPUT", help="FASTA, FASTQ, GenBank, table")
    add(
        "--samples",
        type=Path,
        metavar="SHEET",
        help="in place of INPUT, a sheet with the files of each sample, which is cut by itself",
    )
    add("--output", type=Path, required=True, metavar="FOLDER", help="where the files go")
    add(
        "--by",
        required=True,
        choices=DEFAULTS,
        help="what a fragment is: a chunk in each frame without a stop, the same as VirNucPro "
        "cuts it, an open reading frame, a gene that prodigal finds",
    )
    add(
        "--window",
        type=int,
        metavar="N",
        help="chunks, virnucpro: nucleotides of each (default 500)",
    )
    add(
        "--code",
        type=int,
        metavar="N",
        help="orfs: NCBI's number of the genetic code (default 1); genes, with --procedure single: "
        "the same (default 11)",
    )
    add("--min-residues", type=int, metavar="N", help="orfs: the fewest residues (default 30)")
    add(
        "--orf",
        choices=("from-start", "between-stops"),
        help="orfs: from a start codon of the code (default), or from the stop before",
    )
    add(
        "--procedure",
        choices=("meta", "single"),
        help="genes: prodigal's; each contig by itself (default), or all are of one genome",
    )


def run(arguments: argparse.Namespace) -> None:
    names = {name for options in (*DEFAULTS.values(), SINGLE_DEFAULTS) for name in options}
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if bool(arguments.inputs) == bool(arguments.samples):
        raise UserError("name files, or a sheet with --samples, and not both.")
    of = arguments.samples or arguments.inputs
    translate(of, arguments.output, arguments.by, **given)


def translate(
    of: Sequence[Path] | Path,
    folder: Path,
    by: str,
    elsewhere: Path | None = None,
    **told: int | str,
) -> Translation:
    """Cut the contigs of these files, or of a sheet of samples, into fragments, written into
    `folder`, or `elsewhere` unless it is done there; return the summary. `told` are options of the
    command line, by their names there.

    Raises:
        UserError: when an option, an input or the folder is not what it should be.
    """
    from featuremill.steps.translate import names

    options = settled(by, told, _typed)
    way, program = _way(by, options, elsewhere or folder)
    about: dict[str, Any] = {"by": by, "options": options, "program": program}
    about["method"] = names.METHODS.get(by, 1)
    if isinstance(of, Path):
        made = _translated_samples(of, folder, about, way, elsewhere)
    else:
        made = _translated(of, folder, about, way, elsewhere)
    done, folder, is_new = made
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
            folder / names.UNTRANSLATED if done.samples is None else "each sample's own list",
        )
    if not done.fragments:
        log.warning("there is no fragment: %s.", way.why_none)
    return done


class _Made(NamedTuple):
    """A translation, where it is, and whether it was made now."""

    summary: Translation
    folder: Path
    is_new: bool


def _translated(
    paths: Sequence[Path],
    folder: Path,
    about: Mapping[str, Any],
    way: Way,
    elsewhere: Path | None,
    of_sample: bool = False,
) -> _Made:
    """Translate files, as `translate` does; `about` are fields of the summary. Those of a sample
    may have no contig that could have a fragment, and are synced with those of all others: one that
    a loss of power damaged does not have the digests of its summary, and is translated again."""
    from featuremill.inputs import source
    from featuremill.steps.translate import folder as place
    from featuremill.steps.translate import names

    for path in paths:
        source.check(path)
    place.check(folder, paths)
    about = {**about, "inputs": _inputs(paths)}
    done = place.Translation.find(folder / names.SUMMARY)
    if done and done.is_of(about) and not any(done.damaged(folder)):
        return _Made(done, folder, False)
    folder = elsewhere or folder
    with place.ours(folder):
        with place.writing(folder, not of_sample) as outputs:
            contigs, num_letters = _cut(paths, way, outputs, of_sample)
        done = place.Translation(
            version=1,
            **about,
            contigs=contigs,
            nucleotides=num_letters,
            fragments=outputs.num_fragments,
            residues=outputs.num_residues,
            files=outputs.sha256,
        )
        done.write(folder / names.SUMMARY, not of_sample)
    return _Made(done, folder, True)


def _translated_samples(
    path: Path, folder: Path, about: Mapping[str, Any], way: Way, elsewhere: Path | None
) -> _Made:
    """Translate each sample of the sheet at `path` by itself; write sheets of what comes out."""
    from featuremill.inputs import samples
    from featuremill.kit.files import sha256_of, sync_folder, vacate
    from featuremill.steps.translate import folder as place
    from featuremill.steps.translate import names

    sheet = samples.read(path)
    sheet.refuse_missing()
    files: dict[int, list[Path]] = {}
    for row in sheet.rows:
        files.setdefault(row.owner, []).append(Path(row.file))
    every = dict.fromkeys(chain.from_iterable(files.values()))
    place.check(folder, [path, *every])
    known = sheet.about[samples.SAMPLE]
    inside = [place.folder_name(sample) for sample in known]
    progress = Progress(log, "translating", "samples")
    made: list[_Made] = []
    with place.ours(elsewhere or folder):
        for number, name in enumerate(inside):
            there = elsewhere / name if elsewhere else None
            made.append(_translated(files[number], folder / name, about, way, there, True))
            progress.at(number + 1, len(known))
        folder = elsewhere or folder
        vacate(folder / names.SUMMARY)
        place.remove_others(folder, {*inside, *names.SHEETS.values()})
        summaries = [one.summary for one in made]
        contigs = place.Contigs(
            **{
                key: sum(getattr(one.contigs, key) for one in summaries)
                for key in place.Contigs.model_fields
            }
        )
        if not contigs.with_fragments:
            raise UserError(
                f"{path}: no sample has a fragment ({contigs.refused:,} of "
                f"{counted(contigs.read, 'contig')} refused; {names.UNTRANSLATED} of each sample "
                "has the reasons); check the files that this sheet names."
            )
        digests = {
            f"{name}/{names.SUMMARY}": sha256_of(one.folder / names.SUMMARY)
            for name, one in zip(inside, made, strict=True)
        }
        digests |= _write_sheets(folder, sheet.about, made)
        done = place.Translation(
            version=1,
            **about,
            inputs=_inputs([path, *every]),
            contigs=contigs,
            nucleotides=sum(one.nucleotides for one in summaries),
            fragments=sum(one.fragments for one in summaries),
            residues=sum(one.residues for one in summaries),
            files=digests,
            samples=list(known),
        )
        sync_folder(folder)
        done.write(folder / names.SUMMARY)
    return _Made(done, folder, any(one.is_new for one in made))


def _write_sheets(
    folder: Path, about: Mapping[str, Sequence[str]], made: Sequence[_Made]
) -> dict[str, str]:
    """Write a sheet of each kind of fragments, without samples that have none; return what they
    are called, and their digests."""
    from featuremill.inputs import samples
    from featuremill.kit.files import delivering, digest_of, sha256_of
    from featuremill.steps.translate import folder as place
    from featuremill.steps.translate import names

    with_any = [number for number, one in enumerate(made) if one.summary.fragments]
    without = [
        name
        for name, one in zip(about[samples.SAMPLE], made, strict=True)
        if not one.summary.fragments
    ]
    if without:
        log.warning(
            "%s no fragment: %s.",
            counted(len(without), "sample has", "samples have"),
            ", ".join([*without[:MOST_NAMED], *(["…"] if without[MOST_NAMED:] else [])]),
        )
    found: dict[str, str] = {}
    for kind, name in names.SHEETS.items():
        file = names.KINDS[kind]
        columns = {key: [of[number] for number in with_any] for key, of in about.items()}
        columns[place.FILE] = [str(made[number].folder / file) for number in with_any]
        contents = digest_of(made[number].summary.files[file].encode() for number in with_any)
        with delivering(folder / name) as temporary:
            place.write_sheet(temporary, columns, contents)
        found[name] = sha256_of(folder / name)
    return found


def _inputs(paths: Sequence[Path]) -> list[InputFile]:
    from featuremill.kit.files import sha256_of
    from featuremill.steps.translate.folder import InputFile

    return [
        InputFile(path=str(path), bytes=path.stat().st_size, sha256=sha256_of(path))
        for path in paths
    ]


def _typed(name: str, value: int | str) -> str:
    """Return an option as it is typed."""
    return f"--{name.replace('_', '-')} {value}".rstrip()


def settled(
    by: str, told: Mapping[str, int | str], spelt: Callable[[str, int | str], str]
) -> dict[str, int | str]:
    """Return all options of the way `by`, told or not; `spelt` writes one as the user did.

    Raises:
        UserError: when one says nothing there, or cannot have its value.
    """
    is_single = by == "genes" and told.get("procedure") == "single"
    options = SINGLE_DEFAULTS if is_single else DEFAULTS[by]
    for name in told:
        if name not in options:
            fitting = spelt("by", " or ".join(way for way in DEFAULTS if name in DEFAULTS[way]))
            if by == "genes" and name == "code":
                fitting = spelt("procedure", "single")
            raise UserError(
                f"{spelt(name, '')} has no effect with {spelt('by', by)}; leave it out, or take "
                f"{fitting}."
            )
    for name, least in (("window", CODON), ("min_residues", 1)):
        if (number := told.get(name, least)) < least:  # type: ignore[operator]
            raise UserError(f"{spelt(name, number)}: this must be at least {least}.")
    return {**options, **told}


def _way(by: str, options: Mapping[str, Any], folder: Path) -> tuple[Way, str]:
    """Return what cuts contigs, and the version of the program that it needs ("" for none)."""
    from featuremill.steps.translate import genes
    from featuremill.steps.translate.chunks import Chunks, VirNucPro
    from featuremill.steps.translate.genetic_code import genetic_code
    from featuremill.steps.translate.orfs import Orfs

    if by == "chunks":
        return Chunks(options["window"]), ""
    if by == "virnucpro":
        return VirNucPro(options["window"]), ""
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
    """Write the fragments of all contigs; return how many contigs and nucleotides there were.

    Raises:
        UserError: no contig could have a fragment, unless that may be.
    """
    from featuremill.steps.translate.contigs import contigs_in
    from featuremill.steps.translate.folder import Contigs
    from featuremill.steps.translate.ids import Ids

    progress = Progress(log, "translating", "nucleotides")
    num_with = num_without = num_refused = num_letters = longest = before = 0
    refused: Record | None = None
    cuts = way.cut(Ids().checked(contigs_in(paths)))
    end: tuple[None, list[Fragment]] = (None, [])
    for (contig, fragments), (following, _) in pairwise(chain(cuts, [end])):
        assert contig  # only the last one is none
        outputs.add(contig, fragments)
        if following is contig:  # there is more of it
            continue
        num_letters += len(contig.payload)
        progress.at(num_letters)
        longest = max(longest, len(contig.payload))
        if contig.reason:
            num_refused += 1
            refused = refused or contig
            outputs.leave_out(contig, "refused", contig.reason)
        elif outputs.num_fragments == before:
            num_without += 1
            is_short = len(contig.payload) < CODON
            outputs.leave_out(
                contig, "without", "shorter than a codon" if is_short else way.why_none
            )
        else:
            num_with += 1
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
    read = num_with + num_without + num_refused
    return (
        Contigs(
            read=read,
            with_fragments=num_with,
            without_fragments=num_without,
            refused=num_refused,
        ),
        num_letters,
    )
