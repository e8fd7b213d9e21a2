"""Find genes with the program prodigal or pyrodigal.

Both are under the GPL and are started as processes; they have the same options and output. Contigs
are passed with numbers instead of their ids. Proteins are those of the program (M for all start
codons, X for ambiguous codons); coordinates exclude the stop codon. Runs of N are masked (-m), so
that no gene spans the gaps of a scaffold.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from featuremill.inputs import Record
from featuremill.kit.errors import UserError, WorkloadError
from featuremill.kit.files import scratch
from featuremill.steps.translate.contigs import CONTIG_LETTERS, Cut, Fragment
from featuremill.steps.translate.genetic_code import reverse_complement

PROGRAMS = {"prodigal": "-v", "pyrodigal": "-V"}
"""The programs in order of preference, with the option that prints the version."""
SINGLE_LETTERS = 20_000
"""The least number of letters from which the program can learn a genome."""
BATCH_LETTERS = 2**24
"""The letters of contigs in one process of the procedure "meta"."""


def find_program() -> tuple[str, str]:
    """Return the path and the version of the program.

    Raises:
        UserError: neither program is installed.
    """
    for name, option in PROGRAMS.items():
        if path := shutil.which(name):
            done = subprocess.run([path, option], capture_output=True, text=True)
            return path, (done.stdout + done.stderr).strip()
    raise UserError(
        "--by genes: neither prodigal nor pyrodigal is on the PATH, and one of them finds the "
        "genes; install it (pip install pyrodigal, conda install -c bioconda prodigal, or apt "
        "install prodigal), or choose --by orfs."
    )


class Genes(NamedTuple):
    """Fragments are genes."""

    program: str
    procedure: str
    """The program's procedure: meta (each contig alone) or single (all contigs are one genome)."""
    code: int
    """NCBI's number of the genetic code, for the procedure "single"."""
    folder: Path
    why_none: str = "no gene found"

    def cut(self, contigs: Iterable[Record]) -> Iterator[Cut]:
        """Yield the fragments of `contigs`, in the order of the program's genes."""
        waiting: list[Record] = []
        num_letters = 0
        for contig in contigs:
            waiting.append(contig)
            num_letters += CONTIG_LETTERS + len(contig.payload)
            if self.procedure == "meta" and num_letters >= BATCH_LETTERS:
                yield from self._genes_of(waiting)
                waiting, num_letters = [], 0
        num_letters = sum(len(contig.payload) for contig in waiting)
        if self.procedure == "single" and num_letters < SINGLE_LETTERS:
            raise UserError(
                f"{waiting[0].source}: with --procedure single, prodigal learns a genome from "
                f"{SINGLE_LETTERS:,} nucleotides and more, and here are {num_letters:,}; take "
                "--procedure meta."
            )
        yield from self._genes_of(waiting)

    def _genes_of(self, contigs: list[Record]) -> Iterator[Cut]:
        """Yield the fragments of contigs, found by one process."""
        fragments: list[list[Fragment]] = [[] for _ in contigs]
        with scratch(self.folder / "genes") as name:
            contigs_file, proteins = Path(name, "contigs.fna"), Path(name, "proteins.faa")
            with contigs_file.open("wb") as out:
                for number, contig in enumerate(contigs):
                    if contig.payload:
                        out.write(b">%d\n%b\n" % (number, contig.payload))
            if contigs_file.stat().st_size:
                self._run(contigs_file, proteins, Path(name, "genes"))
                for header, protein in _records(proteins):
                    _add(fragments, contigs, header, protein)
        yield from zip(contigs, fragments, strict=True)

    def _run(self, contigs_file: Path, proteins: Path, genes: Path) -> None:
        files = ["-i", str(contigs_file), "-a", str(proteins), "-o", str(genes)]
        words = [self.program, *files, "-p", self.procedure]
        if self.procedure == "single":
            words += ["-g", str(self.code)]
        words.append("-m")
        done = subprocess.run(words, capture_output=True, text=True, errors="replace")
        if done.returncode:
            error = " ".join(done.stderr.split())[-300:]
            raise WorkloadError(f"{self.program} ended with status {done.returncode}: {error}")


def _records(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the header and the residues of each record in the program's FASTA file."""
    header = ""
    lines: list[bytes] = []
    with path.open("rb") as file:
        for line in file:
            if line.startswith(b">"):
                if header:
                    yield header, b"".join(lines)
                header, lines = line[1:].decode(), []
            else:
                lines.append(line.strip())
    if header:
        yield header, b"".join(lines)


def _add(
    fragments: list[list[Fragment]], contigs: list[Record], header: str, protein: bytes
) -> None:
    """Add the gene of a header, such as "7_2 # 191 # 736 # -1 # ID=…", to `fragments`."""
    name, first, last, strand, _ = header.split(" # ")
    number = int(name.rpartition("_")[0])
    contig, start, end = contigs[number], int(first) - 1, int(last)
    if protein.endswith(b"*"):
        protein = protein[:-1]
        start, end = (start, end - 3) if strand == "1" else (start + 3, end)
    nucleotides = contig.payload[start:end]
    low = start
    if strand != "1":
        nucleotides, low = reverse_complement(nucleotides), len(contig.payload) - end
    if len(nucleotides) != 3 * len(protein):
        raise WorkloadError(
            f"gene {header.strip()!r} of {contig.id!r} has {len(protein)} residues, which these "
            "coordinates do not code; please report this."
        )
    id, sign = f"{contig.id}_gene_{len(fragments[number]) + 1}", "+" if strand == "1" else "-"
    fragments[number].append(Fragment(id, start, end, sign, low % 3 + 1, protein, nucleotides))
