"""train: fits a head to the features of labelled records, and measures it."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill import features
from featuremill.features import Listed, Matrix
from featuremill.inputs import labels
from featuremill.inputs.labels import Label
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering_folder
from featuremill.kit.ids import IdColumns
from featuremill.kit.processes import versions
from featuremill.kit.text import clipped, counted, listed, records
from featuremill.kit.workloads import refuse_without_packages
from featuremill.steps.heads import card, figures, held_out, numbers, threshold
from featuremill.steps.heads.card import CONTIG, Task
from featuremill.steps.heads.curves import Judged
from featuremill.steps.heads.fitting import (
    Classifier,
    Fitted,
    Fold,
    Logistic,
    Perceptron,
    apart_from,
    chosen_and_fitted,
    inner_folds,
    out_of_fold,
    outer_folds,
)
from featuremill.steps.heads.intervals import Estimate, bootstrap
from featuremill.steps.heads.joined import (
    CHOOSING,
    Joined,
    Lacking,
    lacking_writer,
    spread,
)
from featuremill.steps.heads.labels import Labels, of_fragments, read
from featuremill.steps.heads.threshold import Wanted

FEWEST_GROUPS = 3
"""Groups that a class needs: one to measure, one to choose the setting and calibrate, one to
learn."""
log = logging.getLogger("featuremill.head")


class Chosen(NamedTuple):
    """The arguments of `head train`."""

    runs: Sequence[Path]
    labels: Path | None
    """The table; without one, `column` is a column of the sheet of samples."""
    column: str
    group: str | None
    fragments: Path | None
    """The folder of a translation, if the labels are of its contigs."""
    kind: Literal["logistic", "mlp"]
    vectors: Sequence[str]
    output: Path
    seed: int
    threads: int
    id_column: str = ""
    """Of the table, if not found by its name."""
    threshold: Wanted | None = None
    task: Task | None = None
    """None: classification, unless labels look like something else."""
    mask: str = ""
    """Of labels of residues: the letters that are none."""


class Examples(NamedTuple):
    """Records with features and a label, by their sha256 and then their id: no fit depends on the
    order of a run's rows."""

    ids: list[str]
    sha256s: list[str]
    """Of the payloads: copies have the same."""
    x_NF: Matrix
    y_N: figures.Labels
    groups_N: npt.NDArray[np.str_]
    payload_N: npt.NDArray[np.int64]
    """The number of each payload."""
    classes: list[str]


class Gathered(NamedTuple):
    """The labelled records of runs."""

    parts: list[features.Features]
    joined: Joined
    examples: Examples
    missing: list[Lacking]
    num_empty: int
    """Rows of the table, or samples, without a label."""
    used: card.TableUsed


def gather(chosen: Chosen) -> Gathered:
    """Return the labelled records that have all features.

    Raises:
        UserError: runs or labels cannot be used.
    """
    refuse_without_packages(card.NeedsTorch)
    card.refuse_other_folder(chosen.output)
    columns = spread(chosen.vectors, len(chosen.runs))
    parts = [
        features.open(run, column, choosing=CHOOSING)
        for run, column in zip(chosen.runs, columns, strict=True)
    ]
    found, num_empty, used = _labelled(chosen, parts, log)
    joined = Joined(parts, found)
    missing: list[Lacking] = []
    examples = _examples(joined, parts, found, used, missing)
    missing += _without_record(joined, found, examples.ids, missing, used)
    missing.sort(key=lambda lacking: (found[lacking.id].line, lacking.id))
    return Gathered(parts, joined, examples, missing, num_empty, used)


def counts_of(gathered: Gathered) -> dict[str, int]:
    """Return the counts of a card."""
    return {
        "records": len(gathered.examples.ids),
        "groups": len(np.unique(gathered.examples.groups_N)),
        "missing": len(gathered.missing),
        "unlabelled": gathered.joined.num_unwanted,
        "rows_without_label": gathered.num_empty,
    }


