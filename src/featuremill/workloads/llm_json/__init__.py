"""The workload `llm_json`: JSON for each row of a table, by a language model on this machine.

The JSON is valid against a schema. A record is a row's prompt. Messages, logs and reasons never
contain a prompt or a reply: both may be about patients.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from featuremill.inputs import rows
from featuremill.kit.errors import (
    UserError,
    WorkloadError,
    fault_of_installation,
    is_device_error,
    is_out_of_memory,
)
from featuremill.kit.processes import SNAKEFILE
from featuremill.kit.reasons import Kind, is_missing
from featuremill.workload import Record, RecordFailed, Weights, networks
from featuremill.workload.hugging_face import json_of, place_of
from featuremill.workloads.encoder import chat
from featuremill.workloads.llm_json import memory, prompts, replies
from featuremill.workloads.llm_json.options import Options as Options

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedTokenizerFast

    from featuremill.workload import Device
    from featuremill.workloads.llm_json.engines import Reply, Request, Transformers, Vllm

VERSION = "4"
ATTRIBUTES = ("dtype",)
PRECISION = "dtype"
COST_UNIT = "tokens"
LENGTH_UNIT = "characters"
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "llm_json.yaml"
VERSIONS_OF = ("transformers", "tokenizers", "llguidance", "vllm")
SHARD_COST = 1_000_000
"""About 1,500 rows: five minutes at an assumed 3,000 tokens a second."""
BYTES_PER_TOKEN = 4
"""The approximate number in English text."""
BATCH_TOKENS_VLLM = 250_000
"""Tokens of a batch for vLLM: enough to fill vLLM's own batches. If a job is killed, at most these
are lost."""
BATCHES_OF_ROWS = 4
"""The rows of a batch, as a multiple of the rows that are computed at once, so that a row whose
reply is complete is replaced by another one."""
USUAL_PROMPT = 512
"""The assumed number of tokens of a prompt."""
USUAL_CONTEXT = 4096
POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length")
"""Keys of `config.json` for the number of positions, by architecture."""
CUT_OFF = Kind(
    "cut_off",
    ("reply cut off",),
    "Raise max_tokens, or bound the schema (maxLength, maxItems, additionalProperties: false). "
    "With a temperature, attempts asks again.",
)
INVALID = Kind(
    "invalid",
    ("reply not valid",),
    "Look at the place of the schema that is named; take a larger model, or a temperature and "
    "attempts.",
)
PROMPT_TOO_LONG = Kind(
    "prompt_too_long",
    ("prompt too long",),
    "Raise context, as far as the model has positions, lower max_tokens, or shorten the text.",
)
REFUSED = Kind(
    "refused_row",
    ("no prompt for this row",),
    "Fix the row, or let the template say what is written where a value is missing.",
)
REASONS = (CUT_OFF, INVALID, PROMPT_TOO_LONG, REFUSED)


class Model(NamedTuple):
    engine: Transformers | Vllm
    tokenizer: PreTrainedTokenizerFast
    reader: replies.Reader
    options: Options
    columns: pa.Schema
    backend: str


class Row(NamedTuple):
    reason: str | None
    values: dict[str, Any]
    """The values by column; empty with a reason."""


@contextlib.contextmanager
def _without_quotes() -> Iterator[None]:
    """Replace an exception by one that has only its class and position, as libraries quote data in
    their messages."""
    try:
        yield
    except (UserError, WorkloadError, RecordFailed):
        raise
    except Exception as error:
        of_device = is_out_of_memory(error) or is_device_error(error)
        if of_device or fault_of_installation(error):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise RuntimeError(
            f"{type(error).__name__} in {frame.name} ({Path(frame.filename).name}:{frame.lineno}); "
            "its text is left out, as it may contain a record's text"
        ) from None


def records(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Yield the prompt of each row of `inputs`; rows without a prompt are refused."""
    prompt = prompts.read(options.prompt)
    for record in rows(inputs, options):
        if record.reason:
            yield record
            continue
        text, reason = "", ""
        try:
            row = json.loads(record.payload)
            reason = _missing_value(row, options.required_columns)
            text = "" if reason else prompt.fill(row)
            payload = text.encode()
        except UserError:
            raise
        except Exception as error:  # a template can raise anything, and quotes its data
            payload, reason = b"", REFUSED.reason(f"the template raised {type(error).__name__}")
        if not reason and not text.strip():
            payload, reason = b"", REFUSED.reason("it is empty")
        yield record._replace(payload=payload, reason=reason, length=len(text))


