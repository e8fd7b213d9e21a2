"""train: fit a head to the features of labelled records, and say how good it is."""

from __future__ import annotations

import csv
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.base import this_process
from featuremill.base.errors import UserError
from featuremill.base.text import clipped, one_line
from featuremill.base.words import counted, listed, records
from featuremill.head import card, figures, labels
from featuremill.head.features import Joined, Lacking, Matrix, open_run, spread
from featuremill.head.fitting import Kind, Logistic, Perceptron, chosen_and_fitted, out_of_fold
from featuremill.head.intervals import Estimate, bootstrap
from featuremill.store.files import replacing_folder, sha256_of
from featuremill.workload import refuse_without_packages

log = logging.getLogger("featuremill.head")


class Chosen(NamedTuple):
    """What is asked for."""

    runs: Sequence[Path]
    labels: Path
    column: str
    group: str | None
    fragments: Path | None
    """A translation's folder, where the labels are of its contigs."""
    kind: Literal["logistic", "mlp"]
    feature: Sequence[str]
    output: Path
    seed: int
    threads: int


class Examples(NamedTuple):
    """Records with features and a label."""

    ids: list[str]
    x_NF: Matrix
    y_N: figures.Labels
    groups_N: npt.NDArray[np.str_]
    classes: list[str]


def train(chosen: Chosen) -> card.Card:
    """Train a head, write it and return its card.

    Raises:
        UserError: when runs or labels are not fit for it.
    """
    refuse_without_packages(card.NeedsTorch)
    card.refuse_other_folder(chosen.output)
    found, num_empty = labels.read(chosen.labels, chosen.column, chosen.group)
    if chosen.fragments:
        found, num_without = labels.of_fragments(found, chosen.fragments)
        if not found:
            raise UserError(
                f"{chosen.labels}: none of its ids is a contig with fragments in "
                f"{chosen.fragments}; write the ids as the contigs have them."
            )
        if num_without:
            says = counted(num_without, "labelled contig has", "labelled contigs have")
            log.warning("%s no fragment in %s.", says, chosen.fragments)
        chosen = chosen._replace(group=chosen.group or "contig")
    columns = spread(chosen.feature, len(chosen.runs))
    parts = [open_run(run, column) for run, column in zip(chosen.runs, columns, strict=True)]
    joined = Joined(parts, found)
    missing: list[Lacking] = []
    examples = _examples(joined, found, chosen, missing)
    missing += _without_record(joined, found, examples.ids, missing, chosen.labels)
    _refuse_unfit(examples, chosen)

    import torch

    torch.set_num_threads(max(1, chosen.threads))
    kind: Kind = Perceptron(chosen.seed) if chosen.kind == "mlp" else Logistic()
    log.info(
        "%s of %s, %s numbers each; %s",
        records(len(examples.ids)),
        counted(len(examples.classes), "class", "classes"),
        f"{joined.width:,}",
        f"no {chosen.group} is on both sides of a fold" if chosen.group else "folds by record",
    )
    logits_NC = out_of_fold(kind, examples.x_NF, examples.y_N, examples.groups_N)
    scores, confusion = judged(logits_NC, examples)
    num_classes = len(examples.classes)
    setting, tensors = chosen_and_fitted(
        kind, examples.x_NF, examples.y_N, examples.groups_N, num_classes
    )
    counts = {
        "records": len(examples.ids),
        "groups": len(np.unique(examples.groups_N)),
        "missing": len(missing),
        "unlabelled": joined.num_unwanted,
        "rows_without_label": num_empty,
    }
    with replacing_folder(chosen.output) as folder:
        _write_missing(folder / card.MISSING, missing)
        made = card.Card(
            version=card.Card.NEWEST,
            kind=chosen.kind,
            classes=examples.classes,
            features=[
                card.Part(
                    width=part.width,
                    column=part.column,
                    recipe=part.recipe,
                    settings=part.settings,
                    run=part.name,
                )
                for part in parts
            ],
            sha256=card.write_tensors(folder / card.TENSORS, tensors),
            counts=counts,
            scores={name: [*estimate] for name, estimate in scores.items()},
            confusion=confusion.tolist(),
            setting={kind.setting: setting},
            labels=card.TableUsed(
                file=str(chosen.labels),
                sha256=sha256_of(chosen.labels),
                column=chosen.column,
                group=chosen.group,
            ),
            seed=chosen.seed,
            threads=chosen.threads,
            versions=this_process.versions(),
        )
        from featuremill.head.page import write_page

        write_page(folder / card.PAGE, chosen.output.name, made)
        made.write(folder / card.CARD)
    _say(made, chosen.output)
    return made


