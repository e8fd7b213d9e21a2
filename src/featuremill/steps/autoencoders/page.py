"""`sae report`: write the page of an autoencoder (quality, training, features) and features.tsv."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from featuremill.features import Parts
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering
from featuremill.kit.pages import Figure, drawn, values, write_of
from featuremill.kit.runs import Results
from featuremill.kit.text import clipped, count, counted, records
from featuremill.kit.tsv import TsvWriter
from featuremill.steps.autoencoders.card import FEATURES, PAGE, Card
from featuremill.steps.autoencoders.encode import Encoder
from featuremill.steps.autoencoders.measured import FAR, Held, Top, measure
from featuremill.steps.autoencoders.progress import TRAINING
from featuremill.steps.autoencoders.texts import (
    NOTHING,
    Context,
    Contexts,
    Names,
    contexts_of,
    names_of,
)

TEMPLATE = Path(__file__).parent / "assets" / "sae.html"
MOST_FEATURES = 2_000
"""The number of features on the page, the most frequent ones."""
MOST_POINTS = 400
MOST_TEXT = 60
"""The most letters of a record's description."""
MOST_ROWS = 30
"""The number of features that are not folded."""
MANY_DEAD = 0.2
"""The share of dead features above which the page warns."""
log = logging.getLogger("featuremill.sae")
TERMS = (
    ("FVU", "fraction of variance unexplained: squared error over variance; 0 is perfect"),
    ("L0", "features that are active in a vector, on average; of a topk, k at most"),
    ("dead", "features that are active in no vector that is looked at"),
    (
        "words in common",
        "at least three of the strongest records have them in their descriptions, where they are "
        "at least five times as frequent as among all records",
    ),
    ("frequency", "the share of all vectors in which a feature is active"),
)


def report(
    run: Path, sae: Path, output: Path | None, takes_any_recipe: bool, threads: int
) -> tuple[Held, Top]:
    """Write the page, and features.tsv in the same folder.

    Raises:
        UserError: the run or the autoencoder is wrong.
    """
    encoder = Encoder(run, sae, takes_any_recipe, threads)
    trained = encoder.card
    path = output or sae / PAGE
    if path.suffix != ".html":
        raise UserError(f"{path}: the page is an .html; give a name that ends so.")
    held, top = measure(encoder)
    ids_M = [[id for id, *_ in top.records_of(n)] for n in range(len(top.ids_MT))]
    vectors = encoder.vectors
    names = names_of(Results(vectors.root).records, ids_M)
    contexts: Contexts = {}
    if vectors.column.is_per_residue:
        strongest = [top.records_of(n) for n in range(len(top.ids_MT))]
        places = [(id, number) for records in strongest for id, _, number in records]
        contexts = contexts_of(vectors.root, vectors.column.name, places)
    _write_features(path.with_name(FEATURES), top, names, contexts, vectors)
    lines = (sae / TRAINING).read_text("utf-8").splitlines() if (sae / TRAINING).exists() else []
    rows = [*map(json.loads, lines)]
    write_page(path, sae.name, str(run), trained, held, top, names, contexts, rows)
    log.info(
        "on %s held-out vectors: FVU %.4f, L0 %.1f, %.1f %% dead",
        f"{held.vectors:,}",
        held.fvu,
        held.l0,
        100 * held.dead,
    )
    if text := of_few(held):
        log.warning("%s", text)
    log.info("%s: open it in a browser", path)
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


