"""What can be wrong with a run's own files and with weights, and what each verb answers."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from featuremill.store.receipt import Receipt
from featuremill.store.results import Results

GARBAGE = b"\x80\x04\x95\xff\x00PK\x03\x04" + bytes(range(256))


Answer = tuple[int, str]
"""A verb's exit status, and part of its one sentence."""
MENDED: Answer = (0, "")
"""The verb fixes it by itself, without a word of error."""


@dataclass(frozen=True)
class Damage:
    """One kind of damage, done to the first shard's files where it is a shard's; and the answers of
    the verbs that are asked."""

    name: str
    harm: Callable[[Results], object]
    merge: Answer | None = None
    extract: Answer | None = None
    """Of the first shard, without its part."""
    plan: Answer | None = None
    report: Answer | None = None
    seen: str = ""
    """What `status` calls it at a quick look."""
    verified: str = ""
    """What only `status --verify` finds, by this name."""

    @property
    def answers(self):
        """The answers that there are, by verb."""
        asked = {verb: getattr(self, verb) for verb in ("merge", "extract", "plan", "report")}
        return {verb: answer for verb, answer in asked.items() if answer is not None}


def shard_of(run):
    return run.shard(_first(run)[1])


def part_of(run):
    return run.part(*_first(run))


def receipt_of(run):
    return run.receipt(*_first(run))


def log_of(run):
    return run.journal(*_first(run)).with_suffix(".log")


class OfShard(Results):
    """A run of whose shards another one than the first is meant."""

    number: int = 0

    @classmethod
    def numbered(cls, run, number):
        one = cls(run.root)
        one.number = number
        return one


def _first(run):
    receipts = sorted(run.root.glob("receipts/*/*.json"))
    receipt = receipts[run.number if isinstance(run, OfShard) else 0]
    return receipt.parent.name, receipt.stem


Place = Callable[[Results], Path]
Harm = Callable[[Results], object]


def _of_run(name):
    return lambda run: run.root / name


plan_of, last_plan_of = _of_run("plan.json"), _of_run("store/plan.json")
manifest_of, results_of = _of_run("records.parquet"), _of_run("manifest.json")
vectors_of, array_of = _of_run("embeddings.parquet"), _of_run("embeddings.npy")
failed_of, input_of = _of_run("failed.tsv"), _of_run("../../in.fa")


def written(place, content):
    """Return what puts `content` in place of the file."""

    def harm(run):
        path = place(run)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    return harm


def gone(place):
    return lambda run: place(run).unlink()


def cut(place, share=0.6, less=0):
    def harm(run):
        path = place(run)
        os.truncate(path, int(path.stat().st_size * share) - less)

    return harm


def appended(place):
    return lambda run: place(run).write_bytes(place(run).read_bytes() + b"A\n")


def flipped(place, share):
    """Return what changes one bit, at this share of the file's length, and nothing that a quick
    look sees."""

    def harm(run):
        times = place(run).stat()
        content = bytearray(place(run).read_bytes())
        content[int(len(content) * share)] ^= 0x10
        place(run).write_bytes(content)
        os.utime(place(run), ns=(times.st_atime_ns, times.st_mtime_ns))

    return harm


def edited(place, seconds):
    """Return what changes one bit so long after the file was written."""

    def harm(run):
        flipped(place, 0.5)(run)
        later = place(run).stat().st_mtime + seconds
        os.utime(place(run), (later, later))

    return harm


def lies(place, **told):
    """Return what lets a receipt say something else under a good seal."""

    return lambda run: Receipt.read(place(run)).model_copy(update=told).write(place(run))


def moved(place):
    """Return what lets a receipt count one good record as failed, under a good seal."""

    def harm(run):
        found = Receipt.read(place(run))
        lies(place, ok=found.ok - 1, failed=found.failed + 1)(run)

    return harm


def altered(place, **told):
    """Return what lets a receipt say something else under the seal that it has."""

    return lambda run: place(run).write_text(json.dumps(json.loads(place(run).read_text()) | told))


