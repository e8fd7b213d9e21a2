"""Ids: the accession in one, and whose a row of a table is."""

from featuremill.base.accession import accessions
from featuremill.base.matching import Matcher

__all__ = ["Matcher", "accessions"]
