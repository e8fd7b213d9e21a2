"""Compute replies with transformers or vLLM, many rows at once.

A matrix product rounds differently for eight rows than for one. This may change which of two tokens
with almost equal probabilities is the likeliest: sometimes in 16 bits, hardly ever in fp32. With
one row at a time, a reply depends on its row alone. Random numbers are counter-based: a hash of the
seed, the prompt, the attempt and the token's number, independent of earlier random numbers.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from featuremill.kit import environment
from featuremill.kit.errors import UserError, WorkloadError
from featuremill.workload import RecordFailed
from featuremill.workload.spread import DIRECT, HOST, Copies, free_bytes, over
from featuremill.workloads.llm_json import memory, replies
from featuremill.workloads.llm_json.options import Options

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from transformers import PreTrainedTokenizerFast

    from featuremill.workloads.llm_json.slots import OneRow, Slots

log = logging.getLogger("featuremill.llm_json")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
STOP, LENGTH = "stop", "length"
"""Why a reply ended: it is complete, or it has `max_tokens`."""
LEAST_COMMON = 16
"""The least number of common first tokens of all prompts that are computed only once."""


class Request(NamedTuple):
    tokens: list[int]
    sha256: bytes


@dataclass
class _Row:
    """A prompt whose reply is incomplete."""

    number: int
    request: Request
    matcher: LLMatcher
    chosen: list[int] = field(default_factory=list)
    """Tokens of the reply, without end tokens."""
    last: int = 0
    finish: str = ""


class Reply(NamedTuple):
    text: str
    num_tokens: int
    finish: str
    """STOP, LENGTH, or the error of the grammar."""


def random_bits(seed: int, sha256: bytes, attempt: int, number: int) -> int:
    """Return 64 random bits that depend only on the arguments."""
    counter = b"".join(part.to_bytes(8, "little") for part in (seed, attempt, number))
    return int.from_bytes(hashlib.blake2b(counter + sha256, digest_size=8).digest(), "little")


class Transformers:
    """A model of transformers, with its layers on one or several devices."""

    def __init__(
        self,
        folder: Path,
        options: Options,
        devices: Sequence[torch.device],
        tokenizer: PreTrainedTokenizerFast,
        schema: dict[str, Any],
        common: Sequence[int] = (),
    ) -> None:
        """`common` are the tokens with which all prompts begin."""
        from llguidance.hf import from_tokenizer

        self._options, self._device, self._common = options, devices[0], list(common)
        self._network, copies = _network(folder, options, devices)
        config = self._network.generation_config
        ends = config.eos_token_id if config.eos_token_id is not None else tokenizer.eos_token_id
        if ends is None:
            raise UserError(
                f"{folder}: neither generation_config.json nor the tokenizer names a token that "
                "ends a reply (eos_token); add it."
            )
        self._ends = [ends] if isinstance(ends, int) else list(ends)
        self._words = from_tokenizer(tokenizer, eos_token=self._ends)
        self._grammar = replies.grammar(schema)
        self.backend = f"transformers {type(self._network).__name__} {options.dtype}"
        if options.quantize != "none":
            self.backend += f" {options.quantize}"
        self.backend += copies.noted
        self._prepare_slots()

    @torch.inference_mode()
    def _prepare_slots(self) -> None:
        from featuremill.workloads.llm_json import slots

        wanted, context = self._options.batch_rows, self._options.context
        assert context is not None
        self._has_one_row = wanted == 1 or not slots.supports(self._network, context)
        self._prefix = None
        if self._has_one_row:
            if wanted not in (None, 1):
                log.warning("%s computes one row at a time: batch_rows has no effect", self.backend)
            self._state_name = slots.state_name(self._network)
            if not self._state_name:
                log.warning(
                    "%s keeps nothing of a text that can be used here: each token of a reply takes "
                    "as long as the whole text",
                    self.backend,
                )
            return
        self._token_bytes = slots.token_bytes(self._network)
        if len(self._common) >= LEAST_COMMON:
            self._prefix = slots.prefix_of(self._network, self._common)

    def _most_rows(self, num_tokens: int) -> int:
        """Return the number of rows with up to `num_tokens` that are computed at once."""
        if self._has_one_row:
            return 1
        if self._options.batch_rows:
            return self._options.batch_rows
        if self._device.type == "cpu":
            return memory.ROWS_ON_CPU
        return min(
            memory.rows_within(free_bytes(device), token_bytes, num_tokens)
            for device, token_bytes in self._token_bytes.items()
            if device != HOST
        )

    @torch.inference_mode()
    def replies(self, requests: Sequence[Request], attempt: int) -> list[Reply]:
        """Return the reply to each prompt, in order; attempts count from 1. The next request takes
        the slot of a row whose reply is complete."""
        from llguidance import LLMatcher

        from featuremill.workloads.llm_json.slots import OneRow, Slots

        longest = max((len(request.tokens) for request in requests), default=0)
        num_tokens = longest + self._options.max_tokens
        num_rows = min(self._most_rows(num_tokens), len(requests))
        slots: Slots | OneRow = (
            OneRow(self._network, self._state_name)
            if self._has_one_row
            else Slots(self._network, num_rows, num_tokens, self._prefix)
        )
        reply_of: dict[int, Reply] = {}
        waiting = list(range(len(requests)))[::-1]
        rows: list[_Row] = []
        """The rows in the slots, in the order of the slots."""
        while waiting or rows:
            while waiting and len(rows) < num_rows:
                number = waiting.pop()
                matcher = LLMatcher(self._words, self._grammar, log_level=0)
                row = _Row(number, requests[number], matcher)
                logits_V = slots.start(len(rows), row.request.tokens)
                rows.append(row)
                self._choose([row], logits_V[None], attempt)
                self._end(rows, slots, reply_of)
            if rows:
                logits_RV = slots.step([row.last for row in rows])
                self._choose(rows, logits_RV, attempt)
                self._end(rows, slots, reply_of)
        return [reply_of[number] for number in range(len(requests))]

    def _choose(self, rows: Sequence[_Row], logits_RV: torch.Tensor, attempt: int) -> None:
        """Choose the next token of each row, under its grammar."""
        allowed_RV = np.zeros(logits_RV.shape, bool)
        for allowed_V, row in zip(allowed_RV, rows, strict=True):
            bits = np.frombuffer(row.matcher.compute_bitmask(), np.uint8)
            mask = np.unpackbits(bits, bitorder="little")[: len(allowed_V)].view(bool)
            allowed_V[: len(mask)] = mask
            if row.matcher.is_error():
                row.finish, allowed_V[:] = str(row.matcher.stop_reason()), True
        options = self._options
        numbers = [
            random_bits(options.seed, row.request.sha256, attempt, len(row.chosen)) for row in rows
        ]
        tokens = _chosen(logits_RV, allowed_RV, options.temperature, numbers)
        for row, token in zip(rows, tokens, strict=True):
            if row.finish:
                continue
            if not row.matcher.consume_token(token):
                row.finish = str(row.matcher.stop_reason())
                continue
            row.last = token
            if token not in self._ends:
                row.chosen.append(token)
            if row.matcher.is_stopped():
                row.finish = STOP
            elif len(row.chosen) >= options.max_tokens:
                row.finish = LENGTH

    def _end(self, rows: list[_Row], slots: Slots | OneRow, reply_of: dict[int, Reply]) -> None:
        """Free the slots of rows with a complete reply; the last row moves into a freed slot."""
        for slot in range(len(rows) - 1, -1, -1):
            row = rows[slot]
            if row.finish:
                text = self._words.decode_bytes(row.chosen).decode(errors="replace")
                is_whole = row.finish in (STOP, LENGTH)
                reply_of[row.number] = Reply(text if is_whole else "", len(row.chosen), row.finish)
                slots.free(slot)
                rows[slot] = rows[-1]
                rows.pop()


def _chosen(
    logits_RV: torch.Tensor,
    allowed_RV: np.ndarray[Any, Any],
    temperature: float,
    numbers: Sequence[int],
) -> list[int]:
    """Return for each row the likeliest allowed token, or with a temperature the token that its
    random number of 64 bits selects.

    Raises:
        RecordFailed: a row has no token with a finite logit.
    """
    outside_RV = torch.from_numpy(~allowed_RV).to(logits_RV.device)
    logits_RV = logits_RV.float().masked_fill(outside_RV, -torch.inf)
    if not torch.isfinite(logits_RV.amax(1)).all():  # the maximum is NaN if any number is
        raise RecordFailed("nan", "of the network's logits; set dtype: fp32, or bf16")
    if not temperature:
        return [int(token) for token in logits_RV.argmax(1).tolist()]
    shares_RV = torch.softmax(logits_RV.double().cpu() / temperature, 1).numpy()
    drawn = []
    for shares_V, number in zip(shares_RV, numbers, strict=True):
        tokens = np.flatnonzero(shares_V)
        sums = shares_V[tokens].cumsum()
        index = np.searchsorted(sums, number / 2**64 * sums[-1], side="right")
        drawn.append(int(tokens[min(index, len(tokens) - 1)]))
    return drawn


def _network(folder: Path, options: Options, devices: Sequence[torch.device]) -> tuple[Any, Copies]:
    """Return the network on its devices, and how tensors are copied between these."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    more: dict[str, Any] = {}
    if options.quantize != "none":
        # Untested: bitsandbytes needs a GPU.
        is_4bit = options.quantize == "4bit"
        more["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_8bit=not is_4bit,
            load_in_4bit=is_4bit,
            bnb_4bit_compute_dtype=DTYPES[options.dtype],
        )
        more["device_map"] = {"": devices[0]}
    try:
        network, loading = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=DTYPES[options.dtype],
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **more,
        )
    except (OSError, ValueError, KeyError) as error:
        detail = " ".join(str(error).split())[:200].rstrip(".")
        raise UserError(
            f"{folder}: transformers cannot load this model ({detail}); download it again."
        ) from None
    if missing := sorted([*loading["missing_keys"], *loading["mismatched_keys"]], key=str):
        raise UserError(
            f"{folder}: its weights lack {missing[0]}, or have it in another shape; download the "
            "model again."
        )
    network.eval()
    if more:
        return network, DIRECT
    num_layers = getattr(network.config.get_text_config(), "num_hidden_layers", 0)
    return network, over(network, num_layers, devices, options.gpu_layers)


