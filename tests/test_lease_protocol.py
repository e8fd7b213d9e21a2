"""lease: what the locks on disk mean, between programs and versions.

lease_protocol_1.zip is `featuremill.lease` as it was when docs/lease.md first described protocol 1.
It must never be changed: leases of that version are on users' machines.
"""

import subprocess
from pathlib import Path

import pytest
from leases import Leases, end
from programs import PATIENCE_SECONDS

import featuremill

PROTOCOL_1 = Path(__file__).parent / "lease_protocol_1.zip"
HELD = "1 GPU did not become free in 0 s"
HOLD = """
    import sys
    from featuremill.lease.acquire import lease
    from featuremill.lease.request import Request
    slots, wait = int(sys.argv[1]), float(sys.argv[2]) if sys.argv[2:] else None
    with lease("cuda", Request(slots_per_gpu=slots, wait_seconds=wait)) as held:
        print(held.devices[0].uuid, flush=True)
        input()
"""


@pytest.fixture
def both(gpu_node, environment):
    """Return leases of this version and of the old one on one node of 1 GPU."""
    node = gpu_node(1)
    new = Leases(node, environment)
    old = Leases(node, environment | {"PYTHONPATH": str(PROTOCOL_1)})
    yield new, old
    new.end_all()
    old.end_all()


def hold(old, *arguments):
    process = old.python(HOLD, *map(str, arguments), stdin=subprocess.PIPE)
    assert process.stdout.readline().strip() == old.node.uuids[0], process.stderr.read()
    return process


def refused(old, *arguments):
    """Return what a lease that does not wait says."""
    return old.python(HOLD, *map(str, arguments), "0").communicate(timeout=PATIENCE_SECONDS)[1]


def test_leases_of_the_old_version_and_of_this_one_respect_each_other(both):
    new, old = both
    holder = hold(old, 1)
    for options in ((), ("--slots-per-gpu", 2)):
        assert f"held by process {holder.pid} (" in new("--wait", 0, *options, status=3)[1]
    assert f" {holder.pid} " in new.list()[1]
    end(holder)
    holder = new.hold()
    for slots in (1, 2):
        assert HELD in refused(old, slots)
    end(holder)
    halves = [hold(old, 2), new.hold("--slots-per-gpu", 2)]
    for said in (refused(old, 1), refused(old, 2), refused(old, 4)):
        assert HELD in said
    for options in ((), ("--slots-per-gpu", 2), ("--slots-per-gpu", 4)):
        assert HELD in new("--wait", 0, *options, status=3)[1]
    for half in halves:
        end(half)


def test_they_stand_in_one_queue(both):
    new, old = both
    holder = new.hold()
    first = old.python(HOLD, "1", stdin=subprocess.PIPE)
    new.wait_until_drawn(2)
    second = new.queue(run=["echo", "second"], stdin=subprocess.PIPE)
    third = old.python(HOLD, "1", stdin=subprocess.PIPE)
    new.wait_until_drawn(4)
    end(holder)
    assert first.stdout.readline().strip() == new.node.uuids[0]
    assert second.poll() is None, "the first came before it"
    end(first)
    assert second.communicate(timeout=PATIENCE_SECONDS)[0] == "second\n"
    assert third.stdout.readline().strip() == new.node.uuids[0]
    end(third)


def test_a_folder_of_a_later_protocol_is_refused(both):
    new, _ = both
    new()
    version = new.node.locks / "protocol"
    for known in ("1", "true", "not JSON"):
        version.write_text(known)
        new()
    version.write_text("2")
    said = new(status=2)[1]
    assert "by version 2 of the protocol, and this one has version 1; upgrade it, or" in said


def test_the_source_is_complete_in_itself(both, tmp_path):
    """Under another name it imports nothing of featuremill, and its leases are the same."""
    new, _ = both
    (tmp_path / "elsewhere").symlink_to(Path(featuremill.__file__).parent / "lease")
    code = """
        import pkgutil, sys
        import elsewhere
        for module in pkgutil.iter_modules(elsewhere.__path__):
            __import__(f"elsewhere.{module.name}")
        from elsewhere import Request, lease
        print([name for name in sys.modules if name.startswith("featuremill")], flush=True)
        try:
            with lease("cuda", Request(wait_seconds=0)): print("leased")
        except Exception as error:
            print(error)
    """
    more = {"PYTHONPATH": str(tmp_path)}
    out, err = new.python(code, variables=more).communicate(timeout=PATIENCE_SECONDS)
    assert out == "[]\nleased\n", err
    holder = new.hold()
    out, _ = new.python(code, variables=more).communicate(timeout=PATIENCE_SECONDS)
    assert f"held by process {holder.pid}" in out
    end(holder)
    none = {**more, "CUDA_VISIBLE_DEVICES": ""}
    out, _ = new.python(code, variables=none).communicate(timeout=PATIENCE_SECONDS)
    assert out.endswith("; `nvidia-smi` shows why, or ask for none.\n")
