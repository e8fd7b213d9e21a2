"""Compute values of new records with exactly the recipe of a run's results.

The settings of the recipe suffice. If the run exists, its device and the paths of its weights and
option files are used as well.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from featuremill.features import Features
from featuremill.features.table import Matrix
from featuremill.kit.arrays import matrix
from featuremill.kit.devices import Device, DeviceChoice, devices_for, with_processors
from featuremill.kit.errors import UserError, error_text, is_out_of_memory
from featuremill.kit.runs import Results, Settings
from featuremill.kit.workloads import (
    ENGINE_VERSION,
    Record,
    Weights,
    Workload,
    attributed_to,
    batch_cost_of,
    find_workload,
    json_of_weights,
    model_name_of,
    read_weights,
    records_of,
    refuse_other_files,
    refuse_without_packages,
    settings_of,
    values_in_batches,
)

__all__ = ["Origin", "Recipe"]
SEARCH = logging.getLogger("featuremill.search")


class Origin(NamedTuple):
    """Results, with the recipe that computed them."""

    name: str
    """The name in messages."""
    settings: Settings
    recipe: str | None
    """The digest of the settings."""
    column: str
    run: Results | None
    """The run with the recipe, or None."""
    delivered: Results | None
    """The folder of the run's results, which may be partial."""
    otherwise: str = ""
    """The last sentence of messages: what is possible without computing."""

    @classmethod
    def of(cls, searched: Features) -> Origin:
        """Return the origin of a run's features."""
        return cls(
            str(searched.folder.root),
            searched.settings,
            searched.recipe,
            searched.column,
            searched.folder,
            searched.delivered,
            " Records of the run are found by their ids without.",
        )


