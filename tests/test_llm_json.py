"""The workload llm_json: prompts, schemas, what is decoded under them, and who sees a text."""

import csv
import gc
import inspect
import json
import os
import re
import shutil
import signal
import sys
import tarfile
import time
import types
from pathlib import Path
from types import MappingProxyType
from unittest import mock

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
import yaml
from bench.llm_json import PROMPT, SCHEMA
from conftest import ROOT
from decoder_models import NETWORKS, write
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from programs import Desk, edit_json, run_example, wait_for, working_in
from pypi import fetched
from real_llm import smollm2
from safetensors.torch import load_file, save_file

from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.base.reasons import kind_of
from featuremill.contract import WorkloadContract
from featuremill.workload import Device, RecordFailed, Weights, find_workload
from featuremill.workload.compute import values_of
from featuremill.workload.outputs import Target, open_writer
from featuremill.workloads.llm_json import engines, prompts, replies, rows_jsonl, slots

llm_json = find_workload("llm_json")  # and so its reasons are known
EXAMPLES = ROOT / "config" / "examples"
CPU = cpu()
GPU = Device("cuda", "GPU-0", "an H200", has_bf16=True, num_multiprocessors=132)
MEDCAT = "eb154f10479c3a31c7641283811a1616b446985fff91858ad2b890804a54519f"
MEDCAT_NOTES = "tests/resources/medcat_trainer_export.json"
EXAMPLE = MappingProxyType(
    {"model": "model", "prompt": "prompt.jinja", "json_schema": "schema.json", "dtype": "fp32"}
)
MARKER = "Zwiebelfisch"
"""A word that nobody else writes."""


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Return the folder that the example's script writes."""
    folder = tmp_path_factory.mktemp("example") / "random_llm"
    run_example("llm_json", folder)
    return folder


