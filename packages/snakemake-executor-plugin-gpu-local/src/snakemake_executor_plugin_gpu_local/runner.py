"""Jobs on their way through the executor: each waits for its GPUs, then the local executor runs it.

A job with GPUs waits in a thread of its own, never in Snakemake's scheduling thread. Then its shell
(`shells.py`) takes its lease over. A job of a `shell:` has that shell by Snakemake's resource
`shell_exec`. Any other one runs in a Snakemake process of its own, which that shell starts: scripts
cannot have a `shell_exec`, and containers have shells of their own.

Jobs without GPUs inherit an empty CUDA_VISIBLE_DEVICES from this process.
"""

from __future__ import annotations

import _thread
import contextlib
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry
from snakemake_interface_executor_plugins.settings import DeploymentMethod

from .lease.acquire import Lease, acquire
from .lease.environment import CUDA_VISIBLE_DEVICES
from .lease.errors import DeviceError, UserError, sentence
from .lease.request import Request
from .shells import Shells

SHELL_EXEC = "shell_exec"
"""Snakemake's resource that names the shell of a job."""


MAX_WAITING = 10_000
"""Threads in which jobs wait; as many start as wait at once."""


class StoppedError(Exception):
    """Snakemake ends, so a job must not wait any longer."""


class Runner:
    """All jobs of one Snakemake process."""

    def __init__(self, workflow: Any, logger: Any) -> None:
        self._workflow = workflow
        self._logger = logger
        self._settings = workflow.executor_settings
        self._names = [name.strip() for name in self._settings.resource.split(",")]
        self._stop = threading.Event()
        self._is_watching_signals = False
        self._leases: dict[str, Lease] = {}
        """The lease of each running job by `_key`, for --gpu-local-watch."""
        self.local = _local_executor(self)(workflow, logger)
        self.is_dry: bool = self._settings.dry
        with _as_workflow_errors():
            if "" in self._names:
                raise UserError("--gpu-local-resource: name resources, as in gpu,gpus.")
            self._request(1, {})
        self._waiting = ThreadPoolExecutor(MAX_WAITING, "gpu-local")
        if not self._settings.show_all:
            CUDA_VISIBLE_DEVICES.set_for_children("")
        self._shells = Shells(_shell(), Path(workflow.persistence.path))

    def run(self, job: Any) -> None:
        """Start a job without GPUs now, and another one once it has them; never wait."""
        self._watch_signals()
        members = list(_members(job))
        try:
            counts = [self._num_gpus(member) for member in members]
            request = self._request(sum(counts), members[counts.index(max(counts))].resources)
        except UserError as error:
            self._fail(job, str(error))
            return
        for member, count in zip(members, counts, strict=True):
            if not count:
                self._shells.without_lease(_key(member))
        if not sum(counts):
            self.local.run_job(job)
            return
        self._waiting.submit(self._wait_and_start, job, members, counts, request)

    def _wait_and_start(
        self, job: Any, members: list[Any], counts: list[int], request: Request
    ) -> None:
        try:
            try:
                held = self._acquire(job, request)
            except StoppedError:
                self._fail(job, "it waited for its GPUs when Snakemake was stopped")
            except (DeviceError, UserError, OSError) as error:  # an OSError is of a lock file
                self._fail(job, sentence(error))
            else:
                self._logger.info(f"{_title(job)} has {held.how}")
                self._start(job, members, counts, held)
        except Exception as error:  # a thread's error would be lost, and its job wait for ever
            self._workflow.scheduler.executor_error_callback(error)

    def _acquire(self, job: Any, request: Request) -> Lease:
        def report(text: str) -> None:
            self._logger.info(f"{_title(job)}: {text}")

        def check() -> None:
            if self._stop.is_set():
                raise StoppedError

        check()
        return acquire(
            "cuda", request, report=report, check=check, shares_given=False, command=_title(job)
        )

    def _start(self, job: Any, members: list[Any], counts: list[int], held: Lease) -> None:
        self._leases[_key(job)] = held
        if self._settings.spawn or not self._may_set_shells(members, counts):
            self._shells.offer(_key(job), held, _title(job))
            self._spawn(job)
            return
        for member, part in zip(members, held.split(counts), strict=True):
            if part.devices:
                self._shells.offer(_key(member), part, _title(member))
        try:
            self.local.run_job(job)
        except Exception:
            self._shells.withdraw({*map(_key, members)})
            raise

    def _may_set_shells(self, members: list[Any], counts: list[int]) -> bool:
        """Have each member with GPUs use its shell; return whether all of them will."""
        with_gpus = [member for member, count in zip(members, counts, strict=True) if count]
        return all(
            self._is_plain(member) and _set_shell(member, self._shells.path(_key(member)))
            for member in with_gpus
        )

    def _is_plain(self, job: Any) -> bool:
        """Return whether a job is a `shell:` outside a container."""
        methods = self._workflow.deployment_settings.deployment_method
        is_in_container = job.is_containerized and DeploymentMethod.APPTAINER in methods
        return not is_in_container and bool(getattr(job, "shellcmd", None))

    def _spawn(self, job: Any) -> None:
        """Run a job in a Snakemake process of its own, to its end."""
        info = SubmittedJobInfo(job=job)
        self.local.report_job_submission(info)
        command = self.local.format_job_exec(job)
        if subprocess.run(command, shell=True, check=False).returncode:  # noqa: S602
            self.local.report_job_error(info)
        else:
            self.local.report_job_success(info)

    def command(self, job: Any, command: str) -> str:
        """Return the command of a spawned job such that its lease is taken over."""
        if not any(self._num_gpus(member) for member in _members(job)):
            return command
        return f"exec {shlex.join([self._shells.path(_key(job)), '-c', command])}"

    def ended(self, job: Any, is_success: bool) -> None:
        """Note how a job ended; give back a lease that nothing took."""
        held = self._leases.pop(_key(job), None)
        if self._shells.withdraw({_key(job), *map(_key, _members(job))}):
            self._logger.info(
                f"{_title(job)} ended without a use of its GPUs: it started no shell, as when its "
                "output comes from a cache."
            )
        elif held and self._settings.watch and not self._stop.is_set():
            if is_success:
                held.worked()
            else:
                held.failed(f"{_title(job)} failed")

    def end(self, end_local: Callable[[], None]) -> None:
        """End the waiting of jobs, wait for those that run, and remove what was set up."""
        self._stop.set()
        self._waiting.shutdown()
        end_local()
        self._shells.close()
        if not self._settings.show_all:
            CUDA_VISIBLE_DEVICES.restore()

    def show(self, jobs: Iterable[Any]) -> None:
        """Print which GPUs `jobs` would get now, and end the run."""
        with contextlib.ExitStack() as until_all_are_shown:
            for job in jobs:
                shown = self._would_get(job, until_all_are_shown)
                self._logger.info(f"{_title(job)}: {shown}")
        self._workflow.scheduler.executor_error_callback(
            WorkflowError("--gpu-local-dry: no job was run; leave it out to run them.")
        )

    def _would_get(self, job: Any, until: contextlib.ExitStack) -> str:
        """Return what `job` would get beside the jobs before it, which hold theirs for so long."""
        try:
            num_gpus = sum(map(self._num_gpus, _members(job)))
            if not num_gpus:
                return "no GPU"
            request = self._request(num_gpus, job.resources)._replace(wait_seconds=0)
            held = acquire("cuda", request, shares_given=False, command=_title(job))
        except (DeviceError, UserError, OSError) as error:
            return sentence(error)
        until.callback(held.close)
        return held.how

    def _num_gpus(self, job: Any) -> int:
        for name in self._names:
            value = job.resources.get(name)
            if value is not None:
                break
        else:
            return 0
        if isinstance(value, bool) or not str(value).isdecimal():
            raise UserError(
                f"{_title(job)}: the resource {name} is {value!r} and must be a number of GPUs."
            )
        return int(value)

    def _request(self, num_gpus: int, resources: Any) -> Request:
        fields = {
            "slots_per_gpu": ("gpu_slots", self._settings.slots),
            "policy": ("gpu_policy", self._settings.policy),
            "min_free_mb": ("gpu_min_free_mb", self._settings.min_free_mb),
            "devices": ("gpu_devices", self._settings.devices),
            "wait_seconds": ("gpu_wait", self._settings.wait),
        }
        given = {field: resources.get(name, setting) for field, (name, setting) in fields.items()}
        request = Request.from_environment(given, num_gpus, self._settings.by_number)
        request.check()
        return request

    def _fail(self, job: Any, why: str) -> None:
        self.local.report_job_error(SubmittedJobInfo(job=job), msg=why)

    def _watch_signals(self) -> None:
        """On SIGTERM, let jobs that wait fail: Snakemake then waits for all that it started."""
        if self._is_watching_signals or threading.current_thread() != threading.main_thread():
            return
        self._is_watching_signals = True
        earlier = signal.getsignal(signal.SIGTERM)

        def stop(number: int, frame: Any) -> None:
            self._stop.set()
            if callable(earlier):
                # Snakemake's takes a lock that this thread may hold (9.27): never wait for it here.
                _thread.start_new_thread(earlier, (number, frame))

        signal.signal(signal.SIGTERM, stop)


