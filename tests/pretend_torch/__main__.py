"""`python -m pretend_torch WORDS…`: featuremill with the pretend torch, forked (forks.py), and so
its children: in place of the real torch, which the server has imported."""

import importlib
import runpy
import sys
from pathlib import Path

import featuremill.workloads.esm2

for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
    del sys.modules[name]
sys.path.insert(0, str(Path(__file__).parent))
try:
    importlib.import_module("torch")
except ModuleNotFoundError:
    sys.modules["torch"] = None
else:
    featuremill.workloads.esm2.fallbacks = sys.modules["featuremill.workloads.esm2.fallbacks"]
del sys.path[0]
runpy.run_module("featuremill", run_name="__main__", alter_sys=True)
