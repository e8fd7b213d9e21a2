"""Kubernetes: the profile under the real Snakemake and the real plugin, on a pretend API server."""

import base64
import http.server
import json
import os
import re
import signal
import subprocess
import threading

import pytest
import yaml
from conftest import ROOT
from programs import wait_for
from test_gpu_workflow import GpuWorkflow
from test_lease_stress import most_at_once

pytestmark = pytest.mark.slow
PROFILE = ROOT / "profiles" / "kubernetes"
CONFIG = yaml.safe_load((PROFILE / "config.yaml").read_text())
MANIFESTS = [
    pytest.param(manifest, id=f"{path.stem}-{manifest['kind']}")
    for path in sorted(PROFILE.glob("*.yaml"))
    if path.name != "config.yaml"
    for manifest in yaml.safe_load_all(path.read_text())
]


LIMIT = "nvidia.com/gpu"
KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: pretend, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: nobody, user: {{}}}}]
contexts: [{{name: pretend, context: {{cluster: pretend, user: nobody}}}}]
current-context: pretend
"""


class Cluster:
    """A pretend Kubernetes API server on loopback: its jobs are processes of this machine, its GPUs
    are given out as the device plugin does, by NVIDIA_VISIBLE_DEVICES. It keeps all that it was
    asked for: secrets, jobs and their processes."""

    def __init__(self, folder, environment, uuids):
        self.folder, self.uuids = folder, list(uuids)
        self.environment = environment
        self.secrets, self.jobs, self.processes = {}, {}, {}
        self.requests, self.failing = [], {}
        """`failing`: a part of a request, and how many of them get no useful answer."""
        self._given = {}
        self._lock = threading.RLock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(KUBECONFIG.format(port=self._server.server_port))

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        for name in list(self.processes):
            self.kill(name)

    def kill(self, name):
        if self.processes[name].poll() is None:
            os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()

    def delete(self, name):
        """End a job as `kubectl delete job` does: nothing is known of it any more."""
        with self._lock:
            self.kill(name)
            self._status(name)
            del self.jobs[name], self.processes[name]

    def answer(self, verb, path, body):
        """Return status and body of an answer."""
        with self._lock:
            self.requests.append((verb, path))
            for part, left in self.failing.items():
                if left and part in f"{verb} {path}":
                    self.failing[part] -= 1
                    return 500, {"message": "the server is not well"}
            self._start_waiting()
            place = re.sub(r"\?.*", "", path).partition("/namespaces/default/")[2]
            kind, name, more = [*place.split("/", 2), "", ""][:3]
            return getattr(self, f"_{verb.lower()}_{kind}")(name, more or path, body)

    def _post_secrets(self, _name, _more, body):
        self.secrets[body["metadata"]["name"]] = body.get("data") or {}
        return 201, body

    def _delete_secrets(self, name, _more, _body):
        return (200, {}) if self.secrets.pop(name, None) is not None else (404, {})

    def _post_jobs(self, _name, _more, body):
        self.jobs[body["metadata"]["name"]] = body
        self._start_waiting()
        return 201, body

    def _get_jobs(self, name, _more, _body):
        if name not in self.jobs:
            return 404, {}
        status = self._status(name)
        counts = {} if status is None else {"failed": 1} if status else {"succeeded": 1}
        return 200, {"metadata": {"name": name}, "status": counts}

    def _delete_jobs(self, name, _more, _body):
        if name in self.processes:
            self.kill(name)
        return 200, {}

    def _get_pods(self, name, more, _body):
        if more == "log":
            return (self.folder / f"{name}.log").read_text()
        (job,) = re.findall("job-name%3D([^&]+)", more)
        if job not in self.processes:
            return 200, {"items": []}
        status = self._status(job)
        state = {"running": {}} if status is None else {"terminated": {"exitCode": abs(status)}}
        container = {"name": "snakemake", "image": "", "imageID": "", "ready": True}
        statuses = {"containerStatuses": [{**container, "restartCount": 0, "state": state}]}
        return 200, {"items": [{"metadata": {"name": job}, "status": statuses}]}

    def _delete_pods(self, name, _more, _body):
        return 200, {}

    def _status(self, name):
        """Return a job's exit status; None while it waits or runs."""
        process = self.processes.get(name)
        if process is None or process.poll() is None:
            return None
        self._given.pop(name, None)
        return process.returncode

    def _start_waiting(self):
        for name, job in self.jobs.items():
            self._status(name)
            (container,) = job["spec"]["template"]["spec"]["containers"]
            wanted = int(container["resources"].get("limits", {}).get(LIMIT, 0))
            taken = [uuid for given in self._given.values() for uuid in given]
            free = [uuid for uuid in self.uuids if uuid not in taken]
            if name not in self.processes and len(free) >= wanted:
                self._given[name] = free[:wanted]
                self.processes[name] = self._start(name, container)

    def _start(self, name, container):
        variables = {"NVIDIA_VISIBLE_DEVICES": ",".join(self._given[name]) or "void"}
        for variable in container.get("env") or ():
            key = variable["valueFrom"]["secretKeyRef"]
            secret = self.secrets[key["name"]][key["key"]]
            variables[variable["name"]] = base64.b64decode(secret).decode()
        (self.folder / f"{name}.workdir").mkdir()
        with (self.folder / f"{name}.log").open("w") as log:
            words = container["command"] + container["args"]
            about = {
                "cwd": self.folder / f"{name}.workdir",
                "env": {**self.environment, **variables},
            }
            return subprocess.Popen(words, **about, stdout=log, stderr=log, start_new_session=True)


