"""How all of a config of contigs stands: translation, runs, head, scores and verdicts.

Knows of each step what it left, and by files' times and digests whether something that this was
made of came later; an edit of the config is Snakemake's to notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.config.contigs import ContigsConfig
from featuremill.config.runs import Runs
from featuremill.status.commands import Mend, Problem
from featuremill.status.project import (
    VERSION,
    ProjectState,
    State,
    state_of,
    step_problems,
    what_to_type,
)
from featuremill.status.sources import MOST_HASHED, is_newer
from featuremill.status.state import NOT_DONE, STATES
from featuremill.store.files import read_json, sha256_of
from featuremill.translate.folder import SUMMARY, Translation


class Step(NamedTuple):
    """What one step beside the runs has made."""

    file: Path
    made: State = "no"


@dataclass
class WholeState(ProjectState):
    """All of it, as it was found."""

    translated: Step = field(kw_only=True)
    head: Step = field(kw_only=True)
    predictions: Step = field(kw_only=True)
    verdicts: Step = field(kw_only=True)
    translation: Translation | None = None
    num_predicted: int = 0
    """Fragments that have scores."""
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """Contigs by `verdict`, and those without one by `status`."""

    @property
    def asked(self) -> ContigsConfig:
        """The config."""
        assert self.runs.contigs
        return self.runs.contigs

    @property
    def exit_status(self) -> int:
        """0 done, 1 not done, 2 done with failures: that of the least, and of the steps beside."""
        steps = (self.translated, self.head, self.predictions, self.verdicts)
        return NOT_DONE if any(step.made != "yes" for step in steps) else super().exit_status

    def as_json(self) -> dict[str, Any]:
        """Return everything as one object, as docs/status.md explains it."""
        translation = self.translation
        return {
            "version": VERSION,
            "config": str(self.runs.given),
            "run": self.asked.run,
            "state": STATES[self.exit_status],
            "exit_status": self.exit_status,
            "is_at_work": self.is_at_work,
            "contigs": translation.contigs.as_json() if translation else None,
            "fragments": {
                "all": translation.fragments if translation else None,
                "predicted": self.num_predicted if self.predictions.made != "no" else None,
            },
            "verdicts": {key: dict(found) for key, found in self.counts.items()},
            "made": {
                name: {"file": str(step.file), "made": step.made}
                for name, step in (
                    ("translated", self.translated),
                    ("head", self.head),
                    ("predictions", self.predictions),
                    ("verdicts", self.verdicts),
                )
            },
            "runs": {kind: one and one.as_json() for kind, one in self.states.items()},
            "problems": [problem.as_json() for problem in self.problems],
            "next": self.next,
        }


def read_whole(runs: Runs, verifies: bool = False) -> WholeState:
    """Return how all of the config of `runs` stands; hash the runs' files if it `verifies`.

    Raises:
        UserError: when files of it cannot be read.
    """
    asked = runs.contigs
    assert asked
    manifests = [folder / "manifest.json" for folder in runs.folders]
    translated, head = Path(asked.translated) / SUMMARY, Path(asked.head_folder) / "head.json"
    predictions, verdicts = Path(asked.predictions), Path(asked.verdicts)
    translation = Translation.find(translated)
    is_of_others = translation is not None and not _is_of(translation, asked)
    state = WholeState(
        runs,
        translated=_step(translated, is_older=is_of_others),
        head=_step(head, manifests if asked.train else (), _has_other_labels(head, asked)),
        predictions=_step(predictions, [head, *manifests]),
        verdicts=_step(verdicts, [translated, predictions]),
        translation=translation,
    )
    state.read_runs(verifies)
    if state.predictions.made != "no":
        with predictions.open("rb") as file:
            state.num_predicted = sum(block.count(b"\n") for block in _blocks(file)) - 1
    if state.verdicts.made != "no":
        state.counts = _counts(verdicts)
    if not state.is_at_work:
        state.problems = [*_failed(state)]
    state.next = what_to_type(state)
    return state


def _step(file: Path, made_of: Iterable[Path] = (), is_older: bool = False) -> Step:
    return Step(file, state_of(file, made_of, is_older))


def _is_of(translation: Translation, asked: ContigsConfig) -> bool:
    """Tell whether the contigs are those that were translated; those that are gone may be."""
    summary = Path(asked.translated) / SUMMARY
    there = [entry for entry in translation.inputs if Path(entry.path).exists()]
    late = [entry for entry in there if is_newer(Path(entry.path), summary)]
    return (
        [entry.path for entry in translation.inputs] == list(asked.contigs)
        and all(Path(entry.path).stat().st_size == entry.bytes for entry in there)
        and all(sha256_of(Path(e.path)) == e.sha256 for e in late if e.bytes <= MOST_HASHED)
    )


def _has_other_labels(head: Path, asked: ContigsConfig) -> bool:
    """Tell whether the head's labels have changed since it was trained."""
    if not (asked.train and head.exists()):
        return False
    path, told = Path(asked.train.labels), (read_json(head) or {}).get("labels") or {}
    return is_newer(path, head) and sha256_of(path) != told.get("sha256")


def _blocks(file: Any) -> Iterator[bytes]:
    while block := file.read(2**20):
        yield block


def _counts(verdicts: Path) -> dict[str, Counter[str]]:
    """Return how many contigs have which verdict, and of those without, which status."""
    import pyarrow.csv as pc_csv

    names = ["verdict", "status"]
    types = pc_csv.ConvertOptions(include_columns=names, column_types=dict.fromkeys(names, "str"))
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    with pc_csv.open_csv(
        verdicts, parse_options=pc_csv.ParseOptions(delimiter="\t"), convert_options=types
    ) as reader:
        for block in reader:
            found = Counter(zip(*(column.to_pylist() for column in block.columns), strict=True))
            for (verdict, status), number in found.items():
                is_none = status not in ("ok", "partly")
                counts["status" if is_none else "verdict"][status if is_none else verdict] += number
    return counts


def _failed(state: WholeState) -> Iterator[Problem]:
    """Yield how the last tries of the steps ended that are not there."""
    asked = state.asked
    logs = {
        f"logs/{asked.run}/translate.log": state.translated,
        f"logs/heads/{asked.head_name}.log": state.head,
        f"logs/heads/{asked.head_name}.{asked.run}.log": state.predictions,
        f"logs/{asked.run}/verdict.log": state.verdicts,
    }
    found = [(str(step.file), Path(log)) for log, step in logs.items() if step.made != "yes"]
    yield from step_problems(found)
    if state.head.made == "no" and not asked.train:
        folder = state.head.file.parent
        what = f"{folder}: there is no head, and `train` is not set in {state.runs.given}."
        mend = Mend(by_hand="Train one on other runs, or take one over: docs/heads.md.")
        yield Problem("head_missing", what, mend)
