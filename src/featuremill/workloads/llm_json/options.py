"""The `options` of the workload llm_json."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Literal, Self

from pydantic import Field, model_validator

from featuremill.inputs import RowOptions
from featuremill.workload import Kind, OptionFile, OptionWeights
from featuremill.workload.hugging_face import place_of
from featuremill.workload.networks import LayerOptions
from featuremill.workloads.encoder import chat
from featuremill.workloads.llm_json import prompts


class Options(RowOptions, LayerOptions):
    """The prompt for each row, the model, and the form of its replies."""

    PACKAGES = MappingProxyType(
        dict.fromkeys(
            ("torch", "transformers", "llguidance", "jsonschema"), "featuremill[llm-json]"
        )
    )

    EXECUTION = RowOptions.EXECUTION | LayerOptions.EXECUTION | {"required_columns"}
    """Refusing rows changes no other row's reply."""

    model: OptionWeights
    """The folder of the model from Hugging Face: `config.json`, weights as safetensors and
    `tokenizer.json`. Code in it is never run."""
    prompt: OptionFile
    """A file with the prompt, a Jinja template over the row's columns: `{{ note }}`, or `{{
    row["Patient note"] }}` for a name that is not a Jinja variable."""
    json_schema: OptionFile
    """A file with the JSON schema (draft 2020-12) of every reply; its top level is an object."""
    required_columns: tuple[str, ...] = ()
    """Columns that must not be empty; rows in which one is empty, or a word for a missing value
    (NA, NaN, NULL, None), are refused. Without this, a model invents a reply to an empty text."""
    chat: bool = True
    """The prompt is one user message in the model's chat template; `false` sends it unchanged, for
    base models."""
    temperature: float = Field(default=0, ge=0, le=10, allow_inf_nan=False)
    """0 takes the likeliest token each time; a higher temperature draws tokens at random."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """The seed of random draws. The same seed gives a row the same draws, whatever else is
    computed."""
    max_tokens: int = Field(default=512, ge=1)
    """The most tokens of a reply; a longer reply fails."""
    context: int | None = Field(default=None, ge=1)
    """The most tokens of prompt and reply together. If not given, 4,096, or the model's number of
    positions if that is less."""
    attempts: int = Field(default=1, ge=1, le=100)
    """How often a row is asked at most if its reply is cut off or invalid; more than 1 needs a
    temperature."""
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number type of the weights and the computation. `auto` is bf16 where the device has it, else
    fp16 on a GPU and fp32 on a CPU."""
    quantize: Literal["none", "8bit", "4bit"] = "none"
    """Weights in 8 or 4 bits by bitsandbytes, on a GPU only."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """`transformers` computes on a CPU or on GPUs. `vllm`, which you install yourself, computes in
    batches of its own, on GPUs."""
    batch_rows: int | None = Field(default=None, ge=1, le=256)
    """Rows that `transformers` computes at once. If not given: 16 on a CPU; on a GPU as many as its
    memory holds, 64 at most. With 1, a row's reply depends on the row alone, to the last bit."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Refuse options without effect."""
        for name in ("seed", "attempts"):
            same = "temperature: 0, which replies the same each time"
            self._refuse_idle(name, not self.temperature, same)
        if self.gpu_layers and (self.engine == "vllm" or self.quantize != "none"):
            raise ValueError("gpu_layers needs engine: transformers and quantize: none")
        self._refuse_idle("batch_rows", self.engine == "vllm", "engine: vllm")
        if self.engine == "vllm" and self.quantize == "8bit":
            raise ValueError("quantize: 8bit is not in vllm; take 4bit, or engine: transformers")
        return self

    def check_files(self) -> None:
        """Raise UserError where the model's chat template cannot be used."""
        if self.chat:
            chat.check(place_of(self.model), is_answered=True)

    def payload_columns(self) -> Sequence[str]:
        return sorted({*prompts.read(self.prompt).columns, *self.required_columns})

    def delivers(self) -> set[Kind]:
        return {"table"}