@pytest.fixture
def place(example, tmp_path, monkeypatch):
    """Return a folder of its own with all of that but the model, which it finds."""
    shutil.copytree(example, tmp_path, ignore=shutil.ignore_patterns("model"), dirs_exist_ok=True)
    (tmp_path / "model").symlink_to(example / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(**options):
    """Return the options of the example with other ones."""
    return llm_json.Options.model_validate({**EXAMPLE, "max_tokens": 128, **options})


def loaded(device=CPU, num_devices=1, **options):
    wanted = asked(**options)
    found = Weights("model", Path(wanted.model).resolve(), "", {})
    resolved = llm_json.resolve(wanted, device, found)
    return llm_json.load(resolved, [device] * num_devices, found)


def computed(model, given, budget=1):
    return values_of(llm_json, model, given, budget)


def schema_of(place, **properties):
    """Have a schema with these properties, all of them required."""
    (place / "schema.json").write_text(json.dumps(object_of(**properties)))


def payloads(*inputs):
    records = llm_json.records([ROOT / path for path in inputs], asked())
    return [record.payload for record in records]


# What is decoded


def object_of(required=True, **properties):
    """Return the schema of an object with these properties alone, all of them required or none."""
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": list(properties)} if required else {})


DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
FEW = {"type": "array", "items": object_of(n=DIGIT), "maxItems": 2}
SCHEMAS = {
    "texts": object_of(
        name={"type": "string", "minLength": 2, "maxLength": 8},
        code={"type": "string", "pattern": "^[A-Z]{2}[0-9]{1,3}$"},
        day={"type": "string", "format": "date"},
    ),
    "enums": object_of(
        one={"enum": ["yes", "no", "unknown"]},
        mixed={"enum": ["a", 1, None, True]},
        fixed={"const": {"a": [1, 2]}},
    ),
    "bounds": object_of(
        age={"type": "integer", "minimum": 18, "maximum": 99},
        below={"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 0},
        share={"type": "number", "minimum": 0, "maximum": 1},
        even={"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": 2},
    ),
    "arrays": object_of(
        three={"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3},
        few=FEW,
    ),
    "optional fields": {
        **object_of(
            required=False,
            a={"type": "boolean"},
            b={**DIGIT, "type": ["integer", "null"]},
            c={"$ref": "#/$defs/grade"},
            d={"anyOf": [{"type": "null"}, {"enum": ["x", "y"]}]},
        ),
        "$defs": {"grade": {"enum": ["low", "high"]}},
    },
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_reply_that_is_accepted_is_valid(place, name):
    """Drawn at a temperature from a random model, for which no reply is likely."""
    schema = SCHEMAS[name]
    (place / "schema.json").write_text(json.dumps(schema))
    model = loaded(temperature=1.5, attempts=3)
    values = computed(model, payloads(place / "notes.csv")[:8])
    rows = [row for row in values.to_pylist() if row["reason"] is None]
    types = replies.types_of(schema)
    assert len(rows) >= 6 and len({row["json"] for row in rows}) > 1
    for row in rows:
        reply = json.loads(row["json"])
        jsonschema.validate(reply, schema, jsonschema.Draft202012Validator)
        for field, value in reply.items():
            found = row["fields"][field]
            is_json = types[field] is None and found is not None
            assert (json.loads(found) if is_json else found) == value
        assert row["fields"].keys() >= reply.keys() and row["finish"] == "stop"
        assert 1 <= row["attempts"] <= 3 and row["tokens_out"] > 1


def test_a_reply_has_the_likeliest_tokens_by_a_network_that_keeps_nothing(place):
    """With no cache."""
    model = loaded()
    (first, *_) = payloads(place / "notes.csv")
    (row,) = computed(model, [first]).to_pylist()
    (one,) = llm_json.prepare(model, [first], 1)
    assert row["json"] == reply_without_state(model, one)
    assert row["tokens_in"] == len(one.tokens)


def reply_without_state(model, one):
    """Return the likeliest reply, each token of it anew from the whole text before it."""
    engine = model.engine
    matcher = LLMatcher(engine._words, replies.grammar(replies.read("schema.json")))
    tokens = list(one.tokens)
    while not matcher.is_stopped():
        with torch.inference_mode():
            logits = engine._network(torch.tensor([tokens])).logits[0, -1]
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[: len(logits)]
        tokens.append(max(np.flatnonzero(allowed), key=lambda token: logits[token]).item())
        assert matcher.consume_token(tokens[-1])
    return model.tokenizer.decode(tokens[len(one.tokens) :], skip_special_tokens=True)


DRAWN = {"temperature": 1.0, "attempts": 2, "seed": 5}


@pytest.mark.parametrize("options", [{}, DRAWN])
def test_a_reply_depends_on_its_row_alone(place, options):
    model = loaded(**options)
    given = list(dict.fromkeys(payloads(place / "notes.csv")))[:8]
    together = computed(model, given, 10_000)
    assert computed(model, given[::-1]).to_pylist() == together.to_pylist()[::-1]
    for row in (0, 5):
        assert computed(model, [given[row]]).equals(together.slice(row, 1))
    again = computed(loaded(**options), given[:2])
    assert again.equals(together.slice(0, 2))


@pytest.mark.parametrize("options", [{}, DRAWN])
def test_rows_at_once_get_the_replies_that_they_get_alone(place, options):
    """Of any number of slots: rows end at different tokens, and others take their place."""
    given = payloads(place / "notes.csv")
    alone = computed(loaded(batch_rows=1, **options), given)
    assert len({*alone["tokens_out"].to_pylist()}) > 1
    for num_rows in (2, 3, 16):
        model = loaded(batch_rows=num_rows, **options)
        assert not model.engine._has_one_row
        assert computed(model, given, 10**9).equals(alone)


def test_what_prompts_begin_with_is_computed_once(place, monkeypatch):
    text = "Read the note of a visit, and say in the words of a physician what it is about. "
    (place / "prompt.jinja").write_text(text + "{{ note }}")
    given = payloads(place / "notes.csv")[:5]
    alone = computed(loaded(batch_rows=1), given)
    model = loaded(batch_rows=4)
    begun = model.engine._prefix.tokens
    assert len(begun) > 16 and text[:40] in model.tokenizer.decode(begun)
    seen, prefill = [], slots.prefill
    monkeypatch.setattr(
        slots, "prefill", lambda *given: seen.append(len(given[1])) or prefill(*given)
    )
    assert computed(model, given, 10**9).equals(alone)
    lengths = alone["tokens_in"].to_pylist()
    assert sorted(seen) == sorted(length - len(begun) for length in lengths)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_of_several_rows_is_that_of_each_alone(tmp_path, name):
    """Windows, scaled rotations and bent scores included; filling is never seen."""
    network = transformers.AutoModelForCausalLM.from_pretrained(write(tmp_path, name)).eval()
    rows = [[5, 6, 7], [9] * 30, [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]]
    with torch.inference_mode():
        assert slots.supports(network, 128)
        begun = slots.prefix_of(network, [9] * 20)
        several = slots.Slots(network, 3, 40, begun)
        for slot, row in enumerate(rows):
            several.start(slot, row)
        several.free(0)
        rows = [rows[2], rows[1]]
        several.start(2, rows[0][:4])
        rows.append(rows[0][:4])
        for number in range(8):
            found = several.step([30 + number] * 3)
            rows = [[*row, 30 + number] for row in rows]
            for ours, row in zip(found, rows, strict=True):
                logits = network(torch.tensor([row])).logits[0, -1]
                assert float((ours - logits).norm() / logits.norm()) <= 1e-5


KEPT = {
    "mistral": "several rows at once",
    "gemma2": "several rows at once",
    "gemma3_text": "several rows at once",
    "bloom": "past_key_values",
    "jamba": "past_key_values",
    "mamba": "cache_params",
    "recurrent_gemma": "",
}


@pytest.mark.parametrize("name", KEPT)
def test_any_network_replies_what_it_does_where_it_keeps_nothing(place, caplog, name):
    """Windows are of 8 tokens, and prompts longer. A network whose state is not keys and values
    alone computes one row at a time, and one that keeps nothing of use the whole text."""
    write(place / "other", name)
    schema_of(place, sure={"type": "boolean"}, word={"type": "string", "maxLength": 12})
    given = payloads(place / "notes.csv")[:3]
    found = {}
    for rows in (1, 3):
        more = {"chat": False, "batch_rows": rows, "context": 512, "max_tokens": 120}
        model = loaded(model="other", **more)
        found[rows] = computed(model, given, 10**9).to_pylist()
    assert found[1] == found[3] and all(row["reason"] is None for row in found[1])
    for asked_one, row in zip(llm_json.prepare(model, given, 1), found[1], strict=True):
        assert reply_without_state(model, asked_one) == row["json"]
    engine = model.engine
    kept = KEPT[name]
    if kept in slots.STATES and "cache" in inspect.signature(engine._network.forward).parameters:
        kept = "cache"  # of transformers 5.24 and newer
    assert kept == (engine._state_name if engine._has_one_row else "several rows at once")
    assert ("keeps nothing of a text" in caplog.text) == (KEPT[name] == "")


def test_a_long_row_never_changes_the_rotation_of_a_short_one(tmp_path):
    """Phi-3's changes for the whole batch where one row has more than 4,096 tokens."""
    network = transformers.AutoModelForCausalLM.from_pretrained(write(tmp_path, "phi3")).eval()
    with torch.inference_mode():
        assert slots.supports(network, 256)
        assert not slots.supports(network, 257)


def test_keys_and_values_end_with_their_batch(place):
    model = loaded(batch_rows=2)
    asked = llm_json.prepare(model, payloads(place / "notes.csv")[:3], 1)
    gc.collect()
    gc.disable()
    try:
        model.engine.replies(asked, 1)
        assert not [each for each in gc.get_objects() if isinstance(each, slots.Slots)]
    finally:
        gc.enable()


def test_another_seed_draws_others(place):
    given = payloads(place / "notes.csv")[:3]
    one, two = (computed(loaded(temperature=1.0, seed=seed), given)["json"] for seed in (1, 2))
    assert one != two


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    logits=st.lists(st.floats(-5, 5), min_size=2, max_size=12),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
    data=st.data(),
)
def test_tokens_are_drawn_as_often_as_the_softmax_says(logits, temperature, data):
    allowed = data.draw(st.lists(st.booleans(), min_size=len(logits), max_size=len(logits)))
    allowed = np.array(allowed)
    allowed[0] = True
    tensor = torch.tensor(logits)
    expected = np.where(allowed, np.exp(tensor.numpy().astype(float) / temperature), 0)
    expected /= expected.sum()
    numbers = [(2 * n + 1) * 2**53 for n in range(1024)]
    rows = tensor.expand(len(numbers), -1), np.tile(allowed, (len(numbers), 1))
    drawn = engines._chosen(*rows, temperature, numbers)
    shares = np.bincount(drawn, minlength=len(logits)) / len(numbers)
    assert np.abs(shares - expected).max() <= 2 / len(numbers)
    (likeliest,) = engines._chosen(tensor[None], allowed[None], 0, [0])
    assert likeliest == np.argmax(np.where(allowed, tensor.numpy(), -np.inf))


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_network_that_overflows_gives_no_reply(temperature, wrong):
    with pytest.raises(RecordFailed, match="dtype: fp32") as failed:
        engines._chosen(torch.tensor([[1.0, wrong]]), np.array([[True, True]]), temperature, [0])
    assert failed.value.kind.name == "nan"


def test_what_is_drawn_is_keyed_by_each_of_its_parts():
    keys = [(0, b"a", 1, 0), (1, b"a", 1, 0), (0, b"b", 1, 0), (0, b"a", 2, 0), (0, b"a", 1, 1)]
    found = {engines.random_bits(seed, sha, attempt, token) for seed, sha, attempt, token in keys}
    assert len(found) == len(keys) and all(0 <= number < 2**64 for number in found)


# Rows without values


def reasons_of(model, *texts):
    return computed(model, [text.encode() for text in texts])["reason"].to_pylist()


def test_a_reply_that_is_cut_off_or_invalid_and_a_prompt_that_is_too_long_have_reasons(place):
    (cut,) = reasons_of(loaded(max_tokens=5), MARKER)
    assert cut == "reply cut off: after 5 tokens"
    (cut,) = reasons_of(loaded(max_tokens=5, temperature=1, attempts=2), MARKER)
    assert cut == "reply cut off: after 5 tokens (2 attempts)"
    fine, long = reasons_of(loaded(context=300), MARKER, MARKER * 200)
    assert fine is None
    assert long.startswith("prompt too long: ") and "context of 300 has 172" in long
    schema_of(place, number={"const": 10**20})
    (invalid,) = reasons_of(loaded(), MARKER)
    assert invalid == "reply not valid: an integer of more than 64 bits"
    told = [kind_of(reason).name for reason in (cut, long, invalid)]
    assert told == ["cut_off", "prompt_too_long", "invalid"]


def test_a_prompt_may_take_all_that_the_reply_leaves_of_the_context_and_no_token_more(place):
    schema_of(place, number={"const": 1})
    model = loaded(context=300)
    (asked,) = llm_json.prepare(model, [(MARKER * 9).encode()], 1)
    found = []
    for less in (0, 1):
        context = len(asked.tokens) + model.options.max_tokens - less
        options = model.options.model_copy(update={"context": context})
        found += reasons_of(model._replace(options=options), MARKER * 9)
    assert found[0] is None and found[1].startswith("prompt too long: ")


def test_a_reply_is_validated_though_it_was_decoded_under_the_grammar(place, monkeypatch):
    other = object_of(complaint={"const": MARKER})
    (place / "other.json").write_text(json.dumps(other))
    grammar = replies.grammar(replies.read("other.json"))
    monkeypatch.setattr(replies, "grammar", lambda schema: grammar)
    for reason in reasons_of(loaded(temperature=1, attempts=2), "one", "two", "three"):
        assert reason.startswith("reply not valid: by the schema's ") and MARKER not in reason


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1', "no JSON"),
        ('{"a": NaN}', "no JSON"),
        ('{"a": 1e999}', "a number of more than 64 bits"),
        ('{"a": "\\ud800"}', "half of a surrogate pair"),
        ("[" * 100_000, "nested too deeply"),
        ('{"b": 1}', "by the schema's required"),
        ('{"a": -1}', "by the schema's properties/a/minimum"),
        ('{"a": 9223372036854775808}', "an integer of more than 64 bits"),
    ],
)
def test_what_is_wrong_with_a_reply_is_told_by_the_schema(text, why):
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}}
    with pytest.raises(replies.NotValid, match=f"^{why}$"):
        replies.reader({**schema, "required": ["a"]}).fields(text)


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        ({"type": "number", "multipleOf": 0.1}, ["0.3", "0.6", "0.7", "3", "1e3"], ["0.35"]),
        ({"type": "number", "multipleOf": 3}, ["-6", "9.0", "1.2e1"], ["10", "9.5"]),
        ({"type": "string", "pattern": r"^\p{L}+$"}, ['"Ärzte"', '"名前"'], ['"a1"', '""']),
        ({"$ref": "https://here/s#/$defs/a"}, ["1"], ['"1"']),
    ],
)
def test_numbers_patterns_and_references_mean_what_the_schema_says(tmp_path, part, good, bad):
    schema = {"$id": "https://here/s", "type": "object", "properties": {"a": part}}
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({**schema, "$defs": {"a": {"type": "integer"}}}))
    read = replies.read(str(path))
    replies.refuse_wrong(read, str(path))
    reader = replies.reader(read)
    for text in good:
        assert reader.fields(f'{{"a": {text}}}')["a"] == json.loads(text)
    for text in bad:
        with pytest.raises(replies.NotValid):
            reader.fields(f'{{"a": {text}}}')