def replaced(place, old, new):
    def harm(run):
        text = place(run).read_text("utf-8")
        assert old in text, (place, old)
        place(run).write_text(text.replace(old, new, 1), "utf-8")

    return harm


def of_another(kind):
    """Return what copies another shard's file over the first one's."""

    def harm(run):
        first, second, *_ = sorted(run.root.glob(kind))
        shutil.copy(second, first)

    return harm


def journal_with(lines):
    return written(log_of, f"featuremill-journal 1 {lines}".encode())


PLAN = "its content is not what was written; delete it and run the same command again"
NO_RECEIPT = (
    "this part is not computed yet; let the run come to its end (featuremill run YOUR.yaml)"
)
RECEIPT = "this receipt is incomplete, or for another part; run the same command again"
PART = "run the same command again to compute it anew"
SHARD = "delete the run's plan.json and run the same command again to have it written anew"
MANIFEST = "does not belong to plan.json; delete both and run it again (featuremill run YOUR.yaml)"
NO_MANIFEST = "it is gone; delete plan.json and run it again (featuremill run YOUR.yaml)"
RESULTS = "delete manifest.json and run the same command again"


_bad_plan = partial(Damage, merge=(4, PLAN))
_bad_manifest = partial(Damage, merge=(4, MANIFEST), seen="records_missing")
_bad_receipt = partial(Damage, merge=(4, RECEIPT), seen="receipt_damaged")
_bad_part = partial(Damage, merge=(4, PART), verified="part_damaged")
_bad_results = partial(Damage, report=(4, PLAN), seen="manifest_damaged")

