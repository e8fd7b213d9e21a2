"""Workloads on a GPU beside their peers, all in one step: the seconds of each way, and how far it
is from the first, a peer in fp32. `bench.run` carries it out, a case a step.

Weights are random. Each way starts from loaded models and payloads, and ends with numbers in the
host's memory. featuremill computes in its own batches, without the overlap of a worker.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from bench import contacts as contact_maps
from bench import esmc as esm_cambrian
from bench.clock import Clock
from bench.lengths import MAX_RESIDUES, sorted_batches
from bench.peers import relative_l2
from bench.place import Place
from bench.sample import Sample
from bench.stage import Ground, say
from featuremill.base.devices import Device
from featuremill.workload import find_workload, plain_weights, weights
from featuremill.workload.batches import make_batches
from featuremill.workload.compute import values_of
from featuremill.workloads.esm2.tokens import MASK, tokenize
from featuremill.workloads.scores.passes import tokens_of
from featuremill.workloads.scores.variants import AMINO_ACIDS

ROOT = Path(__file__).parent.parent
SLOW_SECONDS = 10.0
"""A way that takes longer has one pass, after none that warms up."""
FORWARD_BATCH = 100
"""Cells at once in Geneformer's `InSilicoPerturber`, by its default."""
MOST_TOKENS = 400
"""Of a reply that follows the schema; a network with random weights uses most that it allows."""
Numbers = npt.NDArray[np.float32]
Way = Callable[[], tuple[int, Numbers | None]]
"""What computes once: the units computed, and numbers to compare."""


class Case(NamedTuple):
    """One workload beside its peers."""

    unit: str
    ways: dict[str, Way]


class Size(NamedTuple):
    """How large the networks and inputs are."""

    esm: tuple[int, int, int]
    """Layers, width and heads of an ESM-2 or ESM-1b."""
    esmc: tuple[int, int]
    t5: dict[str, int]
    geneformer: dict[str, int]
    language: dict[str, dict[str, int]]
    lengths: tuple[int, ...]
    """Residues of the proteins whose contacts are computed; the second one's are scored."""
    tokens: int
    num_genes: int
    """Genes of a cell, each deleted once."""
    rows: tuple[int, ...]
    new_tokens: int


