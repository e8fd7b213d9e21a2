"""Compute several rows at once, each with keys and values in a slot of the cache; when a reply is
complete, another row takes its slot.

A prompt is computed by itself, after the tokens with which all prompts begin. Then each step
computes one token of every row. There is no padding: a mask hides what follows the end of a row.

Shape legend: R rows, K heads of keys, T tokens of a slot, D width of a head.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin

from featuremill.workload.spread import direct
from featuremill.workloads.encoder.causal import unchanged_up_to

KINDS = {"full_attention", "sliding_attention"}
"""Kinds of layers whose state consists of keys and values of each token."""
STATES = ("cache", "past_key_values", "cache_params", "state")
"""Names of a network's argument for its state after a text: keys and values, or a recurrent state.
Since transformers 5.24, it is `cache` for all."""
MOST_OFF = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""The largest relative difference (L2) of logits of the same tokens, computed in two ways."""


def cache_name(network: Any) -> str:
    return "cache" if "cache" in inspect.signature(network.forward).parameters else STATES[1]


class Prefix(NamedTuple):
    """The tokens with which prompts begin, computed once."""

    tokens: list[int]
    cache: DynamicCache

    def is_of(self, tokens: Sequence[int]) -> bool:
        """Return whether a prompt begins with these tokens and has more."""
        num = len(self.tokens)
        return len(tokens) > num and list(tokens[:num]) == self.tokens


def prefix_of(network: Any, tokens: Sequence[int]) -> Prefix:
    cache = DynamicCache()
    prefill(network, tokens, cache)
    return Prefix(list(tokens), cache)


