"""One estimate: what there is to do, how fast, on how many devices, and what that comes to."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from featuremill import config as config_module
from featuremill.base.errors import UserError
from featuremill.plan import speeds
from featuremill.plan.estimate import place as places
from featuremill.plan.estimate import report, view, work
from featuremill.plan.estimate.model import Model, model_of
from featuremill.plan.estimate.place import Place
from featuremill.plan.speeds import Speed
from featuremill.plan.speeds.assumed import Rates
from featuremill.store.results import Results
from featuremill.workload import find_workload
from featuremill.workload.recipe import settings_of

RESULTS = Path("results")


def run(arguments: argparse.Namespace) -> int:
    """Carry out `featuremill estimate`."""
    config = config_module.read(arguments.config)
    place = places.choose(arguments, config)
    workload = find_workload(config.workload)
    options = workload.Options.model_validate(config.options)
    model = model_of(workload, options)
    settings = settings_of(config.workload, workload, options, place.device, model.weights)
    folder = Results(RESULTS / config.run)
    found = work.look(folder, config, settings, arguments.threads, arguments.scratch)
    if arguments.records:
        found = work.scaled(found, arguments.records, config.shards.cost)
    resolved = workload.Options.model_validate(settings["options"])
    values = workload.schema(resolved, model.weights)
    batch_cost = workload.batch_cost(resolved, place.device)
    by_slots = list(_speeds(arguments, place, settings, found, model))
    answer = report.answer(
        report.Facts(
            config,
            folder,
            settings,
            found,
            place,
            model,
            values,
            batch_cost,
            model.memory_mb(workload, resolved, place.device, batch_cost),
            model.weights_mb(workload),
        ),
        by_slots,
    )
    if arguments.json:
        sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("\n".join(view.lines(answer)) + "\n")
    return 0


def _speeds(
    arguments: argparse.Namespace,
    place: Place,
    settings: dict[str, Any],
    found: work.Work,
    model: Model,
) -> Iterator[tuple[int, Speed]]:
    """Yield each number of slots with the speed of one job there."""
    for slots in place.slots:
        asked = places.asked(place, slots, settings)
        if rate := arguments.tokens_per_second:
            startup = speeds.startup_of(asked, RESULTS)
            speed = speeds.given(rate, place.name or "a GPU", startup)
        elif place.is_gpu and not place.name and not speeds.earlier.look(RESULTS, asked):
            raise UserError(
                "no GPU is here and none has computed this model yet; say which it will be with "
                '--device (such as "NVIDIA H100 80GB HBM3"), or --tokens-per-second.'
            )
        else:
            speed = speeds.find(asked, RESULTS, model.shape, found.mean_cost, arguments.bench)
        if (seconds := arguments.startup_seconds) is not None:
            speed = speed._replace(
                startup_seconds=Rates(seconds, seconds, seconds), is_startup_measured=True
            )
        yield slots, speed
