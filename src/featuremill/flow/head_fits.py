"""Whether a head takes the features that runs are going to have, before any job computes them.

A head's card has the width and the settings of each kind of features. What a run will deliver is
known from its config and the model's metadata, before there are weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from featuremill.base.errors import UserError
from featuremill.base.words import counted, listed
from featuremill.config import Config
from featuremill.config.contigs import ContigsConfig
from featuremill.head.card import CARD, Card, Part
from featuremill.head.predict import differences
from featuremill.plan.command import planning_device
from featuremill.workload import TellsMemory, find_workload
from featuremill.workload.option_files import execution_of


class Ahead(NamedTuple):
    """What a run is going to have."""

    widths: dict[str, int]
    """Of its vectors, by column."""
    settings: dict[str, Any]
    """As in `Settings`, without what only the weights tell."""


def refuse_unfit(asked: ContigsConfig) -> None:
    """Refuse a head, where there is one already, that does not take the features of the runs.

    Raises:
        UserError: names the run, and what differs.
    """
    if asked.train:
        return
    folder = Path(asked.head_folder)
    head = Card.read(folder / CARD)
    if len(asked.kinds) != len(head.features):
        widths = " + ".join(f"{part.width:,}" for part in head.features)
        raise UserError(
            f"{folder}: this head takes features of {counted(len(head.features), 'kind')} "
            f"({widths} numbers), and the config has {listed(asked.kinds)}; name a head that was "
            "made for these, or change them."
        )
    for kind, known in zip(asked.kinds, head.features, strict=True):
        config = Config.model_validate(asked.config_of(kind))
        ahead = _ahead(config)
        if ahead and (difference := _difference(ahead, known, asked.any_recipe)):
            raise UserError(
                f"{folder}: this head does not take the features that {config.run} will "
                f"have{difference}; change the config, or name another head."
            )


def _difference(ahead: Ahead, known: Part, takes_any_recipe: bool) -> str:
    """Return how the features differ from those that the head was made for; "" where not."""
    widths = ahead.widths
    if known.column and known.column not in widths:
        return f": it was made for the column {known.column}, and they have {listed(widths)}"
    wanted = {known.column: widths[known.column]} if known.column else widths
    if known.width not in wanted.values():
        has = listed(f"{width:,} ({column})" for column, width in wanted.items())
        return f": it takes {known.width:,} numbers, and they have {has}"
    if len(wanted) > 1:
        return f": they have the columns {listed(wanted)}, and it does not say which it takes"
    if takes_any_recipe or known.settings is None:
        return ""
    return differences(known.settings.model_copy(update=ahead.settings), known.settings)


def _ahead(config: Config) -> Ahead | None:
    """Return what the run of `config` is going to have; None where that is not known yet."""
    workload = find_workload(config.workload)
    options = workload.Options.model_validate(config.options)
    try:
        device = planning_device(config.device)
        weights = None
        if workload.weights(options):
            if not isinstance(workload, TellsMemory):
                return None
            weights = workload.weights_ahead(options)
        resolved = workload.resolve(options, device, weights)
        schema = workload.schema(resolved, weights)
    except UserError:  # which the jobs say in their turn
        return None
    settings = {
        "workload": config.workload,
        "version": workload.VERSION,
        "options": resolved.model_dump(mode="json", exclude=execution_of(type(resolved))),
    }
    vectors = (field for field in schema if pa.types.is_fixed_size_list(field.type))
    return Ahead({field.name: field.type.list_size for field in vectors}, settings)