NULLABLE = [
    {"type": "string", "nullable": True},
    {"enum": ["x", "y"], "nullable": True},
    {"$ref": "#/$defs/text", "nullable": True},
    {"type": "array", "items": {"type": "string", "nullable": True}, "nullable": True},
    {"type": "object", "properties": {"nullable": {"type": "null"}}, "nullable": True},
]


@pytest.mark.parametrize("part", NULLABLE)
def test_what_is_nullable_may_be_null(place, part):
    schema = {"type": "object", "properties": {"a": part, "nullable": {"type": "string"}}}
    defs = {"text": {"type": "string", "nullable": False}}
    (place / "schema.json").write_text(json.dumps({**schema, "$defs": defs}))
    read = replies.read("schema.json")
    replies.refuse_wrong(read, "schema.json")
    reader = replies.reader(read)
    assert reader.fields('{"a": null}')["a"] is None
    for text in ('{"nullable": null}', '{"a": 3}'):
        with pytest.raises(replies.NotValid):
            reader.fields(text)
    model = loaded()
    matcher = LLMatcher(model.engine._words, replies.grammar(read))
    assert matcher.try_consume_tokens(model.tokenizer('{"a": null}')["input_ids"]) > 5


def test_a_list_that_is_nullable_is_a_column_of_lists(place):
    schema_of(place, a=NULLABLE[3], b=NULLABLE[0])
    fields = llm_json.schema(asked(), None).field("fields").type
    assert fields == pa.struct({"a": pa.list_(pa.string()), "b": pa.string()})


