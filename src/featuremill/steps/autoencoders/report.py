"""`sae report`: write the page of an autoencoder and features.tsv."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from featuremill.features import Parts
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering
from featuremill.kit.runs import Results
from featuremill.kit.tsv import TsvWriter
from featuremill.steps.autoencoders.card import FEATURES, PAGE
from featuremill.steps.autoencoders.encode import Encoder
from featuremill.steps.autoencoders.measured import Held, Top, measure
from featuremill.steps.autoencoders.progress import TRAINING
from featuremill.steps.autoencoders.texts import (
    NOTHING,
    Context,
    Contexts,
    Names,
    contexts_of,
    names_of,
)

log = logging.getLogger("featuremill.sae")


def report(
    run: Path, sae: Path, output: Path | None, takes_any_recipe: bool, threads: int
) -> tuple[Held, Top]:
    """Write the page, and features.tsv in the same folder.

    Raises:
        UserError: the run or the autoencoder is wrong.
    """
    from featuremill.steps.autoencoders.page import of_few, write_page

    encoder = Encoder(run, sae, takes_any_recipe, threads)
    trained = encoder.card
    page = output or sae / PAGE
    if page.suffix != ".html":
        raise UserError(f"{page}: the page is an .html; give a name that ends so.")
    held, top = measure(encoder)
    ids_M = [[id for id, *_ in top.records_of(n)] for n in range(len(top.ids_MT))]
    vectors = encoder.vectors
    names = names_of(Results(vectors.root).records, ids_M)
    contexts: Contexts = {}
    if vectors.column.is_per_residue:
        strongest = [top.records_of(n) for n in range(len(top.ids_MT))]
        places = [(id, number) for records in strongest for id, _, number in records]
        contexts = contexts_of(vectors.root, vectors.column.name, places)
    _write_features(page.with_name(FEATURES), top, names, contexts, vectors)
    lines = (sae / TRAINING).read_text("utf-8").splitlines() if (sae / TRAINING).exists() else []
    rows = [*map(json.loads, lines)]
    write_page(page, sae.name, str(run), trained, held, top, names, contexts, rows)
    log.info(
        "on %s held-out vectors: FVU %.4f, L0 %.1f, %.1f %% dead",
        f"{held.vectors:,}",
        held.fvu,
        held.l0,
        100 * held.dead,
    )
    if text := of_few(held):
        log.warning("%s", text)
    log.info("%s: open it in a browser", page)
    return held, top


def _write_features(path: Path, top: Top, names: Names, contexts: Contexts, vectors: Parts) -> None:
    with delivering(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        of_place = ["place", *Context._fields] if vectors.column.is_per_residue else []
        ids = vectors.id_columns.names
        names_of_columns = ["feature", "frequency", "rank", *ids, "value", *of_place, "description"]
        table = TsvWriter(file, names_of_columns)
        for feature, frequency in enumerate(top.frequency_M.tolist()):
            for rank, (id, value, number) in enumerate(top.records_of(feature), 1):
                of_id = vectors.id_columns.cells(id)
                columns = [feature, f"{frequency:.6g}", rank, *of_id, f"{value:.6g}"]
                if of_place:
                    columns += [number + 1, *contexts.get((id, number), NOTHING)]
                table.row([*columns, names.descriptions[id]])
