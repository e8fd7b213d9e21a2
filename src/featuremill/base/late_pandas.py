"""Arrow without pandas, until a program imports that.

Of whatever Arrow makes something, it asks whether it is pandas', and imports pandas to ask: a
quarter of a second and 40 MB of each process. Where pandas is not imported, nothing is pandas'.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


def set_up() -> None:
    """Let Arrow know pandas from when this process imports it, and not before.

    Arrow may be imported later. For processes of our own: a user who calls featuremill from theirs
    keeps Arrow as it is.
    """
    if "pandas" in sys.modules:
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    if "pyarrow" in sys.modules:
        finder.hide_from_arrow()


class _Finder:
    """Hides pandas while Arrow is imported. When pandas is imported, Arrow looks for it again."""

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
        """Have Arrow look for pandas, which it does once, and find none."""
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

            pa.table({}).to_pandas()  # whatever needs pandas has Arrow look again


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