@pytest.mark.parametrize(
    "wrap",
    [
        lambda schema: {"name": "visit", "strict": True, "schema": schema},
        lambda schema: {"type": "json_schema", "json_schema": {"name": "v", "schema": schema}},
    ],
)
def test_a_schema_in_openai_s_wrapper_is_that_schema(place, wrap):
    plain = replies.read("schema.json")
    told = wrap(json.loads((place / "schema.json").read_text()))
    (place / "wrapped.json").write_text(json.dumps(told))
    assert replies.read("wrapped.json") == plain


def test_a_discriminator_is_a_note(place):
    kinds = [object_of(kind={"const": name}) for name in "xy"]
    discriminator = {"propertyName": "kind", "mapping": {"x": "#/$defs/x"}}
    schema_of(place, a={"oneOf": kinds, "discriminator": discriminator})
    replies.refuse_wrong(replies.read("schema.json"), "schema.json")


def test_a_row_with_an_empty_required_column_is_refused_without_a_prompt(place):
    (place / "some.csv").write_text('id,note,age\na,fine,3\nb,  ,3\nc,"",4\nd,well,\n')
    options = asked(required_columns=["note", "age"])
    found = list(llm_json.records([place / "some.csv"], options))
    empty = [llm_json.REFUSED.reason(f"the column '{name}' is empty") for name in ("note", "age")]
    assert [record.reason for record in found] == ["", empty[0], *empty]
    assert found[0].payload == next(iter(llm_json.records([place / "some.csv"], asked()))).payload


@pytest.mark.parametrize(
    "word", ["NA", "NaN", "null", "NULL", "None", "n/a", "#N/A", "<NA>", "nAn"]
)
def test_a_word_for_a_missing_value_in_a_required_column_is_no_note(place, word):
    (place / "some.csv").write_text(f'"id","note"\n"a",{word}\n"b","the name is {word}"\n')
    missing, note = llm_json.records([place / "some.csv"], asked(required_columns=["note"]))
    assert missing.payload == b"" and missing.reason == llm_json.REFUSED.reason(
        f"the column 'note' has {word!r}, a word for a missing value"
    )
    assert note.reason == "" and f"the name is {word}" in note.payload.decode()


def test_more_attempts_accept_more_rows(place):
    schema_of(place, word={"type": "string", "pattern": "^[a-z]*$"})
    given = [str(number) for number in range(12)]
    more = {"temperature": 1.0, "max_tokens": 16}
    once = reasons_of(loaded(**more), *given)
    values = computed(loaded(attempts=6, **more), [text.encode() for text in given])
    assert values["reason"].null_count > once.count(None)
    assert {1, 2} <= set(values["attempts"].drop_null().to_pylist())


def test_of_an_error_nothing_is_told_but_its_class_and_place(place, monkeypatch):
    model = loaded()

    def stumble(*_):
        raise ValueError(MARKER)

    monkeypatch.setattr(model.engine, "_choose", stumble)
    with pytest.raises(RuntimeError) as raised:
        computed(model, [b"a"])
    assert MARKER not in str(raised.value) and "ValueError in stumble (test_" in str(raised.value)
    assert raised.value.__suppress_context__
    short = mock.Mock(side_effect=torch.OutOfMemoryError("out of memory"))
    monkeypatch.setattr(model.engine, "_choose", short)
    with pytest.raises(torch.OutOfMemoryError):  # the core makes batches smaller for it
        computed(model, [b"a"])


# Prompts


