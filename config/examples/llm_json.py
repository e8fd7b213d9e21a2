"""Write a language model whose weights are RANDOM: what it makes of a text is worth nothing.

It is there to try the workload `llm_json` without a download; config/examples/llm_json.yaml runs
it. Run as `python config/examples/llm_json.py random_llm`, which makes that folder: the model, a
table of made-up notes, a prompt and a JSON schema.
"""

import csv
import json
import sys
from pathlib import Path

try:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
except ImportError as error:
    sys.exit(f"{error.name} is not installed; pip install 'featuremill[llm-json]' brings it.")

COMPLAINTS = ("headache", "cough", "back pain", "fever", "a rash", "dizziness")
PROMPT = """\
Read the note of a visit and say what it is about, as JSON.

Note: {{ note }}
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "complaint": {"type": "string", "maxLength": 24, "pattern": "^[a-z ]+$"},
        "severity": {"enum": ["mild", "moderate", "severe"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 365},
        "medication": {
            "type": "array",
            "items": {"type": "string", "maxLength": 16, "pattern": "^[a-z]+$"},
            "maxItems": 2,
        },
        "follow_up": {"type": "boolean"},
    },
    "required": ["complaint", "severity", "days"],
    "additionalProperties": False,
}
CHAT = """\
{% for message in messages %}<|start|>{{ message["role"] }}
{{ message["content"] }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|start|>assistant
{% endif %}"""


def notes() -> list[dict[str, str]]:
    """Return the made-up table; two of its rows have the same note."""
    found = []
    for number in range(24):
        complaint = COMPLAINTS[number % len(COMPLAINTS)]
        days = 1 + number * 5 % 23
        text = f"The patient has had {complaint} for {days} days. Seen again in a week."
        found.append({"id": f"visit{number + 1:02}", "note": text})
    return [*found, {"id": "visit25", "note": found[0]["note"]}]


def write_model(folder: Path) -> None:
    """Write a Llama of two layers and a tokenizer of bytes, as a published model has them."""
    letters = Tokenizer(models.BPE())
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    special = ["<|start|>", "<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    letters.train_from_iterator(
        [PROMPT, json.dumps(SCHEMA), *(n["note"] for n in notes())], trainer
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=letters, bos_token=special[0], eos_token=special[1]
    )
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=letters.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=letters.token_to_id(special[0]),
        eos_token_id=letters.token_to_id(special[1]),
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)


def main(folder: Path) -> None:
    """Write everything that the config names."""
    write_model(folder / "model")
    (folder / "prompt.jinja").write_text(PROMPT, "utf-8")
    (folder / "schema.json").write_text(json.dumps(SCHEMA, indent=2) + "\n", "utf-8")
    with (folder / "notes.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ["id", "note"])
        table.writeheader()
        table.writerows(notes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