def parts_of(parts: Sequence[features.Features]) -> list[card.Part]:
    """Return the features of a card."""
    return [
        card.Part(
            width=part.width,
            column=part.column,
            recipe=part.recipe,
            settings=part.settings,
            run=part.name,
        )
        for part in parts
    ]


def train(chosen: Chosen) -> card.Card:
    """Train a head, write it and return its card.

    Raises:
        UserError: runs or labels cannot be used.
    """
    gathered = gather(chosen)
    parts, joined, examples, missing, _, used = gathered
    _refuse_unfit(examples, used)

    import torch

    torch.set_num_threads(max(1, chosen.threads))
    kind: Classifier = Perceptron(chosen.seed) if chosen.kind == "mlp" else Logistic()
    log.info(
        "%s of %s, %s numbers each; %s",
        records(len(examples.ids)),
        counted(len(examples.classes), "class", "classes"),
        f"{joined.width:,}",
        f"no {used.group} is on both sides of a fold" if used.group else "folds by record",
    )
    learnt = examples.x_NF, examples.y_N, examples.groups_N, examples.payload_N
    num_classes = len(examples.classes)
    fitted = chosen_and_fitted(kind, *learnt, num_classes)
    where = f"{used.file}: {used.column!r}"
    cuts = Cuts(chosen.threshold, examples, fitted, where) if chosen.threshold else None
    scores_NC = out_of_fold(kind, *learnt, tell=cuts.add if cuts else bool)
    predicted_N = cuts.decided(scores_NC) if cuts else scores_NC.argmax(1)
    scores, gain, confusion = judged(scores_NC, examples, predicted_N)
    from featuremill.steps.heads.page import write_page

    with delivering_folder(chosen.output) as folder:
        write_missing(folder / card.MISSING, missing, joined.id_columns)
        made = card.Card(
            version=card.Card.NEWEST,
            kind=chosen.kind,
            classes=examples.classes,
            features=parts_of(parts),
            sha256=card.write_tensors(folder / card.TENSORS, fitted.head),
            held_out_sha256=held_out.write(
                folder / card.HELD_OUT,
                _held_out(examples, scores_NC),
                examples.classes,
                joined.id_columns,
            ),
            counts=counts_of(gathered),
            scores={name: [*estimate] for name, estimate in scores.items()},
            guesses=figures.of_guesses(examples.y_N, num_classes),
            accuracy_gain=[*gain],
            reliability=[
                card.Bin(
                    class_name=examples.classes[one.number],
                    low=one.low,
                    high=one.high,
                    records=one.items,
                    mean_score=one.mean_score,
                    share=one.share,
                )
                for one in figures.reliability(scores_NC, examples.y_N)
            ],
            calibration=card.Calibration(
                scale=fitted.calibration.scale, shift=fitted.calibration.shift_C.tolist()
            ),
            confusion=confusion.tolist(),
            threshold=cuts.measured(scores_NC) if cuts else None,
            setting={kind.setting: fitted.setting},
            setting_bounds=[*kind.bounds],
            labels=used,
            seed=chosen.seed,
            threads=chosen.threads,
            versions=versions(("torch",)),
        )
        by_sample = _by_sample(examples, predicted_N, joined.id_columns)
        made_of = Judged(examples.ids, examples.y_N, scores_NC, predicted_N)
        write_page(folder / card.PAGE, chosen.output.name, made, made_of, by_sample)
        made.write(folder / card.CARD)
    _say(made, chosen.output)
    return made


def refuse_unfit(chosen: Chosen, parts: Sequence[Listed]) -> None:
    """Refuse labels of which no head can be made, as far as the records show: before they have
    features.

    Raises:
        UserError: as `train` does.
    """
    _refuse_unfit(*examples_of(chosen, parts))


def examples_of(chosen: Chosen, parts: Sequence[Listed]) -> tuple[Examples, card.TableUsed]:
    """Return the labelled records without their features, before they have any.

    Raises:
        UserError: labels cannot be used.
    """
    found, _, used = _labelled(chosen, parts, None)
    sha256_of_id = {id: sha256 for id, sha256 in parts[0].digests() if id in found}
    for part in parts[1:]:
        there = part.rows_of(sha256_of_id)
        sha256_of_id = {id: sha256 for id, sha256 in sha256_of_id.items() if id in there}
    if not sha256_of_id:
        raise _without_features(found, used, parts)
    ids = [*sha256_of_id]
    return _of_ids(ids, sha256_of_id, found, []), used


