"""Arrow without pandas, until a program imports that.

Of whatever Arrow makes something, it asks whether it is pandas', and imports pandas to ask: a
quarter of a second and 40 MB of each process. Where pandas is not imported, nothing is pandas'.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType


def set_up() -> None:
    """Let Arrow know pandas from when this process imports it, and not before.

    Where Arrow is not imported either, there is nothing to save. For processes of our own: a user
    who calls featuremill from theirs keeps Arrow as it is.
    """
    if "pandas" in sys.modules or "pyarrow" not in sys.modules:
        return
    import pyarrow as pa  # not above: most commands begin without

    finder = _Finder()
    sys.meta_path.insert(0, finder)
    pa.array([])  # Arrow looks once, and finds none
    finder.is_hiding = False


class _Finder:
    """Hides pandas at first; later has Arrow look once more, as soon as pandas is imported."""

    is_hiding = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "pandas":
            return None
        if self.is_hiding:
            raise ModuleNotFoundError("pandas is not looked for yet", name=fullname)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec and spec.loader:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                sys.meta_path.remove(self)
                import pyarrow as pa

                pa.table({}).to_pandas()  # whatever needs pandas has Arrow look again

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
