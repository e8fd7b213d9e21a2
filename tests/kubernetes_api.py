"""A pretend Kubernetes API server on loopback: its jobs are processes of this machine, its GPUs are
given out as the device plugin does, by NVIDIA_VISIBLE_DEVICES. It keeps all that it was asked for.
"""

import base64
import http.server
import json
import os
import re
import signal
import subprocess
import threading

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
    """The server's state: secrets, jobs and their processes."""

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
            for part in [
                part for part, left in self.failing.items() if left and part in f"{verb} {path}"
            ]:
                self.failing[part] -= 1
                return 500, {"message": "the server is not well"}
            self._start_waiting()
            kind, _, name = (
                re.sub(r"\?.*", "", path).partition("/namespaces/default/")[2].partition("/")
            )
            name, _, more = name.partition("/")
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
        container = {
            "name": "snakemake",
            "image": "",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
        }
        statuses = {"containerStatuses": [{**container, "state": state}]}
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
            variables[variable["name"]] = base64.b64decode(
                self.secrets[key["name"]][key["key"]]
            ).decode()
        (self.folder / f"{name}.workdir").mkdir()
        with (self.folder / f"{name}.log").open("w") as log:
            return subprocess.Popen(
                container["command"] + container["args"],
                cwd=self.folder / f"{name}.workdir",
                env={**self.environment, **variables},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


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