def _missing_value(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return the reason if the row has no value in one of `columns`; else ""."""
    for name in columns:
        text = "" if row.get(name) is None else str(row[name]).strip()
        if not text or is_missing(text):
            what = f"has {text!r}, a word for a missing value" if text else "is empty"
            return REFUSED.reason(f"the column {name!r} {what}")
    return ""


def cost(payload: bytes, options: Options) -> int:
    """Return the approximate largest number of tokens of a prompt and its reply."""
    return -(-len(payload) // BYTES_PER_TOKEN) + options.max_tokens


def weights(options: Options) -> str:
    return options.model


def options_of_model(model: str) -> Options:
    """Return options without a prompt and a schema, which do not change the memory."""
    return Options.model_construct(model=model, prompt="", json_schema="", chat=False, max_tokens=1)


def weights_ahead(options: Options) -> Weights:
    folder = place_of(options.model)
    size = memory.size_of_config(folder)._asdict()
    return Weights(folder.name, folder, "", {name: str(number) for name, number in size.items()})


def weights_mb(weights: Weights) -> float:
    return memory.size_of(weights).file_bytes / 2**20


def memory_mb(options: Options, device: Device, weights: Weights, batch_cost: int) -> int:
    """Return the estimated peak memory in MiB for resolved `options`. The number of rows that are
    computed at once does not depend on `batch_cost`."""
    return memory.estimate_mb(memory.size_of(weights), options, device)


def _context(options: Options, folder: Path) -> int:
    """Return the largest number of tokens of a prompt with its reply."""
    config = json_of(folder / "config.json", "a model's")
    config = config.get("text_config", config)  # of a model that also takes images
    most = next((int(config[name]) for name in POSITIONS if config.get(name)), None)
    if options.context is not None and most is not None and options.context > most:
        raise UserError(
            f"options.context: this model has positions for {most:,} tokens; give at most that."
        )
    context = options.context or min(USUAL_CONTEXT, most or USUAL_CONTEXT)
    if options.max_tokens >= context:
        raise UserError(
            f"options.max_tokens: {options.max_tokens:,} leave no space for a prompt in a context "
            f"of {context:,}; lower max_tokens or raise context."
        )
    return context


def resolve(options: Options, device: Device, weights: Weights | None) -> Options:
    """Return `options` with the dtype on `device` and the context.

    Raises:
        UserError: the device, the model or llguidance does not support an option or the schema.
    """
    assert weights is not None
    if device.kind == "cpu" and (options.quantize != "none" or options.engine == "vllm"):
        name = "quantize" if options.quantize != "none" else "engine"
        raise UserError(
            f"options.{name}: {getattr(options, name)} computes on an NVIDIA GPU, and this run is "
            "on a CPU; leave it out."
        )
    if options.json_schema:  # not of `options_of_model`
        replies.refuse_wrong(replies.read(options.json_schema), options.json_schema)
    if options.chat:
        chat.template_of(weights.path, is_answered=True)
    resolved = {
        "dtype": networks.dtype_on(device, options.dtype),
        "context": _context(options, weights.path),
    }
    return options.model_copy(update=resolved)


def schema(options: Options, weights: Weights | None) -> pa.Schema:
    import pyarrow as pa

    types = replies.types_of(replies.read(options.json_schema)).items()
    fields = pa.struct({name: pa.string() if type is None else type for name, type in types})
    return pa.schema(
        {
            "json": pa.string(),
            "fields": fields,
            "attempts": pa.int32(),
            "finish": pa.string(),
            "tokens_in": pa.int32(),
            "tokens_out": pa.int32(),
        }
    )


def batch_cost(options: Options, device: Device) -> int:
    """Return the largest number of tokens of a batch; 1, which means a single row, if rows are
    computed one by one."""
    if options.engine == "vllm":
        return BATCH_TOKENS_VLLM
    if options.batch_rows == 1:
        return 1
    most = memory.MOST_ROWS if device.kind == "cuda" else memory.ROWS_ON_CPU
    return BATCHES_OF_ROWS * (options.batch_rows or most) * (USUAL_PROMPT + options.max_tokens)


def spreads(options: Options) -> bool:
    return options.engine == "vllm" or options.quantize == "none"


def load(options: Options, devices: Sequence[Device], weights: Weights | None) -> Model:
    """Return the model on its devices, its tokenizer, and the validator of its replies."""
    from featuremill.workload import spread
    from featuremill.workloads.llm_json import engines

    assert weights is not None
    document = replies.read(options.json_schema)
    replies.refuse_wrong(document, options.json_schema)
    folder = weights.path
    tokenizer = chat.opened(folder, is_answered=True) if options.chat else chat.tokenizer_of(folder)
    engine: Transformers | Vllm
    if options.engine == "vllm":
        _refuse_missing("vllm", "options.engine", "transformers")
        engine = engines.Vllm(weights.path, options, len(devices), document)
    else:
        if options.quantize != "none":
            _refuse_missing("bitsandbytes", "options.quantize", "none")
        on, common = spread.places(devices), _common(options, tokenizer)
        engine = engines.Transformers(weights.path, options, on, tokenizer, document, common)
    reader, columns = replies.reader(document), schema(options, weights)
    return Model(engine, tokenizer, reader, options, columns, engine.backend)


def _refuse_missing(module: str, option: str, instead: str) -> None:
    if find_spec(module) is None:
        raise UserError(
            f"{option}: {module} is not installed in this Python; pip install {module}, or set "
            f"{option.removeprefix('options.')}: {instead}."
        )


def prepare(model: Model, payloads: Sequence[bytes], batch_cost: int) -> list[Request]:
    """Return the tokens of each prompt, in the model's chat template."""
    from featuremill.workloads.llm_json.engines import Request

    with _without_quotes():
        return [
            Request(
                _tokens(model.options, model.tokenizer, payload.decode()),
                hashlib.sha256(payload).digest(),
            )
            for payload in payloads
        ]


def _tokens(options: Options, tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    if not options.chat:  # text that looks like a control token stays text
        return list(tokenizer(prompt, split_special_tokens=True)["input_ids"])
    return chat.tokens(tokenizer, prompt)


def _common(options: Options, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Return the tokens with which all prompts begin, from two sample rows; [] if the template
    rejects these rows."""
    prompt = prompts.read(options.prompt)
    sample_rows = [dict.fromkeys(prompt.columns, value) for value in chat.SAMPLE_TEXTS]
    try:
        first, second = (_tokens(options, tokenizer, prompt.fill(row)) for row in sample_rows)
    except Exception:  # a template can raise anything
        return []
    return chat.in_common(first, second)


def run(model: Model, batch: list[Request]) -> list[Row]:
    """Return a row for each prompt. A prompt whose reply is cut off or invalid is computed again,
    up to `attempts` times."""
    rows: dict[int, Row] = {}
    options = model.options
    assert options.context is not None
    room = options.context - options.max_tokens
    for number, request in enumerate(batch):
        if len(request.tokens) > room:
            counts = (
                f"{len(request.tokens):,} tokens, and a context of {options.context:,} has "
                f"{room:,} beside the reply's {options.max_tokens:,}"
            )
            rows[number] = Row(PROMPT_TOO_LONG.reason(counts), {})
    left = [number for number in range(len(batch)) if number not in rows]
    with _without_quotes():
        for attempt in range(1, options.attempts + 1):
            texts = model.engine.replies([batch[number] for number in left], attempt)
            for number, reply in zip(left, texts, strict=True):
                rows[number] = _checked(model, batch[number], reply, attempt)
            left = [number for number in left if rows[number].reason]
            if not left:
                break
    return [rows[number] for number in range(len(batch))]


def _checked(model: Model, request: Request, reply: Reply, attempt: int) -> Row:
    from featuremill.workloads.llm_json.engines import LENGTH, STOP

    times = f" ({attempt} attempts)" if attempt > 1 else ""
    if reply.finish == LENGTH:
        return Row(CUT_OFF.reason(f"after {reply.num_tokens:,} tokens{times}"), {})
    if reply.finish != STOP:
        return Row(INVALID.reason(f"the grammar ended with {reply.finish}{times}"), {})
    try:
        fields = model.reader.fields(reply.text)
    except replies.NotValid as why:
        return Row(INVALID.reason(f"{why}{times}"), {})
    values = {
        "json": reply.text,
        "fields": fields,
        "attempts": attempt,
        "finish": reply.finish,
        "tokens_in": len(request.tokens),
        "tokens_out": reply.num_tokens,
    }
    return Row(None, values)


def collect(model: Model, result: list[Row]) -> pa.RecordBatch:
    import pyarrow as pa

    nothing = dict.fromkeys(model.columns.names)
    with _without_quotes():
        values = pa.RecordBatch.from_pylist(
            [row.values or nothing for row in result], model.columns
        )
    return values.append_column("reason", pa.array([row.reason for row in result], pa.string()))
