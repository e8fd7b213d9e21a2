"""Keep Arrow from importing pandas until the program imports it.

Arrow checks whether its input is an object of pandas, and imports pandas for that, which takes a
quarter of a second and 40 MB. Without an import of pandas, no object can be one of pandas.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


def set_up() -> None:
    """Hide pandas from Arrow until this process imports pandas. Arrow may be imported later. Only
    featuremill's own processes call this, and not programs that import featuremill."""
    if "pandas" in sys.modules:
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    if "pyarrow" in sys.modules:
        finder.hide_from_arrow()


class _Finder:
    """Hides pandas while Arrow is imported; lets Arrow find it once it is imported."""

    is_hiding = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "pandas" and self.is_hiding:
            raise ModuleNotFoundError("pandas is not looked for yet", name=fullname)
        if fullname == "pyarrow":
            return _spec(fullname, path, target, self.hide_from_arrow)
        if fullname == "pandas":
            return _spec(fullname, path, target, self._show)
        return None

    def hide_from_arrow(self) -> None:
        """Let Arrow search for pandas, which it does once, and not find it."""
        import pyarrow as pa

        self.is_hiding = True
        try:
            pa.array([])
        finally:
            self.is_hiding = False

    def _show(self) -> None:
        sys.meta_path.remove(self)
        if "pyarrow" in sys.modules:
            import pyarrow as pa

            pa.table({}).to_pandas()  # lets Arrow search again


def _spec(
    name: str, path: Sequence[str] | None, target: ModuleType | None, after: Callable[[], None]
) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a module; once the module is loaded, `after` is called."""
    spec = importlib.machinery.PathFinder.find_spec(name, path, target)
    if spec and spec.loader:
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            after()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec
