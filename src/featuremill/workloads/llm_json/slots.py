"""Keys and values of several rows at once, each as long as it is: a row takes a slot, and when its
reply has ended, another one takes it.

A prompt is computed alone, behind what all prompts begin with. Then each step computes one token of
every row. Filling is never computed: a mask hides what lies behind the end of a row.

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
from featuremill.workloads.encoder.decoders import unchanged_up_to

KINDS = {"full_attention", "sliding_attention"}
"""Kinds of layers whose state are keys and values of each token."""


STATES = ("cache", "past_key_values", "cache_params", "state")
"""What networks call that which they keep of a text: keys and values, or states. From transformers
5.24 on, it is `cache` for all."""


def keys_and_values(network: Any) -> str:
    """Return the name under which a network takes keys and values."""
    return "cache" if "cache" in inspect.signature(network.forward).parameters else STATES[1]


class Beginning(NamedTuple):
    """What prompts begin with, computed once."""

    tokens: list[int]
    cache: DynamicCache

    def is_of(self, tokens: Sequence[int]) -> bool:
        """Return whether a prompt begins with these tokens and has more."""
        num = len(self.tokens)
        return len(tokens) > num and list(tokens[:num]) == self.tokens


def beginning_of(network: Any, tokens: Sequence[int]) -> Beginning:
    """Compute the tokens that prompts begin with."""
    cache = DynamicCache()
    prefill(network, tokens, cache)
    return Beginning(list(tokens), cache)


class Alone:
    """One row at a time, with what a network itself keeps of the tokens before."""

    def __init__(self, network: Any, keeps: str | None = None) -> None:
        """`keeps` is what the network calls its state, as `kept_by` has it; if not given, keys and
        values."""
        self._network = network
        self._keeps = keys_and_values(network) if keeps is None else keeps
        self._tokens: list[int] = []
        self._state: Any = None
        named = inspect.signature(network.forward).parameters
        self._last_alone = {"logits_to_keep": 1} if "logits_to_keep" in named else {}

    def give(self, _: int, tokens: Sequence[int]) -> Tensor:
        """Compute a prompt; return the logits (V) of the token behind it."""
        self.free(0)
        return self.step(tokens)[0]

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Compute a token; return the logits (1, V) of the next one."""
        self._tokens += tokens
        more: dict[str, Any] = {}
        if self._keeps:
            more = {"use_cache": True, self._keeps: self._state}
        ids = tokens if self._keeps else self._tokens
        ids_1T = torch.tensor([list(ids)], device=self._network.device)
        output = self._network(input_ids=ids_1T, **more, **self._last_alone)
        if self._keeps:
            self._state = output[self._keeps]
        logits_1V: Tensor = output.logits[:, -1]
        return logits_1V

    def free(self, _: int) -> None:
        """Forget the row."""
        self._state, self._tokens = None, []


def kept_by(network: Any) -> str:
    """Return the name under which a network takes and gives its state; "" where none makes a token
    what it is in the whole text, which is then computed anew for each."""
    row, bound = [2, 1, 3, 1, 2], MOST_OFF[network.dtype]
    whole = Alone(network, "").give(0, row)
    named = inspect.signature(network.forward).parameters
    for name in filter(named.__contains__, STATES):
        alone = Alone(network, name)
        with contextlib.suppress(Exception):  # whatever a network does with what is not its state
            alone.give(0, row[:3])
            alone.step(row[3:4])
            last = alone.step(row[4:])[0]
            if float((last - whole).norm()) <= bound * float(whole.norm()):
                return name
    return ""


