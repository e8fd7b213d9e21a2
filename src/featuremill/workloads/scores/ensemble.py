"""Load the networks of a run: all networks of an ensemble, or one at a time if memory is short.

Does not import torch.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from featuremill.kit.processes import free_memory_mb
from featuremill.workload import Device, Weights
from featuremill.workloads import esm2
from featuremill.workloads.scores import sources

if TYPE_CHECKING:
    from featuremill.workloads.esm2.encoder import Encoder
    from featuremill.workloads.scores.head import Head

log = logging.getLogger("featuremill.scores")
USABLE_SHARE = 0.9
"""The share of the memory that networks may use."""
PACKS_PER_LOAD = 16
"""Packs of a batch of an ensemble on a GPU: networks that alternate are loaded once per batch."""


class Network(NamedTuple):
    encoder: Encoder
    head: Head


def num_networks(weights: Weights) -> int:
    return int(weights.metadata.get(sources.NUM_NETWORKS, 1))


def memory_mb(
    options: esm2.Options, device: Device, weights: Weights, batch_tokens: int, num: int
) -> int:
    """Return the estimated peak memory in MiB with `num` networks loaded."""
    single_mb: int = esm2.memory_mb(options, device, weights, batch_tokens)
    return single_mb + round((num - 1) * esm2.loaded_mb(options, device, weights))


def num_together(options: esm2.Options, device: Device, weights: Weights, batch_tokens: int) -> int:
    """Return the number of networks that are loaded at a time: all if they fit, else one."""
    num = num_networks(weights)
    available_mb = device.memory_mb if device.kind == "cuda" else free_memory_mb()
    need_mb = memory_mb(options, device, weights, batch_tokens, num)
    return num if not available_mb or need_mb <= USABLE_SHARE * available_mb else 1


class Networks:
    """The networks of a run, in the order of the config's models."""

    def __init__(
        self, options: esm2.Options, devices: Sequence[Device], weights: Weights, batch_tokens: int
    ) -> None:
        self._options, self._devices, self._weights = options, devices, weights
        self.num = num_networks(weights)
        num_loaded = num_together(options, devices[0], weights, batch_tokens)
        if self.num > 1:
            self._log_loads(num_loaded, batch_tokens)
        self._loaded = [self._load(number) for number in range(num_loaded)]
        self.backend = self._loaded[0].encoder.backend
        """The names of the compute backends, for the receipt."""
        if self.num > 1:
            how = "all loaded" if num_loaded > 1 else "one loaded at a time"
            self.backend = f"{self.num} networks, {how}; {self.backend}"

    def _log_loads(self, num_loaded: int, batch_tokens: int) -> None:
        memory = functools.partial(
            memory_mb, self._options, self._devices[0], self._weights, batch_tokens
        )
        which = "all" if num_loaded > 1 else "one"
        text = f"{self.num} networks, {which} loaded at a time: about {memory(num_loaded):,} MB"
        if num_loaded > 1:
            log.info(text)
        else:
            log.warning(
                "%s, as all would take about %s MB; each is loaded again for every batch, which is "
                "slower",
                text,
                f"{memory(self.num):,}",
            )

    def each(self) -> Iterator[Network]:
        """Yield the networks; they are loaded one at a time if memory is short."""
        if len(self._loaded) == self.num:
            yield from self._loaded
            return
        self._loaded.clear()
        for number in range(self.num):
            yield self._load(number)

    def _load(self, number: int) -> Network:
        from featuremill.workloads.scores.head import Head

        prefix = f"{number}." if self.num > 1 else ""
        encoder = esm2.load(self._options, self._devices, self._weights, prefix=prefix).encoder
        return Network(encoder, Head(self._weights.path, encoder, prefix))