def records_of(place, template, rows):
    (place / "prompt.jinja").write_text(template, "utf-8")
    with (place / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return list(llm_json.records([place / "rows.csv"], asked()))


def payloads_with(place, template, *rows):
    return [record.payload for record in records_of(place, template, rows)]


def test_a_prompt_is_rendered_from_the_columns_that_it_names(place):
    template = '{{ note | upper }} {{ row["Age (years)"] }}{% if sex %}, {{ sex }}{% endif %}'
    rows = [
        {"id": "a", "note": "x", "Age (years)": "7", "sex": "f", "other": "1"},
        {"id": "b", "note": "x", "Age (years)": "7", "sex": "f", "other": "2"},
        {"id": "c", "note": "y", "Age (years)": "8", "sex": "", "other": "3"},
    ]
    found = records_of(place, template, rows)
    assert prompts.read("prompt.jinja").columns == ["Age (years)", "note", "sex"]
    assert [record.payload for record in found] == [b"X 7, f", b"X 7, f", b"Y 8"]
    assert [record.length for record in found] == [6, 6, 3]


NAMES_OF_JINJA = ("range", "dict", "namespace", "cycler", "joiner", "lipsum", "loop", "caller")


@pytest.mark.parametrize("name", NAMES_OF_JINJA)
def test_a_column_with_a_name_of_jinja_is_the_column(place, name):
    template = f"{{{{ test }}}}: {{{{ {name} }}}}{{% if {name} %}}!{{% endif %}}"
    rows = [{"id": "a", "test": "sodium", name: "135-145"}, {"id": "b", "test": "x", name: "3"}]
    assert payloads_with(place, template, *rows) == [b"sodium: 135-145!", b"x: 3!"]
    assert payloads_with(place, f"{{{{ {name} }}}}", *rows) == [b"135-145", b"3"]


def test_a_function_of_jinja_that_is_called_is_that_function(place):
    template = '{% for i in range(2) %}{{ i }}{% endfor %}{{ dict(a=note).a }} {{ row["range"] }}'
    assert payloads_with(place, template, {"id": "a", "note": "x", "range": "7"}) == [b"01x 7"]
    assert prompts.read("prompt.jinja").columns == ["note", "range"]
    without = "{% block a %}{{ note }}{% endblock %}{{ self.a() }}{{ range(2) | list }}"
    assert payloads_with(place, without, {"id": "a", "note": "x"}) == [b"xx[0, 1]"]


@pytest.mark.parametrize(
    "template",
    [
        *("{{ note.upper }}", "{{ note | map('upper') }}", "{{ 'a' ~ note.upper }}"),
        *("{{ [note.upper] }}", "{{ note.upper | upper }}", "{{ note.upper | e }}"),
    ],
)
def test_no_object_stands_in_a_prompt(place, template):
    with pytest.raises(UserError, match="an object of Python would stand in the prompt") as error:
        records_of(place, template, [{"id": "a", "note": MARKER}])
    assert str(error.value).startswith("options.prompt: prompt.jinja: ")
    assert "0x" not in str(error.value) and MARKER not in str(error.value)


def test_a_text_about_an_object_is_a_text(place):
    text = "it says <object object at 0x7f00>"
    assert payloads_with(place, "{{ note }}", {"id": "a", "note": text}) == [text.encode()]


@pytest.mark.parametrize(
    "template",
    [
        *("{{ note.nothing }}", "{{ note + 1 }}", "{{ note.__class__ }}", " {{ note[9:] }} "),
        "{{ {'a': 1}[note] }}",  # its error quotes the text
    ],
)
def test_a_row_for_which_there_is_no_prompt_is_refused_without_its_text(place, template):
    (record,) = records_of(place, template, [{"id": "a", "note": MARKER[:9]}])
    assert kind_of(record.reason) is llm_json.REFUSED and record.payload == b""
    assert MARKER[:9] not in record.reason


def test_control_tokens_in_a_text_are_text(place):
    for chat in (True, False):
        model = loaded(chat=chat)
        end = model.tokenizer.eos_token_id
        plain, sly = (
            llm_json.prepare(model, [text.encode()], 1)[0].tokens.count(end)
            for text in ("a note", "a note<|end|>")
        )
        assert plain == sly


def in_chat(place, template, **files):
    """Have a model with this chat template, and perhaps other files of it; return its folder."""
    shutil.copytree(place / "model", place / "talks", dirs_exist_ok=True)
    (place / "talks" / "chat_template.jinja").unlink(missing_ok=True)
    if template:
        (place / "talks" / "chat_template.jinja").write_text(template)
    for name, content in files.items():
        path = place / "talks" / f"{name}.json"
        path.write_text(path.read_text() if path.exists() else "{}")
        edit_json(path, **content)
    return place / "talks"


def prompt_of(folder, text):
    """Return what the model at `folder` is asked for a prompt."""
    model = loaded(model=str(folder))
    (one,) = llm_json.prepare(model, [text.encode()], 1)
    return model.tokenizer.decode(one.tokens)


TURN = "{% for m in messages %}{{ m['role'] }}: "
SAYS = TURN + "{{ m['content'] }};{% endfor %}"
IN_PARTS = TURN + (
    "{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %};{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "files"),
    [
        (IN_PARTS, {}),
        (SAYS, {}),
        ("", {"chat_template": {"chat_template": SAYS}}),
        ("", {"tokenizer_config": {"chat_template": IN_PARTS}}),
        ("", {"tokenizer_config": {"chat_template": [
            {"name": "rag", "template": "{{ 1 / 0 }}"}, {"name": "default", "template": SAYS}]}}),
        (SAYS, {"chat_template": {"chat_template": "{{ 1 / 0 }}"}}),
    ],
)  # fmt: skip
def test_the_text_comes_out_of_a_chat_template_wherever_it_is_and_whatever_it_wants(
    place, template, files
):
    folder = in_chat(place, template, **files)
    for text in ("fever for three days", "a {{ b }} <|end|>"):
        assert prompt_of(folder, text) == f"user: {text};"


@pytest.mark.parametrize(
    ("end", "becomes"),
    [
        ("<think>\n", "<think>\n\n</think>\n\n"),
        ("<seed:think>", "<seed:think>\n</seed:think>\n\n"),
        ("{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
         "{% endif %}", "<think>\n\n</think>\n\n"),
        ("<think>\nNo.</think>", "<think>\nNo.</think>"),
    ],
)  # fmt: skip
def test_a_reply_begins_behind_the_thinking_of_a_template(place, end, becomes):
    template = f"{SAYS}{{% if add_generation_prompt %}}assistant: {end}{{% endif %}}"
    prompt = prompt_of(in_chat(place, template), "x <think>")
    assert prompt == f"user: x <think>;assistant: {becomes}"


def test_a_chat_template_that_asks_for_the_day_gets_the_same_one_for_ever(place):
    template = "{{ strftime_now('%d %b %Y') }}: {{ messages[0]['content'] }}"
    assert prompt_of(in_chat(place, template), "x") == "01 Jan 2025: x"


# Columns


def test_fields_have_the_types_of_the_schema(place):
    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "share": {"type": ["number", "null"]},
            "yes": {"const": True},
            "kind": {"$ref": "#/$defs/a~1b"},
            "days": {"type": "array", "items": {"type": "integer"}},
            "maybe": {"anyOf": [{"$ref": "#/$defs/a~1b"}, {"type": "null"}]},
            "people": {"type": "array", "items": {"type": "object"}},
            "either": {"type": ["string", "integer"]},
            "any": {},
            "round": {"$ref": "#/properties/round"},
        },
        "$defs": {"a/b": {"enum": ["x", "y", None]}},
    }
    text = pa.string()
    types = replies.types_of(schema)
    found = {name: text if kind is None else kind for name, kind in types.items()}
    assert found == {
        "text": text,
        "count": pa.int64(),
        "share": pa.float64(),
        "yes": pa.bool_(),
        "kind": text,
        "days": pa.list_(pa.int64()),
        "maybe": text,
        **dict.fromkeys(("people", "either", "any", "round"), text),
    }
    reply = (
        '{"text": "a", "count": 2.0, "share": 1, "days": [1], "people": [{"ä": 1}], "either": 3}'
    )
    fields = replies.reader(schema).fields(reply)
    assert fields | {"count": 2, "share": 1.0} == fields
    assert fields["people"] == '[{"ä": 1}]' and fields["either"] == "3" and fields["any"] is None
    type_ = pa.struct(found)
    assert pa.array([fields], type_).to_pylist() == [fields]


# What cannot be


def without(name):
    def change(place):
        shutil.copytree(place / "model", place / "bare")
        (place / "bare" / name).unlink()

    return change


no_template = without("chat_template.jinja")


def wrong(name, text):
    def change(place):
        (place / name).write_text(text if isinstance(text, str) else json.dumps(text))

    return change


def with_property(part):
    return wrong("schema.json", {"type": "object", "properties": {"a": part}})


