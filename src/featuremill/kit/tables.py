"""A table that a step makes, with a card in JSON and one more table beside it, all of one name; and
options of commands that are keys of a section."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

from featuremill.base.errors import UserError
from featuremill.base.text import clipped
from featuremill.base.words import listed
from featuremill.kit.ids import ID_ALONE, IdColumns
from featuremill.step import Product, Project, Section, State, stated

if TYPE_CHECKING:
    from featuremill.features import Listed

__all__ = ["Table", "add_options", "id_columns_of", "words_of"]


class Table(NamedTuple):
    """The tables of one step."""

    key: str
    """The step's KEY, and the folder of the tables."""
    suffix: str
    """The ending of the table's file name."""
    beside: str
    """The ending of the other table's name, in place of the suffix."""
    figures: tuple[str, ...]
    """The keys of the card's `counts` that status shows."""

    def of(self, name: str, project: Project) -> str:
        """Return the table that the config calls `name`."""
        return f"{project.folder}/{self.key}/{name}{self.suffix}"

    def files(self, table: str) -> Sequence[str]:
        """Return all files that belong to a table: its card, the other table, and itself."""
        stem = table.removesuffix(self.suffix)
        return f"{stem}.json", f"{stem}{self.beside}", table

    def product(
        self, name: str, project: Project, inputs: Sequence[str], config: Mapping[str, Any]
    ) -> Product:
        """Return the table that the config calls `name`, with what belongs to it; `config` has keys
        of the card, as the config has them."""
        files = self.files(self.of(name, project))
        return Product(
            f"{self.key}.{name}",
            files,
            inputs,
            [f"{project.logs}/{self.key}/{name}.log"],
            [f"{project.folder}/{self.key}"],
            config=config,
            card=partial(_listed, Path(files[0])),
            figures=partial(_figures, Path(files[0]), self.figures),
        )


def _figures(card: Path, names: Sequence[str]) -> Mapping[str, int]:
    counts = json.loads(card.read_text("utf-8"))["counts"]
    return {name: counts[name] for name in names}


def _listed(card: Path) -> State:
    from featuremill.store.files import read_json

    content = read_json(card) or {}
    return stated(content, content.get("made_of", {}))


def add_options(parser: argparse.ArgumentParser, section: type[Section], *keys: str) -> None:
    """Add keys of a section as options of a command, with their descriptions as help."""
    descriptions = section.descriptions()
    for key in keys:
        field = section.model_fields[key]
        kind: Any = field.annotation
        while get_origin(kind) not in (None, Literal):  # Annotated[int, Field(ge=1)] | None
            kind, *_ = get_args(kind)
        text, default = descriptions.get(key, "").replace("%", "%%"), field.get_default()
        parser.add_argument(
            *[f"-{key}"] * (len(key) == 1),
            f"--{key.replace('_', '-')}",
            type=str if get_args(kind) else kind,
            choices=get_args(kind) or None,
            required=field.is_required(),
            default=None if field.is_required() else default,
            help=text if field.is_required() or default is None else f"{text} Default: {default}.",
        )


def words_of(options: Mapping[str, object]) -> list[str]:
    """Return the keys of a config that are set as options of a command."""
    return [
        f"--{key.replace('_', '-')}={options[key]}" for key in options if options[key] is not None
    ]


def id_columns_of(project: Project, folder: str) -> IdColumns:
    """Return how ids of features look: those of the project, or of a planned run elsewhere."""
    from featuremill.store import records  # here: it loads pyarrow
    from featuremill.store.results import Results

    if folder in project.features.values():
        return project.id_columns
    path = Results(Path(folder)).records
    return records.id_columns_of(path) if path.exists() else ID_ALONE


def stands(products: Sequence[Product], label: str, project: Project) -> bool:
    """Return whether the product `label` is finished, so that no job will read its table."""
    by_label = {product.label: product for product in project.with_states(products)}
    return by_label[label].stands() == "yes"


def without_features(table: object, ids: Iterable[str], parts: Sequence[Listed]) -> UserError:
    """Return the error that none of the `ids` in a table belongs to a record of all `parts`."""
    import numpy as np

    of_run, of_table = parts[0].ids_of(np.arange(1)), [*ids]
    first_of_run = f", the run's first is {clipped(of_run[0])!r}" if of_run else ""
    return UserError(
        f"{table}: none of its {len(of_table):,} ids has features in "
        f"{listed(part.name for part in parts)}: its first is {clipped(of_table[0])!r}"
        f"{first_of_run}; write the ids as the run has them."
    )


def are_there(table: str | None, folders: Iterable[str], project: Project) -> bool:
    """Return whether the table, if any, and the features of runs of other workflows exist."""
    others = (Path(run, "manifest.json") for run in folders if run not in project.features.values())
    return all(path.exists() for path in (*map(Path, filter(None, [table])), *others))


def listed_in(folder: str, project: Project, column: str | None) -> Listed:
    """Return the records of the features in `folder`: of the project as they are planned, of a
    finished run elsewhere with the vectors `column`."""
    from featuremill import features

    if folder in project.features.values():
        return features.Planned(folder)
    return features.open(folder, column, choosing="vectors:")