def _labelled(chosen: Chosen, parts: Sequence[Listed], log: logging.Logger | None) -> Labels:
    """Return the labels by the ids of records; `log` warns of those that are of none."""
    table, id_columns = chosen.labels, parts[0].id_columns
    found, num_empty, used = read(
        parts[0], table, chosen.column, chosen.group, chosen.id_column, log
    )
    if chosen.task == "regression":
        numbers.check(found, used.file, chosen.column)
    elif chosen.task is None:
        numbers.refuse_many({label.name for label in found.values()}, used.file, chosen.column)
    if chosen.fragments and table:  # labels of samples are those of fragments, too
        found, num_without = of_fragments(found, table, chosen.fragments, id_columns, log)
        if not found:
            raise UserError(
                f"{table}: none of its ids is a contig with fragments in {chosen.fragments}; write "
                "the ids as the contigs have them."
            )
        if num_without and log:
            says = counted(num_without, "labelled contig has", "labelled contigs have")
            log.warning("%s no fragment in %s.", says, chosen.fragments)
        used = used.model_copy(update={"group": used.group or CONTIG})
    elif table:
        called = f"record of {listed(part.name for part in parts)}"
        named = labels.NamedRecords(called, id_columns, log)
        found = labels.by_record(found, table, parts, named)
    return Labels(found, num_empty, used)


def _without_features(
    found: dict[str, Label], used: card.TableUsed, parts: Sequence[Listed]
) -> UserError:
    theirs = parts[0].ids_of(np.arange(1))[0]
    return UserError(
        f"{used.file}: none of its {len(found):,} ids has features in "
        f"{listed(part.name for part in parts)}: its first is {clipped(next(iter(found)))!r}, the "
        f"run's first is {clipped(theirs)!r}; write the ids as the run has them."
    )


def _by_sample(
    examples: Examples, predicted_N: figures.Labels, id_columns: IdColumns
) -> list[figures.OfSample]:
    """Return how many records of each sample that has a name have a correct prediction, in the
    order of the samples."""
    samples, number_N = np.unique([*map(id_columns.owner, examples.ids)], return_inverse=True)
    is_right = predicted_N == examples.y_N
    counts = zip(np.bincount(number_N).tolist(), np.bincount(number_N, is_right), strict=True)
    return [
        figures.OfSample(sample, num, int(right))
        for sample, (num, right) in zip(samples.tolist(), counts, strict=True)
        if sample
    ]


def _examples(
    joined: Joined,
    parts: Sequence[features.Features],
    found: dict[str, Label],
    used: card.TableUsed,
    missing: list[Lacking],
) -> Examples:
    ids: list[str] = []
    lots: list[Matrix] = []
    for some, vectors in joined.blocks(missing.append):
        ids += some
        lots.append(vectors)
    if not ids:
        raise _without_features(found, used, parts)
    wanted = set(ids)
    sha256_of_id = {id: sha256 for id, sha256 in parts[0].digests() if id in wanted}
    return _of_ids(ids, sha256_of_id, found, lots)


def _of_ids(
    ids: Sequence[str],
    sha256_of_id: Mapping[str, str],
    found: Mapping[str, Label],
    lots: Iterable[Matrix],
) -> Examples:
    """Return the examples; `lots` have the vectors of `ids`, one after the other."""
    order = sorted(range(len(ids)), key=lambda row: (sha256_of_id[ids[row]], ids[row]))
    place_N, start, x_NF = np.argsort(order), 0, np.empty((len(ids), 0))
    for lot in lots:
        if not start:
            x_NF = np.empty((len(ids), lot.shape[1]), lot.dtype)
        x_NF[place_N[start : start + len(lot)]] = lot
        start += len(lot)
    ids = [ids[row] for row in order]
    names = [found[id].name for id in ids]
    classes, y_N = np.unique(names, return_inverse=True)
    groups_N = np.array([found[id].group for id in ids])
    sha256s = [sha256_of_id[id] for id in ids]
    payload_N = np.unique(sha256s, return_inverse=True)[1]
    return Examples(ids, sha256s, x_NF, y_N, groups_N, payload_N, classes.tolist())