PUBLISHED = Size(
    esm=(33, 1280, 20),
    esmc=(36, 1152),
    t5={"d_model": 1024, "d_kv": 128, "d_ff": 16384, "num_layers": 24, "num_heads": 32},
    geneformer={"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8}
    | {"intermediate_size": 1024},
    language={
        "135M": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
        | {"num_attention_heads": 9, "num_key_value_heads": 3},
        "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
        | {"num_attention_heads": 12, "num_key_value_heads": 2},
    },
    lengths=(100, 400, 1000),
    tokens=60_000,
    num_genes=1_000,
    rows=(1, 8, 32, 128),
    new_tokens=120,
)
"""ESM-2 650M and ESM-1b, ESM C 600M, ProtT5's encoder, Geneformer with 12 layers, SmolLM2 135M and
a Qwen2.5 of 1.5B (both with a small vocabulary)."""
TINY = Size(
    esm=(2, 64, 4),
    esmc=(2, 128),
    t5={"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4},
    geneformer={"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    | {"intermediate_size": 64},
    language={
        name: {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        | {"num_attention_heads": 4, "num_key_value_heads": 2}
        for name in ("135M", "1.5B")
    },
    lengths=(20, 40),
    tokens=1_000,
    num_genes=30,
    rows=(1, 4),
    new_tokens=24,
)


def measure(name: str, ground: Ground, passes: int, clock: Clock) -> dict[str, Any]:
    """Return the rows of a case; tell them after each pass. A way that fails has its error."""
    say(f"{name}: beside its peers")
    size = TINY if ground.place.name == "rehearsal" else PUBLISHED
    case = CASES[name](ground, size)
    rows: dict[str, dict[str, Any]] = {way: {"name": way, "seconds": []} for way in case.ways}
    first: Numbers | None = None
    for number in range(passes + 1):
        for way, compute in case.ways.items():
            row = rows[way]
            is_slow = max(row["seconds"], default=0.0) > SLOW_SECONDS
            if "error" in row or is_slow or (row["seconds"] and clock.left() <= 0):
                continue
            try:
                seconds, (amount, numbers) = _timed(compute, ground.place)
            except Exception as error:
                text = " ".join(str(error).split())[:200]
                row["error"] = f"{type(error).__name__}: {text}"
                continue
            if first is None:
                first = numbers
            if number == 1 and not is_slow:
                row["seconds"] = []  # those of the pass that warmed up
            row["seconds"].append(round(seconds, 4))
            rates = [amount / each for each in row["seconds"]]
            row["per_second"] = round(statistics.median(rates), 1)
            row["range"] = [round(min(rates), 1), round(max(rates), 1)]
            if numbers is not None and first is not None:
                row["off"] = float(f"{relative_l2(numbers, first):.2g}")
        found = {"unit": case.unit, "rows": [*rows.values()]}
        ground.so_far(found)
    failed = [way for way, row in rows.items() if "error" in row]
    return found | ({"error": f"failed: {', '.join(failed)}"} if failed else {})


def _timed(compute: Way, place: Place) -> tuple[float, tuple[int, Numbers | None]]:
    place.synchronize()
    start = time.perf_counter()
    computed = compute()
    place.synchronize()
    return time.perf_counter() - start, computed


class Loaded:
    """A workload with its model on the device of `place`."""

    def __init__(self, name: str, options: dict[str, Any], place: Place, cache: Path) -> None:
        self.workload: Any = find_workload(name)
        asked = self.workload.Options.model_validate(options)
        if name in ("geneformer", "llm_json"):
            held = weights.weights_of(plain_weights.look(options["model"], False, 1))
        else:
            held = weights.weights_of(weights.convert(options["model"], cache, name))
        self.device: Device = place.compute_device()
        self.options = self.workload.resolve(asked, self.device, held)
        self.model = self.workload.load(self.options, [self.device], held)

    def values(self, payloads: Sequence[bytes]) -> list[dict[str, Any]]:
        """Return the values of each payload, computed in the batches of a worker."""
        costs = [self.workload.cost(payload, self.options) for payload in payloads]
        budget = self.workload.batch_cost(self.options, self.device)
        rows: list[dict[str, Any]] = [{}] * len(payloads)
        for batch in make_batches(costs, budget):
            values = values_of(self.workload, self.model, [payloads[r] for r in batch], budget)
            for row, value in zip(batch, values.to_pylist(), strict=True):
                rows[row] = value
        return rows


def _dtypes(place: Place) -> tuple[str, ...]:
    return ("fp32", "bf16") if place.compute_device().has_bf16 else ("fp32",)


def _random_proteins(lengths: Sequence[int]) -> list[str]:
    draw = np.random.default_rng(0)
    return ["".join(draw.choice(list(AMINO_ACIDS), length)) for length in lengths]


def _fair_esm(ground: Ground, size: Size) -> tuple[Any, Path]:
    with torch.device(ground.place.device):
        model = contact_maps.network(*size.esm)
    return model, contact_maps.save(model, ground.folder / "random.pt")


def contacts(ground: Ground, size: Size) -> Case:
    """Contact maps of proteins, one at a time."""
    model, path = _fair_esm(ground, size)
    letters = _random_proteins(size.lengths)
    ways: dict[str, Way] = {}

    def theirs() -> tuple[int, Numbers]:
        maps = contact_maps.theirs(model, letters)
        return len(letters), np.concatenate([each.ravel() for each in maps])

    ways["fair-esm fp32"] = theirs
    for dtype in _dtypes(ground.place):
        device = ground.place.compute_device()
        compute = contact_maps.ours(path, dtype, ground.folder / "cache", device)

        def ours(compute: Any = compute) -> tuple[int, Numbers]:
            return len(letters), np.concatenate([each.ravel() for each in compute(letters)])

        ways[f"featuremill {dtype}"] = ours
    return Case("proteins", ways)


def scores(ground: Ground, size: Size) -> Case:
    """Masked marginals of one protein: a pass a residue."""
    model, path = _fair_esm(ground, size)
    (letters,) = _random_proteins(size.lengths[1:2])
    columns = tokens_of(AMINO_ACIDS.encode())
    tokens = torch.from_numpy(tokenize(letters.encode(), (0, len(letters))))

    def theirs(together: int) -> tuple[int, Numbers]:
        rows = []
        with torch.inference_mode():
            for sites in torch.split(torch.arange(1, len(letters) + 1), together):
                copies = tokens.repeat(len(sites), 1)
                copies[torch.arange(len(sites)), sites] = MASK
                logits = model(copies.to(ground.place.device))["logits"].cpu()
                rows.append(logits[torch.arange(len(sites)), sites].float().log_softmax(-1))
        return len(letters), torch.cat(rows).numpy()[:, columns]

    ways: dict[str, Way] = {
        "fair-esm fp32, 1 at once": partial(theirs, 1),
        "fair-esm fp32, 16 at once": partial(theirs, 16),
    }
    for dtype in _dtypes(ground.place):
        asked = {"model": str(path), "variants": "none", "log_probabilities": "masked"}
        loaded = Loaded("scores", asked | {"dtype": dtype}, ground.place, ground.folder / "cache")

        def ours(loaded: Loaded = loaded) -> tuple[int, Numbers]:
            (row,) = loaded.values([letters.encode()])
            return len(letters), np.array(row["log_probabilities"], np.float32)

        ways[f"featuremill {dtype}"] = ours
    return Case("passes", ways)


def _means(
    model: Any, tokens: Sequence[npt.NDArray[np.int64]], pad: int, budget: int, first: int
) -> Numbers:
    """Return the means that transformers computes, in sorted batches with padding; `first` is the
    number of special tokens in front."""
    means: list[Numbers] = [np.empty(0, np.float32)] * len(tokens)
    for rows in sorted_batches([*map(len, tokens)], budget):
        ids = np.full((len(rows), len(tokens[rows[0]])), pad)
        for number, row in enumerate(rows):
            ids[number, : len(tokens[row])] = tokens[row]
        tokens_NT = torch.from_numpy(ids).to(model.device)
        with torch.inference_mode():
            mask_NT = (tokens_NT != pad).long()
            hidden_NTD = model(input_ids=tokens_NT, attention_mask=mask_NT).last_hidden_state
            pooled = [
                hidden_TD[first : len(tokens[row]) - 1].float().mean(0)
                for row, hidden_TD in zip(rows, hidden_NTD, strict=True)
            ]
            pooled_ND = torch.stack(pooled).cpu().numpy()
        for row, pooled_D in zip(rows, pooled_ND, strict=True):
            means[row] = pooled_D
    return np.stack(means)


def _pooled(
    ground: Ground, size: Size, workload: str, folder: Path, network: Any, more: dict[str, Any]
) -> Case:
    """Return the case of a network of transformers and a workload with means."""
    held = Sample(ground.fasta).take(size.tokens)
    payloads = [sequence[:MAX_RESIDUES].encode() for _, sequence in held]
    ours = {
        dtype: Loaded(
            workload,
            {"model": str(folder), "dtype": dtype, **more},
            ground.place,
            ground.folder / "cache",
        )
        for dtype in _dtypes(ground.place)
    }
    some = ours["fp32"]
    budget = some.workload.batch_cost(some.options, some.device)
    if workload == "encoder":
        vocabulary = some.model.vocabulary
        tokens, pad = [vocabulary.tokens(payload) for payload in payloads], vocabulary.pad
        first = 0 if "t5" in type(network).__name__.lower() else 1
    else:
        tokens, pad, first = [tokenize(each, (0, len(each))) for each in payloads], 1, 1
    amount = sum(map(len, tokens))
    network = network.float().eval().to(ground.place.device)
    ways: dict[str, Way] = {}
    for dtype in ours:
        model = network if dtype == "fp32" else _narrowed(network)

        def theirs(model: Any = model) -> tuple[int, Numbers]:
            return amount, _means(model, tokens, pad, budget, first)

        ways[f"transformers {dtype}"] = theirs
    for dtype, loaded in ours.items():

        def compute(loaded: Loaded = loaded) -> tuple[int, Numbers]:
            rows = loaded.values(payloads)
            return amount, np.array([next(iter(row.values())) for row in rows], np.float32)

        ways[f"featuremill {dtype}"] = compute
    return Case("tokens", ways)


def _narrowed(network: Any) -> Any:
    """Return a copy in bf16."""
    from copy import deepcopy

    return deepcopy(network).to(torch.bfloat16)


def encoder(kind: str, ground: Ground, size: Size) -> Case:
    """An encoder as Hugging Face publishes it, of a kind of `tests/encoder_models.py`."""
    sys.path.insert(0, str(ROOT / "tests"))
    import encoder_models as known  # type: ignore[import-not-found]
    import transformers

    sizes = size.t5
    if kind == "esm1b":
        layers, width, heads = size.esm
        sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
        sizes |= {"intermediate_size": 4 * width}
    config = known.KINDS[kind].config | sizes
    settled = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    more = {"add_pooling_layer": False} if kind == "esm1b" else {}
    torch.manual_seed(0)
    with torch.device(ground.place.device):
        network = getattr(transformers, f"{known.KINDS[kind].model}Model")(settled, **more).half()
    folder = ground.folder / kind
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    known.write_vocabulary(folder, kind, 3)
    state = {name: tensor.cpu() for name, tensor in network.state_dict().items()}
    known.save(folder, state, known.KINDS[kind].prefix)
    return _pooled(ground, size, "encoder", folder, network, {"alphabet": "proteins"})


def esmc(ground: Ground, size: Size) -> Case:
    """ESM C, from transformers' folder."""
    with torch.device(ground.place.device):
        network = esm_cambrian.network(*size.esmc)
    network.save_pretrained(ground.folder / "esmc")
    return _pooled(ground, size, "esmc", ground.folder / "esmc", network, {})


def geneformer(ground: Ground, size: Size) -> Case:
    """Each gene of a cell deleted by itself: a pass a gene."""
    sys.path.insert(0, str(ROOT / "tests"))
    import geneformer_models as known  # type: ignore[import-not-found]

    from featuremill.workloads.geneformer import cells

    names = [known.ensembl(number) for number in range(size.num_genes)]
    options: dict[str, Any] = known.write_genes(ground.folder, names)
    network = known.write_model(ground.folder / "model", 4 + len(names), **size.geneformer)
    counts = known.some_counts(1, len(names), share=1.0) + 1
    file = known.write_cells(ground.folder / "cells.h5ad", known.cells_of(counts, names))
    options |= {"model": str(ground.folder / "model"), "perturb": "delete", "layers": [-1]}
    network = network.bert.to(ground.place.device)
    ours = {
        dtype: Loaded("geneformer", options | {"dtype": dtype}, ground.place, ground.folder)
        for dtype in _dtypes(ground.place)
    }
    some = ours["fp32"]
    (record,) = some.workload.records([file], some.options)
    special = known.SPECIAL["V2"]
    ends = special.index("<cls>"), special.index("<eos>")
    tokens_T = torch.tensor([ends[0], *map(int, cells.cell_of(record.payload).tokens), ends[1]])

    def vectors(rows_BT: torch.Tensor) -> torch.Tensor:
        hidden_BTD = network(rows_BT.to(ground.place.device)).last_hidden_state
        assert isinstance(hidden_BTD, torch.Tensor)
        return hidden_BTD[:, 0]

    def theirs() -> tuple[int, Numbers]:
        genes = range(1, len(tokens_T) - 1)
        with torch.inference_mode():
            whole_1D = vectors(tokens_T[None])
            rows = [torch.cat((tokens_T[:gene], tokens_T[gene + 1 :])) for gene in genes]
            turned = [
                torch.cosine_similarity(
                    vectors(torch.stack(rows[start : start + FORWARD_BATCH])), whole_1D
                )
                for start in range(0, len(rows), FORWARD_BATCH)
            ]
        return len(genes), torch.cat(turned).float().cpu().numpy()

    ways: dict[str, Way] = {"transformers fp32": theirs}
    for dtype, loaded in ours.items():

        def compute(loaded: Loaded = loaded) -> tuple[int, Numbers]:
            (row,) = loaded.values([record.payload])
            (shifts,) = (value for value in row.values() if isinstance(value, list))
            return len(shifts), np.array([each["cosine"] for each in shifts], np.float32)

        ways[f"featuremill {dtype}"] = compute
    return Case("deletions", ways)


def llm_json(shape: str, ground: Ground, size: Size) -> Case:
    """Replies of a language model, so many rows at once; transformers' generation beside it, which
    is held to no schema and always generates `new_tokens`."""
    import runpy

    import transformers

    example = runpy.run_path(str(ROOT / "config" / "examples" / "llm_json.py"))
    folder = ground.folder / shape
    example["main"](_made(folder))
    config = transformers.LlamaConfig.from_pretrained(folder / "model")
    for key, value in (size.language[shape] | {"head_dim": None}).items():
        setattr(
            config, key, value or size.language[shape]["hidden_size"] // config.num_attention_heads
        )
    torch.manual_seed(0)
    dtype = _dtypes(ground.place)[-1]
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    with torch.device(ground.place.device):
        network = transformers.LlamaForCausalLM(config).to(kind).eval()
    network.save_pretrained(folder / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model", padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    options = {"model": "model", "prompt": "prompt.jinja", "json_schema": "schema.json"}
    options = {key: str(folder / name) for key, name in options.items()}
    note = "The patient, {} years old, has had a cough for {} days. Seen again in a week."
    most = max(size.rows)
    notes = [note.format(20 + row % 60, row) for row in range(most)]
    (folder / "notes.csv").write_text(
        "\n".join(["id,note", *(f'v{row},"{text}"' for row, text in enumerate(notes))])
    )
    ways: dict[str, Way] = {}
    for rows in size.rows:
        asked = options | {"dtype": dtype, "max_tokens": MOST_TOKENS, "batch_rows": rows}
        ways[f"featuremill {dtype}, {rows} rows"] = _replies(asked, ground, folder, rows)

        def theirs(rows: int = rows) -> tuple[int, None]:
            chats = [[{"role": "user", "content": text}] for text in notes[:rows]]
            texts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
            ids = tokenizer(texts, return_tensors="pt", padding=True).to(ground.place.device)
            ids.pop("token_type_ids", None)
            length = {"max_new_tokens": size.new_tokens, "min_new_tokens": size.new_tokens}
            with torch.inference_mode():
                network.generate(**ids, **length, do_sample=False, pad_token_id=0)
            return rows * size.new_tokens, None

        ways[f"transformers {dtype}, {rows} rows"] = theirs
    return Case("tokens generated", ways)


def _replies(options: dict[str, Any], ground: Ground, folder: Path, rows: int) -> Way:
    """Return what replies to the first rows; its model is loaded at the first call."""
    loaded: list[Loaded] = []

    def compute() -> tuple[int, None]:
        if not loaded:
            loaded.append(Loaded("llm_json", options, ground.place, folder))
        (engine,) = loaded
        records = engine.workload.records([folder / "notes.csv"], engine.options)
        payloads = [record.payload for record in records][:rows]
        replies = values_of(engine.workload, engine.model, payloads, 10**9).to_pylist()
        if not all(row["tokens_out"] for row in replies):
            raise ValueError(f"a reply failed: {replies[0]['reason']}")
        return sum(row["tokens_out"] for row in replies), None

    return compute


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


CASES: dict[str, Callable[[Ground, Size], Case]] = {
    "contacts": contacts,
    "scores": scores,
    "esm1b": partial(encoder, "esm1b"),
    "esmc": esmc,
    "prott5": partial(encoder, "prott5"),
    "geneformer": geneformer,
    "llm_json": partial(llm_json, "135M"),
    "llm_json_large": partial(llm_json, "1.5B"),
}
