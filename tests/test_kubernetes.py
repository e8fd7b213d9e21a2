"""Kubernetes: the profile under the real Snakemake and the real plugin, on a pretend API server."""

import json
import os
import re

import pytest
import yaml
from conftest import ROOT
from kubernetes_api import Cluster
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
    return [
        name
        for name, job in list(cluster.jobs.items())
        if '"nvidia.com/gpu"' in json.dumps(job)
        and name in cluster.processes
        and cluster.processes[name].poll() is None
    ]


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
