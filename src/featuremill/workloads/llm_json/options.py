"""What a config may set under `options` for the workload llm_json."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Literal, Self

from pydantic import Field, model_validator

from featuremill.inputs import RowOptions
from featuremill.workload import Kind, OptionFile, OptionWeights
from featuremill.workloads.llm_json import prompts


class Options(RowOptions):
    """What the model is asked about each row, and how it replies."""

    PACKAGES = MappingProxyType(
        dict.fromkeys(
            ("torch", "transformers", "llguidance", "jsonschema"), "featuremill[llm-json]"
        )
    )

    EXECUTION = RowOptions.EXECUTION | {"required_columns"}
    """Which rows are refused changes no other row's reply."""

    model: OptionWeights
    """The folder of the model as Hugging Face has it: `config.json`, weights as safetensors and
    `tokenizer.json`. Code in it is never run."""
    prompt: OptionFile
    """A file with the prompt, a Jinja template over the row's columns: `{{ note }}`, or
    `{{ row["Patient note"] }}` where a name is none that Jinja can spell."""
    json_schema: OptionFile
    """A file with the JSON schema (draft 2020-12) that every reply has to be valid against; its top
    level is an object."""
    required_columns: tuple[str, ...] = ()
    """Columns that a row has to have something in; a row where one is empty is refused. Without
    them a model invents a reply to an empty text."""
    chat: bool = True
    """The prompt is one message of a user, in the model's own chat template; `false` gives it to
    the model as it is, as base models want it."""
    temperature: float = Field(default=0, ge=0, le=10, allow_inf_nan=False)
    """0 takes the likeliest token each time; above, tokens are drawn."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of what is drawn; the same seed draws the same for a row, whatever else is computed."""
    max_tokens: int = Field(default=512, ge=1)
    """Tokens that a reply may have; one that is longer fails."""
    context: int | None = Field(default=None, ge=1)
    """Tokens that prompt and reply may have together. If not given, 4,096, or what the model has
    positions for where that is less."""
    attempts: int = Field(default=1, ge=1, le=100)
    """How often a row whose reply was cut off or invalid is asked at most; needs a temperature."""
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number type of the weights and of what is computed. `auto` takes bf16 where the device has
    it, else fp16 on a GPU and fp32 on a CPU."""
    quantize: Literal["none", "8bit", "4bit"] = "none"
    """Weights in 8 or 4 bits by bitsandbytes, on a GPU only."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """What computes. `transformers` has one row at a time, on a CPU or a GPU; `vllm`, which you
    install yourself, has many at once, on as many GPUs as `gpus` says."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Refuse what would have no effect."""
        if not self.temperature:
            for name in ("seed", "attempts"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"{name} has no effect with temperature: 0, which replies the same each "
                        "time; leave it out"
                    )
        if self.engine == "vllm" and self.quantize == "8bit":
            raise ValueError("quantize: 8bit is not in vllm; take 4bit, or engine: transformers")
        return self

    def payload_columns(self) -> Sequence[str]:
        """Return the columns that the prompt names."""
        return sorted({*prompts.read(self.prompt).columns, *self.required_columns})

    def delivers(self) -> set[Kind]:
        """Return the kind of all columns."""
        return {"table"}