def _local_executor(runner: Runner) -> Any:
    """Return Snakemake's local executor, which reports the ends of jobs to `runner` as well."""
    base: Any = ExecutorPluginRegistry().get_plugin("local").executor

    class Local(base):
        def format_job_exec(self, job: Any) -> str:
            return runner.command(job, super().format_job_exec(job))

        def report_job_success(self, job_info: Any) -> None:
            runner.ended(job_info.job, is_success=True)
            super().report_job_success(job_info)

        def report_job_error(self, job_info: Any, msg: str | None = None, **more: Any) -> None:
            runner.ended(job_info.job, is_success=False)
            super().report_job_error(job_info, msg, **more)

    return Local


@contextlib.contextmanager
def _as_workflow_errors() -> Iterator[None]:
    try:
        yield
    except (DeviceError, UserError) as error:
        raise WorkflowError(f"gpu-local: {error}") from None


def _members(job: Any) -> Iterable[Any]:
    return job.jobs if job.is_group() else [job]


def _key(job: Any) -> str:
    return f"job-{job.jobid}"


def _title(job: Any) -> str:
    """Return a job's name in messages and in the list of GPUs."""
    if job.is_group():
        return f"rules {', '.join(member.name for member in job.jobs)}"
    return f"rule {job.name}, jobid {job.jobid}"


def _set_shell(job: Any, shell: str) -> bool:
    """Have a job use `shell`; return whether it will."""
    if job.resources.get(SHELL_EXEC) == shell:  # as in a second attempt
        return True
    add = getattr(job, "add_aux_resource", None)
    if add and SHELL_EXEC not in job.resources.keys():  # noqa: SIM118
        add(SHELL_EXEC, shell)
    return bool(job.resources.get(SHELL_EXEC) == shell)


def _shell() -> str:
    """Return the shell of this workflow's jobs."""
    from snakemake.shell import shell

    return shell.get_executable() or shutil.which("sh") or "/bin/sh"
