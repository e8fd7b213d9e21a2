"""Snakemake's Kubernetes executor for a working directory on a volume that all pods mount.

snakemake-executor-plugin-kubernetes 0.5 declares that there is no shared file system, and no option
takes that back: every file is then copied through object storage, each pod starts in an empty
folder and installs packages first. featuremill's store is not declared to Snakemake and cannot be
copied so. Here the same executor, its pods, secrets and clean-up, runs with the opposite
declaration; what a pod does first is to change into the volume. And four things that end or hang a
whole run there end only a job, or nothing: a failed pod, an API that does not answer once, a job
that the API does not take, one that somebody deleted.

Used as `executor: kubernetes-shared`, which takes the options of the Kubernetes plugin under its
own name; PYTHONPATH has to name the folder that this package is in.
"""

import shlex
from dataclasses import replace

from kubernetes.client import BatchV1Api, CoreV1Api
from kubernetes.client.rest import ApiException
from snakemake_executor_plugin_kubernetes import Executor as KubernetesExecutor
from snakemake_executor_plugin_kubernetes import ExecutorSettings
from snakemake_executor_plugin_kubernetes import common_settings as without_shared_files
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

common_settings = replace(
    without_shared_files,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    auto_deploy_default_storage_provider=False,
)


class Api(CoreV1Api):
    """The API, with the logs of pods that were started once."""

    def read_namespaced_pod_log(self, name, namespace, **options):
        """Return a pod's log.

        The plugin asks for the container before this one; its pods never have one, so the API
        answers 400, and that ends the run.
        """
        try:
            return super().read_namespaced_pod_log(
                name, namespace, **{**options, "previous": False}
            )
        except ApiException as error:
            return f"the log of {name} is not to be had: {error.reason}"


class JobsApi(BatchV1Api):
    """The API of jobs, with an answer for one that is gone."""

    def read_namespaced_job_status(self, name, namespace, **options):
        """Return a job's status; None, a failure to the plugin, where there is no such job.

        The plugin only expects that, and the API answers 404: somebody deleted the job, or its
        time to live was over. It would be asked about for ever.
        """
        try:
            return super().read_namespaced_job_status(name, namespace, **options)
        except ApiException as error:
            if error.status != 404:
                raise
            return None


class Executor(KubernetesExecutor):
    """The Kubernetes executor, its jobs in the main process's working directory."""

    def __post_init__(self):
        """Do what the plugin does, and take our APIs."""
        super().__post_init__()
        self.kubeapi, self.batchapi = Api(), JobsApi()
        self._ended = set()

    def get_job_exec_prefix(self, job):
        """Return what a pod does first."""
        return f"cd {shlex.quote(self.workflow.workdir_init)}"

    def run_job(self, job):
        """Submit a job; one that the API does not take has failed, and may be tried again."""
        try:
            super().run_job(job)
        except WorkflowError as error:
            self.report_job_error(SubmittedJobInfo(job=job), msg=f"{error}\n")

    async def check_active_jobs(self, active_jobs):
        """Yield the jobs that go on: all of which nothing else was heard.

        The plugin forgets a job whose status it could not read, and waits for it for ever.
        """
        for job in active_jobs:
            try:
                async for _ in super().check_active_jobs([job]):
                    pass
            except WorkflowError as error:
                self.logger.warning(f"job {job.external_jobid}: {error}")
            if job.external_jobid in self._ended:
                self._ended.remove(job.external_jobid)
            else:
                yield job

    def report_job_success(self, job_info):
        """Note that nothing is to be asked about the job any more."""
        self._ended.add(job_info.external_jobid)
        super().report_job_success(job_info)

    def report_job_error(self, job_info, **facts):
        """Note that nothing is to be asked about the job any more."""
        self._ended.add(job_info.external_jobid)
        super().report_job_error(job_info, **facts)