def _handler(cluster):
    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            if "previous=True" in self.path:
                status, said = 400, {"message": "previous terminated container not found"}
            else:
                found = cluster.answer(self.command, self.path, body)
                status, said = found if isinstance(found, tuple) else (200, found)
            data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815

        def log_message(self, *arguments):
            pass

    return Handler


def check(value, kind, place):
    """Hold `value` against the API's model `kind`: every key is known, every value of its type."""
    import kubernetes  # in the functions: the fast tests' environment lacks it

    if listed := re.fullmatch(
        r"(list|dict)\[(?:str, )?(.*)\]", kind.replace("(", "[").replace(")", "]")
    ):
        assert isinstance(value, list if listed[1] == "list" else dict), place
        for key in value if listed[1] == "dict" else range(len(value)):
            check(value[key], listed[2], f"{place}.{key}")
    elif model := getattr(kubernetes.client, kind, None):
        names = {outside: inside for inside, outside in model.attribute_map.items()}
        assert set(value) <= set(names), place
        model(**{names[key]: value[key] for key in value})  # says what is required
        for key in value:
            check(value[key], model.openapi_types[names[key]], f"{place}.{key}")
    else:
        assert isinstance(value, {"str": str, "int": int, "bool": bool}[kind]), place


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_manifest_is_what_the_api_takes(manifest):
    import kubernetes

    kind = manifest["kind"] if manifest["kind"].startswith("V1") else f"V1{manifest['kind']}"
    model = getattr(kubernetes.client, kind)
    assert {"api_version", "kind", "metadata"} <= set(model.openapi_types)
    for subject in manifest.pop("subjects", ()):  # the client has another name for their model
        check(subject, "RbacV1Subject", "subjects")
    check(manifest, kind, kind)


def containers():
    for path in ("driver", "one-node"):
        for manifest in yaml.safe_load_all((PROFILE / f"{path}.yaml").read_text()):
            if manifest["kind"] == "Job":
                pod = manifest["spec"]["template"]["spec"]
                yield pod, pod["containers"][0]


