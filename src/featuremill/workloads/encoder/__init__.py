"""The workload `encoder`: features of proteins, nucleotides or texts from a Hugging Face folder.

Supported are BERT, ESM, T5, ModernBERT and causal networks (classes of transformers), MosaicBERT,
AMPLIFY and gLM2 (`architectures`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from featuremill.inputs import regions, sequences, spelled
from featuremill.inputs.letters import Parts, alike, maker, parts_of
from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.kit.reasons import LENGTH
from featuremill.workload import Record, RecordFailed, networks
from featuremill.workload.hugging_face import place_of
from featuremill.workload.networks import ATTRIBUTES as ATTRIBUTES
from featuremill.workload.networks import ONE_TOKEN as ONE_TOKEN
from featuremill.workload.networks import audited as audited
from featuremill.workload.networks import batch_cost as batch_cost
from featuremill.workloads.encoder import (
    architectures,
    contigs,
    fasta,
    joined,
    memory,
    pairs,
    structures,
    texts,
)
from featuremill.workloads.encoder.limits import opened, settled
from featuremill.workloads.encoder.options import Options as Options
from featuremill.workloads.esm2 import folder as esm2_folder

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from featuremill.workload import Device, Weights
    from featuremill.workloads.encoder.architectures import Facts
    from featuremill.workloads.encoder.loader import Encoder
    from featuremill.workloads.encoder.padding import Group
    from featuremill.workloads.encoder.vocabulary import Vocabulary

VERSION = "4"
COST_UNIT = "tokens"
LENGTH_UNIT = "letters"
READS_PICKLES = True
"""Whether the weights may be pickles; they are read with `weights_only=True` of torch."""
VERSIONS_OF = ("transformers", "tokenizers")
ENVIRONMENT = Path(SNAKEFILE).parent / "envs" / "encoder.yaml"
PRECISION = "dtype"
REMEDIES = {**networks.REMEDIES, "shorter records": "max_residues"}
"""Options that messages advise to change; a T5 truncates records only with max_residues."""
REASONS = (
    *structures.REASONS,
    *regions.REASONS,
    *texts.REASONS,
    *contigs.REASONS,
    *pairs.REASONS,
)
NUM_SPECIAL = 2
"""Number of special tokens in the cost of a record."""
NOT_POOLED = ("tokens", "residues", "last")
"""The kinds of columns that are hidden states without pooling."""


class Model(NamedTuple):
    """The encoder on its device, and the columns to compute."""

    encoder: Encoder
    vocabulary: Vocabulary
    options: Options
    columns: pa.Schema
    max_tokens: int | None
    backend: str
    """The backend, for the receipt."""


class Batch(NamedTuple):
    """Records in groups of similar length, on the host."""

    groups: list[Group]
    num_own: list[int]
    """Number of own tokens of each record, in the order of the records."""


class Result(NamedTuple):
    """The values of each group, on the device that computed them."""

    values: list[list[Tensor]]
    batch: Batch


def records(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Yield the records of `inputs`. Records that are truncated, or have letters that the
    vocabulary lacks, get a note. Records too long or too short for the network are refused."""
    folder = place_of(options.model)
    facts, words = opened(folder, options)
    options = settled(options, folder, facts, words)
    if options.alphabet == "texts":
        yield from texts.read(inputs, options, words, facts.trained_tokens)
        return
    stream = _spelled(inputs, options, words)
    if options.structures:
        stream = structures.added(stream, structures.read(options, options.id_column))
    checked = _checked(stream, options, facts, words)
    if joined.joints_of(options):
        yield from joined.split(checked, options)
    elif options.regions:
        yield from regions.Regions(Path(options.regions)).split(checked, options.max_residues)
    else:
        yield from checked


def _spelled(inputs: Sequence[Path], options: Options, words: Vocabulary) -> Iterator[Record]:
    """Yield the records of `inputs`, cleaned to the letters of the network's vocabulary."""
    if options.alphabet == "contigs":
        elements = spelled(inputs, maker(contigs.clean), options, fasta.__name__, contigs.of_entry)
        return contigs.fitted(elements, options)
    if options.paired:
        return pairs.read(inputs, options)
    if words.is_of_structure:
        return spelled(inputs, maker(structures.clean_alone), options, fasta.__name__)
    if words.with_structure:
        return structures.pairs(inputs, options)
    if words.has_3di:
        return spelled(inputs, maker(structures.clean_beside), options)
    return sequences(inputs, options)