class Vllm:
    """vLLM on all devices of a lease. It is untested, as it needs a GPU."""

    def __init__(
        self, folder: Path, options: Options, num_devices: int, schema: dict[str, Any]
    ) -> None:
        # By default, vLLM sends usage statistics to its developers.
        environment.Variable("VLLM_NO_USAGE_STATS").set("1")
        vllm = import_module("vllm")
        structure = import_module("vllm.sampling_params").StructuredOutputsParams(json=schema)
        self._engine = vllm.LLM(
            model=str(folder),
            dtype={"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[options.dtype],
            quantization="bitsandbytes" if options.quantize == "4bit" else None,
            tensor_parallel_size=num_devices,
            max_model_len=options.context,
            trust_remote_code=False,
            disable_log_stats=True,
            structured_outputs_config={"backend": "guidance", "disable_any_whitespace": True},
        )
        self._options, self._structure, self._params = options, structure, vllm.SamplingParams
        self.backend = f"vllm {vllm.__version__} {options.dtype}"

    def replies(self, requests: Sequence[Request], attempt: int) -> list[Reply]:
        """Return the reply to each prompt, in order; vLLM makes its own batches."""
        options = self._options
        params = [
            self._params(
                temperature=options.temperature,
                seed=random_bits(options.seed, each.sha256, attempt, 0) >> 1,
                max_tokens=options.max_tokens,
                structured_outputs=self._structure,
            )
            for each in requests
        ]
        prompts = [{"prompt_token_ids": each.tokens} for each in requests]
        finished = [
            each.outputs[0] for each in self._engine.generate(prompts, params, use_tqdm=False)
        ]
        if len(finished) != len(requests):
            raise WorkloadError(f"vllm gave {len(finished)} replies to {len(requests)} prompts")
        return [Reply(each.text, len(each.token_ids), str(each.finish_reason)) for each in finished]