class OneRow:
    """Computes one row at a time, with the network's own state."""

    def __init__(self, network: Any, state_name: str) -> None:
        """`state_name` is the network's argument for its state; "" if it is not used."""
        self._network = network
        self._state_name = state_name
        self._tokens: list[int] = []
        self._state: Any = None
        named = inspect.signature(network.forward).parameters
        self._last_alone = {"logits_to_keep": 1} if "logits_to_keep" in named else {}

    def start(self, _: int, tokens: Sequence[int]) -> Tensor:
        """Compute a prompt; return the logits (V) of the next token."""
        self.free(0)
        return self.step(tokens)[0]

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Compute a token; return the logits (1, V) of the next one."""
        self._tokens += tokens
        more: dict[str, Any] = {}
        if self._state_name:
            more = {"use_cache": True, self._state_name: self._state}
        ids = tokens if self._state_name else self._tokens
        ids_1T = torch.tensor([list(ids)], device=self._network.device)
        output = self._network(input_ids=ids_1T, **more, **self._last_alone)
        if self._state_name:
            self._state = output[self._state_name]
        logits_1V: Tensor = output.logits[:, -1]
        return logits_1V

    def free(self, _: int) -> None:
        self._state, self._tokens = None, []


def state_name(network: Any) -> str:
    """Return the name of the network's argument for its state; "" if no state gives the logits of
    the whole text, which is then computed again for each token."""
    row, bound = [2, 1, 3, 1, 2], MOST_OFF[network.dtype]
    whole = OneRow(network, "").start(0, row)
    named = inspect.signature(network.forward).parameters
    for name in filter(named.__contains__, STATES):
        stepwise = OneRow(network, name)
        with contextlib.suppress(Exception):  # of any class, if the argument is no state
            stepwise.start(0, row[:3])
            stepwise.step(row[3:4])
            last = stepwise.step(row[4:])[0]
            if float((last - whole).norm()) <= bound * float(whole.norm()):
                return name
    return ""


class Slots(Cache):  # type: ignore[misc]
    """The cache of a network's layers, with a slot for each row."""

    def __init__(
        self, network: Any, num_slots: int, num_tokens: int, prefix: Prefix | None = None
    ) -> None:
        """Make `num_slots` for up to `num_tokens` each."""
        text = network.config.get_text_config()
        kinds = getattr(text, "layer_types", None)
        self._kinds = set(kinds) if kinds else None
        self._window: int | None = getattr(text, "sliding_window", None)
        self._network, self._shape, self._prefix = network, (num_slots, num_tokens), prefix
        self._lengths = torch.zeros(num_slots, dtype=torch.long, device=network.device)
        self.num_rows = 0
        self.longest = 0
        """Tokens of the longest row before a step. A step reads it from the device only once, as
        each reading waits for the device."""
        super().__init__(layers=[_Layer(self) for _ in range(text.num_hidden_layers)])

    def start(self, slot: int, tokens: Sequence[int]) -> Tensor:
        """Compute a prompt in a slot; return the logits (V) of the next token."""
        cache, first = DynamicCache(), 0
        if self._prefix and self._prefix.is_of(tokens):
            first = len(self._prefix.tokens)
            for number, layer in enumerate(self._prefix.cache.layers):
                cache.update(layer.keys, layer.values, number)
        logits_V = prefill(self._network, tokens[first:], cache)
        for own, computed in zip(self.layers, cache.layers, strict=True):
            own.put(slot, computed.keys[0], computed.values[0], self._shape)
        self._lengths[slot] = len(tokens)
        self.num_rows = max(self.num_rows, slot + 1)
        return logits_V

    def free(self, slot: int) -> None:
        last = self.num_rows - 1
        if slot != last:
            for layer in self.layers:
                layer.keys[slot], layer.values[slot] = layer.keys[last], layer.values[last]
            self._lengths[slot] = self._lengths[last]
        self.num_rows = last

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Compute the next token of each row; return the logits (R, V) of the tokens after them."""
        self.longest = int(self.lengths.max())
        lengths_R1 = self.lengths[:, None]
        numbers_T = torch.arange(self.longest + 1, device=lengths_R1.device)
        sees_R11T = (numbers_T <= lengths_R1)[:, None, None]
        state = self._network(
            input_ids=torch.tensor([[token] for token in tokens], device=lengths_R1.device),
            position_ids=lengths_R1,
            attention_mask=self._masks(sees_R11T, numbers_T),
            use_cache=True,
            logits_to_keep=1,
            **{cache_name(self._network): self},
        )
        self._lengths[: self.num_rows] += 1
        logits_RV: Tensor = state.logits[:, -1]
        return logits_RV

    @property
    def lengths(self) -> Tensor:
        """Tokens of each row, (R)."""
        return self._lengths[: self.num_rows]

    def _masks(self, sees_R11T: Tensor, numbers_T: Tensor) -> Any:
        """Return the network's attention mask: one, or one for each kind of its layers."""
        nears = sees_R11T
        if self._window:
            nears = nears & (numbers_T > (self.lengths[:, None] - self._window))[:, None, None]
        if self._network.config._attn_implementation != "sdpa":
            sees_R11T, nears = (
                torch.zeros(sees.shape, dtype=self._network.dtype, device=sees.device).masked_fill(
                    ~sees, torch.finfo(self._network.dtype).min
                )
                for sees in (sees_R11T, nears)
            )
        if self._kinds is None:
            return nears
        return {"full_attention": sees_R11T, "sliding_attention": nears}


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    def __init__(self, slots: Slots) -> None:
        super().__init__()
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        # A reference cycle would keep its memory until Python's garbage collector runs.
        self._slots = cast("Slots", weakref.proxy(slots))

    def put(self, slot: int, keys_KTD: Tensor, values_KTD: Tensor, shape: tuple[int, int]) -> None:
        """Copy the keys and values of a prompt into a slot."""
        if self.keys is None:
            num_slots, num_tokens = shape
            self.keys, self.values = (
                each.new_zeros(num_slots, len(each), num_tokens, each.shape[2])
                for each in (keys_KTD, values_KTD)
            )
        assert self.keys is not None and self.values is not None
        self.keys[slot, :, : keys_KTD.shape[1]] = keys_KTD
        self.values[slot, :, : keys_KTD.shape[1]] = values_KTD

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Append a token (R, K, 1, D) to each row; return the tokens up to the longest row."""
        assert self.keys is not None and self.values is not None
        lengths = direct(self._slots.lengths, self.keys.device)
        rows, end = torch.arange(len(lengths), device=lengths.device), self._slots.longest + 1
        self.keys[rows, :, lengths] = key_states[:, :, 0]
        self.values[rows, :, lengths] = value_states[:, :, 0]
        return self.keys[: len(lengths), :, :end], self.values[: len(lengths), :, :end]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: `put` comes first."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._slots.longest + query_length, 0

    def get_seq_length(self) -> int:
        return self._slots.longest

    def get_max_length(self) -> int:
        return -1


def prefill(network: Any, tokens: Sequence[int], cache: DynamicCache) -> Tensor:
    """Compute the tokens of a prompt into `cache`; return the logits (V) of the next token."""
    state = network(
        input_ids=torch.tensor([list(tokens)], device=network.device),
        use_cache=True,
        logits_to_keep=1,
        **{cache_name(network): cache},
    )
    logits_V: Tensor = state.logits[0, -1]
    return logits_V


def token_bytes(network: Any) -> dict[torch.device, int]:
    """Return for each device the bytes of a token's keys and values in all layers."""
    cache = DynamicCache()
    prefill(network, [0], cache)
    bytes_on: dict[torch.device, int] = {}
    for each in (tensor for layer in cache.layers for tensor in (layer.keys, layer.values)):
        bytes_on[each.device] = bytes_on.get(each.device, 0) + each.nbytes
    return bytes_on


def supports(network: Any, num_tokens: int) -> bool:
    """Return whether rows of up to `num_tokens` can be computed in slots: the network's state
    consists of keys and values, no row changes the rotary frequencies of another one, and a test
    gives the same logits in slots as without."""
    text = network.config.get_text_config()
    most = unchanged_up_to(text.to_dict())
    if most is not None and num_tokens > most:
        return False
    kinds = getattr(text, "layer_types", None)
    if kinds and not KINDS.issuperset(kinds):
        return False
    short, long = [1, 2], [2, 1, 3, 1, 2]
    single = [prefill(network, [*tokens, 1], DynamicCache()) for tokens in (short, long)]
    try:
        slots = Slots(network, 2, 8)
        slots.start(0, short)
        slots.start(1, long)
        together = slots.step([1, 1])
    except Exception:  # of any class, as the network did not expect this cache
        return False
    bound = MOST_OFF[network.dtype]
    return all(
        float((expected - actual).norm()) <= bound * float(expected.norm())
        for expected, actual in zip(single, together, strict=True)
    )