def write_page(
    path: Path,
    name: str,
    run: str,
    card: Card,
    held: Held,
    top: Top,
    names: Names,
    contexts: Contexts,
    rows: list[dict[str, Any]],
) -> None:
    """Write the page of the autoencoder called `name`, measured on `run`, to `path`."""
    order = np.argsort(-top.frequency_M, kind="stable")
    order = order[top.frequency_M[order] > 0]
    listed = [
        (
            int(feature),
            f"{top.frequency_M[feature]:.2%}".replace("%", " %"),
            ", ".join(names.words_M[feature]),
            [
                (
                    id,
                    f"{value:.3g}",
                    clipped(names.descriptions[id], MOST_TEXT),
                    contexts.get((id, number)),
                )
                for id, value, number in top.records_of(feature)
            ],
        )
        for feature in order[:MOST_FEATURES]
    ]
    options, source = card.options, card.source
    if options.kind == "topk":
        active = f"{options.k} of them active at most"
    else:
        active = f"active by {options.kind} with a penalty of {options.sparsity:g}"
    dead = _dead_advice(held.dead, options.features, card.counts["vectors"])
    each = "a residue" if source.is_per_residue else "a record"
    write_of(
        path,
        TEMPLATE.read_text("utf-8"),
        verb="sae",
        title=name,
        lead=(
            f"{count(options.features)} features, {active}, for "
            f"the {count(source.width)} numbers of {source.column}, one vector {each}; "
            f"trained on {counted(card.counts['vectors'], 'vector')} of "
            f"{records(card.counts['records'])} in {counted(options.steps, 'step')}."
        ),
        tiles=[
            ("FVU", f"{held.fvu:.4f}"),
            ("L0", f"{held.l0:.1f}"),
            *([("FVU of the others", f"{held.fvu_near:.4f}")] if held.is_of_few else []),
            ("dead", _percent(held.dead)),
            ("held-out records", count(held.records)),
        ],
        figures=[_curve(rows), _frequencies(top)],
        card=card,
        run=run,
        held=held,
        warnings=list(filter(None, [of_few(held), dead])),
        features=listed,
        most_rows=MOST_ROWS,
        num_active=len(order),
        table=FEATURES,
    )


def of_few(held: Held) -> str:
    """Return a warning if few vectors have most of the variance, else ""."""
    if not held.is_of_few:
        return ""
    return (
        f"Few vectors make most of the variance: {count(held.num_far)} of {count(held.vectors)} "
        f"are more than {FAR} times as far from the mean as the median one, and make "
        f"{_percent(held.share_far)} of it. The FVU is theirs; that of the others is "
        f"{held.fvu_near:.4f}. In a decoder, these are often the first tokens of texts."
    )


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def _dead_advice(dead: float, num_features: int, num_vectors: int) -> str:
    """Return advice if there are many dead features, else ""."""
    if dead < MANY_DEAD:
        return ""
    return (
        f"{_percent(dead)} of the features are dead: no held-out vector uses them. Train with "
        f"fewer --features (now {count(num_features)}, for {count(num_vectors)} vectors), "
        "on more records, or for more --steps."
    )


def _curve(rows: list[dict[str, Any]]) -> Figure:
    few = rows[:: max(1, len(rows) // MOST_POINTS)]
    if not rows:
        return Figure("curve", "How it was trained", "training.jsonl is gone.")
    last = rows[-1]
    sentence = (
        f"After {counted(last['step'], 'step')}: loss {last['loss']:.4g}, FVU "
        f"{last['fvu']:.4f}, {last['dead']:.1%} dead. Each point is the mean of the steps since "
        "the one before."
    )
    chart = (
        alt.Chart(values({"step": row["step"], "fvu": row["fvu"]} for row in few))
        .mark_line(point=True)
        .encode(
            x=alt.X("step:Q", title="step"),
            y=alt.Y("fvu:Q", title="FVU", scale=alt.Scale(zero=False)),
            tooltip=["step:Q", "fvu:Q"],
        )
        .properties(width="container", height=220)
    )
    return drawn("curve", "How it was trained", sentence, chart, terms=TERMS)


def _frequencies(top: Top) -> Figure:
    active = top.frequency_M[top.frequency_M > 0]
    sentence = (
        f"{count(len(active))} of {counted(len(top.frequency_M), 'feature')} are "
        f"active in some vector; half of these in less than {np.median(active):.2%} of all vectors."
    )
    counts, edges = np.histogram(np.log10(active), bins=30)
    rows = [
        {"low": float(10**low), "high": float(10**high), "features": int(number)}
        for number, low, high in zip(counts, edges, edges[1:], strict=False)
    ]
    chart = (
        alt.Chart(values(rows))
        .mark_bar()
        .encode(
            x=alt.X("low:Q", title="frequency", scale=alt.Scale(type="log"), bin="binned"),
            x2="high:Q",
            y=alt.Y("features:Q", title="features"),
            tooltip=["low:Q", "high:Q", "features:Q"],
        )
        .properties(width="container", height=180)
    )
    return drawn("frequencies", "How often features are active", sentence, chart)
