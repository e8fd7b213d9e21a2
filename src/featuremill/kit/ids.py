"""Ids: the accession in one, the columns that make one, and whose a row of a table is."""

from featuremill.base.id_columns import ID_ALONE, KEYS, WHOLE, IdColumns, accession, accessions
from featuremill.base.matching import Matcher

__all__ = ["ID_ALONE", "KEYS", "WHOLE", "IdColumns", "Matcher", "accession", "accessions"]
