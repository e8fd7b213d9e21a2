"""A workload whose package needs a module that nobody has installed."""

from importlib import import_module

import_module("featuremill_engine_of_nobody")