def _examples(
    joined: Joined, found: dict[str, labels.Label], chosen: Chosen, missing: list[Lacking]
) -> Examples:
    ids: list[str] = []
    lots: list[Matrix] = []
    for some, vectors in joined.blocks(missing.append):
        ids += some
        lots.append(vectors)
    if not ids:
        theirs = joined.first_id()
        raise UserError(
            f"{chosen.labels}: none of its {len(found):,} ids has features in "
            f"{listed(str(run) for run in chosen.runs)}: its first is "
            f"{clipped(next(iter(found)))!r}, the run's first is {clipped(theirs)!r}; write the "
            "ids as the run has them."
        )
    names = [found[id].name for id in ids]
    classes, y_N = np.unique(names, return_inverse=True)
    groups_N = np.array([found[id].group for id in ids])
    return Examples(ids, np.concatenate(lots), y_N, groups_N, classes.tolist())


def _without_record(
    joined: Joined,
    found: dict[str, labels.Label],
    ids: Sequence[str],
    missing: Sequence[Lacking],
    table: Path,
) -> list[Lacking]:
    """Return the labelled ids of which the first run has no vector."""
    known = {*ids, *(lacking.id for lacking in missing)}
    return [
        joined.lacking_in_first(id, f"it has no such record (labelled in {table}:{label.line})")
        for id, label in found.items()
        if id not in known
    ]


def _refuse_unfit(examples: Examples, chosen: Chosen) -> None:
    """Raise UserError where classes and groups are such that nothing can be learned or judged."""
    where, group = f"{chosen.labels}: {chosen.column!r}", chosen.group
    if len(examples.classes) == 1:
        raise UserError(
            f"{where} is {clipped(examples.classes[0])!r} in all {records(len(examples.ids))} that "
            "have features; a head tells at least two classes apart, so label others, too."
        )
    groups_of = defaultdict(set)
    for number, name in zip(examples.y_N.tolist(), examples.groups_N.tolist(), strict=True):
        groups_of[number].add(name)
    sizes = Counter(examples.y_N.tolist())
    for number, names in groups_of.items():
        if len(names) == 1:
            name = clipped(examples.classes[number])
            all_of = records(sizes[number])
            reason = (
                f"has all of its {all_of} in {group} {clipped(next(iter(names)))!r}"
                if group
                else "has a single record"
            )
            raise UserError(
                f"{where}: the class {name!r} {reason}, so nothing is left to learn it from while "
                "it is judged by that; label more of the class, or leave it out."
            )
    if (num_groups := len(set(examples.groups_N.tolist()))) < figures.FOLDS:
        raise UserError(
            f"{where}: {num_groups} different {'values of ' + group if group else 'records'} are "
            f"too few for {figures.FOLDS} folds; label more."
        )


def judged(
    logits_NC: npt.NDArray[np.float64], examples: Examples
) -> tuple[dict[str, Estimate], npt.NDArray[np.int64]]:
    """Return the figures of what is predicted, with their intervals, and the confusion table."""
    predicted_N, y_N = logits_NC.argmax(1), examples.y_N
    statistics = {
        "accuracy": lambda i: figures.accuracy(predicted_N[i], y_N[i]),
        "macro_f1": lambda i: figures.macro_f1(predicted_N[i], y_N[i]),
    }
    if len(examples.classes) == 2:
        odds_N, is_second_N = logits_NC[:, 1] - logits_NC[:, 0], y_N == 1
        statistics["auc"] = lambda i: figures.auc(odds_N[i], is_second_N[i])
    scores = {
        name: bootstrap(statistic, examples.groups_N) for name, statistic in statistics.items()
    }
    return scores, figures.confusion(predicted_N, y_N, len(examples.classes))


def _write_missing(path: Path, missing: Sequence[Lacking]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(Lacking._fields)
        table.writerows([one_line(text) for text in lacking] for lacking in missing)


def _say(made: card.Card, output: Path) -> None:
    for name, (value, low, high) in made.scores.items():
        log.info("%s %.3f (95 %% interval %.3f to %.3f)", name, value, low, high)
    if num_missing := made.counts["missing"]:
        log.warning(
            "%s without features in every run: %s lists them.",
            counted(num_missing, "label is", "labels are"),
            output / card.MISSING,
        )
    log.info("%s: open it in a browser", output / card.PAGE)