BARE = MappingProxyType({"model": "bare"})
TALKS = {"model": "talks"}
WRONG = {
    "a column that is not there": (
        wrong("prompt.jinja", "{{ note }} {{ age }}"), {},
        "notes.csv: there is no column 'age', which this workload reads; it has 'id', 'note'"),
    "no Jinja": (
        wrong("prompt.jinja", "a\n{{ note }"), {}, "options.prompt: prompt.jinja:2: unexpected"),
    "no column": (wrong("prompt.jinja", "Hello"), {}, "names no column"),
    "another file": (
        wrong("prompt.jinja", "{% include 'x' %}{{ a }}"), {}, "includes another file"),
    "the whole row": (wrong("prompt.jinja", "{{ row }}"), {}, "row stands in it as more than"),
    "a column and a function": (
        wrong("prompt.jinja", "{{ note }}{{ range }}{{ range(3) }}"), {},
        'range is also a name of Jinja\'s own; write {{ row["range"] }} for the column'),
    "a column that Jinja hides": (
        wrong("prompt.jinja", "{{ self }}"), {}, 'write {{ row["self"] }} for the column'),
    "chance": (wrong("prompt.jinja", "{{ note | random }}"), {}, "No filter named 'random'"),
    "no JSON": (
        wrong("schema.json", '{\n"type": }'), {}, "options.json_schema: schema.json:2: this is no"),
    "no object": (wrong("schema.json", {"type": "array"}), {}, "its top level has to be"),
    "a reference": (with_property({"$ref": "other.json#/x"}), {}, "it refers to 'other.json#/x'"),
    "another grammar": (
        with_property({"type": "string", "x-guidance": {}}), {}, "x-guidance would change how"),
    "a misspelt keyword": (
        with_property({"type": "string", "maxLenght": 3}), {},
        "schema.json: 'maxLenght' is no keyword of JSON Schema and would have no effect; did you "
        "mean 'maxLength'?"),
    "nullable of another type": (
        with_property({"type": "string", "nullable": "yes"}), {},
        'schema.json: nullable: "yes" is neither true nor false'),
    "nullable at the top": (
        wrong("schema.json", {"type": "object", "properties": {"a": {}}, "nullable": True}), {},
        "nullable: true at its top level allows a reply without any property"),
    "a large bound": (
        with_property({"type": "integer", "minimum": 2**53 + 1}), {},
        "minimum: 9007199254740993 is beyond 2^53"),
    "no pattern": (
        with_property({"type": "string", "pattern": "("}), {}, "pattern: '(' is no regular"),
    "no schema": (with_property({"type": "strin"}), {}, "this is no JSON schema, at properties/a"),
    "no keyword of llguidance": (
        with_property({"type": "array", "uniqueItems": True}), {},
        'schema.json: llguidance cannot hold a model to it (Unimplemented keys: ["uniqueItems"])'),
    "no chat template": (no_template, BARE, "bare: this model has no chat template"),
    "a template without the text": (
        lambda place: in_chat(place, "{{ messages[0]['role'] }}"), TALKS,
        "talks: the text of a message comes out of its chat template 0 times, and not once; give"),
    "a template with the text twice": (
        lambda place: in_chat(place, SAYS * 2), TALKS, "comes out of its chat template 2 times"),
    "a template that raises": (
        lambda place: in_chat(place, "{{ raise_exception('The system speaks first.') }}"), TALKS,
        "does not take one message of a user (The system speaks first); give another model"),
    "a template that is none": (
        lambda place: in_chat(place, "{% for m in messages %}"), TALKS, "(Unexpected end of templ"),
    "several templates": (
        lambda place: in_chat(place, "", tokenizer_config={"chat_template": [
            {"name": name, "template": SAYS} for name in ("tool_use", "rag")]}), TALKS,
        "several chat templates (rag, tool_use), none of them called default; save the right one"),
    "no config": (without("config.json"), BARE, "config.json: there is no such file"),
    "too many positions": (
        lambda _: None, {"context": 2000}, "options.context: this model has positions for 1,024"),
    "no room": (lambda _: None, {"context": 128}, "options.max_tokens: 128 leave no space"),
    "quantised on a CPU": (lambda _: None, {"quantize": "4bit"}, "options.quantize: 4bit computes"),
    "vllm on a CPU": (lambda _: None, {"engine": "vllm"}, "options.engine: vllm computes on an"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_sentence_that_says_where(place, name):
    change, options, says = WRONG[name]
    change(place)
    with pytest.raises(UserError) as raised:
        wanted = asked(**options)
        llm_json.resolve(wanted, CPU, Weights("model", Path(wanted.model).resolve(), "", {}))
        list(llm_json.records([place / "notes.csv"], wanted))
    said = str(raised.value)
    assert says in said and "\n" not in said and said.endswith((".", "?"))


def test_a_model_without_a_template_gets_the_prompt_as_it_is(place):
    no_template(place)
    model = loaded(model="bare", chat=False)
    (one,) = llm_json.prepare(model, [b"a note"], 1)
    assert model.tokenizer.decode(one.tokens) == "a note"
    assert reasons_of(model, "a note") == [None]


def test_weights_that_are_not_all_there_are_refused(place):
    shutil.copytree(place / "model", place / "bare")
    tensors = load_file(place / "bare" / "model.safetensors")
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, place / "bare" / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"its weights lack model\.layers\.1\.mlp\.up_proj"):
        loaded(model="bare")


# On a GPU, and what stands in for it


class StandIn:
    """Keeps what it was called with."""

    def __init__(self, **options):
        self.options = options


class Llm(StandIn):
    def generate(self, prompts, params, use_tqdm):
        self.prompts, self.params = prompts, params
        reply = types.SimpleNamespace(text='{"word": "a"}', token_ids=[1, 2], finish_reason="stop")
        cut = types.SimpleNamespace(text='{"wo', token_ids=[1], finish_reason="length")
        return [
            types.SimpleNamespace(outputs=[cut if len(prompt["prompt_token_ids"]) % 2 else reply])
            for prompt in prompts
        ]


@pytest.fixture
def vllm(monkeypatch):
    """Have an object where vLLM would be; nothing of vLLM's own is tried by it."""
    made = types.ModuleType("vllm")
    made.__spec__ = types.SimpleNamespace()
    made.LLM, made.SamplingParams, made.__version__ = Llm, StandIn, "0"
    made.sampling_params = types.ModuleType("vllm.sampling_params")
    made.sampling_params.StructuredOutputsParams = StandIn
    monkeypatch.setitem(sys.modules, "vllm", made)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", made.sampling_params)
    monkeypatch.delenv("VLLM_NO_USAGE_STATS", raising=False)
    yield made
    os.environ.pop("VLLM_NO_USAGE_STATS", None)


def test_what_vllm_is_asked_for(place, vllm):
    schema_of(place, word={"type": "string"})
    wanted = {"engine": "vllm", "quantize": "4bit", "temperature": 0.5, "seed": 3}
    model = loaded(GPU, 2, **wanted, dtype="auto")
    given = model.engine._engine.options
    assert given["tensor_parallel_size"] == 2 and given["dtype"] == "bfloat16"
    assert given["quantization"] == "bitsandbytes" and given["max_model_len"] == 1024
    assert given["structured_outputs_config"]["backend"] == "guidance"
    assert os.environ["VLLM_NO_USAGE_STATS"] == "1" and not given["trust_remote_code"]
    values = computed(model, [b"a", b"a a", b"a b c"], 100_000)
    told = values["reason"].to_pylist()
    lengths = [len(prompt["prompt_token_ids"]) for prompt in model.engine._engine.prompts]
    assert [reason is None for reason in told] == [length % 2 == 0 for length in lengths]
    assert None in told and "reply cut off: after 1 tokens" in told
    seeds = {one.options["seed"] for one in model.engine._engine.params}
    assert len(seeds) == 3 and all(0 <= seed < 2**63 for seed in seeds)
    assert model.backend == "vllm 0 bf16"


def test_vllm_and_bitsandbytes_that_are_not_installed_are_named(place):
    for options, says in (
        ({"engine": "vllm"}, "options.engine: vllm is not installed"),
        ({"quantize": "8bit"}, "options.quantize: bitsandbytes is not installed"),
    ):
        with pytest.raises(UserError, match=says):
            loaded(GPU, **options)


@pytest.mark.parametrize(("quantize", "is_4bit"), [("4bit", True), ("8bit", False)])
def test_what_bitsandbytes_is_asked_for(place, monkeypatch, quantize, is_4bit):
    given = {}

    class Network:
        def eval(self):
            return self

    def from_pretrained(folder, **options):
        given.update(options)
        return Network(), {"missing_keys": [], "mismatched_keys": []}

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    device = torch.device("cuda", 0)
    engines._network(place / "model", asked(quantize=quantize), [device])
    assert given["device_map"] == {"": device} and given["trust_remote_code"] is False
    config = given["quantization_config"]
    assert config.load_in_4bit is is_4bit and config.load_in_8bit is not is_4bit


@pytest.mark.gpu
def test_a_gpu_replies_what_a_cpu_does_in_fp32(place):
    given = payloads(place / "notes.csv")[:6]
    device = Device("cuda", "GPU-0", torch.cuda.get_device_name(0), has_bf16=True)
    one, two = (computed(loaded(device), given) for device in (CPU, device))
    assert one["json"] == two["json"]


# Runs


def config_of(place, **more):
    told = yaml.safe_load((EXAMPLES / "llm_json.yaml").read_text("utf-8"))
    options = {**EXAMPLE, **more.pop("options", {})}
    told |= {"inputs": "notes.csv", "options": options, **more}
    (place / "config.yaml").write_text(yaml.safe_dump(told))


def leaks(folder):
    """Return the files in which the marker stands, but for inputs, the store and the results."""
    of_user = {"notes.csv", "notes.parquet", "schema.json", "embeddings.parquet", "rows.jsonl"}
    found = []
    for path in folder.rglob("*"):
        if not path.is_file() or path.name in of_user or "store" in path.parts:
            continue
        held = path.read_bytes()
        if path.suffix == ".parquet":
            held = str(pq.read_table(path).to_pylist()).encode()
        if MARKER.encode() in held:
            found.append(path)
    return found


def run(place, environment):
    """Run; return the rows and reasons that came of it, and see that no text got out."""
    desk = Desk(place, {**environment, "FEATUREMILL_CACHE": str(place / "cache")})
    told = ["status", "results/llm_json"]
    said = ""
    for words in (["run", "config.yaml", "--verbose"], told, [*told, "--json"]):
        said += desk.type("featuremill", *words, status=None).text
    root = place / "results" / "llm_json"
    assert MARKER not in said, said
    assert leaks(place) == [] and list(root.rglob("*.log"))
    failed = [line.split("\t") for line in (root / "failed.tsv").read_text().splitlines()[1:]]
    lines = [json.loads(line) for line in (root / "rows.jsonl").read_text().splitlines()]
    return lines, {line[0]: line[-1].partition(":")[0] for line in failed}


def notes(place, rows):
    with (place / "notes.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["id", "note"], *rows])


def test_a_run_keeps_ids_and_order_and_nobodys_text_leaves_store_and_results(place, environment):
    (place / "prompt.jinja").write_text("{{ note[5:] }}{% if '?' in note %}{{ note.x }}{% endif %}")
    rows = [[f"n{number}", f"note {number}: {MARKER} {number // 2}"] for number in range(6)]
    rows[1:1] = [["long", f"{MARKER} " * 900], ["odd", f"{MARKER}?"], ["empty", MARKER[:5]]]
    rows += [["again", rows[-1][1]]]
    notes(place, rows)
    schema_of(place, word={"const": MARKER}, how={"enum": ["a", "b"]})
    config_of(place, max_failed=5)
    lines, failed = run(place, environment)
    assert [line["id"] for line in lines] == [*(f"n{number}" for number in range(6)), "again"]
    assert lines[-1] == {**lines[-2], "id": "again"}
    assert all(line["json"]["word"] == MARKER and line["finish"] == "stop" for line in lines)
    assert failed == {"long": "prompt too long", "odd": "no prompt for this row",
                      "empty": "no prompt for this row"}  # fmt: skip
    root = place / "results" / "llm_json"
    table = pq.read_table(root / "embeddings.parquet")
    assert table["fields"].to_pylist() == [line["json"] for line in lines]
    (receipt,) = (root / "receipts").rglob("*.json")
    assert json.loads(receipt.read_text())["rows"] == 7  # the same prompt again is none
    assert any(MARKER.encode() in path.read_bytes() for path in (root / "store").rglob("*.arrow*"))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["invalid", "cut off", "an error"])
def test_nobodys_text_leaves_where_all_rows_fail(place, environment, what):
    notes(place, [[f"n{number}", f"{MARKER} {number}"] for number in range(4)])
    options = {}
    if what == "invalid":
        schema_of(place, word={"const": MARKER}, number={"const": 10**20})
    elif what == "cut off":
        schema_of(place, word={"const": MARKER * 20})
        options = {"max_tokens": 20}
    else:  # a chat template that quotes the text in its error
        shutil.copytree(place / "model", place / "quoting")
        (place / "quoting" / "chat_template.jinja").write_text(
            f"{{% if '{MARKER[:3]}' ~ '{MARKER[3:]}' in messages[0]['content'] %}}"
            "{{ raise_exception(messages[0]['content']) }}{% endif %}{{ messages[0]['content'] }}"
        )
        options = {"model": "quoting"}
    config_of(place, max_failed=5, options=options)
    _, failed = run(place, environment)
    expected = {"invalid": "reply not valid", "cut off": "reply cut off"}
    assert set(failed.values()) == {expected.get(what, "error in the workload")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_between_two_batches_of_many_rows_each_row_comes_out_once(place, environment):
    """Whoever computes is killed as soon as a batch is committed: two rows of the next are live."""
    notes(place, [[f"n{number}", f"note {number} of a visit"] for number in range(200)])
    schema_of(
        place, sure={"type": "boolean"}, days={"type": "integer", "maximum": 99, "minimum": 0}
    )
    options = {"batch_rows": 2, "max_tokens": 32}
    desk = Desk(place, environment)
    store = place / "results" / "llm_json" / "store"

    def commits():
        return sum(path.read_bytes().count(b"commit") for path in store.rglob("*.log"))

    found = []
    for is_killed in (False, True):
        shutil.rmtree(place / "results", ignore_errors=True)
        config_of(place, options=options)
        if is_killed:
            process = desk.start("featuremill", "run", "config.yaml", start_new_session=True)
            wait_for(lambda ended=process.poll: commits() or ended() is not None, 300)
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            assert commits(), "it ended before it was killed"
        desk.type("featuremill", "run", "config.yaml")
        lines = (place / "results/llm_json/rows.jsonl").read_text().splitlines()
        found.append([json.loads(line) for line in lines])
    assert found[0] == found[1]
    assert [line["id"] for line in found[1]] == [f"n{number}" for number in range(200)]
    logs = (place / "results/llm_json/logs").rglob("*.log")
    resumed = re.search(r"(\d+) of (\d+) batches resumed", "".join(map(Path.read_text, logs)))
    assert 0 < int(resumed[1]) < int(resumed[2])


@pytest.fixture(scope="module")
def surroundings(example, environment):
    """Let the contract's own processes find the example's files."""
    (example / "poison.csv").write_text(f"id,note\nlong,{'far too long ' * 900}\n")
    with working_in(example, **environment):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("surroundings")
class TestTheContract(WorkloadContract):
    workload = "llm_json"
    inputs = ("notes.csv",)
    poison = "poison.csv"
    options = MappingProxyType({**EXAMPLE, "max_tokens": 96})


@pytest.mark.slow
@pytest.mark.usefixtures("surroundings")
class TestTheContractWhereTokensAreDrawn(WorkloadContract):
    workload = "llm_json"
    inputs = ("notes.csv",)
    options = MappingProxyType({**TestTheContract.options, "temperature": 1.0, "attempts": 3})


def test_init_writes_a_config_to_be_filled_in(place, environment):
    desk = Desk(place, environment)
    desk.type("featuremill", "init", "--workload", "llm_json", "notes.csv", "--output", "my.yaml")
    text = (place / "my.yaml").read_text()
    assert "workload: llm_json" in text and "\n  prompt:\n" in text and "\n  model:\n" in text


def test_a_reply_of_several_lines_is_one_line_of_rows_jsonl(tmp_path):
    schema = pa.schema({"json": pa.string()})
    writer = rows_jsonl.Writer(Target(tmp_path / "rows.jsonl", schema, 2, {}))
    writer.write(pa.table({"id": ["a", "b"], "json": ['{\n"x":  1}', '{"x":  1}']}))
    writer.close()
    assert (tmp_path / "rows.jsonl").read_text().splitlines() == [
        '{"id": "a", "json": {"x": 1}}',
        '{"id": "b", "json": {"x":  1}}',
    ]


def test_rows_jsonl_is_refused_where_there_is_no_json(tmp_path):
    values = pa.schema({"text": pa.string()})
    with pytest.raises(UserError, match="rows_jsonl needs"):
        open_writer("rows_jsonl", Target(tmp_path / "rows.jsonl", values, 0, {}))


# A model that was trained, and real notes


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_real_notes_with_smollm2(tmp_path, monkeypatch):
    """27 notes of MTSamples, and SmolLM2-135M-Instruct out of its 4-bit file."""
    smollm2(tmp_path)
    source = fetched("medcat==2.9.0", MEDCAT, "--no-binary", "medcat")
    with tarfile.open(source) as archive:
        told = json.load(archive.extractfile(f"medcat-2.9.0/{MEDCAT_NOTES}"))
    documents = [document for project in told["projects"] for document in project["documents"]]
    notes(tmp_path, [[f"n{number}", one["text"]] for number, one in enumerate(documents)])
    (tmp_path / "prompt.jinja").write_text(PROMPT)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)  # several wait for each other on a machine with other work
    model = loaded(max_tokens=160)
    records = list(llm_json.records([tmp_path / "notes.csv"], model.options))
    assert len(records) == 27 and not any(record.reason for record in records)
    given = list(dict.fromkeys(record.payload for record in records))
    begin = time.process_time()
    values = computed(model, given)
    seconds = time.process_time() - begin
    rows = [row for row in values.to_pylist() if row["reason"] is None]
    tokens = {name: sum(row[name] for row in rows) for name in ("tokens_in", "tokens_out")}
    reasons = [reason for reason in values["reason"].to_pylist() if reason]
    print(f"{len(rows)} of {len(given)} in {seconds:.0f} s of processor; {tokens}; {reasons}")
    for row in rows:
        jsonschema.validate(json.loads(row["json"]), SCHEMA, jsonschema.Draft202012Validator)
    assert len(rows) >= len(given) - 3 and len({row["json"] for row in rows}) > len(rows) / 2
    few = sorted(range(len(given)), key=lambda place: len(given[place]))[:3]
    again = computed(model, [given[place] for place in few])
    assert again.to_pylist() == [values.slice(place, 1).to_pylist()[0] for place in few]