def _checked(
    records: Iterator[Record], options: Options, facts: Facts, words: Vocabulary
) -> Iterator[Record]:
    """Yield `records` with notes, or with a reason if they cannot be computed."""
    cut = f"longer than {options.max_residues} residues, truncated"
    trained = words.letters_in(facts.trained_tokens) if facts.trained_tokens else None
    for record in records:
        if record.reason:
            yield record
            continue
        parts = parts_of(record.payload)
        letters, notes = words.spelled(parts.letters, options.alphabet), [record.note]
        payload = parts._replace(letters=letters).payload
        record = record._replace(payload=payload, length=len(letters))
        most = options.max_residues
        if most is not None and len(letters) > most:
            if options.long == "refuse" or options.paired:
                reason = LENGTH.reason(f"{len(letters):,} residues, at most {most:,}")
                yield record._replace(payload=b"", reason=reason)
                continue
            notes.append(cut)
        if trained and min(len(letters), most or len(letters)) > trained:
            notes.append(f"longer than the network was trained with ({trained:,})")
        if len(letters) < words.least_letters:
            reason = f"shorter than a token: {len(letters)} of {words.least_letters} bases"
            yield record._replace(payload=b"", reason=reason)
            continue
        if words.rare_as_x and len(letters.translate(None, b"UZOB")) < len(letters):
            notes.append("U, Z, O and B read as X")
        if options.max_tokens is None and letters.translate(None, words.letters):
            notes.append("letters that are not in the model's vocabulary")
        record = record._replace(note="; ".join(filter(None, notes)))
        if options.max_tokens:
            record = texts.counted(record, options, words, facts.trained_tokens)
        yield record


