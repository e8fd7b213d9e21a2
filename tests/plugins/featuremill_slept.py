"""Built-in workloads on a GPU that is not there: records, costs, options, weights and columns are
theirs, and batches wait in place of computing.

While the file `hold` exists, no batch ends. The file `spans.txt` gets two lines a batch: time,
process, visible devices, begin or end. Values are zeros, and texts are empty JSON.
"""

import os
import time
from importlib import import_module
from pathlib import Path

import pyarrow as pa

HOLD, SPANS = Path("hold"), Path("spans.txt")


class Slept:
    """The workload of this name, which sleeps."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        return getattr(import_module(f"featuremill.workloads.{self._name}"), attribute)

    def load(self, options, devices, weights):
        return self.schema(options, weights)

    def prepare(self, columns, payloads, batch_cost):
        return len(payloads)

    def run(self, columns, number):
        self._note("begin")
        while HOLD.exists():
            time.sleep(0.01)
        self._note("end")
        return number

    def collect(self, columns, number):
        rows = [{field.name: _nothing(field.type) for field in columns}] * number
        return pa.RecordBatch.from_pylist(rows, columns)

    def _note(self, what):
        words = (time.monotonic(), os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], what)
        with SPANS.open("a") as spans:
            spans.write(" ".join(map(str, words)) + "\n")


def _nothing(kind):
    if pa.types.is_fixed_size_list(kind):
        return [_nothing(kind.value_type)] * kind.list_size
    if pa.types.is_struct(kind):
        return {field.name: _nothing(field.type) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return []
    if pa.types.is_boolean(kind):
        return False
    return "{}" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else 0


encoder, geneformer, llm_json, pac = map(Slept, ("encoder", "geneformer", "llm_json", "pac"))
