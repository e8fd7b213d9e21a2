"""The executor `gpu-local`: jobs run on this machine, each one with its own GPUs.

Snakemake imports every installed executor at each start, so this module loads only its interface.
Snakemake reads the types of the settings, so they must not be texts and have no `|`.
"""

from dataclasses import dataclass, field
from typing import Any, Optional

from snakemake_interface_executor_plugins.executors.base import AbstractExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

common_settings = CommonSettings(
    non_local_exec=False,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_envvar_declarations_to_cmd=True,
    auto_deploy_default_storage_provider=False,
)


def _setting(default: Any, meaning: str, metavar: Optional[str] = None) -> Any:
    more = {"metavar": metavar} if metavar else {}
    return field(default=default, metadata={"help": meaning, "env_var": True, **more})


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Options, each on the command line as `--gpu-local-<name>`."""

    resource: str = _setting(
        "gpu,gpus,nvidia_gpu",
        "Resources of a rule that count its GPUs, with commas between; the first that a job has "
        "counts.",
        "NAMES",
    )
    devices: Optional[str] = _setting(
        None, "The only GPUs to use, as in 0,2: numbers of nvidia-smi, or UUIDs.", "LIST"
    )
    policy: Optional[str] = _setting(
        None,
        "Which of the free GPUs a job takes: balanced (default), memory or sequential. A rule's "
        "resource gpu_policy has priority.",
        "NAME",
    )
    slots: Optional[int] = _setting(
        None,
        "Jobs that share one GPU (default 1). A rule's resource gpu_slots has priority.",
        "N",
    )
    min_free_mb: Optional[int] = _setting(
        None,
        "MiB that must be free on each GPU. A rule's resource gpu_min_free_mb has priority.",
        "MB",
    )
    wait: Optional[int] = _setting(
        None,
        "Seconds that a job waits for its GPUs before it fails (default: no limit). A rule's "
        "resource gpu_wait has priority.",
        "SECONDS",
    )
    by_number: bool = _setting(False, "Name GPUs to the jobs by number instead of UUID.")
    show_all: bool = _setting(
        False,
        "Leave CUDA_VISIBLE_DEVICES as it is for jobs without GPUs; by default they see none.",
    )
    watch: bool = _setting(
        False,
        "Leave a GPU out for five minutes after three jobs have failed on it within a minute each.",
    )
    spawn: bool = _setting(
        False, "Run each job with GPUs in a Snakemake process of its own (slower)."
    )
    dry: bool = _setting(
        False, "Print which GPUs the jobs that are ready would get now, run none of them, and stop."
    )


class Executor(AbstractExecutor):
    """Runs jobs by Snakemake's local executor, once they have their GPUs."""

    def __init__(self, workflow: Any, logger: Any) -> None:
        super().__init__(workflow, logger)
        from .runner import Runner

        self._runner = Runner(workflow, logger)

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        if self._runner.is_dry:
            self._runner.show(jobs)
        else:
            super().run_jobs(jobs)

    def run_job(self, job: JobExecutorInterface) -> None:
        self._runner.run(job)

    def shutdown(self) -> None:
        self._runner.end(self._runner.local.shutdown)

    def cancel(self) -> None:
        self._runner.end(self._runner.local.cancel)

    def handle_job_success(self, job: JobExecutorInterface) -> None:
        self._runner.local.handle_job_success(job)

    def handle_job_error(self, job: JobExecutorInterface) -> None:
        self._runner.local.handle_job_error(job)