DAMAGES: list[Damage] = [
    Damage(
        "no plan",
        gone(plan_of),
        merge=(2, "there is no plan yet; make one first (featuremill run YOUR.yaml)"),
        extract=(2, "there is no plan yet"),
    ),
    _bad_plan("empty plan", written(plan_of, b""), extract=(4, PLAN)),
    _bad_plan("plan of zeros", written(plan_of, bytes(900))),
    _bad_plan("plan is a pickle", written(plan_of, GARBAGE)),
    _bad_plan("plan is a list", written(plan_of, b"[]")),
    _bad_plan("plan nested deeply", written(plan_of, b"[" * 99_999)),
    _bad_plan("plan cut", cut(plan_of), extract=(4, PLAN)),
    _bad_plan("plan's recipe", replaced(plan_of, '"recipe": "', '"recipe": "0')),
    _bad_plan("plan's counts", replaced(plan_of, '"input": ', '"input": 1')),
    _bad_plan("plan's key", replaced(plan_of, '"shards"', '"shardz"')),
    _bad_plan("plan's rows", replaced(plan_of, '"records": ', '"records": 1')),
    _bad_plan("plan's notes", replaced(plan_of, '"notes"', '"nots"')),
    _bad_manifest("no manifest", gone(manifest_of), merge=(4, NO_MANIFEST)),
    _bad_manifest("empty manifest", written(manifest_of, b"")),
    _bad_manifest("manifest cut", cut(manifest_of)),
    *(
        _bad_manifest(f"manifest's {where}", flipped(manifest_of, share))
        for where, share in (("first bytes", 0.01), ("pages", 0.3), ("footer", 0.9))
    ),
    Damage("no receipt", gone(receipt_of), merge=(4, NO_RECEIPT)),
    _bad_receipt("empty receipt", written(receipt_of, b"")),
    _bad_receipt("receipt of zeros", written(receipt_of, bytes(100))),
    _bad_receipt("receipt cut", cut(receipt_of)),
    _bad_receipt("receipt is a list", written(receipt_of, b"[1]")),
    _bad_receipt("receipt's seconds", replaced(receipt_of, '"seconds"', '"secondz"')),
    _bad_receipt("receipt's devices", replaced(receipt_of, '"devices"', '"device"')),
    _bad_receipt("receipt's digest", replaced(receipt_of, '"part": "', '"part": "0')),
    _bad_receipt("receipt of another", of_another("receipts/*/*.json")),
    _bad_receipt("receipt altered", altered(receipt_of, ok=3, failed=1)),
    _bad_receipt("another shard, sealed", lies(receipt_of, shard="0" * 32)),
    Damage("another digest, sealed", lies(receipt_of, part="0" * 32), merge=(4, PART)),
    Damage("other counts, sealed", moved(receipt_of), merge=(4, PART)),
    Damage("no part", gone(part_of), merge=(4, PART), seen="part_missing"),
    _bad_part("empty part", written(part_of, b"")),
    _bad_part("part of zeros", written(part_of, bytes(5000))),
    _bad_part("part cut", cut(part_of)),
    _bad_part("part without its end", cut(part_of, 1.0, less=8)),
    _bad_part("part cut by a byte", cut(part_of, 1.0, less=1)),
    _bad_part("part's schema", flipped(part_of, 0.05)),
    _bad_part("part's rows", flipped(part_of, 0.7)),
    _bad_part("part of another", of_another("store/parts/*/*.arrows")),
    Damage("no shard", gone(shard_of), extract=(2, "this shard is gone; run"), plan=MENDED),
    Damage("empty shard", written(shard_of, b""), extract=(4, SHARD), plan=MENDED),
    Damage("shard cut", cut(shard_of), extract=(4, SHARD), plan=MENDED),
    Damage("shard is a pickle", written(shard_of, GARBAGE), extract=(4, SHARD)),
    Damage("shard's payload", flipped(shard_of, 0.5), extract=(4, SHARD)),
    Damage("shard's footer", flipped(shard_of, 0.95), extract=(4, SHARD), plan=MENDED),
    Damage("shard of another", of_another("store/shards/*.arrow"), extract=(4, SHARD)),
    Damage("last plan gone", gone(last_plan_of), plan=MENDED),
    Damage("last plan cut", cut(last_plan_of), plan=MENDED),
    Damage("last plan's key", replaced(last_plan_of, '"shard"', '"shart"'), plan=MENDED),
    Damage("log is a pickle", written(log_of, GARBAGE), extract=MENDED),
    Damage("log with a vast budget", journal_with("9" * 30 + "\n"), extract=MENDED),
    Damage("log without a budget", journal_with("0\n"), extract=MENDED),
    Damage("log of rows that are not", journal_with("9\nbegin 98,99\nstrike 97\n"), extract=MENDED),
    Damage("log that condemns", journal_with("9\nstrike 99\nstrike 99\n"), extract=MENDED),
    Damage("log of bytes that are not", journal_with("9\ncommit 999 00\n"), extract=MENDED),
    Damage(
        "no results", gone(results_of), report=(2, "make them first (featuremill run YOUR.yaml)")
    ),
    _bad_results("empty results", written(results_of, b"")),
    _bad_results("results cut", cut(results_of)),
    _bad_results("results are a list", written(results_of, b"[]")),
    Damage("results' key", replaced(results_of, '"receipts"', '"receiptz"'), report=(4, PLAN)),
    Damage("vectors cut", cut(vectors_of), report=(4, RESULTS), seen="output_damaged"),
    Damage("vectors empty", written(vectors_of, b""), report=(4, RESULTS), seen="output_damaged"),
    Damage("no vectors", gone(vectors_of), report=(4, RESULTS), seen="output_missing"),
    Damage("vectors' middle", flipped(vectors_of, 0.5), seen="output_damaged"),
    Damage("no array", gone(array_of), seen="output_missing"),
    Damage("array with more behind it", appended(array_of), seen="output_damaged"),
    Damage("no failed table", gone(failed_of), report=(4, RESULTS), seen="output_missing"),
    Damage("failed table is a pickle", written(failed_of, GARBAGE), report=(4, RESULTS)),
    Damage("input appended to", appended(input_of), seen="input_changed"),
    Damage("input edited", edited(input_of, 600), seen="input_changed"),
    Damage("input's middle", flipped(input_of, 0.5), seen="input_changed"),
]


def damage_of(name):
    (found,) = (damage for damage in DAMAGES if damage.name == name)
    return found


def config_beside(text):
    """Return a maker of good weights beside a Hugging Face config with this text."""

    def make(folder, good):
        (folder / "config.json").write_bytes(text.encode("latin-1"))
        return weights_of(good)(folder, good)

    return make