def test_profile_and_manifests_agree():
    claim, path = CONFIG["kubernetes-shared-persistent-volumes"][0].split(":")
    assert yaml.safe_load((PROFILE / "volume.yaml").read_text())["metadata"]["name"] == claim
    containerfile = (ROOT / "containers/Containerfile").read_text()
    user = re.search(r"^USER (\d+):(\d+)$", containerfile, re.MULTILINE)
    for pod, container in containers():
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim
        assert container["volumeMounts"][0]["mountPath"] == container["workingDir"] == path
        assert container["image"] == CONFIG["container-image"]
        assert pod["securityContext"]["fsGroup"] == int(user[2])
        for place in re.findall(r"/usr/local/featuremill/(\S+)", container["args"][0]):
            assert (ROOT / place).exists()
    assert f"WORKDIR {path}\n" in containerfile


@pytest.mark.timeout(600)
def test_a_run_in_pods(tmp_path, environment, gpu_node):
    """Only time is lost with a killed pod, a deleted job and an API that fails three times."""
    import snakemake_executor_plugin_kubernetes  # noqa: F401  (the profile's executor is made of it)

    node = gpu_node(2)
    volume, api = tmp_path / "volume", tmp_path / "api"
    volume.mkdir()
    api.mkdir()
    environment = {**environment, **node.environment}
    environment["PYTHONPATH"] += os.pathsep + str(PROFILE / "plugin")
    workflow = GpuWorkflow(volume, environment, node, 3, batch_seconds=5, batch_records=5)
    workflow.is_forked = False  # Snakemake finds the plugin of the profile when it starts
    cluster = Cluster(api, workflow.environment, node.uuids)
    cluster.failing = {"POST /apis/batch": 1, "/status": 1, "labelSelector": 1}
    workflow.environment = {**workflow.environment, "KUBECONFIG": str(cluster.kubeconfig)}
    try:
        process = workflow.start(
            *("--workflow-profile", str(PROFILE), "--seconds-between-status-checks", "1"),
            *("--kubernetes-shared-persistent-volumes", f"featuremill:{volume}"),
        )
        wait_for(lambda: workflow.spans() and len(extracting(cluster)) == 2, 240)
        killed, deleted = extracting(cluster)
        cluster.kill(killed)
        cluster.delete(deleted)
        said, _ = process.communicate(timeout=300)
    finally:
        cluster.close()
    assert process.returncode == 0, said
    assert workflow.counts()["ok"] == 30 and "failed." in said
    assert "Has the job been deleted manually?" in said
    assert not cluster.secrets
    assert ("POST", "/apis/batch/v1/namespaces/default/jobs") in cluster.requests
    spans = workflow.spans()
    assert set(spans) <= set(node.uuids) and max(map(most_at_once, spans.values())) == 1
    check_pods(cluster, volume)


def extracting(cluster):
    """Return the names of the jobs that run on a GPU."""
    on_gpus = [name for name, job in [*cluster.jobs.items()] if f'"{LIMIT}"' in json.dumps(job)]
    started = [name for name in on_gpus if name in cluster.processes]
    return [name for name in started if cluster.processes[name].poll() is None]


def check_pods(cluster, volume):
    """Look at what the plugin asked for: 1 plan, 5 extract without the deleted one, 1 merge, 1
    report."""
    gpus = []
    for job in cluster.jobs.values():
        check(job, "V1Job", "job")
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == CONFIG["container-image"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts["featuremill"] == str(volume)
        claims = [volume.get("persistentVolumeClaim") for volume in pod["volumes"]]
        assert {"claimName": "featuremill"} in claims
        assert container["args"][1].startswith(f"cd {volume} && ")
        assert "pip install" not in container["args"][1]
        asked, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert asked["memory"] == limits["memory"] and asked["ephemeral-storage"] == "1000M"
        gpus.append(limits.get("nvidia.com/gpu", "0"))
        assert bool(pod.get("tolerations")) == (gpus[-1] == "1")
    assert sorted(gpus) == ["0"] * 3 + ["1"] * 4
