"""A text as one message of a user, in the chat template of a model's folder; runs no code of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from featuremill.kit.errors import UserError
from featuremill.workload.hugging_face import json_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["MADE_UP", "in_common", "refuse_no_template", "tokenizer_of", "tokens"]
FILES = ("chat_template.jinja", "chat_template.json")
MADE_UP = ("a", "7 Z")
"""Texts that begin and end differently."""
TODAY = date(2025, 1, 1)
"""The date in templates that show one: nothing may depend on the day."""
DIRECTIVES = ("%Y", "%y", "%B", "%b", "%m", "%d", "%-d", "%A", "%a", "%H", "%M", "%S")
"""Directives of strftime in such templates."""


def refuse_no_template(folder: Path) -> None:
    """Raise UserError if there is no chat template in `folder`."""
    if any((folder / name).exists() for name in FILES):
        return
    if not json_of(folder / "tokenizer_config.json", "a model's").get("chat_template"):
        raise UserError(
            f"{folder}: this model has no chat template (chat_template in tokenizer_config.json, "
            f"or {FILES[0]}); take one that follows instructions, or set chat: false to give it "
            "each text as it is."
        )


def tokenizer_of(folder: Path) -> PreTrainedTokenizerFast:
    """Return transformers' tokenizer of a folder.

    Raises:
        UserError: there is none, or it is of the slow kind.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        found = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        said = " ".join(str(error).split())[:200].rstrip(".")
        raise UserError(
            f"{folder}: transformers cannot load its tokenizer ({said}); download the folder again."
        ) from None
    if not isinstance(found, PreTrainedTokenizerFast):
        raise UserError(
            f"{folder}: its tokenizer is of the slow kind, which is not used here; give a folder "
            "with a tokenizer.json."
        )
    return found


def tokens(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Return the ids of a text as the message of a user, up to where the reply would begin. What
    looks like a control token in the text stays text."""
    found = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}],
        add_generation_prompt=True,
        sanitize_control_tokens=True,
        chat_template=_without_clock(tokenizer.get_chat_template()),
    )
    return list(found["input_ids"])


def in_common(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return what both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return list(one[: next((number for number, pair in pairs if pair[0] != pair[1]), 0)])


def _without_clock(template: str) -> str:
    """Return a chat template in which a macro replaces the function that reads the clock."""
    if "strftime_now" not in template:
        return template
    filters = "".join(f'|replace("{one}", "{TODAY.strftime(one)}")' for one in DIRECTIVES)
    return f"{{% macro strftime_now(format) %}}{{{{ format{filters} }}}}{{% endmacro %}}{template}"
