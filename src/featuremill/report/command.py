"""featuremill report: write a self-contained HTML page about the records and the work of a run.

It reads the results of merge in `results/<run>/`: manifest.json (with the receipts),
records.parquet, failed.tsv, and embeddings.parquet or embeddings/. The page makes no network
requests.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from featuremill.base.errors import UserError
from featuremill.base.words import records
from featuremill.config import Labels, products, read_run
from featuremill.store.files import sha256_of
from featuremill.store.results import Results, enter

log = logging.getLogger("featuremill.report")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `featuremill report`."""
    parser.add_argument(
        "run_folder", type=Path, metavar="results/RUN", help="folder of a merged run"
    )
    parser.add_argument(
        "--output", type=Path, help="the page to write (default: report.html in the run's folder)"
    )
    parser.add_argument(
        "--partial",
        action="store_true",
        help="of what `merge --partial` wrote: partial/report.html",
    )
    parser.add_argument(
        "--label-file",
        type=Path,
        metavar="TABLE",
        help="CSV, TSV or Parquet with an id column; its column --label colours the map "
        "(default: as in run.json)",
    )
    parser.add_argument("--label", metavar="COLUMN", help="the column of --label-file")
    parser.add_argument(
        "--id-column",
        default="",
        metavar="COLUMN",
        help="the column of its ids, if not found by its name",
    )


def run(arguments: argparse.Namespace) -> None:
    """Carry out `featuremill report`: write the page."""
    # Imported here, as altair takes seconds to import.
    from featuremill.report import facts, page

    folder = Results(enter(arguments))
    merged = folder.partial if arguments.partial else folder
    if arguments.partial and folder.delivery.exists() and not merged.delivery.exists():
        log.info("nothing is partial: the results are complete, and report.html is about them.")
        return
    if (arguments.label_file is None) != (arguments.label is None):
        raise UserError("--label-file and --label belong together: a table, and its column.")
    file, column, id_column = arguments.label_file, arguments.label or "", arguments.id_column
    config = read_run(folder) if folder.run.exists() else None
    if config and not column:
        labels = config.labels
        file, column = Path(labels.file) if labels.file else None, labels.column
        id_column = labels.id_column
    results_sha256 = sha256_of(merged.delivery) if merged.delivery.exists() else ""
    read = facts.read(arguments.run_folder, arguments.partial, file, column, id_column)
    if read.labels and read.labels.mismatch:
        log.warning("%s; the map is coloured by length.", read.labels.mismatch)
    elif read.labels:
        num_labelled, shown = read.labels.num_found, records(len(read.labels.texts))
        text = "%s of %s on the map have a label in %s of %s."
        log.info(text, f"{num_labelled:,}", shown, read.labels.title, read.labels.file)
    drawn = page.draw(read)
    default = merged.root / "report.html"
    output = arguments.output or default
    is_named = output.absolute() != default.absolute()
    page.write_report(output, read, drawn, is_named=is_named)
    if config and not (is_named or arguments.partial):
        labels = Labels(file=str(file or ""), column=column, id_column=id_column)
        now = config.model_copy(update={"labels": labels})
        product = products.reported(now, folder.root)
        values = {**product.config, "manifest.json": results_sha256}
        product._replace(config=values).note(is_new=True)
    log.info("%s (%.1f MB): open it in a browser", output, output.stat().st_size / 1e6)
