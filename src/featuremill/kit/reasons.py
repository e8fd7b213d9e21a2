"""Reasons of refused and failed records."""

from featuremill.base.reasons import CONFLICT, EMPTY, LENGTH, NOT_FINITE, Kind, kind_of

__all__ = ["CONFLICT", "EMPTY", "LENGTH", "NOT_FINITE", "Kind", "kind_of"]