class Recipe:
    """A workload with the options and weights of earlier results, loaded on a device."""

    def __init__(
        self,
        origin: Origin,
        device: DeviceChoice | None = None,
        weights: Sequence[Path] = (),
        log: logging.Logger = SEARCH,
    ) -> None:
        """Load the model; of the files `weights`, only that of the recipe is used.

        Raises:
            UserError: weights or workload differ from those of the results, or the device cannot
                compute in their dtype.
        """
        self._origin, self._name = origin, origin.name
        self._settings, self._log = origin.settings, log
        plan = origin.run.find_plan() if origin.run else None
        is_same = plan is not None and plan.recipe == origin.recipe
        self._plan = plan if is_same else None  # otherwise the plan has another recipe
        self.workload: Workload = find_workload(self._settings.workload)
        devices = self._devices(device)
        ready = self._weights(weights)
        refuse_without_packages(self.workload.Options)
        self.options = self._resolved(devices[0], ready)
        name = self._settings.workload
        self._budget = batch_cost_of(name, self.workload, self.options, devices[0])
        self.device = devices[0]
        self._log_device(devices[0])
        try:
            with attributed_to(name, "load"):
                self._model: Any = self.workload.load(self.options, devices, ready)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise UserError(
                f"{self._name}: memory ran out while its model was loaded "
                f"({error_text(error)}); do this where it fits (such as --device cpu)."
                f"{origin.otherwise}"
            ) from None

    def records(self, path: Path) -> Iterator[Record]:
        """Yield the records that the workload reads from a file."""
        return records_of(self._settings.workload, self.workload, [path], self.options)

    def batches(
        self, payloads: Sequence[bytes], refuse: Callable[[int, str], object]
    ) -> Iterator[tuple[list[list[int]], pa.RecordBatch]]:
        """Yield the indices of the payloads of each row, and the values, in the batches of a run
        with one shard; call `refuse` with index and reason for payloads that fail."""
        return values_in_batches(
            self.workload,
            self._model,
            self.options,
            payloads,
            self._budget,
            refuse,
            self._log.warning,
            name=self._settings.workload,
        )

    def vectors(self, payloads: Sequence[bytes], refuse: Callable[[int, str], object]) -> Matrix:
        """Return the vectors of `payloads`, shape (payloads, width).

        `refuse` is called as in `batches`; the vectors of refused payloads are NaN.
        """
        vectors: Matrix | None = None
        for places, values in self.batches(payloads, refuse):
            computed = matrix(values.column(self._origin.column))
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
                f"{self._name}: this run spreads its model over {gpus} GPUs, and {len(devices)} is "
                "visible here; do this where they are, or with --device cpu."
            )
        return devices

    def _weights(self, named: Sequence[Path]) -> Weights | None:
        sha256 = self._settings.weights_sha256
        if sha256 is None:
            return None
        name = self._settings.workload
        model = model_name_of(self._settings)
        file = Path((self._plan.weights if self._plan else None) or json_of_weights(model, name))
        run = self._origin.run
        files = [*named] or [run.placed(str(file)) if run else file]
        paths = [path for path in files if path.is_file()]
        if not paths:
            raise UserError(
                f"{[*named, file][0]}: the weights that {self._name} was computed with are not "
                "here, and new sequences need them; "
                f"{_conversion(model, name)} converts them, and --weights FILE names "
                f"them.{self._origin.otherwise}"
            )
        located = [read_weights(path, name) for path in paths]
        for weights in located:
            if weights.sha256 == sha256:
                return weights
        raise UserError(
            f"{paths[0]}: these are other weights than those of {self._name} ({sha256[:12]}…), so "
            "vectors made with them cannot be compared; name the right ones with --weights, or "
            "let the run compute everything anew."
        )

    def _resolved(self, device: Device, weights: Weights | None) -> Any:
        """Return the options of the run, after a check that the recipe is the same here."""
        planned = self._settings
        if planned.files and not self._plan:
            raise UserError(
                f"{self._name}: its options name files ({', '.join(planned.files)}), and only the "
                "plan.json of its run, which is not here, has their paths; run it again."
                f"{self._origin.otherwise}"
            )
        execution = dict(self._plan.execution) if self._plan else {}
        if self._origin.run:
            for name in planned.files:
                execution[name] = str(self._origin.run.placed(execution[name]))
        try:
            options = self.workload.Options.model_validate(planned.options | execution)
        except ValidationError:
            raise self._other_versions() from None
        if self._origin.run:
            refuse_other_files(options, planned.files, self._origin.run.plan)
        try:
            here = settings_of(planned.workload, self.workload, options, device, weights)
        except UserError as error:
            raise UserError(
                f"{self._name}: its recipe cannot be computed on this device: {error} Another one "
                f"may do (--device).{self._origin.otherwise}"
            ) from None
        if here.as_json() != planned.as_json():
            raise self._other_versions()
        return options

    def _other_versions(self) -> UserError:
        others = self._settings.other_versions(self.workload.VERSION, ENGINE_VERSION)
        others = others or f"another workload {self._settings.workload} than the one"
        return UserError(
            f"{self._name}: here is {others}, which computed it, so that vectors of the two cannot "
            "be compared; let the run compute everything anew."
        )

    def _log_device(self, device: Device) -> None:
        """Log the device, and a warning if the run used another kind of device."""
        self._log.info("new records are computed on %s.", device.name)
        delivery = self._origin.delivered.find_delivery() if self._origin.delivered else None
        is_gpu, receipts = device.kind == "cuda", delivery.receipts if delivery else []
        if others := sorted(
            {receipt.device_name for receipt in receipts if receipt.is_on_gpu != is_gpu}
        ):
            self._log.warning(
                "the run was computed on %s: in the same precision, but kernels of another kind "
                "round otherwise, so a score may differ in its last digits.",
                " and ".join(others),
            )


def _conversion(model: str, workload: str) -> str:
    if not model:
        return "featuremill weights MODEL --output FILE"
    path = json_of_weights(model, workload)
    return shlex.join(["featuremill", "weights", model, "--workload", workload, "--output", path])
