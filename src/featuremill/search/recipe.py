"""Vectors of new sequences, computed with the very recipe of a run's results, or not at all."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from featuremill.base.errors import UserError
from featuremill.extract import compute
from featuremill.extract.at_hand import values_in_batches
from featuremill.lease.devices import Device, devices_for, with_processors
from featuremill.merge.outputs.vectors import matrix
from featuremill.search.nearest import Matrix
from featuremill.search.opening import Searched
from featuremill.store.plan import Settings
from featuremill.store.receipts import device_name, is_on_gpu
from featuremill.workload import Weights, Workload, find_workload, refuse_without_packages
from featuremill.workload import weights as weights_verb
from featuremill.workload.recipe import ENGINE_VERSION, settings_of

DeviceChoice = Literal["auto", "cuda", "cpu"]
log = logging.getLogger("featuremill.search")


class Recipe:
    """A run's workload with its options and weights, ready on a device of this machine."""

    def __init__(
        self, searched: Searched, device: DeviceChoice | None = None, weights: Path | None = None
    ) -> None:
        """Load the model.

        Raises:
            UserError: when weights or workload are not those of the results, or the device cannot
                compute in their dtype.
        """
        self._root = searched.folder.root
        self._column = searched.column
        settings, plan = self._settings(searched.manifest), searched.plan
        if plan.get("recipe") != searched.manifest["recipe"]:
            plan = {}  # of other options, and maybe of another model
        self.workload: Workload = find_workload(settings["workload"])
        devices = self._devices(plan, device)
        found = self._weights(settings, plan, weights)
        refuse_without_packages(self.workload.Options)
        self.options = self._resolved(settings, plan, devices[0], found)
        self._budget = self.workload.batch_cost(self.options, devices[0])
        self._say(searched.manifest, devices)
        try:
            self._model: Any = self.workload.load(self.options, devices, found)
        except Exception as error:
            if not compute.is_out_of_memory(error):
                raise
            raise UserError(
                f"{self._root}: memory ran out while its model was loaded "
                f"({compute.one_line(error)}); search where it fits (such as --device cpu). "
                "Records of the run are found by their ids without."
            ) from None

    def vectors(self, payloads: Sequence[bytes], refuse: Callable[[int, str], object]) -> Matrix:
        """Return the vectors of `payloads`, shape (payloads, width).

        `refuse` hears of each one that cannot be computed, and why; its vector is all NaN.
        """
        # In the order of a shard, and equal ones once, as a run has them.
        distinct = sorted(set(payloads), key=lambda payload: hashlib.sha256(payload).digest())
        costs = [self.workload.cost(payload, self.options) for payload in distinct]
        places: dict[bytes, list[int]] = {}
        for place, payload in enumerate(payloads):
            places.setdefault(payload, []).append(place)

        def refuse_all(row: int, reason: str) -> None:
            for place in places[distinct[row]]:
                refuse(place, reason)

        vectors: Matrix | None = None
        for rows, values in values_in_batches(
            self.workload, self._model, distinct, costs, self._budget, refuse_all, log.warning
        ):
            computed = matrix(pa.chunked_array([values.column(self._column)]))
            if vectors is None:
                vectors = np.full((len(payloads), computed.shape[1]), np.nan)
            for row, vector in zip(rows, computed, strict=True):
                vectors[places[distinct[row]]] = vector
        return np.full((len(payloads), 1), np.nan) if vectors is None else vectors

    def _devices(self, plan: dict[str, Any], choice: DeviceChoice | None) -> list[Device]:
        gpus = plan.get("gpus", 1)
        devices = with_processors(devices_for(choice or plan.get("device", "auto"))[:gpus])
        if devices[0].kind == "cuda" and len(devices) < gpus:
            raise UserError(
                f"{self._root}: this run spreads its model over {gpus} GPUs, and {len(devices)} is "
                "visible here; search from where they are, or with --device cpu."
            )
        return devices

    def _weights(
        self, settings: dict[str, Any], plan: dict[str, Any], given: Path | None
    ) -> Weights | None:
        sha256 = settings["weights_sha256"]
        if sha256 is None:
            return None
        planned = Path(plan.get("weights") or f"weights/{settings['options'].get('model')}.json")
        # As the workflow has it: beside results/, from where snakemake was called.
        places = [given] if given else [planned, self._root.absolute().parent.parent / planned]
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            raise UserError(
                f"{places[0]}: the weights that {self._root} was computed with are not here, and "
                "new sequences need them; featuremill weights MODEL --output FILE converts them, "
                "and --weights FILE names them. Records of the run are found by their ids without."
            )
        found = weights_verb.read(path)
        if found.sha256 != sha256:
            raise UserError(
                f"{path}: these are other weights than those of {self._root} ({sha256[:12]}…), so "
                "vectors made with them cannot be compared; name the right ones with --weights, or "
                "let the run compute everything anew."
            )
        return found

    def _resolved(
        self,
        settings: dict[str, Any],
        plan: dict[str, Any],
        device: Device,
        weights: Weights | None,
    ) -> Any:
        """Return the options of the run, once they are seen to come to the same recipe here."""
        try:
            options = self.workload.Options.model_validate(settings["options"])
            here = settings_of(settings["workload"], self.workload, options, device, weights)
        except ValidationError:
            raise self._other_versions(settings) from None
        except UserError as error:
            raise UserError(
                f"{self._root}: its recipe cannot be computed on this device: {error} Another one "
                "may do (--device); records of the run are found by their ids without."
            ) from None
        if here.as_json() != settings:  # border
            raise self._other_versions(settings)
        execution = plan.get("execution", {})
        return self.workload.Options.model_validate(settings["options"] | execution)

    def _other_versions(self, settings: dict[str, Any]) -> UserError:
        told = Settings.model_validate(settings)  # border
        others = told.other_versions(self.workload.VERSION, ENGINE_VERSION)
        others = others or f"another workload {settings['workload']} than the one"
        return UserError(
            f"{self._root}: here is {others}, which computed it, so that vectors of the two cannot "
            "be compared; let the run compute everything anew."
        )

    def _settings(self, manifest: dict[str, Any]) -> dict[str, Any]:
        settings = manifest.get("settings")
        keys = {"workload", "version", "options", "weights_sha256"}
        if not isinstance(settings, dict) or not keys <= set(settings):
            raise UserError(
                f"{self._root}: its manifest.json does not say how it was computed; featuremill "
                f"merge {self._root} writes it anew."
            )
        return settings

    def _say(self, manifest: dict[str, Any], devices: Sequence[Device]) -> None:
        """Say on what the queries are computed, and where the run was on something else."""
        here = devices[0]
        log.info("queries are computed on %s.", here.name)
        receipts = manifest.get("receipts", [])
        others = sorted(
            {device_name(one) for one in receipts if is_on_gpu(one) != (here.kind == "cuda")}
        )
        if others:
            log.warning(
                "the run was computed on %s: in the same precision, but kernels of another kind "
                "round otherwise, so a score may differ in its last digits.",
                " and ".join(others),
            )
