"""telemetry: what a real job leaves beside its part, and that nothing about it can hurt the job."""

from featuremill import telemetry

GOOD = [(f"good{n}", "MKV" + "A" * n) for n in range(20)]


def file_of(verbs, plan, number=0):
    return verbs.run_folder.telemetry(plan["recipe"], plan["shards"][number]["shard"])


def test_a_run_on_the_cpu_says_how_it_went(verbs):
    plan = verbs.plan(GOOD, "poison", {"batch_seconds": 0.4})
    verbs.extract(plan)
    (attempt,) = telemetry.read(file_of(verbs, plan))
    assert attempt.start["rows"] == 20 and attempt.start["rows_done"] == 0
    last = attempt.samples[-1]
    assert (last["rows_done"], last["rows_failed"], last["cost_left"]) == (20, 0, 0)
    assert attempt.end["status"] == "ok"
    (receipt,) = verbs.receipts(plan)
    assert receipt["telemetry"]["samples"] >= 1
