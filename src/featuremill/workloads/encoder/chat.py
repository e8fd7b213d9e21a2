"""Put a text as one user message into the chat template of a model's folder; runs no code of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featuremill.kit.errors import UserError
from featuremill.kit.text import clipped, one_line
from featuremill.workload.hugging_face import json_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["SAMPLE_TEXTS", "check", "in_common", "opened", "template_of", "tokenizer_of", "tokens"]
JINJA, CONFIG, OF_PROCESSOR = "chat_template.jinja", "tokenizer_config.json", "chat_template.json"
SAMPLE_TEXTS = ("a", "7 Z")
"""Two texts with different first and last characters."""
TRIAL = "Quick-zephyrs-7"
"""A text that is in no template."""
SPECIAL = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""The variables of special tokens in a template."""
TODAY = date(2025, 1, 1)
"""The date in templates with a date, so that results do not depend on the day."""
DIRECTIVES = ("%Y", "%y", "%B", "%b", "%m", "%d", "%-d", "%A", "%a", "%H", "%M", "%S")
"""The strftime directives that are replaced in templates."""
AS_PARTS = (
    "{% set messages = [{'role': 'user', 'content': "
    "[{'type': 'text', 'text': messages[0]['content']}]}] %}"
)
"""A prefix for templates of multimodal networks, which expect a list of content parts."""
WITHOUT_THINKING = "{% set enable_thinking = false %}"
OPEN_THINKING = re.compile(r"<((?:\w+:)?think(?:ing)?)>\s*\Z")
"""The end of a prompt that opens a thinking block."""


def check(folder: Path, is_answered: bool = False) -> None:
    """Raise UserError if `template_of` would; do nothing if transformers is not installed."""
    if find_spec("transformers"):
        template_of(folder, is_answered)


def template_of(folder: Path, is_answered: bool = False) -> str:
    """Return the chat template of a folder, in the form that renders a text exactly once. If the
    prompt `is_answered`, the template closes or disables thinking.

    Raises:
        UserError: if there is none, or it does not accept one user message.
    """
    template = _without_clock(_read(folder))
    if is_answered:
        template = WITHOUT_THINKING + template
    counts = []
    refusal: UserError | None = None
    for form in (template, AS_PARTS + template):
        try:
            rendered = _rendered(folder, form)
        except UserError as error:
            refusal = refusal or error
            continue
        counts.append(rendered.count(TRIAL))
        if counts[-1] == 1:
            thinking = OPEN_THINKING.search(rendered) if is_answered else None
            if not thinking:
                return form
            whole = form.removesuffix("\n")  # as Jinja does
            return f"{whole}{{{{ '\\n</{thinking[1]}>\\n\\n' }}}}"
    if refusal and not any(counts):
        raise refusal
    raise UserError(
        f"{folder}: the text of a message comes out of its chat template {max(counts)} times, and "
        "not once; give another model, or set chat: false to give each text as it is."
    )


def _read(folder: Path) -> str:
    if (folder / JINJA).exists():
        return (folder / JINJA).read_text("utf-8")
    in_files = (_settings(folder / name).get("chat_template") for name in (CONFIG, OF_PROCESSOR))
    if not (template := next(filter(None, in_files), None)):
        raise UserError(
            f"{folder}: this model has no chat template (chat_template in {CONFIG}, {JINJA} or "
            f"{OF_PROCESSOR}); take one that follows instructions, or set chat: false to give it "
            "each text as it is."
        )
    if isinstance(template, str):
        return template
    is_by_name = isinstance(template, dict)
    named = template if is_by_name else {each["name"]: each["template"] for each in template}
    if "default" not in named:
        raise UserError(
            f"{folder}: this model has several chat templates ({', '.join(sorted(named))}), none "
            f"of them called default; save the right one as {JINJA} in the folder."
        )
    return str(named["default"])


def _settings(path: Path) -> dict[str, Any]:
    return json_of(path, "a model's") if path.exists() else {}


def _rendered(folder: Path, template: str) -> str:
    """Return TRIAL rendered by the template; raise UserError with the template's reason."""
    from transformers.utils.chat_template_utils import render_jinja_template

    config, special = _settings(folder / CONFIG), dict[str, str]()
    for name in SPECIAL:
        token = config.get(name) or ""
        special[name] = token["content"] if isinstance(token, dict) else token
    with _refusing(folder):
        rendered, _ = render_jinja_template(
            conversations=[[{"role": "user", "content": TRIAL}]],
            chat_template=template,
            add_generation_prompt=True,
            **special,
        )
    return str(rendered[0])


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """Turn any exception of a template in the block into a UserError."""
    try:
        yield
    except Exception as error:
        reason = clipped(one_line(str(error)).rstrip(".")) or type(error).__name__
        raise UserError(
            f"{folder}: its chat template does not take one message of a user ({reason}); give "
            "another model, or set chat: false to give each text as it is."
        ) from None


def opened(folder: Path, is_answered: bool = False) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a folder, with its chat template as `template_of` returns it.

    Raises:
        UserError: as `tokenizer_of` and `template_of` do.
    """
    tokenizer = tokenizer_of(folder)
    tokenizer.chat_template = template_of(folder, is_answered)
    with _refusing(folder):  # with the special tokens that the tokenizer has
        tokens(tokenizer, TRIAL)
    return tokenizer


def tokenizer_of(folder: Path) -> PreTrainedTokenizerFast:
    """Return transformers' fast tokenizer of a folder.

    Raises:
        UserError: if there is none, or only a slow one.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        why = " ".join(str(error).split())[:200].rstrip(".")
        raise UserError(
            f"{folder}: transformers cannot load its tokenizer ({why}); download the folder again."
        ) from None
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(
            f"{folder}: its tokenizer is of the slow kind, which is not used here; give a folder "
            "with a tokenizer.json."
        )
    return tokenizer


def tokens(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Return the token ids of a text as a message of the user, up to the start of the reply.
    Control tokens in the text are encoded as text."""
    encoding = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}],
        add_generation_prompt=True,
        sanitize_control_tokens=True,
    )
    return list(encoding["input_ids"])


def in_common(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the common prefix of two sequences."""
    pairs = enumerate(zip(first, second, strict=False))
    return list(first[: next((number for number, pair in pairs if pair[0] != pair[1]), 0)])


def _without_clock(template: str) -> str:
    """Return a chat template in which a macro replaces the function that reads the clock."""
    if "strftime_now" not in template:
        return template
    filters = "".join(f'|replace("{code}", "{TODAY.strftime(code)}")' for code in DIRECTIVES)
    return f"{{% macro strftime_now(format) %}}{{{{ format{filters} }}}}{{% endmacro %}}{template}"
