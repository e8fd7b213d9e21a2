"""`featuremill audit`: compute a sample of proteins in fp32 and in 16-bit dtypes on this machine,
compare the features, and print a report.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from featuremill import config
from featuremill.commands.audit.measure import IsAudited, Task, check_room, draw, measure
from featuremill.config import project
from featuremill.kit.devices import devices_for, with_processors
from featuremill.kit.errors import UserError
from featuremill.workload import (
    DEFAULT,
    Device,
    find_workload,
    plugin_errors,
    refuse_without_packages,
    weights,
)

OUTSIDE = 1
log = logging.getLogger("featuremill.audit")
DESCRIPTION = (
    "Compute a sample of your proteins in fp32 and in 16 bits on this machine, and report how far "
    "apart the features are, which records are worst, and which dtype to use."
)
EPILOG = (
    "Exit status: 0 every dtype is within the bounds, 1 one is not, 2 the input or an option "
    "is wrong. On a machine that others use too: featuremill lease --gpus 1 -- featuremill "
    "audit …"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "inputs",
        nargs="*",
        type=Path,
        metavar="INPUT",
        help="FASTA, table, …; or a config or the folder of a run, for its own",
    )
    parser.add_argument("--config", type=Path, help="take the options of this run's YAML file")
    parser.add_argument("--set", metavar="NAME", help="which of the config's sets of features")
    parser.add_argument("--model", help="network to audit (a name or a path)")
    parser.add_argument(
        "--dtype",
        action="append",
        choices=("bf16", "fp16"),
        help="may stand twice; default: those that this device multiplies fast (a GPU: bf16, if it "
        "has it, and fp16; a CPU: bf16, if it has it) and the config's own",
    )
    parser.add_argument(
        "--layers",
        nargs="+",
        type=int,
        metavar="N",
        help="layers to compare; default: -1, the last",
    )
    parser.add_argument(
        "--sample",
        type=int,
        default=200,
        metavar="N",
        help="proteins to compute: a tenth are the longest, the rest are drawn by hash, so the "
        "same proteins in any order give the same sample; default: %(default)s",
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), help="default: auto")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def run(arguments: argparse.Namespace) -> int:
    """Run `featuremill audit`; return 0 if every dtype is within the bounds, else 1."""
    from featuremill.commands.audit import report

    paths, name, options, device, dtypes = _checked_arguments(arguments)
    workload = find_workload(name)
    assert isinstance(workload, IsAudited)
    sample = draw(plugin_errors.records_of(name, workload, paths, options), arguments.sample)
    if not sample.proteins:
        (reason, count), *_ = sample.refused.most_common()
        only = sample.records == 1
        all_of_them = "the only record was" if only else f"all {sample.records:,} records were"
        raise UserError(
            f"{', '.join(map(str, paths))}: {all_of_them} refused, {count:,} because: {reason} "
            f"(first: {sample.first_refused[reason]}); give a file of proteins."
        )
    network = weights.weights_of(weights.convert(workload.weights(options) or "", workload=name))
    for dtype in dtypes:  # refuse a dtype before anything is computed
        chosen = type(options).model_validate(options.model_dump() | {workload.PRECISION: dtype})
        plugin_errors.resolved(name, workload, chosen, device, network)
    options = plugin_errors.resolved(name, workload, options, device, network)
    task = Task(workload, options, dtypes, device, network, name)
    check_room(task, sample.proteins)
    measured = measure(task, sample.proteins)
    if (precision := report.matmul_precision()) != "highest":
        log.warning(
            "torch is set to compute fp32 products less exactly (%s), and so was the reference; "
            "unset TORCH_ALLOW_TF32_CUBLAS_OVERRIDE.",
            precision,
        )
    audit = report.audit_of(paths, task, sample, measured)
    page = audit.model_dump_json(indent=2) if arguments.json else "\n".join(audit.lines())
    sys.stdout.write(page + "\n")
    return 0 if audit.within else OUTSIDE


def _checked_arguments(
    arguments: argparse.Namespace,
) -> tuple[list[Path], str, Any, Device, tuple[str, ...]]:
    """Check the command line and the config, except what depends on the model.

    Returns the input files, the workload's name, its options, the device and the dtypes to audit.
    """
    if arguments.sample < 1:
        raise UserError(f"--sample {arguments.sample}: give the number of proteins, 1 or more.")
    if any(path.suffix in (".yaml", ".yml") or path.is_dir() for path in arguments.inputs[:1]):
        arguments.config, *arguments.inputs = arguments.inputs
    run = project.read_one(arguments.config, arguments.set) if arguments.config else None
    name = run.workload if run else DEFAULT
    workload = find_workload(name)
    if not isinstance(workload, IsAudited):
        raise UserError(
            f"{arguments.config}: workload {name} has no dtype to audit; "
            f"give a config with workload: {DEFAULT}."
        )
    config_inputs = run.paths_of_records if run else ()
    inputs = arguments.inputs or [*dict.fromkeys(config_inputs)]
    if not inputs:
        raise UserError("audit: there is no input; name a FASTA file, or a config with --config.")
    options: dict[str, Any] = run.options_given if run else {}
    for key in ("model", "layers"):  # `config.validate` refuses options that the workload lacks
        if (value := getattr(arguments, key)) is not None:
            options[key] = value
    settings = {"inputs": [str(path) for path in inputs], "workload": name, "options": options}
    checked = config.validate(settings, "audit").options
    refuse_without_packages(workload.Options)
    choice = arguments.device or (run.device if run else "auto")
    (device,) = with_processors(devices_for(choice)[:1])
    dtypes = tuple(
        dict.fromkeys(
            arguments.dtype or _default_dtypes(device, getattr(checked, workload.PRECISION))
        )
    )
    if not dtypes:
        raise UserError(
            f"audit: {device.name} has no bf16, so a run computes in fp32 here, which is the "
            "reference; audit where the GPU is, or set --dtype fp16 (slow on a CPU)."
        )
    return inputs, name, checked, device, dtypes


def _default_dtypes(device: Device, own: str) -> list[str]:
    """Return the dtypes that the device multiplies fast, and the config's dtype."""
    usual = ["bf16"] if device.has_bf16 else []
    usual += ["fp16"] if device.kind == "cuda" else []
    return usual + ([own] if own in ("bf16", "fp16") else [])
