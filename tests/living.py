"""The memory of tensors, as operations make them and let them go."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Living(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make, while they live."""

    def __init__(self):
        super().__init__()
        self.peak = 0
        self._known = {}

    def __torch_dispatch__(self, operation, types, arguments=(), more=None):
        made = operation(*arguments, **(more or {}))
        given = {each.untyped_storage()._cdata for each in tree_leaves((arguments, more))
                 if isinstance(each, torch.Tensor)}  # fmt: skip
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in given:
                    self._known[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._known = {key: one for key, one in self._known.items() if not one[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._known.values()))
        return made
