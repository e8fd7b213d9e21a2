"""Attention within each sequence of a pack, behind one function with several backends.

Shape legend: T tokens, P positions, H heads, d width of a head, f = d/2 pairs of a head, L
tokens of one sequence.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import PathFinder
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from featuremill.workload import BF16_CAPABILITY
from featuremill.workloads.esm2 import kernels, lanes
from featuremill.workloads.esm2.packing import Packed

__all__ = ["Backend"]
FLASH_HEAD_MULTIPLE, FLASH_HEAD_MAX = 8, 256
"""Widths of a head that FlashAttention-2 supports, as in all published models."""
TRITON_HEAD_MAX = 128
"""The widest head of our own kernel: a tile of a wider one exceeds the registers."""

LATER_FLASH = {9: ("FA3", "FA4"), 10: ("FA4",)}
"""By a GPU's major capability: later FlashAttentions for torch's operation, the fastest first
(torch.nn.attention._fa3 and _fa4 of torch 2.13)."""
FLASH_PACKAGES = {"FA3": "flash_attn_interface", "FA4": "flash_attn.cute"}
"""The package that torch imports for each. FA3's is in no package index."""

LATER_FLASH_HEAD_OVER = 32
"""Widest head for which later FlashAttentions are not faster: their tiles are for 64."""


AttendHeads = Callable[[Tensor, slice, Tensor], None]
"""A function of (qkv_L3Hd of one sequence, heads, context_LHd) that writes the context of heads."""


class Backend(NamedTuple):
    """A method for attention: its name, and a function (qkv_T3Hd, pack) → context_THd."""

    name: str
    attend: Callable[[Tensor, Packed], Tensor]
    rotate_and_attend: Callable[[Tensor, Packed, Tensor], Tensor] | None = None
    """A function (qkv_T3Hd, pack, rotary_Pf2) → context_THd that includes `reference.rotate_` and
    may overwrite `qkv_T3Hd`; None: rotary is a separate operation."""


def backends(
    device: torch.device, dtype: torch.dtype, num_heads: int, head_dim: int
) -> list[Backend]:
    """Return the backends for attention on the device, the fastest first: kernels for a whole pack
    on Ampere and later in 16 bits; the last one, by sequence, always works."""
    probe = torch.zeros(1, num_heads, 16, head_dim, device=device, dtype=dtype)
    kernel = torch.nn.attention.SDPBackend(torch._fused_sdp_choice(probe, probe, probe))
    sdpa = f"sdpa {kernel.name.lower()} per sequence"
    last = [Backend(sdpa, attend_per_sequence)]
    if device.type == "cpu":
        last = [Backend(sdpa, partial(attend_in_lanes, heads_with_sdpa))]
        if ours := kernels.compiled_on_cpu(dtype, num_heads, head_dim):
            last.insert(0, Backend(ours.name, partial(attend_in_lanes, ours.attend)))
    has_flash = head_dim % FLASH_HEAD_MULTIPLE == 0 and head_dim <= FLASH_HEAD_MAX
    if dtype == torch.float32 or not has_flash or _capability(device) < BF16_CAPABILITY:
        return last
    name = "varlen flash_attention FA2"
    # The kernel must not split a sequence depending on its batch. Some releases have the argument
    # for that, but no support in the kernel: that of torch 2.12 fails (pytorch#176905).
    later, flash = list[Backend](), [Backend(name, attend_varlen)]
    if _takes("num_splits"):
        flash[0] = Backend(f"{name}, cut as it likes", attend_varlen)
        flash.insert(0, Backend(name, partial(attend_varlen, num_splits=1)))
        if head_dim > LATER_FLASH_HEAD_OVER:
            later = [*map(_later, _later_flash(device))]
    own, is_faster = _triton(device, head_dim)
    # Ours was timed against FlashAttention-2; an installed later FlashAttention has priority.
    varlen = [*own, *flash] if is_faster else [*flash, *own]
    return [*later, *varlen, *last]


def _triton(device: torch.device, head_dim: int) -> tuple[list[Backend], bool]:
    """Return our own kernel, if it runs here, and whether it was measured to be faster than
    FlashAttention-2."""
    if device.type != "cuda" or head_dim > TRITON_HEAD_MAX or not kernels.has_triton():
        return [], False
    import triton

    from featuremill.workloads.esm2.kernels import triton_attention as ours

    known = ours.FASTER.get((_capability(device), ours.columns(head_dim)))
    attend = partial(ours.attend, tiling=known or ours.CAUTIOUS)
    name = f"varlen triton {triton.__version__}, rotary inside"
    return [Backend(name, attend, attend)], known is not None


def _later(kernel: str) -> Backend:
    attend = partial(attend_varlen, kernel=kernel, num_splits=1)
    return Backend(f"varlen flash_attention {kernel}", attend)