def weights_of(content, name="w.safetensors"):
    def make(folder, good):
        path = folder / name
        path.write_bytes(good if content is None else content)
        return path

    return make


def header_with(old, new):
    """Return a maker of safetensors in whose header something stands for something else."""
    assert len(old) == len(new)

    def make(folder, good):
        assert old in good
        return weights_of(good.replace(old, new, 1))(folder, good)

    return make


def first_part(share, name="w.safetensors"):
    return lambda folder, good: weights_of(good[: int(len(good) * share)], name)(folder, good)


TOLD = {
    "": "is not what featuremill weights wrote",
    "[]": "is not what featuremill weights wrote",
    "{" * 99_999: "is not what featuremill weights wrote",
    '{"name": "x"}': "is not what featuremill weights wrote",
    '{"name": "x", "path": "w", "sha256": "", "bytes": 1, "metadata": []}': "is not what feature",
    '{"name": "x", "path": "w", "sha256": "", "bytes": 1, "metadata": '
    '{"num_layers": "x", "embed_dim": "8"}}': "is not what featuremill weights wrote",
    '{"name": "x", "path": "w", "sha256": "", "bytes": 1, "metadata": '
    '{"num_layers": "1", "embed_dim": "8"}}': "its weights w are gone or incomplete",
    '{"seal": "0", "name": "x", "path": "w", "sha256": "", "bytes": 1, "metadata": '
    '{"num_layers": "1", "embed_dim": "8"}}': "is not what featuremill weights wrote",
}
"""Contents of weights/<name>.json that cannot be used, and a part of the answer."""
ESM = {"model_type": "esm", "position_embedding_type": "rotary", "layer_norm_eps": 1e-5}
ESM |= {"token_dropout": True}
WEIGHTS: dict[str, tuple[Callable[[Path, bytes], Path], str]] = {
    "empty": (weights_of(b""), "it is empty"),
    "empty pt": (weights_of(b"", "w.pt"), "it is empty"),
    "web page": (weights_of(b"<!DOCTYPE html><html>", "w.pt"), "it is a web page"),
    "pickle named safetensors": (weights_of(GARBAGE), "it cannot be read safely"),
    "garbage pt": (weights_of(GARBAGE, "w.pt"), "it cannot be read safely"),
    "cut zip": (weights_of(b"PK\x03\x04" + bytes(50), "w.pt"), "it is cut short"),
    "cut": (first_part(0.5), "it cannot be read safely"),
    "cut in its header": (first_part(0.002), "it cannot be read safely"),
    "a byte short": (first_part(0.9999999), "it cannot be read safely"),
    "safetensors named pt": (first_part(1.0, "w.pt"), "it cannot be read safely"),
    "vast header": (weights_of(b"\xff" * 8 + b"{}"), "it cannot be read safely"),
    "header is no JSON": (weights_of((3).to_bytes(8, "little") + b"{{{"), "cannot be read safely"),
    "no tensor": (weights_of((2).to_bytes(8, "little") + b"{}"), "no dictionary of tensors"),
    "renamed tensor": (header_with(b"embed_tokens.weight", b"embed_tokens.wEight"), "no tensor"),
    "number type": (header_with(b'"dtype":"BF16"', b'"dtype":"BF61"'), "cannot be read safely"),
    "missing layer": (header_with(b"layers.3.fc1.bias", b"layerz.3.fc1.bias"), "no tensor"),
    "offsets": (header_with(b'"data_offsets":[0,', b'"data_offsets":[9,'), "cannot be read safely"),
    "config is no JSON": (config_beside("{"), "this config of a model cannot be read"),
    "config nested deeply": (config_beside("[" * 99_999), "this config of a model cannot be read"),
    "config is no text": (config_beside("\xff\xfe"), "this config of a model cannot be read"),
    "config of another": (config_beside(json.dumps({**ESM, "rope_theta": []})), "rope_theta"),
}
"""Makers of weights that are no ESM-2, given good ones, and a part of the answer."""
