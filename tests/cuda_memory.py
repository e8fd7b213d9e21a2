"""torch's caching allocator of CUDA, as far as sizes go, and what a network asks of it.

The tensors are fake: no memory is taken, and no GPU is needed. The rules are those of torch's
CUDACachingAllocator.cpp (2.11): sizes rounded up, a free block of the best fit, the rest split off.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import torch
from test_fallbacks import CUDA, Launches
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from featuremill.workload.spread import each_tensor, on_device
from featuremill.workloads.esm2 import attention, encoder, layout, packing
from featuremill.workloads.esm2.encoder import DTYPES

MIB = 2**20
SMALL, LARGE_FROM = MIB, 10 * MIB
"""The largest of the small allocations, and the smallest that gets a segment of its own size."""
WORKSPACE = 32 * MIB
"""cuBLAS's on Hopper, kept from the first product on; cuBLASLt uses the same (CUDABlas.cpp)."""


class CachingAllocator:
    """The segments that torch has of the driver, and the blocks in them."""

    def __init__(self, order=1):
        """`order`: 1 if the driver gives rising addresses, -1 if falling ones."""
        self.order = order
        self.segments = []
        """Of each: whether it is of small blocks, and its blocks as [size, user]; None is free."""

    @property
    def reserved(self):
        return sum(size for _, blocks in self.segments for size, _ in blocks)

    def allocate(self, num_bytes, user):
        size = max(512, -(-num_bytes // 512) * 512)
        is_small = size <= SMALL
        fits = [
            (block[0], self.order * number, place)
            for number, (small, blocks) in enumerate(self.segments)
            if small == is_small
            for place, block in enumerate(blocks)
            if block[1] is None and block[0] >= size
        ]
        if fits:
            _, number, place = min(fits)
            number *= self.order
        else:
            whole = 2 * MIB if is_small else 20 * MIB
            if size >= LARGE_FROM:
                whole = -(-size // (2 * MIB)) * 2 * MIB
            self.segments.append((is_small, [[whole, None]]))
            number, place = len(self.segments) - 1, 0
        blocks = self.segments[number][1]
        rest = blocks[place][0] - size
        if rest >= (512 if is_small else SMALL + 1):
            blocks[place : place + 1] = [[size, user], [rest, None]]
        else:
            blocks[place][1] = user

    def free(self, user):
        for _, blocks in self.segments:
            for place, block in enumerate(blocks):
                if block[1] == user:
                    block[1] = None
                    for at in (place, place - 1):  # with its free neighbours
                        if 0 <= at < len(blocks) - 1 and blocks[at][1] is blocks[at + 1][1] is None:
                            blocks[at : at + 2] = [[blocks[at][0] + blocks[at + 1][0], None]]
                    return


class Allocations(Launches):
    """Gives each new tensor on the GPU its memory, and takes it back when its last user is gone."""

    def __init__(self, order):
        super().__init__()
        self.allocator = CachingAllocator(order)
        self.peak_live = self.live = 0
        self._known = {}
        self._numbers = iter(range(10**9))
        self.allocator.allocate(WORKSPACE, "cuBLAS")

    def __torch_dispatch__(self, operation, types, arguments=(), more=None):
        made = super().__torch_dispatch__(operation, types, arguments, more)
        self._take_back()
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda":
                self._give(tensor.untyped_storage())
        return made

    def _take_back(self):
        for key, (reference, number, size) in list(self._known.items()):
            if reference.expired():
                self.allocator.free(number)
                self.live -= size
                del self._known[key]

    def _give(self, storage):
        reference = StorageWeakRef(storage)
        if reference.cdata in self._known:
            return
        number, size = next(self._numbers), storage.nbytes()
        self._known[reference.cdata] = reference, number, size
        self.allocator.allocate(size, number)
        self.live += size
        self.peak_live = max(self.peak_live, self.live)


def peak(monkeypatch, sizes, file_dtype, dtype, batch_tokens, order=1, num_batches=2):
    """Return the bytes that torch reserves on a GPU for a network and some batches, and the most
    that live at once."""
    with FakeTensorMode() as mode:
        entries = layout.entries(layout.FAIR_ESM, sizes)
        tensors = {e.name: torch.empty(e.shape, dtype=DTYPES[file_dtype]) for e in entries}
        tensors[layout.FREQUENCIES] = torch.empty(sizes.head_dim // 2)
        file = nullcontext(SimpleNamespace(get_tensor=tensors.get))
        monkeypatch.setattr(encoder, "safe_open", lambda *_, **__: file)
        # Our own kernel needs a driver. It takes no other memory than FlashAttention-2.
        monkeypatch.setattr(attention, "_triton", lambda *_: ([], False))
        packs = [
            packing.pack([np.full(512, 5)] * (batch_tokens // 512), batch_tokens, CUDA)
            for _ in range(num_batches)
        ]
        with Allocations(order) as given:
            model = encoder.Encoder("", sizes.metadata(), [CUDA], DTYPES[dtype])
            for pack in packs:
                on_gpu = on_device(each_tensor(pack, mode.from_tensor), CUDA)
                for _, hidden_TD in model.representations(on_gpu, [sizes.num_layers]):
                    hidden_TD.sum()
                del hidden_TD
    return given.allocator.reserved, given.peak_live
