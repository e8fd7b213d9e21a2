"""Vectors of new sequences, computed with exactly the recipe of a run's results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from featuremill.features import Features
from featuremill.features.table import Matrix
from featuremill.kit.arrays import matrix
from featuremill.kit.devices import Device, DeviceChoice, devices_for, with_processors
from featuremill.kit.errors import UserError, error_text, is_out_of_memory
from featuremill.kit.runs import working_folder
from featuremill.kit.workloads import (
    ENGINE_VERSION,
    Record,
    Weights,
    Workload,
    attributed_to,
    batch_cost_of,
    find_workload,
    json_of_weights,
    model_told,
    read_weights,
    records_of,
    refuse_other_files,
    refuse_without_packages,
    settings_of,
    values_in_batches,
)

log = logging.getLogger("featuremill.search")


class Recipe:
    """A run's workload with its options and weights, loaded on a device of this machine."""

    def __init__(
        self, searched: Features, device: DeviceChoice | None = None, weights: Path | None = None
    ) -> None:
        """Load the model.

        Raises:
            UserError: weights or workload differ from those of the results, or the device cannot
                compute in their dtype.
        """
        self._folder, self._root = searched.folder, searched.folder.root
        self._column = searched.column
        self._results = searched.delivery
        self._settings = searched.settings
        is_same = searched.plan is not None and searched.plan.recipe == searched.recipe
        self._plan = searched.plan if is_same else None  # else of other options, or another model
        self.workload: Workload = find_workload(self._settings.workload)
        devices = self._devices(device)
        ready = self._weights(weights)
        refuse_without_packages(self.workload.Options)
        self.options = self._resolved(devices[0], ready)
        name = self._settings.workload
        self._budget = batch_cost_of(name, self.workload, self.options, devices[0])
        self._say(devices[0])
        try:
            with attributed_to(name, "load"):
                self._model: Any = self.workload.load(self.options, devices, ready)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise UserError(
                f"{self._root}: memory ran out while its model was loaded "
                f"({error_text(error)}); search where it fits (such as --device cpu). "
                "Records of the run are found by their ids without."
            ) from None

    def records(self, path: Path) -> Iterator[Record]:
        """Stream the records of a file as the workload reads them."""
        return records_of(self._settings.workload, self.workload, [path], self.options)

    def vectors(self, payloads: Sequence[bytes], refuse: Callable[[int, str], object]) -> Matrix:
        """Return the vectors of `payloads`, shape (payloads, width).

        `refuse` is called for each one that cannot be computed, with the reason; its vector is all
        NaN.
        """
        vectors: Matrix | None = None
        for places, values in values_in_batches(
            self.workload,
            self._model,
            self.options,
            payloads,
            self._budget,
            refuse,
            log.warning,
            name=self._settings.workload,
        ):
            computed = matrix(values.column(self._column))
            if vectors is None:
                vectors = np.full((len(payloads), computed.shape[1]), np.nan)
            for equal, vector in zip(places, computed, strict=True):
                vectors[equal] = vector
        return np.full((len(payloads), 1), np.nan) if vectors is None else vectors

    def _devices(self, choice: DeviceChoice | None) -> list[Device]:
        gpus, planned = (self._plan.gpus, self._plan.device) if self._plan else (1, "auto")
        devices = with_processors(devices_for(choice or planned)[:gpus])
        if devices[0].kind == "cuda" and len(devices) < gpus:
            raise UserError(
                f"{self._root}: this run spreads its model over {gpus} GPUs, and {len(devices)} is "
                "visible here; search from where they are, or with --device cpu."
            )
        return devices

    def _weights(self, named_file: Path | None) -> Weights | None:
        sha256 = self._settings.weights_sha256
        if sha256 is None:
            return None
        planned = self._plan.weights if self._plan else None
        model = model_told(self._settings)
        file = Path(planned or json_of_weights(model, self._settings.workload))
        # As in the workflow: beside results/, in snakemake's folder.
        places = [named_file] if named_file else [file, working_folder(self._root) / file]
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            raise UserError(
                f"{places[0]}: the weights that {self._root} was computed with are not here, and "
                "new sequences need them; featuremill weights MODEL --output FILE converts them, "
                "and --weights FILE names them. Records of the run are found by their ids without."
            )
        located = read_weights(path, self._settings.workload)
        if located.sha256 != sha256:
            raise UserError(
                f"{path}: these are other weights than those of {self._root} ({sha256[:12]}…), so "
                "vectors made with them cannot be compared; name the right ones with --weights, or "
                "let the run compute everything anew."
            )
        return located

    def _resolved(self, device: Device, weights: Weights | None) -> Any:
        """Return the options of the run, after a check that they give the same recipe here."""
        planned = self._settings
        if planned.files and not self._plan:
            raise UserError(
                f"{self._root}: its options name files ({', '.join(planned.files)}), and only its "
                "plan.json, which is not here, has their paths; run it again. Records of the "
                "run are found by their ids without."
            )
        execution = dict(self._plan.execution) if self._plan else {}
        for name in planned.files:
            execution[name] = str(self._folder.placed(execution[name]))
        try:
            options = self.workload.Options.model_validate(planned.options | execution)
        except ValidationError:
            raise self._other_versions() from None
        refuse_other_files(options, planned.files, self._folder.plan)
        try:
            here = settings_of(planned.workload, self.workload, options, device, weights)
        except UserError as error:
            raise UserError(
                f"{self._root}: its recipe cannot be computed on this device: {error} Another one "
                "may do (--device); records of the run are found by their ids without."
            ) from None
        if here.as_json() != planned.as_json():
            raise self._other_versions()
        return options

    def _other_versions(self) -> UserError:
        others = self._settings.other_versions(self.workload.VERSION, ENGINE_VERSION)
        others = others or f"another workload {self._settings.workload} than the one"
        return UserError(
            f"{self._root}: here is {others}, which computed it, so that vectors of the two cannot "
            "be compared; let the run compute everything anew."
        )

    def _say(self, device: Device) -> None:
        """Report the device of the queries, and whether the run used another kind."""
        log.info("queries are computed on %s.", device.name)
        is_gpu, receipts = device.kind == "cuda", self._results.receipts
        if others := sorted(
            {receipt.device_name for receipt in receipts if receipt.is_on_gpu != is_gpu}
        ):
            log.warning(
                "the run was computed on %s: in the same precision, but kernels of another kind "
                "round otherwise, so a score may differ in its last digits.",
                " and ".join(others),
            )
