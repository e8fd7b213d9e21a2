"""Group token sequences into tensors with little padding, and pool the hidden states of each.

Shape legend: N sequences of a batch, B of a group, T tokens of its longest, E width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from featuremill.workload.arrays import Matrix
from featuremill.workloads.encoder.options import Options
from featuremill.workloads.encoder.vocabulary import Ids, Vocabulary

__all__ = ["Group", "groups", "in_order", "values_of"]
MOST_FILLING = 1 / 16
"""Largest share of padding in a group; a lower share makes more and smaller groups."""
OUTPUT_DTYPES = {"float16": torch.float16, "float32": torch.float32}


class Region(NamedTuple):
    """The own tokens [start, end) of a sequence that belong to one record of the batch."""

    record: int
    start: int
    end: int
    is_whole: bool = False
    """Whether the region is the whole sequence, whose `mean_all` is over all tokens; that of
    another region is over its own tokens and the token before them."""


class Group(NamedTuple):
    """Sequences of similar length as tensors, on the host."""

    places: list[int]
    """The index of each sequence, or record, in the batch."""
    tokens_BT: Tensor
    is_token_BT: Tensor | None
    """False for padding; None: no padding."""
    is_own_BT: Tensor
    """False for padding, for special tokens and outside a region."""
    rows: Tensor | None = None
    """With regions: the row of `tokens_BT` of each region; a row may have several regions."""
    is_all_BT: Tensor | None = None
    """With regions: the tokens that `mean_all` averages."""

    def of_regions(self, regions: Sequence[Sequence[Region]], num_before: int) -> Group:
        """Return the group with an entry per region; `num_before` special tokens come first."""
        pairs = [
            (row, region) for row, index in enumerate(self.places) for region in regions[index]
        ]
        rows_B = torch.tensor([row for row, _ in pairs])
        starts_B1, ends_B1 = (
            torch.tensor([[edge + num_before] for edge in edges])
            for edges in zip(*((region.start, region.end) for _, region in pairs), strict=True)
        )
        numbers_T = torch.arange(self.tokens_BT.shape[1])
        is_before_end_BT = numbers_T < ends_B1
        is_own_BT = (numbers_T >= starts_B1) & is_before_end_BT & self.is_own_BT[rows_B]
        is_all_BT = (numbers_T >= starts_B1 - 1) & is_before_end_BT
        whole_B1 = torch.tensor([[region.is_whole] for _, region in pairs])
        is_token_BT = torch.ones_like(is_own_BT)
        if self.is_token_BT is not None:
            is_token_BT = self.is_token_BT[rows_B]
        return self._replace(
            places=[region.record for _, region in pairs],
            is_own_BT=is_own_BT,
            rows=rows_B,
            is_all_BT=torch.where(whole_B1, is_token_BT, is_all_BT),
        )


def groups(
    sequences: Sequence[Ids],
    vocabulary: Vocabulary,
    most_tokens: int,
    most_filling: float = MOST_FILLING,
) -> list[Group]:
    """Return the `sequences` in groups of at most `most_tokens` tokens, with padding, the longest
    first. A longer sequence is a group alone."""
    longest_first = sorted(range(len(sequences)), key=lambda index: -len(sequences[index]))
    lengths = [len(sequences[index]) for index in longest_first]
    return [
        _group(longest_first[cut], sequences, vocabulary)
        for cut in _cuts(lengths, most_tokens, most_filling)
    ]


def _cuts(lengths: Sequence[int], most_tokens: int, most_filling: float) -> Iterator[slice]:
    """Yield the slice of `lengths` (the longest first) for each group."""
    start = num_filling = 0
    for number, length in enumerate(lengths):
        num_tokens = lengths[start] * (number + 1 - start)
        num_filling += lengths[start] - length
        if number > start and (num_tokens > most_tokens or num_filling > num_tokens * most_filling):
            yield slice(start, number)
            start, num_filling = number, 0
    if lengths:
        yield slice(start, len(lengths))


def _group(indices: list[int], sequences: Sequence[Ids], vocabulary: Vocabulary) -> Group:
    chosen = [sequences[index] for index in indices]
    lengths_B1 = np.array([[len(sequence)] for sequence in chosen])
    numbers_T = np.arange(lengths_B1.max())
    is_token_BT = numbers_T < lengths_B1
    tokens_BT = np.full(is_token_BT.shape, vocabulary.pad, np.int64)
    tokens_BT[is_token_BT] = np.concatenate(chosen)
    is_own_BT = numbers_T < lengths_B1 - len(vocabulary.last)
    is_own_BT &= numbers_T >= len(vocabulary.first)
    if vocabulary.joints:
        is_own_BT &= ~np.isin(tokens_BT, vocabulary.joints)
    return Group(
        indices,
        torch.from_numpy(tokens_BT),
        None if is_token_BT.all() else torch.from_numpy(is_token_BT),
        torch.from_numpy(is_own_BT),
    )


def values_of(group: Group, hidden: Mapping[int, Tensor], options: Options) -> list[Tensor]:
    """Return the values of a group in the order of the schema: for each layer the pooled vectors in
    fp32, then the vectors of the own tokens of all sequences, concatenated."""
    values = []
    for layer in options.layers:
        hidden_BTE = hidden[layer] if group.rows is None else hidden[layer][group.rows]
        values += [_pooled(hidden_BTE, group, pool) for pool in options.pools]
        if options.per_residue:
            values.append(hidden_BTE[group.is_own_BT].to(OUTPUT_DTYPES[options.output_dtype]))
    return values


def _pooled(hidden_BTE: Tensor, group: Group, pool: str) -> Tensor:
    """Return the vector of each sequence or region: `mean`, `max` and `std` (of the population) are
    over its own tokens, `last` is the last token before padding."""
    if pool == "cls":
        return hidden_BTE[:, 0]
    if pool == "last":
        if group.is_token_BT is None:
            return hidden_BTE[:, -1]
        return hidden_BTE[torch.arange(len(hidden_BTE)), group.is_token_BT.sum(1) - 1]
    if pool == "mean_all":
        return _mean(hidden_BTE, group.is_token_BT if group.rows is None else group.is_all_BT)
    if pool == "max":
        return hidden_BTE.masked_fill(~group.is_own_BT.unsqueeze(-1), -torch.inf).amax(1)
    mean_BE = _mean(hidden_BTE, group.is_own_BT)
    if pool == "mean":
        return mean_BE
    off_BTE = hidden_BTE - mean_BE.unsqueeze(1)
    return _mean(off_BTE.square(), group.is_own_BT).sqrt()


def _mean(hidden_BTE: Tensor, mask_BT: Tensor | None) -> Tensor:
    """Return the mean over the tokens in the mask; None: over all tokens."""
    if mask_BT is None:
        return hidden_BTE.mean(1)
    weights_BT1 = mask_BT.unsqueeze(-1).float()
    return (hidden_BTE * weights_BT1).sum(1) / weights_BT1.sum(1)


def in_order(
    values: Sequence[Sequence[Tensor]], batch: Sequence[Group], num_own: Sequence[int]
) -> list[Matrix]:
    """Return the values of each column on the host, in the order of the batch: one row per record,
    or one per own token (`num_own` of each record)."""
    indices = np.concatenate([group.places for group in batch])
    of_sequences = np.argsort(indices)
    of_tokens = np.argsort(np.repeat(indices, np.take(num_own, indices)), kind="stable")
    values_in_order = []
    for parts in zip(*values, strict=True):
        # With one own token in each sequence, both orders are the same.
        is_pooled = all(
            len(part) == len(group.places) for part, group in zip(parts, batch, strict=True)
        )
        rows = torch.cat([part.cpu() for part in parts]).numpy()
        values_in_order.append(rows[of_sequences if is_pooled else of_tokens])
    return values_in_order
