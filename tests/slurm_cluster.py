"""A real Slurm cluster with pretend GPUs, in mount, process, network and host namespaces.

    with Cluster(tmp_path, nodes=2, gpus=4) as cluster:
        cluster.run("sbatch", "--gpus=1", "--wait", "job.sh", cwd=folder)
        cluster.kill("gpu1")           # the daemon of a node; also slurmctld, slurmdbd, mariadbd
        cluster.start("gpu1")

Files are those of the machine, but for /run and /etc/slurm. Every process inside is ended by the
kernel with the cluster, and that ends with this process at the latest.
"""

import os
import subprocess
import tempfile
import time
from pathlib import Path

import debian
import pytest

CLUSTER = Path(__file__).with_suffix(".sh")
PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge", "iproute2"]
DATABASE_PACKAGES = ["slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server"]
UNSHARE = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork"]
UNSHARE += ["--kill-child", "--net", "--mount-proc", "--uts"]
CONTROL_GROUPS = Path("/sys/fs/cgroup")
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")

SLURM_CONF = """\
ClusterName=testbed
SlurmctldHost=head(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=/run/state
SlurmdSpoolDir=/run/spool/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/%n
MailProg=/bin/true
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
MinJobAge={min_job_age}
KillWait=2
SlurmctldTimeout=30
SlurmdTimeout=20
MessageTimeout=10
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ProctrackType=proctrack/{tracking}
TaskPlugin=task/{task}
JobAcctGatherType=jobacct_gather/{gathering}
AccountingStorageType=accounting_storage/{accounting}
PartitionName=gpu Nodes=ALL Default=YES DefaultTime=10 MaxTime=INFINITE PriorityTier=1
PartitionName=urgent Nodes=ALL DefaultTime=10 MaxTime=INFINITE PriorityTier=9 PreemptMode=OFF
"""
WITH_DATABASE = "AccountingStorageHost=127.0.0.1\nAccountingStorageTRES=gres/gpu\n"
NODE = "NodeName={name} NodeHostname=head NodeAddr=127.0.0.1 Port={port} CPUs=32 RealMemory=64000"
SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost=head
DbdAddr=127.0.0.1
SlurmUser=root
CommunicationParameters=NoInAddrAny
LogFile={folder}/log/slurmdbd
PidFile=/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=slurm
StoragePass=testbed
StorageLoc=slurm_acct
"""
CGROUP_CONF = "ConstrainDevices={devices}\nConstrainCores=no\nConstrainRAMSpace=no\n"


class Cluster:
    """The cluster: `nodes` (gpu1, gpu2 …) with `gpus` GPUs each, partitions `gpu` (the default) and
    `urgent`, whose jobs push those of `gpu` back into the queue.

    `gpu_types` names the model of each GPU of every node, or maps nodes' names to such lists;
    `more_conf` is added to slurm.conf.
    """

    def __init__(
        self,
        folder,
        nodes=1,
        gpus=4,
        dbd=False,
        cgroups=False,
        min_job_age=300,
        gpu_types=None,
        more_conf="",
    ):
        self.folder = Path(folder) / "cluster"
        self.nodes = [f"gpu{number}" for number in range(1, nodes + 1)]
        self.log = self.folder / "log"
        self._gpus = gpus
        self._gpu_types = gpu_types or {}
        self._has_database = dbd
        self._cgroups = cgroups
        self._min_job_age = min_job_age
        self._more_conf = more_conf
        self._init = None
        self._groups = []
        self._hurried = set()

    def __enter__(self):
        if os.geteuid() != 0:
            pytest.skip("a Slurm cluster of one's own needs root")
        debian.install(*PACKAGES, *(DATABASE_PACKAGES if self._has_database else []))
        self._write_conf()
        if self._cgroups:
            self._make_groups()
        command = [*UNSHARE, "bash", CLUSTER, self.folder, str(self._gpus)]
        command.append(" ".join(map(str, self._groups)))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._init = subprocess.Popen(command, **pipes)
        try:
            trouble = self._answer()
            if trouble:
                pytest.skip(f"a cluster needs namespaces, mounts and device nodes here ({trouble})")
            database = ["mariadbd", "slurmdbd"] if self._has_database else []
            for name in ["munged", *database, "slurmctld", *self.nodes]:
                self.start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._init.stdin.close()
        self._init.wait(30)
        self._init.stdout.close()
        for group in self._groups:  # their processes are gone; what is listed cannot be removed
            for folder in sorted(group.rglob("*/"), reverse=True):
                folder.rmdir()
            group.rmdir()

    def _make_groups(self):
        for controller in ("devices", "freezer"):
            if not (CONTROL_GROUPS / controller).is_dir():
                pytest.skip(f"no control groups of version 1 with {controller} here")
            self._groups.append(Path(tempfile.mkdtemp(dir=CONTROL_GROUPS / controller)))

    def _write_conf(self):
        etc = self.folder / "etc"
        etc.mkdir(parents=True)
        self.log.mkdir()
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost head {' '.join(self.nodes)}\n")
        text = SLURM_CONF.format(
            folder=self.folder,
            min_job_age=self._min_job_age,
            tracking="cgroup" if self._cgroups else "linuxproc",
            task="cgroup" if self._cgroups else "none",
            gathering="linux" if self._has_database else "none",
            accounting="slurmdbd" if self._has_database else "none",
        )
        text += WITH_DATABASE if self._has_database else ""
        gres = "AutoDetect=off\n"
        for number, name in enumerate(self.nodes):
            types = self._types(name)
            counts = [f"gpu:{t}:{types.count(t)}" if t else f"gpu:{len(types)}" for t in set(types)]
            line = NODE.format(name=name, port=6820 + number)
            text += f"{line} Gres={','.join(counts)}\n"
            for index, kind in enumerate(types):
                model = f" Type={kind}" if kind else ""
                gres += f"NodeName={name} Name=gpu{model} File=/run/dev/nvidia{index}\n"
        (etc / "slurm.conf").write_text(text + self._more_conf)
        (etc / "gres.conf").write_text(gres)
        devices = "yes" if self._cgroups else "no"
        (etc / "cgroup.conf").write_text(CGROUP_CONF.format(devices=devices))
        database = etc / "slurmdbd.conf"
        database.write_text(SLURMDBD_CONF.format(folder=self.folder))
        database.chmod(0o600)

    def _types(self, node):
        kinds = self._gpu_types
        found = kinds.get(node) if isinstance(kinds, dict) else kinds
        return list(found) if found else [""] * self._gpus

    def _answer(self):
        """Return what is wrong; nothing where all is well."""
        line = self._init.stdout.readline().strip()
        return "" if line == "ok" else line or "the cluster ended"

    def _order(self, verb, name):
        self._init.stdin.write(f"{verb} {name}\n")
        self._init.stdin.flush()
        trouble = self._answer()
        log = self.log / name
        said = log.read_text(errors="replace")[-2000:] if trouble and log.exists() else ""
        assert not trouble, f"{trouble}\n{said}"

    def start(self, name):
        """Start a daemon and wait until it answers."""
        self._order("start", name)

    def stop(self, name):
        """End a daemon by SIGTERM and wait until it is gone."""
        self._order("stop", name)

    def kill(self, name):
        """End a daemon by SIGKILL."""
        self._order("kill", name)

    def popen(self, *command, cwd=None, env=None, **more):
        """Start a process inside; `signal` reaches it, `wait` and the pipes are as always."""
        variables = {k: v for k, v in (env or os.environ).items() if not k.startswith("SLURM_")}
        for name in GPU_VARIABLES:
            variables.pop(name, None)
        inside = ["nsenter", "-t", str(child_of(self._init.pid)), "-m", "-p", "-n", "-u"]
        words = [*inside, "env", "-C", str(cwd or Path.cwd()), *map(str, command)]
        return subprocess.Popen(words, env=variables, text=True, **more)

    def run(self, *command, timeout=120, status=0, **more):
        """Run a command inside to its end; return what it wrote to standard output. It has to end
        with `status`, unless that is None."""
        more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.popen(*command, **more) as process:
            try:
                output, errors = process.communicate(timeout=timeout)
            except BaseException:
                self.signal(process, 9)
                raise
        if status is not None:
            assert process.returncode == status, f"{command}:\n{output}\n{errors}"
        return output

    def signal(self, process, number):
        """Send a signal to what `popen` started."""
        os.kill(child_of(process.pid), number)

    def jobs(self):
        """Return the jobs that squeue lists, by id: (state, node or reason)."""
        lines = self.run("squeue", "-h", "--states=all", "-o", "%A|%T|%R").splitlines()
        return {fields[0]: (fields[1], fields[2]) for fields in (li.split("|") for li in lines)}

    def hurry(self, job):
        """Have a job that was queued again start at once, where Slurm lets it wait two minutes.

        Not in the second in which it ended: slurmd takes that for the same start, does not launch
        it ("already killed"), and the controller notes FAILED, NonZeroExitCode.
        """
        starts = self.run("squeue", "-h", "-j", job, "-O", "RestartCnt", status=None).strip()
        if (job, starts) not in self._hurried:
            self._hurried.add((job, starts))
            self.run("scontrol", "update", f"JobId={job}", "StartTime=now+2", status=None)

    def wait_until(self, condition, seconds=120):
        """Wait until `condition()` is true; return what it returned."""
        until = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < until, f"not in {seconds} s; jobs: {self.jobs()}"
            time.sleep(0.2)
        return found


def child_of(pid):
    """Return the process that the process `pid` (unshare, nsenter) forked."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    until = time.monotonic() + 5
    while not (found := path.read_text().split()):
        assert time.monotonic() < until, f"process {pid} forked nothing"
        time.sleep(0.01)
    return int(found[0])


@pytest.fixture
def slurm_cluster(tmp_path):
    """Return a function that starts a cluster, which ends with the test."""
    open_ones = []

    def start(**settings):
        cluster = Cluster(tmp_path, **settings)
        open_ones.append(cluster.__enter__())
        return cluster

    yield start
    for cluster in open_ones:
        cluster.__exit__()