def cost(payload: bytes, options: Options) -> int:
    """Return the approximate number of tokens computed for a record."""
    parts = _parts(payload, options)
    length = min(len(parts.letters), options.max_residues or len(parts.letters))
    tokens = -(-length // (options.letters_per_token or 1)) + NUM_SPECIAL
    return joined.share(parts, options, min(tokens, options.max_tokens or tokens))


def _parts(payload: bytes, options: Options) -> Parts:
    return Parts(payload) if options.alphabet == "texts" else parts_of(payload)


def weights(options: Options) -> str:
    """Return the folder of the encoder."""
    return options.model


def resolve(options: Options, device: Device, weights: Weights | None) -> Options:
    """Return options with the dtype for `device`, layers from 0, and the network's limits."""
    assert weights is not None
    facts, words = opened(weights.path, options)
    if "cls" in options.pools and not words.has_first:
        raise UserError(
            f"options.pool: a {facts.architecture.name} has no special token at the beginning; "
            "take mean."
        )
    own = {
        "layers": networks.layers_from_0(options.layers, facts.num_layers),
        "dtype": networks.dtype_on(device, options.dtype),
    }
    return settled(options, weights.path, facts, words).model_copy(update=own)


def caution(options: Options) -> str:
    """Return a caution that workload esm2 computes an ESM-2 faster; "" for other networks."""
    try:
        is_esm2 = bool(esm2_folder.facts_of(place_of(options.model)))
    except UserError:
        return ""
    faster = "workload: esm2 computes the same features faster (docs/esm2.md)"
    return f"{options.model} is an ESM-2: {faster}" if is_esm2 else ""


def schema(options: Options, weights: Weights | None) -> pa.Schema:
    """Return the columns of values for resolved `options`."""
    from featuremill.workload.arrays import layer_columns

    assert weights is not None
    facts, words = opened(weights.path, options)
    each = "residues" if words.is_by_letter else "tokens"
    return layer_columns(options, facts.width, each)


def hooks(options: Options, weights: Weights) -> Mapping[str, str] | None:
    """Return the TransformerLens hook of the hidden states in each column of resolved `options`;
    None for a network that is no language model.

    State 0 is the input of the first block, and state n the output of block n - 1. The last state
    includes the final norm, so it has no hook.
    """
    facts = architectures.facts_of(weights.path)
    if not facts.architecture.is_causal:
        return None
    hook_of: dict[str, str] = {}
    for layer in map(int, options.layers):
        if layer < facts.num_layers:
            block = f"{layer - 1}.hook_resid_post" if layer else "0.hook_resid_pre"
            hook_of |= {f"{kind}_layer_{layer}": f"blocks.{block}" for kind in NOT_POOLED}
    return hook_of


def spans(payload: bytes, options: Options, weights: Weights) -> list[slice] | None:
    """Return the bytes of a payload that each vector of a token represents; None for k-mers, or if
    the chat template changes tokens of the text. `options` are resolved."""
    _, words = opened(weights.path, options)
    if words.is_by_letter:
        places = joined.places(parts_of(payload), options)
        return [slice(at, at + 1) for at in places]
    if not words.is_learned:
        return None
    from tokenizers import Tokenizer

    text = payload[: options.max_residues].decode("utf-8")
    ends = [0, *accumulate(len(letter.encode()) for letter in text)]
    tokenizer = Tokenizer.from_file(str(weights.path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    offset = len(text) - len(text.lstrip()) if options.chat else 0
    encoded = tokenizer.encode(text.strip() if options.chat else text, add_special_tokens=False)
    if options.chat and encoded.ids != words.own(payload).tolist():
        return None  # the template changes tokens
    most = options.max_tokens - words.num_special if options.max_tokens else None
    offsets = [(offset + begin, offset + end) for begin, end in encoded.offsets[:most]]
    return [slice(ends[begin], ends[end]) for begin, end in offsets]


def num_vectors(payload: bytes, options: Options) -> int:
    """Return the largest number of tokens of a record that get a vector."""
    parts = _parts(payload, options)
    length = joined.num_own(parts, options)
    if parts.region:
        return length
    return min(length, options.max_residues or length, options.max_tokens or length)


def options_of_model(model: str) -> Options:
    """Return the default options for a model; the alphabet of a causal network is texts."""
    is_causal = architectures.facts_of(place_of(model)).architecture.is_causal
    return Options(model=model, alphabet="texts" if is_causal else "proteins")


def weights_ahead(options: Options) -> Weights:
    """Return the encoder's weights with the size by its config; no file is hashed."""
    from featuremill.workload import Weights

    folder = place_of(options.model)
    size = memory.size_of_config(folder)._asdict()
    return Weights(folder.name, folder, "", {name: str(number) for name, number in size.items()})


def _size(weights: Weights) -> memory.Size:
    """Return the encoder's size, from the metadata of weights or else from the config."""
    if weights.metadata:
        return memory.size_of(weights)
    return memory.size_of_config(weights.path)


def weights_mb(weights: Weights) -> float:
    """Return the size of the checkpoint in MiB."""
    return _size(weights).file_bytes / 2**20


def memory_mb(options: Options, device: Device, weights: Weights, batch_cost: int) -> int:
    """Return the estimated peak memory in MiB; `options` are resolved, `batch_cost` is tokens."""
    return memory.estimate_mb(_size(weights), options, device.kind, batch_cost)


def load(options: Options, devices: Sequence[Device], weights: Weights | None) -> Model:
    """Return the encoder with its weights, after the checks of padding and precision."""
    from featuremill.workloads.encoder import loader

    assert weights is not None
    facts, words = opened(weights.path, options)
    short, long = loader.examples(words, options.alphabet)
    encoder = loader.load(options, devices, weights.path, options.dtype, long)
    loader.check_padding(encoder, words, short, long, options.dtype)
    if options.dtype != "fp32":
        loader.check_precision(encoder, long, options.dtype)
    columns = schema(options, weights)
    return Model(encoder, words, options, columns, facts.max_tokens, encoder.backend)


def prepare(model: Model, payloads: Sequence[bytes], batch_cost: int) -> Batch:
    """Tokenize records and group them by length, on the host."""
    from featuremill.workloads.encoder import padding

    words, most = model.vocabulary, model.options.max_residues
    parts = [_parts(payload, model.options) for payload in payloads]
    together = alike(parts)
    seen = [parts[first] for first, *_ in together]
    tokens = [
        words.tokens(letters[:most], structure[:most], model.options.max_tokens)
        for letters, structure, _ in seen
    ]
    longest = max(map(len, tokens))
    if model.max_tokens is not None and longest > model.max_tokens:
        detail = f"{longest:,} tokens, and the network has positions for {model.max_tokens:,}"
        raise RecordFailed("length", detail)
    groups = padding.groups(tokens, words, batch_cost)
    if model.options.regions or model.options.parts:
        spans = [
            [
                padding.Region(index, *each.tokens, each.tokens == (0, len(each.letters)))
                for index, each in ((index, parts[index]) for index in indices)
            ]
            for indices in together
        ]
        groups = [group.of_regions(spans, len(words.first)) for group in groups]
        num_own = [joined.num_own(each, model.options) for each in parts]
    elif words.joints:
        num_own = [joined.num_own(each, model.options) for each in parts]
    else:
        num_own = [len(ids) - words.num_special for ids in tokens]
    if not all(num_own):
        if model.options.alphabet == "texts":
            raise RecordFailed(texts.EMPTY.name, "none of its letters makes a token")
        raise RecordFailed("other", f"shorter than a token: {words.least_letters} bases")
    return Batch(groups, num_own)


def run(model: Model, batch: Batch) -> Result:
    """Compute a batch; a GPU may still be computing on return."""
    from featuremill.workload import spread
    from featuremill.workloads.encoder import padding

    values = []
    for group in batch.groups:
        here = spread.on_device(group, model.encoder.device)
        hidden = model.encoder.hidden_states(here.tokens_BT, here.is_token_BT, model.options.layers)
        values.append(padding.values_of(here, hidden, model.options))
    return Result(values, batch)


def collect(model: Model, result: Result) -> pa.RecordBatch:
    """Return the features of a batch, one row per record."""
    from featuremill.workload.arrays import layer_batch
    from featuremill.workloads.encoder import padding

    values = padding.in_order(result.values, result.batch.groups, result.batch.num_own)
    return layer_batch(values, result.batch.num_own, model.columns)
