"""`featuremill virnucpro`: classify contigs as viruses or others, with VirNucPro's flags and files.

Writes a config to --output-dir, and starts `featuremill run` with it.
"""

from __future__ import annotations

import argparse
import logging
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from featuremill.kit import environment
from featuremill.kit.devices import HELP_OF_DEVICES, GpuOptions
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering
from featuremill.kit.locks import run_alone
from featuremill.kit.text import counted, listed
from featuremill.kit.workloads import (
    ahead_of,
    is_path_of_weights,
    name_of_weights,
    refuse_missing_weights,
)
from featuremill.step import Ahead, Project
from featuremill.steps import heads
from featuremill.steps.heads.card import Card, read
from featuremill.steps.translate.options import CODON
from featuremill.steps.virnucpro import FAILED, HIGHEST, KINDS

CONFIG = "virnucpro.yaml"
HEAD = "virnucpro"
CUSTOM_WINDOW = 500
"""VirNucPro's default window of `-m custom`."""
MARK = "# Written by featuremill virnucpro, anew by each call."
SOME_FAILED, NOTHING = 2, 1
"""Exit statuses: some fragments failed; no results."""
VIRUS = "virus"
WINDOWS = ("300", "500", "custom")
ESM = "esm2_t36_3B_UR50D"
DNA = Path("DNABERT-S")
"""The default folder of the DNA encoder."""
GETTING_DNA = (
    f"name the DNA encoder's folder with --dna, or get it with hf download zhihan1996/DNABERT-S "
    f"--local-dir {DNA}"
)
ANY_NUMBER = 10**9
"""The number of fragments that may fail: unlimited."""
WITHOUT_EFFECT = {
    "--resume": "every call continues where the last one ended",
    "--esm-batch-size --dnabert-batch-size --batch-size -b N": "batches are as large as the "
    "device's memory allows",
    "--num-workers -w --dataloader-workers N": "a thread beside the device prepares its batches",
    "--parallel": "every GPU that may be used is used",
    "--persistent-models --no-persistent-models": "a model is loaded once a shard of records",
    "--v1-fallback --v1-attention": "there is one way to compute attention",
    "--skip-checkpoint-validation --force-resume": "what is stored is checked by its digest, and "
    "computed again where that is wrong",
    "--pin-memory --expandable-segments --cuda-streams --no-cuda-streams": "the device's memory is "
    "looked after",
    "--cache-clear-interval N": "the device's memory is looked after",
    "--no-progress": "--quiet is silent",
}
"""Flags of VirNucPro that are accepted, some with a value N, and why they have no effect."""
log = logging.getLogger("featuremill.virnucpro")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill virnucpro`; the word `predict` was removed before."""
    add = parser.add_argument
    add("sequences", type=Path, nargs="?", help="contigs or reads: FASTA, FASTQ or GenBank")
    add("--input", type=Path, metavar="SEQUENCES", help="the same")
    add(
        "--output-dir",
        "-o",
        type=Path,
        metavar="FOLDER",
        help="where everything goes (default: SEQUENCES_predictions)",
    )
    add(
        "--model-type",
        "-m",
        choices=WINDOWS,
        default="500",
        help="the window in nucleotides (default 500)",
    )
    add(
        "--expected-length",
        "-e",
        type=int,
        metavar="N",
        help="another window (500 for -m custom)",
    )
    add(
        "--head",
        "--model-path",
        "-p",
        type=Path,
        metavar="FOLDER",
        help="of featuremill head import or train (default: heads/300 or heads/500, by -m)",
    )
    add(
        "--dna",
        type=Path,
        metavar="FOLDER",
        help="DNABERT-S, or another encoder of nucleotides as Hugging Face has it (default: the "
        f"folder {DNA}, where the head takes such features)",
    )
    add("--esm", default=ESM, metavar="MODEL", help=f"the ESM-2 (default {ESM})")
    add(
        "--dtype",
        choices=("auto", "bf16", "fp32"),
        default="auto",
        help="what features are computed in; VirNucPro has fp32 (default auto: bf16, where the "
        "device has it)",
    )
    add("--gpus", metavar="N", help="how many, or which, as in 0,1 (default: all that may be used)")
    add("--devices", metavar="LIST", help=HELP_OF_DEVICES)
    add("--device", "-d", default="auto", help="auto (default), cpu, cuda, or a GPU's number")
    add(
        "--threads",
        "-t",
        "--merge-threads",
        type=int,
        metavar="N",
        help="cores to use (default: all)",
    )
    add("-l", dest="log_file", type=Path, default=argparse.SUPPRESS, help="the same as --log-file")
    add("--config", "-c", metavar="FILE", help=argparse.SUPPRESS)
    add(
        "--keep-intermediate",
        "-k",
        action="store_true",
        help="deliver sequences and features as well, in VirNucPro's files",
    )
    add(
        "--force",
        "-f",
        action="store_true",
        help="write all results anew, from what is computed and stored",
    )
    ignored = parser.add_argument_group("accepted and ignored")
    for words, why in WITHOUT_EFFECT.items():
        flags = words.split()
        kind: dict[str, Any] = {"metavar": flags.pop()} if flags[-1] == "N" else {"nargs": 0}
        ignored.add_argument(*flags, **kind, action=_Ignore, dest="ignored", default=(), help=why)


class _Ignore(argparse.Action):
    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        _values: object,
        option_string: str | None = None,
    ) -> None:
        namespace.ignored = (*namespace.ignored, (option_string, self.help))


def run(arguments: argparse.Namespace) -> int:
    """Run `featuremill virnucpro`. Return 0 if all fragments have predictions, 2 if some have none
    or another step failed, or 1 without results."""
    config = _config_for(arguments)
    _refuse_unfit(config)
    folder = _output_folder(arguments, config)
    for flag, why in dict.fromkeys(arguments.ignored):
        log.warning("%s: no effect, as %s.", flag, why)
    _write_config(folder, config)
    words, variables = _command(arguments, folder), dict[str, str]()
    if (arguments.gpus or "").isdecimal():
        log.info("--gpus is the number of GPUs; --devices %s names one.", arguments.gpus)
    log.info("this computes it:\n%s", shlex.join(words))
    inside = f"cd {shlex.quote(str(folder))} && featuremill"
    log.info("watch it from another terminal:\n%s", f"{inside} top {CONFIG}")
    if arguments.quiet:
        variables[environment.QUIET.name] = "1"
    began = time.time()
    status = _status_of(words, environment.of_child(variables), arguments.log_file)
    merged = folder / f"{config['run']}_merged"
    if status:
        last = merged / HIGHEST
        if not last.exists() or last.stat().st_mtime < began:
            log.error("No predictions were written. Fix the error above; then type it again.")
            return NOTHING
        log.error("The predictions are complete; something else failed: see the error above.")
    log.info("%s: each fragment and window", merged)
    log.info("%s: each contig", folder / "results" / config["run"] / "verdicts.tsv")
    if status:
        return SOME_FAILED
    log.info("more of it:\n%s", f"{inside} status {CONFIG}")
    with (folder / FAILED).open(encoding="utf-8") as file:
        num_failed = sum(1 for _ in file)
    if num_failed:
        log.warning("%s lists what failed: %s.", folder / FAILED, counted(num_failed, "line"))
    return SOME_FAILED if num_failed else 0


def _config_for(args: argparse.Namespace) -> dict[str, Any]:
    sequences = _sequences(args)
    window = _window(args)
    head = args.head or Path(
        "heads", str(window) if args.model_type == "custom" else args.model_type
    )
    card = _card(head)
    has_dna = len(card.features) == len(KINDS) and DNA.is_dir()
    dna_folder: Path | None = args.dna or (DNA if has_dna else None)
    kinds = list(KINDS) if dna_folder else ["proteins"]
    if len(card.features) != len(kinds):
        widths = " + ".join(f"{part.width:,}" for part in card.features)
        remedy = "leave --dna out" if dna_folder else GETTING_DNA
        raise UserError(
            f"{head}: this head takes features of {counted(len(card.features), 'kind')} ({widths} "
            f"numbers), and {listed(kinds)} are computed; {remedy}, or name another --head."
        )
    if dna_folder and not (dna_folder / "config.json").is_file():
        raise UserError(f"{dna_folder}: there is no config.json here; {GETTING_DNA}.")
    if args.config:
        raise UserError(
            f"--config {args.config}: VirNucPro's config is not read here; give its settings as "
            "flags: featuremill virnucpro --help lists them."
        )
    run = {"device": _device(args), "outputs": "parquet", "max_failed": ANY_NUMBER}
    name_of_weights(args.esm, "esm2")  # raises UserError for an unknown name
    refuse_missing_weights(args.esm, "esm2")
    is_path = is_path_of_weights(args.esm, "esm2")
    dtype = {"dtype": args.dtype}
    dna = {"model": str(dna_folder and dna_folder.absolute()), "alphabet": "nucleotides", **dtype}
    esm = {"model": str(Path(args.esm).absolute()) if is_path else args.esm, **dtype}
    runs = {
        "nucleotides": {"workload": "encoder", "options": {**dna, "pool": "mean_all"}, **run},
        "proteins": {"workload": "esm2", "options": esm, **run},
    }
    has_virus_first = card.classes[0] == VIRUS
    takes_any_recipe = any(part.recipe is None for part in card.features)
    return {
        "run": _name(sequences),
        "inputs": str(sequences.absolute()),
        "translate": {"by": "virnucpro", "window": window},
        "features": {kind: runs[kind] for kind in kinds},
        "heads": {HEAD: {"folder": str(head.absolute()), "any_recipe": takes_any_recipe}},
        "verdicts": {"prefer": VIRUS} if has_virus_first else {},
        "virnucpro": {"files": "all" if args.keep_intermediate else "predictions", "folder": "."},
    }


def _refuse_unfit(config: Mapping[str, Any]) -> None:
    """Raise UserError if the head does not accept the features."""
    sets = config["features"]

    def ahead(name: str) -> Ahead | None:
        settings = ahead_of(*(sets[name][key] for key in ("workload", "options", "device")))
        return settings and Ahead(*settings)

    project = Project(config["run"], (), dict.fromkeys(sets, ""), {}, ahead)
    head = heads.Head.model_validate(config["heads"][HEAD])
    for _, problem in heads.problems_of_files({HEAD: head}, project):
        raise UserError(problem)


def _sequences(args: argparse.Namespace) -> Path:
    named: list[Path] = [path for path in (args.sequences, args.input) if path]
    if len(named) != 1:
        given_files = listed(map(str, named)) if named else "none"
        raise UserError(
            f"sequences: {given_files} given; name one file, as in virnucpro sequences.fa."
        )
    (path,) = named
    if path.is_dir():
        raise UserError(f"{path}: this is a folder; name one file of contigs or reads in it.")
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: it can be read only once; write it to a file, and name that.")
    if path.suffix == ".bam":
        raise UserError(f"{path}: BAM is not read; samtools fasta {path} > {path.stem}.fa first.")
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; name the FASTA of contigs or reads.")
    return path


def _name(path: Path) -> str:
    """Return VirNucPro's name of the results of `path`: the file name without extensions."""
    stem = re.sub(r"\.(gz|zst|bz2|xz)$", "", path.name).rpartition(".")[0] or path.name
    return re.sub(r"[^A-Za-z0-9._-]", "_", stem).lstrip("._-") or "sequences"


def _window(args: argparse.Namespace) -> int:
    usual = CUSTOM_WINDOW if args.model_type == "custom" else args.model_type
    window = int(args.expected_length or usual)
    if window < CODON:
        raise UserError(f"--expected-length {window}: give {CODON} letters or more, as in 500.")
    if args.threads is not None and args.threads < 1:
        raise UserError(f"--threads {args.threads}: give 1 or more.")
    return window


def _card(head: Path) -> Card:
    is_model = head.suffix in (".pth", ".pt", ".safetensors")
    if head.is_file() or not head.exists():
        file = head if head.is_file() or is_model else f"{head.name}_model.pth"
        raise UserError(
            f"{head}: a head is a folder; of a model of VirNucPro this makes one: featuremill head "
            f"import {file} --classes others,{VIRUS} --dims 768,2560 --output heads/{head.stem}"
        )
    card, _ = read(head)
    if len(card.classes) != len(("others", VIRUS)):
        raise UserError(
            f"{head}: this head has the classes {listed(card.classes)}, and VirNucPro's files have "
            "the scores of two classes; for more, see docs/contigs.md."
        )
    return card


def _device(args: argparse.Namespace) -> str:
    """Return the config's device; with `--gpus` or `--devices` it is "cuda"."""
    gpus, asks_for_gpus = _gpus(args), args.gpus or args.devices
    if args.device not in ("auto", "cpu", "cuda") and not gpus.devices:
        raise UserError(f"--device {args.device}: give auto, cpu, cuda or a GPU, as in cuda:1.")
    if asks_for_gpus and args.device == "cpu":
        raise UserError("--device cpu: --gpus and --devices ask for GPUs; leave one of them out.")
    return "cuda" if asks_for_gpus or gpus.devices else str(args.device)


def _gpus(args: argparse.Namespace) -> GpuOptions:
    """Return the GPUs of `--gpus`, `--devices` or a number in `--device`."""
    is_named = re.fullmatch(r"(?:cuda:)?(\d+)", args.device) and not (args.gpus or args.devices)
    gpus = GpuOptions.parse(args.gpus, args.device if is_named else args.devices)
    gpus.check()
    return gpus


def _output_folder(args: argparse.Namespace, config: Mapping[str, Any]) -> Path:
    """Return the output folder; UserError if it has files of other programs or samples."""
    folder = Path(args.output_dir or f"{config['run']}_predictions")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: this is a file; name a folder with --output-dir.")
    path = folder / CONFIG
    is_ours = path.is_file() and path.read_text("utf-8", "replace").startswith(MARK)
    of_run = [f"{config['run']}_{kind}" for kind in ("nucleotide", "protein", "merged")]
    names = [CONFIG, FAILED, *of_run]
    taken = [name for name in names if (folder / name).exists()]
    if taken and not is_ours:
        raise UserError(
            f"{folder}: {listed(taken)} in it was not made by this command; name another folder "
            "with --output-dir."
        )
    if is_ours:
        _refuse_other_sample(path, config, args.force)
    return folder


def _refuse_other_sample(path: Path, config: Mapping[str, Any], replaces: bool) -> None:
    """Raise UserError if the config at `path` has other inputs; not if the runs have the same name
    and `replaces` is set."""
    before = yaml.safe_load(path.read_text("utf-8")) or {}
    if before.get("inputs") == config["inputs"]:
        return
    is_named_alike = before.get("run") == config["run"]
    if is_named_alike and replaces:
        return
    advice = "give each sample a folder of its own with --output-dir"
    if is_named_alike:
        advice += ", or replace those results with --force"
    raise UserError(f"{path.parent}: it holds the results of {before.get('inputs')}; {advice}.")


def _write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the config; UserError if another process is computing its runs."""
    text = f"{MARK}\n{yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)}"
    with ExitStack() as stack:
        for name in config["features"]:
            stack.enter_context(run_alone(folder / "results" / config["run"] / name))
        path = folder / CONFIG
        if not path.is_file() or path.read_text("utf-8") != text:
            with delivering(path) as temporary:
                temporary.write_text(text, "utf-8")


def _command(args: argparse.Namespace, folder: Path) -> list[str]:
    """Return the words of the command, which can be typed in any folder."""
    gpus = _gpus(args)
    words = ["featuremill", "run", str((folder / CONFIG).absolute())]
    words += ["--directory", str(folder.absolute())]
    words += ["--cores", str(args.threads or "all")]
    words += ["--gpus", str(gpus.number)] if gpus.number else []
    words += ["--devices", gpus.devices] if gpus.devices else []
    words += ["--forceall"] if args.force else []
    words += ["--printshellcmds"] if args.verbose else []
    words += ["--quiet", "all"] if args.quiet else []
    return words


def _status_of(words: Sequence[str], variables: Mapping[str, str], log_file: Path | None) -> int:
    """Run the command, print its output and append it to `log_file`; return the status."""
    command = [sys.executable, "-m", *words]
    kept = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if log_file else {}
    with subprocess.Popen(command, env=dict(variables), **kept) as process:  # type: ignore[call-overload]
        try:
            if log_file:
                with log_file.open("ab") as file:
                    for line in process.stdout:
                        sys.stderr.buffer.write(line)
                        sys.stderr.flush()
                        file.write(line)
                        file.flush()
            return int(process.wait())
        except SystemExit as end:  # forward a signal to Snakemake
            process.send_signal(int(str(end.code)) - 128)
            raise
