"""Rows a second of llm_json by how many are computed at once, and how many replies differ then.

    python -m bench.llm_json MODEL --rows 1 4 16 --dtype fp32

MODEL is a folder of a chat model. The notes are made up; a line of JSON for each number of rows.
One thread, and seconds of the processor (of the clock on a GPU), so that other work on the machine
counts little.
"""

import argparse
import csv
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Literal, get_args

Dtype = Literal["fp32", "bf16", "fp16"]

COMPLAINTS = ("headache", "cough", "back pain", "fever", "a rash", "dizziness")
PROMPT = """\
Read this medical note and give the patient's sex, the age in years (null where it is not said), \
the specialty and up to three diagnoses, as JSON.

{{ note }}
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "sex": {"enum": ["female", "male", "unknown"]},
        "age": {"type": ["integer", "null"], "minimum": 0, "maximum": 120},
        "specialty": {"type": "string", "maxLength": 40},
        "diagnoses": {
            "type": "array",
            "items": {"type": "string", "maxLength": 60},
            "maxItems": 3,
        },
    },
    "required": ["sex", "age", "diagnoses"],
    "additionalProperties": False,
}


def write_notes(path: Path, num_notes: int) -> None:
    """Write made-up notes of 30 to 100 words."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "note"])
        for number in range(num_notes):
            who = "woman" if number % 2 else "man"
            said = (
                f"The patient, a {20 + number * 7 % 60} year old {who}, has had "
                f"{COMPLAINTS[number % len(COMPLAINTS)]} for {1 + number * 5 % 23} days. "
            ) * (1 + number % 4)
            ended = "History of hypertension, treated with lisinopril. Seen again in a week."
            table.writerow([f"v{number}", said + ended])


def measured(model: str, rows: int, num_notes: int, dtype: Dtype, is_gpu: bool) -> dict[str, Any]:
    """Return what it takes to reply to all notes, and the replies."""
    import torch

    from featuremill.base.devices import Device, cpu
    from featuremill.workload import plain_weights, weights
    from featuremill.workload.compute import values_of
    from featuremill.workloads import llm_json

    torch.set_num_threads(1)
    device = cpu()
    if is_gpu:
        device = Device("cuda", "GPU-0", torch.cuda.get_device_name(0), has_bf16=True)
    found = weights.weights_of(plain_weights.look(model, False, 1))
    options = llm_json.Options(
        model=model,
        prompt="prompt.jinja",
        json_schema="schema.json",
        max_tokens=120,
        dtype=dtype,
        batch_rows=rows,
    )
    options = llm_json.resolve(options, device, found)
    network = llm_json.load(options, [device], found)
    given = [record.payload for record in llm_json.records([Path("notes.csv")], options)]
    clock = time.perf_counter if is_gpu else time.process_time
    begin = clock()
    replies = values_of(llm_json, network, given[:num_notes], 10**9).to_pylist()
    seconds = clock() - begin
    told = {name: sum(row[name] or 0 for row in replies) for name in ("tokens_in", "tokens_out")}
    return {
        "rows": rows,
        "notes": num_notes,
        "dtype": dtype,
        "device": device.name,
        "seconds": round(seconds, 1),
        "rows_a_second": round(num_notes / seconds, 3),
        **told,
        "valid": sum(row["reason"] is None for row in replies),
        "replies": [row["json"] for row in replies],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="folder of a chat model")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--notes", type=int, default=16)
    parser.add_argument("--dtype", default="fp32", choices=get_args(Dtype))
    parser.add_argument("--gpu", action="store_true")
    arguments = parser.parse_args()
    model = str(Path(arguments.model).absolute())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("prompt.jinja").write_text(PROMPT)
        Path("schema.json").write_text(json.dumps(SCHEMA))
        write_notes(Path("notes.csv"), arguments.notes)
        first = None
        for rows in arguments.rows:
            row = measured(model, rows, arguments.notes, arguments.dtype, arguments.gpu)
            replies = row.pop("replies")
            first = first or replies
            others = sum(one != other for one, other in zip(first, replies, strict=True))
            print(
                json.dumps({**row, f"other_replies_than_{arguments.rows[0]}": others}), flush=True
            )
        os.chdir("/")


if __name__ == "__main__":
    main()
