"""Files that are written whole or not at all, their digests, typed JSON, and files of others.

A result is written with `delivering`, `delivering_folder` or `write_json`, and removed with
`discard` or `vacate`: a file that is not ours, or that a person changed, is then never lost.
"""

from featuremill.base.input_file import check as refuse_unreadable
from featuremill.store.files import (
    JsonFile,
    Number,
    digest_of,
    is_temporary,
    remove,
    replacing,
    scratch,
    sha256_of,
    sync_folder,
)
from featuremill.store.files import Record as JsonRecord
from featuremill.store.ours import (
    delivering,
    delivering_folder,
    discard,
    give_way,
    is_beside,
    note,
    vacate,
    write_json,
)

__all__ = [
    "JsonFile",
    "JsonRecord",
    "Number",
    "delivering",
    "delivering_folder",
    "digest_of",
    "discard",
    "give_way",
    "is_beside",
    "is_temporary",
    "note",
    "refuse_unreadable",
    "remove",
    "replacing",
    "scratch",
    "sha256_of",
    "sync_folder",
    "vacate",
    "write_json",
]