def _held_out(examples: Examples, scores_NC: npt.NDArray[np.float64]) -> held_out.HeldOut:
    return held_out.HeldOut(
        examples.ids,
        examples.sha256s,
        [examples.classes[number] for number in examples.y_N],
        examples.groups_N.tolist(),
        scores_NC,
    )


def _without_record(
    joined: Joined,
    found: dict[str, Label],
    ids: Sequence[str],
    missing: Sequence[Lacking],
    used: card.TableUsed,
) -> list[Lacking]:
    """Return the labelled ids without a vector in the first run."""
    known = {*ids, *(lacking.id for lacking in missing)}
    return [
        joined.lacking_in_first(id, f"it has no such record (labelled in {used.file}:{label.line})")
        for id, label in found.items()
        if id not in known
    ]


def _refuse_unfit(examples: Examples, used: card.TableUsed) -> None:
    """Raise UserError if classes and groups are too few to learn or to measure."""
    where, group = f"{used.file}: {used.column!r}", used.group
    if len(examples.classes) == 1:
        raise UserError(
            f"{where} is {clipped(examples.classes[0])!r} in all {records(len(examples.ids))} that "
            "have features; a head needs at least two classes, so label others, too."
        )
    groups_of = defaultdict(set)
    for number, name in zip(examples.y_N.tolist(), examples.groups_N.tolist(), strict=True):
        groups_of[number].add(name)
    sizes = Counter(examples.y_N.tolist())
    for number, names in sorted(groups_of.items()):
        if len(names) < FEWEST_GROUPS:
            name = clipped(examples.classes[number])
            num_records = records(sizes[number])
            reason = (
                f"has its {num_records} in {listed(repr(clipped(one)) for one in sorted(names))} "
                f"of {group}"
                if group
                else f"has {num_records}"
            )
            least = f"{FEWEST_GROUPS} {'values of ' + group if group else 'records'}"
            raise UserError(
                f"{where}: the class {name!r} {reason}, and a head needs {least} of each class, "
                "so that there are others to learn from while it is judged and calibrated; label "
                "more of the class, or leave it out."
            )
    if (num_groups := len(set(examples.groups_N.tolist()))) < figures.FOLDS:
        raise UserError(
            f"{where}: {num_groups} different values of {group} are too few for "
            f"{figures.FOLDS} folds; label more, or name another column of groups, or the group "
            "id, which is each record."
        )
    for number in _torn_from_its_class(examples):
        raise UserError(
            f"{where}: the class {clipped(examples.classes[number])!r} shares "
            f"{f'each {group} with other classes, or ' if group else ''}its sequences with other "
            "records, so that a fold would leave none of it to learn from; label more of the class "
            "elsewhere, or leave it out."
        )


def _torn_from_its_class(examples: Examples) -> list[int]:
    """Return the classes for which one fold would hold all training examples, or copies of them."""
    y_N, groups_N, payload_N = examples.y_N, examples.groups_N, examples.payload_N
    classes, folds = {*range(len(examples.classes))}, range(figures.FOLDS)
    outer_N = outer_folds(groups_N, y_N)
    sides = [np.ones(len(y_N), bool), *(apart_from(outer_N == fold, payload_N) for fold in folds)]
    found = set[int]()
    for side in sides:
        y, payloads = y_N[side], payload_N[side]
        found |= classes - {*y.tolist()}
        inner_N = inner_folds(groups_N[side], y) if len(y) else y
        for fold in folds:
            found |= classes - {*y[apart_from(inner_N == fold, payloads)].tolist()}
    return sorted(found)