def attend_per_sequence(
    qkv_T3Hd: Tensor,
    pack: Packed,
    attend_one: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Attend sequence by sequence: with SDPA, or with (qkv_3HLd) → context_HLd."""
    attend_one = attend_one or _with_sdpa
    context_THd = torch.empty_like(qkv_T3Hd[:, 0])
    context_THd[pack.bounds[-1] :] = 0
    for start, end in zip(pack.bounds, pack.bounds[1:], strict=False):
        context_HLd = attend_one(qkv_T3Hd[start:end].permute(1, 2, 0, 3))
        context_THd[start:end] = context_HLd.transpose(0, 1)
    return context_THd


def attend_in_lanes(attend: AttendHeads, qkv_T3Hd: Tensor, pack: Packed) -> Tensor:
    """Attend on a CPU, some heads of a sequence in each lane."""
    context_THd = torch.empty_like(qkv_T3Hd[:, 0])
    context_THd[pack.bounds[-1] :] = 0
    sequences = list(pairwise(pack.bounds))
    num_heads = qkv_T3Hd.shape[2]
    # With few sequences, their heads are divided, so that no lane is idle for long.
    together = num_heads if len(sequences) >= 4 * lanes.number() else -(-num_heads // 4)

    def attend_piece(piece: tuple[int, int, int]) -> None:
        start, end, head = piece
        heads = slice(head, min(head + together, num_heads))
        attend(qkv_T3Hd[start:end], heads, context_THd[start:end])

    firsts = range(0, num_heads, together)
    lanes.each(attend_piece, [(*sequence, head) for sequence in sequences for head in firsts])
    return context_THd


def heads_with_sdpa(qkv_L3Hd: Tensor, heads: slice, context_LHd: Tensor) -> None:
    """Write the context of some heads of one sequence. The method depends on its length only."""
    context_HLd = _with_sdpa(qkv_L3Hd[:, :, heads].permute(1, 2, 0, 3))
    context_LHd[:, heads] = context_HLd.transpose(0, 1)


def attend_varlen(qkv_T3Hd: Tensor, pack: Packed, kernel: str | None = None, **more: int) -> Tensor:
    """Attend with one kernel over the whole pack: torch's own FlashAttention-2, or the later one
    called `kernel`. `more` are further arguments of the kernel.

    torch's operation is called directly: `varlen_attn` around it may prefer cuDNN's kernel in later
    releases, which was 4 times slower (pytorch#187770).
    """
    _activate(kernel)
    query, key, value = qkv_T3Hd.unbind(1)
    bounds, longest = pack.cu_seqlens, pack.longest
    context_THd: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, bounds, bounds, longest, longest, 0.0, False, False, **more
    )[0]
    return context_THd


def _with_sdpa(qkv_3HLd: Tensor) -> Tensor:
    _activate(None)
    query, key, value = qkv_3HLd.unsqueeze(1)
    return F.scaled_dot_product_attention(query, key, value)[0]


def with_scores(qkv_3HLd: Tensor) -> Tensor:
    """Attend in fp32, because scores rounded to 16 bits would lose most accuracy."""
    query, key, value = qkv_3HLd.float()
    scores_HLL = torch.bmm(query * query.shape[-1] ** -0.5, key.transpose(1, 2))
    return torch.bmm(scores_HLL.softmax(-1), value)


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


def _later_flash(device: torch.device) -> list[str]:
    """Return the names of the installed FlashAttentions that this torch supports on `device`."""
    names = LATER_FLASH.get(_capability(device)[0], ())
    known: list[str] = getattr(torch.nn.attention, "list_flash_attention_impls", list)()
    return [name for name in names if name in known and _is_installed(FLASH_PACKAGES[name])]


def _is_installed(package: str) -> bool:
    """Return whether the package is installed, without importing it or its parent package."""
    path: Sequence[str] | None = None
    name = ""
    for part in package.split("."):
        name = f"{name}.{part}".lstrip(".")
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True


def _activate(kernel: str | None) -> None:
    """Make torch's operation, and SDPA with it, use this FlashAttention in this process; None is
    torch's own. The GPUs of a model may need different ones, so each call sets it."""
    attention = torch.nn.attention
    current = getattr(attention, "current_flash_attention_impl", lambda: None)()
    if current == kernel:
        return
    if kernel is None:
        attention.restore_flash_attention_impl()
        return
    if kernel == "FA4":
        kernels.keep_flash_attention()
    try:
        with warnings.catch_warnings():
            # torch warns that its own kernel is not used, which is intended here.
            warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered")
            attention.activate_flash_attention_impl(kernel)
    except Exception:
        # torch 2.13 sets this flag before FA3 is loaded, and resets it only with FA3 in place.
        getattr(torch._C, "_set_sdp_use_fa3", bool)(False)
        raise


def _takes(argument: str) -> bool:
    """Return whether this torch's operation has an argument of that name."""
    schema = torch.ops.aten._flash_attention_forward.default._schema
    return any(known.name == argument for known in schema.arguments)
