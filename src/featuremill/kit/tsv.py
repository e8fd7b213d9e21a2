"""Tables as text: without quotes, a line a row, control characters written out."""

from featuremill.base.tsv import MARK_WRITTEN_OUT, TsvWriter
from featuremill.base.tsv import read as read_tsv

__all__ = ["MARK_WRITTEN_OUT", "TsvWriter", "read_tsv"]
