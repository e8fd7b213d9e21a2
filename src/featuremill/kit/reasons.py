"""Reasons of refused and failed records."""

from featuremill.base.reasons import EMPTY, LENGTH, NOT_FINITE, Kind, kind_of

__all__ = ["EMPTY", "LENGTH", "NOT_FINITE", "Kind", "kind_of"]
