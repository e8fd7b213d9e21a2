"""What `estimate` is asked: a config or records and a model, and a card as people write it; and its
answer in one sentence."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from featuremill import config as configs
from featuremill.base.errors import UserError
from featuremill.base.text import wrapped
from featuremill.base.words import counted, duration, listed
from featuremill.config import project
from featuremill.config.yaml_lines import Places
from featuremill.plan.estimate.report import WIDTH, Estimate
from featuremill.plan.speeds import CARDS, cards_called
from featuremill.workload import DEFAULT

FORM_FACTORS = {"sxm": "hbm3", "sxm5": "hbm3"}
"""Words of people for an H100, and NVML's."""
ALIKE = 0.7
KNOWN = {
    "given": "At the speed that was given.",
    "earlier run": "Measured in an earlier run.",
    "assumption": "Assumed, not measured.",
}


def project_of(arguments: argparse.Namespace) -> project.ProjectConfig:
    """Return the project that is asked about: that of a config, or one of records and a model that
    needs no config."""
    given: Path = arguments.config
    is_config = given.suffix in (".yaml", ".yml") or not given.is_file()
    if is_config and not (arguments.model or arguments.workload):
        return project.read(given)
    raw: dict[str, Any] = {"run": "estimate", "inputs": str(given), "workload": DEFAULT}
    places: Places = {}
    if is_config:
        raw, places = configs.load(given)
        if project.FEATURES in raw:
            raise UserError(f"{given}: it has several models; leave --model and --workload out.")
    if arguments.workload:
        raw["workload"] = arguments.workload
    if arguments.model:
        raw["options"] = {**(raw.get("options") or {}), "model": arguments.model}
    return project.validate(raw, str(given), places)


def card(name: str | None) -> str | None:
    """Return the name of a GPU so that its card is found: "rtx4090" is RTX 4090."""
    if not name or cards_called(name):
        return name
    words = re.findall(r"[a-z]+(?=\d{4})|[a-z0-9]+", name.lower())
    told = " ".join(FORM_FACTORS.get(word, word) for word in words)
    return told if cards_called(told) else name


@contextlib.contextmanager
def hinting(name: str | None) -> Iterator[None]:
    """Say which card may be meant where the speed of one of this name is unknown."""
    try:
        yield
    except UserError as error:
        short = {re.sub("(NVIDIA|Tesla|GeForce) ", "", each.name): each for each in CARDS}
        by_name = {key.lower(): known.name for key, known in short.items()}
        near = difflib.get_close_matches((name or "").lower(), by_name, 1, ALIKE)
        if not near or not name or cards_called(name) or repr(name) not in str(error):
            raise
        raise UserError(f"{error} Did you mean {by_name[near[0]]}?") from None


def answer(estimate: Estimate, device: str | None) -> Iterator[str]:
    """Yield the lines of the answer to how long it takes, with `device` as it was typed."""
    times = list[str]()
    for row in reversed(estimate.rows):
        low, middle, high = (
            duration(3600 * hours) for hours in (row.hours.low, row.hours.middle, row.hours.high)
        )
        spread = f" ({low} to {high})" if low != high else ""
        time = f"about {middle}{spread}"
        times.insert(0, f"{counted(row.slots, estimate.slot)}: {time}")
    speed = estimate.rows[0].speed
    about = f"{counted(estimate.counts.input, 'record')} with {estimate.model or estimate.workload}"
    told = f"{about} on {speed.device}, {'; '.join(times)}. {KNOWN[speed.kind]}"
    if not estimate.shards_left:
        told = f"Nothing is left to compute of {about}; what comes after takes {time}."
    yield from wrapped(told, width=WIDTH)
    if device and len(cards := cards_called(device)) > 1:
        others = listed(one.name for one in cards if one.name != speed.device)
        yield from wrapped(f"{device} may also be {others}: then name that one.", width=WIDTH)
    yield ""