class Slots(Cache):  # type: ignore[misc]
    """The cache of a network's layers."""

    def __init__(
        self, network: Any, num_slots: int, num_tokens: int, beginning: Beginning | None = None
    ) -> None:
        """Hold up to `num_tokens` in each of `num_slots`."""
        text = network.config.get_text_config()
        kinds = getattr(text, "layer_types", None)
        self._kinds = set(kinds) if kinds else None
        self._window: int | None = getattr(text, "sliding_window", None)
        self._network, self._shape, self._beginning = network, (num_slots, num_tokens), beginning
        self._keeps = keys_and_values(network)
        self._lengths = torch.zeros(num_slots, dtype=torch.long, device=network.device)
        self.num_rows = 0
        self.longest = 0
        """Tokens of the longest row before a step: read once in it, as each reading waits for the
        device."""
        super().__init__(layers=[_Layer(self) for _ in range(text.num_hidden_layers)])

    def give(self, slot: int, tokens: Sequence[int]) -> Tensor:
        """Compute a prompt in a slot; return the logits (V) of the next token."""
        cache, first = DynamicCache(), 0
        if self._beginning and self._beginning.is_of(tokens):
            first = len(self._beginning.tokens)
            for number, layer in enumerate(self._beginning.cache.layers):
                cache.update(layer.keys, layer.values, number)
        logits_V = prefill(self._network, tokens[first:], cache)
        for own, computed in zip(self.layers, cache.layers, strict=True):
            own.put(slot, computed.keys[0], computed.values[0], self._shape)
        self._lengths[slot] = len(tokens)
        self.num_rows = max(self.num_rows, slot + 1)
        return logits_V

    def free(self, slot: int) -> None:
        """Give up a slot; the row of the last one takes it."""
        last = self.num_rows - 1
        if slot != last:
            for layer in self.layers:
                layer.keys[slot], layer.values[slot] = layer.keys[last], layer.values[last]
            self._lengths[slot] = self._lengths[last]
        self.num_rows = last

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Compute the next token of each row; return the logits (R, V) of those behind them."""
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
            **{self._keeps: self},
        )
        self._lengths[: self.num_rows] += 1
        logits_RV: Tensor = state.logits[:, -1]
        return logits_RV

    @property
    def lengths(self) -> Tensor:
        """Tokens of each row, (R)."""
        return self._lengths[: self.num_rows]

    def _masks(self, sees_R11T: Tensor, numbers_T: Tensor) -> Any:
        """Return what the network takes for a mask: one, or one for each kind of its layers."""
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
    """Keys and values (R, K, T, D) of a layer."""

    def __init__(self, slots: Slots) -> None:
        super().__init__()
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        # In a circle, it would keep its memory until Python looks for circles.
        self._slots = cast("Slots", weakref.proxy(slots))

    def put(self, slot: int, keys_KTD: Tensor, values_KTD: Tensor, shape: tuple[int, int]) -> None:
        """Have the tokens of a prompt in a slot."""
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
        """Put a token (R, K, 1, D) behind those of its row; return all up to the longest row."""
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
    """Compute the tokens of a prompt into `cache`; return the logits (V) of the one behind them."""
    state = network(
        input_ids=torch.tensor([list(tokens)], device=network.device),
        use_cache=True,
        logits_to_keep=1,
        **{keys_and_values(network): cache},
    )
    logits_V: Tensor = state.logits[0, -1]
    return logits_V


def bytes_of_a_token(network: Any) -> dict[torch.device, int]:
    """Return the bytes of the keys and values of a token in all layers, for each device."""
    cache = DynamicCache()
    prefill(network, [0], cache)
    bytes_on: dict[torch.device, int] = {}
    for each in (tensor for layer in cache.layers for tensor in (layer.keys, layer.values)):
        bytes_on[each.device] = bytes_on.get(each.device, 0) + each.nbytes
    return bytes_on


def can_take(network: Any, num_tokens: int) -> bool:
    """Return whether rows of up to `num_tokens` may be computed together: a network's state has to
    be keys and values, no row may change another's rotation, and what it gives in slots has to be
    what it gives alone."""
    text = network.config.get_text_config()
    most = unchanged_up_to(text.to_dict())
    if most is not None and num_tokens > most:
        return False
    kinds = getattr(text, "layer_types", None)
    if kinds and not KINDS.issuperset(kinds):
        return False
    short, long = [1, 2], [2, 1, 3, 1, 2]
    alone = [prefill(network, [*tokens, 1], DynamicCache()) for tokens in (short, long)]
    try:
        slots = Slots(network, 2, 8)
        slots.give(0, short)
        slots.give(1, long)
        together = slots.step([1, 1])
    except Exception:  # whatever a network does with a cache that is not its own
        return False
    bound = MOST_OFF[network.dtype]
    return all(
        float((expected - actual).norm()) <= bound * float(expected.norm())
        for expected, actual in zip(alone, together, strict=True)
    )


MOST_OFF = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Relative L2 of logits, together and alone."""
