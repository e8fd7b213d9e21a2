"""Reasons of refused and failed records."""

from featuremill.base.reasons import (
    EMPTY,
    LENGTH,
    NOT_FINITE,
    OUT_OF_MEMORY,
    Kind,
    head_of,
    is_missing,
    is_missing_sequence,
    kind_of,
)

__all__ = [
    "EMPTY",
    "LENGTH",
    "NOT_FINITE",
    "OUT_OF_MEMORY",
    "Kind",
    "head_of",
    "is_missing",
    "is_missing_sequence",
    "kind_of",
]
