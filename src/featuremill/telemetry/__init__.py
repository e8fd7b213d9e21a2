"""Telemetry: how a shard's job goes, about once a second, in a small file beside its part.

`results/<run>/store/parts/<recipe>/<shard>.telemetry.jsonl` holds one JSON object a line, each
appended in one write by the job's supervisor. Each attempt (a job that was killed, and those after
it) appends. `time` is in seconds since 1970; a value that is not known is an absent key. Keys are
not taken away, nor given another meaning, without another `version`.

start    `version` 1, `shard`, `recipe`, `host`, `pid`, `rows` and `cost` (of the shard, as in
         plan.json), `cost_unit`, `rows_done` (that the journal holds already), `attempt` (from 1,
         since the part was last finished)
device   `devices`: `kind` (cuda, cpu), `uuid`, `name`, `slot` (0of1; absent where the outside gave
         a device that others use too), `memory_mb`, `of_whole_gpu` (the keys whose values are the
         whole GPU's, where the job has a slice or a part of it); again after a device failed
sample   `stage` (wait, load, run, finish), `rows_done`, `rows_failed`, `cost_done`, `cost_left`
         (their sum is the shard's cost, with rows that an edit left unused), `rate` (cost a second
         between the worker's last reports; absent when none came since the sample before),
         `batches`, `oom_splits`, `seconds` (of this worker: `load`, `prepare`, `run`, `write`),
         `torch_peak_mb` (torch's max_memory_allocated, of the fullest device), `devices` (GPUs:
         `uuid`, `utilisation`, `memory_mb`, `power_w`, `temperature_c`, `sm_mhz`, `memory_mhz`,
         `throttle`, `energy_j` in this attempt), `process` (the worker: `cpu_percent` of one core,
         `memory_mb`)
again    `start` and `devices` as they stand, every 16 KB, for who reads only the end
end      `status` (ok, failed, stopped), `message`

A file whose last `start` has no `end` is of a job that is at it (it holds the journal's lock: see
`featuremill.working`) or was killed.
"""

from __future__ import annotations

from featuremill.telemetry.reader import TAIL_BYTES, Attempt, State, event_of, followed, read, tail

__all__ = ["TAIL_BYTES", "Attempt", "State", "event_of", "followed", "read", "tail"]
