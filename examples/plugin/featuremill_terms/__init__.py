"""Terms of a glossary in texts: where each stands, the sentence with most of them, and the mean of
the vectors of a text's words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from featuremill.inputs import RowOptions, rows
from featuremill.kit.errors import UserError
from featuremill.kit.reasons import Kind
from featuremill.workload import Device, OptionFile, OptionWeights, Record, Weights
from featuremill.workload import Kind as KindOfValues

if TYPE_CHECKING:
    import numpy as np

VERSION = "1"
COST_UNIT = LENGTH_UNIT = "characters"
NEEDS_GPU = False
SHARD_COST = 100_000_000
VERSIONS_OF = ("numpy",)
ENVIRONMENT = Path(__file__).with_name("environment.yaml")
UNKNOWN = Kind(
    "unknown_words",
    ("no word of the text has a vector",),
    "Write the text in the language of the vectors, or take other ones.",
)
REASONS = (UNKNOWN,)

WORD = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
SENTENCE = re.compile(r"[^.!?\s][^.!?]*[.!?]*")
TERM = pa.struct({"term": pa.string(), "category": pa.string(), "start": pa.int32()})
DENSEST = pa.struct({"sentence": pa.string(), "start": pa.int32(), "terms": pa.int32()})


class Options(RowOptions):
    """What a config may set under `options`."""

    glossary: OptionFile
    """A TSV file without a header: a term, and the category that it is of."""
    vectors: OptionWeights
    """A folder with `vectors.tsv` (a word, then its numbers) and `config.json` (`dimensions`)."""
    text_column: str = "text"
    """The column of the inputs that holds the texts."""

    def payload_columns(self) -> Mapping[str, type]:
        """Return the one column that is read."""
        return {self.text_column: str}

    def delivers(self) -> set[KindOfValues]:
        """Return the kinds of `embedding`, `densest` and `terms`."""
        return {"pooled", "table"}


class Model(NamedTuple):
    """What is loaded once a shard."""

    categories: dict[str, str]
    """By term, in small letters."""
    pattern: re.Pattern[str]
    """Any term, the longest that fits."""
    vectors: dict[str, np.ndarray]
    """By word, each (dimensions,) float32."""
    schema: pa.Schema


def records(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Stream the rows; the text is what gets computed."""
    for record in rows(inputs, options):
        if record.reason:
            yield record
            continue
        text = json.loads(record.payload)[options.text_column]
        yield record._replace(payload=text.encode(), length=len(text))


def cost(payload: bytes, options: Options) -> int:
    """Return the bytes of the text."""
    return max(1, len(payload))


def weights(options: Options) -> str:
    """Return the folder of vectors."""
    return options.vectors


def resolve(options: Options, device: Device, weights: Weights | None) -> Options:
    """Return the options: there is nothing to settle."""
    return options


def schema(options: Options, weights: Weights | None) -> pa.Schema:
    """Return the columns of values; the vectors' folder says how long a vector is."""
    assert weights is not None
    file = weights.path / "config.json"
    try:
        dimensions = int(json.loads(file.read_text("utf-8"))["dimensions"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f'{file}: it has to say {{"dimensions": …}} ({error}).') from None
    vector = pa.list_(pa.float32(), dimensions)
    return pa.schema({"embedding": vector, "densest": DENSEST, "terms": pa.list_(TERM)})


def batch_cost(options: Options, device: Device) -> int:
    """Return the bytes of text that one batch may hold."""
    return 1_000_000


def load(options: Options, devices: Sequence[Device], weights: Weights | None) -> Model:
    """Return the glossary and the vectors."""
    assert weights is not None
    categories = dict(_glossary(Path(options.glossary)))
    longest_first = sorted(categories, key=len, reverse=True)
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, longest_first))})\b", re.IGNORECASE)
    columns = schema(options, weights)
    vectors = dict(_vectors(weights.path / "vectors.tsv", columns.field(0).type.list_size))
    return Model(categories, pattern, vectors, columns)


def _glossary(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        term, tab, category = line.partition("\t")
        if not (term and tab and category):
            raise UserError(f"{path}:{number}: a term, a tab and its category are meant.")
        yield term.lower(), category


def _vectors(path: Path, dimensions: int) -> Iterator[tuple[str, np.ndarray]]:
    import numpy as np

    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            word, *numbers = line.split("\t")
            try:
                vector = np.array(numbers, np.float32)
            except ValueError:
                vector = np.empty(0, np.float32)
            if len(vector) != dimensions:
                raise UserError(f"{path}:{number}: a word and {dimensions} numbers are meant.")
            yield word, vector


def prepare(model: Model, payloads: Sequence[bytes], batch_cost: int) -> list[str]:
    """Return the texts."""
    return [payload.decode() for payload in payloads]


def run(model: Model, batch: list[str]) -> list[dict[str, Any] | None]:
    """Return the values of each text; None where no word has a vector."""
    return [_values(model, text) for text in batch]


def _values(model: Model, text: str) -> dict[str, Any] | None:
    import numpy as np

    words = WORD.findall(text.lower())
    known = [model.vectors[word] for word in words if word in model.vectors]
    if not known:
        return None
    terms = [
        {"term": term, "category": model.categories[term], "start": match.start()}
        for match in model.pattern.finditer(text)
        for term in [match.group().lower()]
    ]
    spans = [match.span() for match in SENTENCE.finditer(text)]
    starts = [term["start"] for term in terms]
    counts = [sum(begin <= start < end for start in starts) for begin, end in spans]
    best = counts.index(max(counts))
    begin, end = spans[best]
    densest = {"sentence": text[begin:end].rstrip(), "start": begin, "terms": counts[best]}
    return {"embedding": np.mean(known, axis=0), "densest": densest, "terms": terms}


def collect(model: Model, result: list[dict[str, Any] | None]) -> pa.RecordBatch:
    """Return a row a text, and why some have none."""
    nothing = dict.fromkeys(model.schema.names)
    values = pa.RecordBatch.from_pylist([row or nothing for row in result], model.schema)
    reasons = [UNKNOWN.reason() if row is None else None for row in result]
    return values.append_column("reason", pa.array(reasons, pa.string()))
