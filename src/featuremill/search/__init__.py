"""The records of finished results that are nearest to others."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """This room, which is also the function of its name: `featuremill.search` is the one or the
    other, by what was imported first."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from featuremill.search.command import search  # here: whoever imports the room pays nothing

        return search(*arguments, **options)


sys.modules[__name__].__class__ = _Room
