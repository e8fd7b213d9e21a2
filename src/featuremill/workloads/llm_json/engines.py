"""Engines for a model: transformers, a row at a time, or vLLM, many at once.

A row's reply depends on the row alone. A matrix product rounds differently for eight rows than for
one, and padding changes last bits, too, which can change the likeliest token. So transformers gets
one row at a time. Random numbers come from a counter: the seed, the prompt, the attempt and the
token's number, not from earlier random numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from featuremill.kit import environment
from featuremill.kit.errors import UserError, WorkloadError
from featuremill.workload import RecordFailed
from featuremill.workloads.llm_json import replies
from featuremill.workloads.llm_json.options import Options

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
STOP, LENGTH = "stop", "length"
"""How a reply ended: by itself, or at `max_tokens`."""


class Asked(NamedTuple):
    """A prompt."""

    tokens: list[int]
    sha256: bytes
    """The sha256 of its payload."""


class Reply(NamedTuple):
    """A reply."""

    text: str
    num_tokens: int
    finish: str
    """STOP, LENGTH, or why the grammar gave up."""


class Engine(Protocol):
    """A model on its devices."""

    backend: str

    def replies(self, asked: Sequence[Asked], attempt: int) -> list[Reply]:
        """Return the reply to each prompt, in order; attempts count from 1."""


def drawn(seed: int, sha256: bytes, attempt: int, number: int) -> int:
    """Return 64 random bits that depend only on the arguments."""
    counter = b"".join(part.to_bytes(8, "little") for part in (seed, attempt, number))
    return int.from_bytes(hashlib.blake2b(counter + sha256, digest_size=8).digest(), "little")


class Transformers:
    """A model of transformers, on one device."""

    def __init__(
        self,
        folder: Path,
        options: Options,
        device: torch.device,
        tokenizer: PreTrainedTokenizerFast,
        schema: dict[str, Any],
    ) -> None:
        from llguidance.hf import from_tokenizer

        self._options, self._device = options, device
        self._network = _network(folder, options, device)
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

    def replies(self, asked: Sequence[Asked], attempt: int) -> list[Reply]:
        """Return the reply to each prompt, one after the other."""
        return [self._reply(one, attempt) for one in asked]

    @torch.inference_mode()
    def _reply(self, asked: Asked, attempt: int) -> Reply:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._words, self._grammar, log_level=0)
        chosen: list[int] = []
        given, cache, finish = asked.tokens, None, LENGTH
        while len(chosen) < self._options.max_tokens:
            state = self._network(
                input_ids=torch.tensor([given], device=self._device),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = state.past_key_values
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            if matcher.is_error():
                return Reply("", len(chosen), str(matcher.stop_reason()))
            logits = state.logits[0, -1]
            allowed = np.zeros(len(logits), bool)
            mask = np.unpackbits(bits, bitorder="little")[: len(logits)].view(bool)
            allowed[: len(mask)] = mask
            number = drawn(self._options.seed, asked.sha256, attempt, len(chosen))
            token = _choose(logits, allowed, self._options.temperature, number)
            if not matcher.consume_token(token):
                return Reply("", len(chosen), str(matcher.stop_reason()))
            if token not in self._ends:
                chosen.append(token)
            if matcher.is_stopped():
                finish = STOP
                break
            given = [token]
        text = self._words.decode_bytes(chosen).decode(errors="replace")
        return Reply(text, len(chosen), finish)


def _choose(
    logits_V: torch.Tensor, allowed_V: np.ndarray[Any, Any], temperature: float, number: int
) -> int:
    """Return the likeliest allowed token, or at a temperature the one that `number` (64 bits)
    draws.

    Raises:
        RecordFailed: no token has a finite logit.
    """
    outside = torch.from_numpy(~allowed_V).to(logits_V.device)
    logits_V = logits_V.float().masked_fill(outside, -torch.inf)
    if not torch.isfinite(logits_V.max()):  # the maximum is NaN if any number is
        raise RecordFailed("nan", "of the network's logits; set dtype: fp32, or bf16")
    if not temperature:
        return int(logits_V.argmax())
    shares_V = torch.softmax(logits_V.double().cpu() / temperature, 0).numpy()
    places = np.flatnonzero(shares_V)
    sums = shares_V[places].cumsum()
    place = np.searchsorted(sums, number / 2**64 * sums[-1], side="right")
    return int(places[min(place, len(places) - 1)])


def _network(folder: Path, options: Options, device: torch.device) -> Any:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    more: dict[str, Any] = {}
    if options.quantize != "none":
        # Not tried: bitsandbytes needs a GPU.
        is_4bit = options.quantize == "4bit"
        more["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_8bit=not is_4bit,
            load_in_4bit=is_4bit,
            bnb_4bit_compute_dtype=DTYPES[options.dtype],
        )
        more["device_map"] = {"": device}
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
        said = " ".join(str(error).split())[:200].rstrip(".")
        raise UserError(
            f"{folder}: transformers cannot load this model ({said}); download it again."
        ) from None
    if missing := sorted([*loading["missing_keys"], *loading["mismatched_keys"]], key=str):
        raise UserError(
            f"{folder}: its weights lack {missing[0]}, or have it in another shape; download the "
            "model again."
        )
    network.eval()
    return network if more else network.to(device)


class Vllm:
    """vLLM, on all devices of a lease; not tried, as it needs a GPU."""

    def __init__(
        self, folder: Path, options: Options, num_devices: int, schema: dict[str, Any]
    ) -> None:
        # vLLM would report each start to its makers.
        environment.Variable("VLLM_NO_USAGE_STATS").set("1")
        vllm = import_module("vllm")
        held = import_module("vllm.sampling_params").StructuredOutputsParams(json=schema)
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
        self._options, self._held, self._params = options, held, vllm.SamplingParams
        self.backend = f"vllm {vllm.__version__} {options.dtype}"

    def replies(self, asked: Sequence[Asked], attempt: int) -> list[Reply]:
        """Return the reply to each prompt, in batches of vLLM's own."""
        options = self._options
        params = [
            self._params(
                temperature=options.temperature,
                seed=drawn(options.seed, one.sha256, attempt, 0) >> 1,
                max_tokens=options.max_tokens,
                structured_outputs=self._held,
            )
            for one in asked
        ]
        prompts = [{"prompt_token_ids": one.tokens} for one in asked]
        finished = [
            one.outputs[0] for one in self._engine.generate(prompts, params, use_tqdm=False)
        ]
        if len(finished) != len(asked):
            raise WorkloadError(f"vllm gave {len(finished)} replies to {len(asked)} prompts")
        return [Reply(one.text, len(one.token_ids), str(one.finish_reason)) for one in finished]
