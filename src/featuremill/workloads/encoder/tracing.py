"""The hook in the network for a column, and the letters that each vector of a token represents."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from featuremill.inputs.letters import parts_of
from featuremill.workloads.encoder import joined

if TYPE_CHECKING:
    from featuremill.workloads.encoder.architectures import Facts
    from featuremill.workloads.encoder.options import Options
    from featuremill.workloads.encoder.vocabulary import Vocabulary

__all__ = ["hooks", "spans"]
KINDS = ("tokens", "residues", "last")
"""The kinds of columns that are hidden states without pooling."""


def hooks(options: Options, facts: Facts) -> Mapping[str, str] | None:
    """Return the TransformerLens hook of the hidden states in each column; None for a network that
    is no language model.

    State 0 is the input of the first block, and state n the output of block n - 1. The last state
    includes the final norm, so it has no hook.
    """
    if not facts.architecture.is_causal:
        return None
    hook_of: dict[str, str] = {}
    for layer in map(int, options.layers):
        if layer < facts.num_layers:
            block = f"{layer - 1}.hook_resid_post" if layer else "0.hook_resid_pre"
            hook_of |= {f"{kind}_layer_{layer}": f"blocks.{block}" for kind in KINDS}
    return hook_of


def spans(payload: bytes, options: Options, words: Vocabulary, folder: Path) -> list[slice] | None:
    """Return the bytes of a payload that each own token represents; None for k-mers, or if the chat
    template changes tokens of the text."""
    if words.is_by_letter:
        places = joined.places(parts_of(payload), options)
        return [slice(at, at + 1) for at in places]
    if not words.is_learned:
        return None
    from tokenizers import Tokenizer

    text = payload[: options.max_residues].decode("utf-8")
    ends = [0, *accumulate(len(letter.encode()) for letter in text)]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    offset = len(text) - len(text.lstrip()) if options.chat else 0
    encoded = tokenizer.encode(text.strip() if options.chat else text, add_special_tokens=False)
    if options.chat and encoded.ids != words.own(payload).tolist():
        return None  # the template changes tokens
    most = options.max_tokens - words.num_special if options.max_tokens else None
    offsets = [(offset + begin, offset + end) for begin, end in encoded.offsets[:most]]
    return [slice(ends[begin], ends[end]) for begin, end in offsets]
