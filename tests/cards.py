"""Devices that stand in for several GPUs: a CPU that refuses what two GPUs refuse.

torch takes `cpu:1` for a device, but calls its tensors `cpu`. `Cards` notes the card of each
tensor's memory, has tensors name it, and refuses an operation on tensors of two cards, or of a card
and the host, as CUDA does. What is compared with values from within it has to be computed within
it, too: some operations run in parts there.
"""

import torch
import transformers
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from featuremill.workload import spread

ATEN = torch.ops.aten
COPIES = (ATEN._to_copy.default, ATEN.copy_.default, ATEN._has_compatible_shallow_copy_type.default)
TAKES_INDICES_OF_THE_HOST = (ATEN.index.Tensor, ATEN.index_put_.default)
HOST = None


class Cards(TorchDispatchMode):
    """Within it, a job with several devices has the cards `cpu:0`, `cpu:1` and so on, with as many
    free bytes as `free` says. A tensor without a card is on the host."""

    def __init__(self, monkeypatch, *free):
        super().__init__()
        self.devices = [torch.device("cpu", number) for number in range(len(free))]
        self.num_copies = 0
        """Tensors that went from one card to another."""
        self._cards, self._kept, self._names = {}, [], _Names(self)
        monkeypatch.setattr(spread, "places", lambda devices: self.devices[: len(devices)])
        monkeypatch.setattr(spread, "free_bytes", lambda device: free[device.index])
        read = transformers.PreTrainedModel.from_pretrained.__func__

        def from_pretrained(kind, *inputs, **named):
            """Read weights to the host without the modes, which keep some from being filled in."""
            self.__exit__(None, None, None)
            try:
                return read(kind, *inputs, **named)
            finally:
                self.__enter__()

        way = classmethod(from_pretrained)
        monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", way)

    @classmethod
    def _should_skip_dynamo(cls):  # to skip it is to import it: seconds
        return False

    def __enter__(self):
        self._names.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._names.__exit__(*error)

    def card(self, tensor):
        """Return the number of a tensor's card, or HOST."""
        return self._cards.get(tensor.untyped_storage()._cdata, HOST)

    def put(self, tensor, card):
        """Note the card of a tensor's memory, which is kept so that no other gets its address."""
        storage = tensor.untyped_storage()
        self._cards[storage._cdata] = card
        self._kept.append(storage)

    def __torch_dispatch__(self, operation, _, inputs=(), named=None):
        named = named or {}
        tensors = [one for one in tree_leaves((inputs, named)) if isinstance(one, torch.Tensor)]
        cards = {self.card(one) for one in tensors if one.ndim or self.card(one) is not HOST}
        if operation in TAKES_INDICES_OF_THE_HOST and len(cards) > 1:
            cards.discard(HOST)
        if len(cards) > 1 and operation not in COPIES:
            named_cards = " and ".join(sorted(map(str, cards)))
            raise RuntimeError(f"{operation}: tensors on cards {named_cards}")
        result = operation(*inputs, **named)
        card = self.card(inputs[0]) if operation in COPIES else next(iter(cards), HOST)
        if (device := named.get("device")) is not None:
            self.num_copies += None not in (card, device.index) and device.index != card
            card = device.index
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor):
                self.put(one, card)
        return result


class _Names(TorchFunctionMode):
    """Has tensors name their card, and puts those on the host that go there."""

    def __init__(self, cards):
        super().__init__()
        self._cards = cards

    def __torch_function__(self, function, _, inputs=(), named=None):
        named = named or {}
        if function == torch.Tensor.device.__get__:
            card = self._cards.card(inputs[0])
            return torch.device("cpu") if card is HOST else torch.device("cpu", card)
        if function is torch.Tensor.cpu:
            copy = inputs[0].clone()
            self._cards.put(copy, HOST)
            return copy
        result = function(*inputs, **named)
        if function is torch.tensor and named.get("device") is not None:
            self._cards.put(result, named["device"].index)
        return result