class Cuts:
    """The thresholds for the class of a user: one for all records, and one for each fold."""

    def __init__(self, asked: Wanted, examples: Examples, fitted: Fitted, where: str) -> None:
        """Choose that of the final head.

        Raises:
            UserError: there is no such class, or the precision is not reached.
        """
        self._asked, self._examples = asked, examples
        self._place = asked.place(examples.classes, where)
        self._is_it_N = examples.y_N == self._place
        score_N = fitted.held_out_NC[:, self._place]
        self.cut = threshold.choose(score_N, self._is_it_N, asked)
        if self.cut == threshold.NEVER:
            threshold.refuse_unreached(score_N, self._is_it_N, asked, where)
        self._cut_N = np.full(len(score_N), threshold.NEVER)

    def add(self, fold: Fold) -> None:
        """Choose that of a fold, by the records that its head learnt from."""
        score_N = fold.fitted.held_out_NC[:, self._place]
        is_it_N = self._is_it_N[fold.learns_N]
        self._cut_N[fold.held_out_N] = threshold.choose(score_N, is_it_N, self._asked)

    def decided(self, scores_NC: npt.NDArray[np.float64]) -> figures.Labels:
        """Return the class of each record by the threshold of its fold."""
        return threshold.decided(scores_NC, self._place, self._cut_N)

    def measured(self, scores_NC: npt.NDArray[np.float64]) -> card.Threshold:
        """Return the threshold of the head, with what those of the folds reach."""
        is_called_N = scores_NC[:, self._place] >= self._cut_N
        groups_N = self._examples.groups_N
        return threshold.measured(self._asked, self.cut, is_called_N, self._is_it_N, groups_N)


def judged(
    scores_NC: npt.NDArray[np.float64],
    examples: Examples,
    predicted_N: figures.Labels | None = None,
) -> tuple[dict[str, Estimate], Estimate, npt.NDArray[np.int64]]:
    """Return the figures of the predictions, with their intervals; how much more often they are
    right than always the most frequent class; and the confusion table."""
    predicted_N = scores_NC.argmax(1) if predicted_N is None else predicted_N
    y_N = examples.y_N
    folds_N = outer_folds(examples.groups_N, y_N)
    is_most_N = y_N == np.bincount(y_N).argmax()
    gain_N = (predicted_N == y_N).astype(np.float64) - is_most_N
    statistics = {
        "accuracy": lambda i: figures.accuracy(predicted_N[i], y_N[i]),
        "balanced_accuracy": lambda i: figures.balanced_accuracy(predicted_N[i], y_N[i]),
        "macro_f1": lambda i: figures.macro_f1(predicted_N[i], y_N[i]),
        "mcc": lambda i: figures.mcc(predicted_N[i], y_N[i]),
        "auc": lambda i: figures.mean_auc(scores_NC[i], y_N[i], folds_N[i]),
        "brier": lambda i: figures.brier(scores_NC[i], y_N[i]),
    }
    scores = {
        name: bootstrap(statistic, examples.groups_N) for name, statistic in statistics.items()
    }
    gain = bootstrap(lambda i: float(gain_N[i].mean()), examples.groups_N)
    return scores, gain, figures.confusion(predicted_N, y_N, len(examples.classes))


def write_missing(path: Path, missing: Sequence[Lacking], id_columns: IdColumns) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        write = lacking_writer(file, id_columns)
        for lacking in missing:
            write(lacking)


def _say(made: card.Card, output: Path) -> None:
    from featuremill.steps.heads.page import warning_of

    for name, (value, low, high) in made.scores.items():
        guess = made.guesses[name]
        log.info(
            "%s %.3f (95 %% interval %.3f to %.3f; guessing %.3f)", name, value, low, high, guess
        )
    if made.threshold:
        log.info(threshold.said(made).strip())
    if warning := warning_of(made):
        log.warning(warning)
    tell_missing(made, output)


def tell_missing(made: card.Card, output: Path) -> None:
    """Report labelled records without features, and the page."""
    if num_missing := made.counts["missing"]:
        log.warning(
            "%s without features in every run: %s lists them.",
            counted(num_missing, "label is", "labels are"),
            output / card.MISSING,
        )
    log.info("%s: open it in a browser", output / card.PAGE)
