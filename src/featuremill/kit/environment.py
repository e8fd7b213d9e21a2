"""Variables of the environment. `Variable(name, meaning)` makes one of your own."""

from featuremill.base.environment import (
    CACHE,
    FLASH_ATTENTION_CUTE_DSL_CACHE_DIR,
    FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED,
    HF_ENDPOINT,
    OMP_NUM_THREADS,
    OPENBLAS_NUM_THREADS,
    QUIET,
    TORCH_HOME,
    TRITON_CACHE_DIR,
    TRITON_HOME,
    WITHOUT,
    XDG_CACHE_HOME,
    Variable,
    of_child,
)

__all__ = [
    "CACHE",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED",
    "HF_ENDPOINT",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "QUIET",
    "TORCH_HOME",
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
    "WITHOUT",
    "XDG_CACHE_HOME",
    "Variable",
    "of_child",
]
