"""Tokenize letters by the vocabulary in an encoder's folder, without running code of the folder.

Three kinds of vocabularies are lookup tables, with the same ids as the models' own tokenizers
(tests/test_encoder_workload.py): a token per letter (proteins), overlapping k-mers of bases (the
first DNABERT), and consecutive k-mers with single bases between (the Nucleotide Transformer). The
library `tokenizers` reads all others, from tokenizer.json. Does not import torch.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from featuremill.kit.errors import UserError
from featuremill.workload import RecordFailed
from featuremill.workloads.encoder import chat, structures, vocabulary_files
from featuremill.workloads.encoder.vocabulary_files import Files

__all__ = ["Vocabulary"]
Ids = np.ndarray[tuple[int], np.dtype[np.int64]]
Ends = tuple[int, ...]
"""Special tokens at one end of a sequence."""
WORD_START = "▁"
"""SentencePiece's mark of a token that begins a word; for a T5, every residue is a word."""
JOINTS = "▁Ġ#"
"""Marks of tokens that begin or continue a word."""
PADS, UNKNOWNS = ("<pad>", "[PAD]"), ("<unk>", "[UNK]")
SPECIAL = re.compile(r"[<\[].*[>\]]")
AS_X = bytes.maketrans(b"UZOB", b"XXXX")
"""The replacement of rare residues by the authors of ProtBERT and of T5s for proteins."""
BASES = "ACGT"
DIGITS = str.maketrans(BASES, "0123")
GLM2_TOKENS = (
    *("<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO", *"atcg"),
    *("<+>", "<->", "<mask>", "<sep>"),
)
"""gLM2's tokens: residues in capitals, bases in small letters, and strands."""
USUAL_ENDS: Mapping[str, tuple[list[str], list[str]]] = {
    "bert": (["[CLS]"], ["[SEP]"]),
    "t5": ([], ["</s>"]),
    "AMPLIFY": (["<bos>"], ["<eos>"]),
    "gLM2": (["<+>"], []),
}
"""Special tokens around a sequence, by model_type, if no file defines them."""
USUAL_PREFIXES = ("<AA2fold>", "[NLU]")
"""The default prefixes: of ProstT5 for residues (not for structures), and of Ankh 3 for features
(not for completing a sequence)."""
OF_STRUCTURE = "<fold2AA>"
"""ProstT5's prefix for letters of structure (3Di), which are small letters."""
STRANDS = ("<+>", "<->")
"""gLM2's tokens for the strand of an element."""
PREFIXES = (*USUAL_PREFIXES, OF_STRUCTURE, "[S2S]", *STRANDS)
"""The tokens that may precede a sequence."""
THREE_DI = structures.LETTERS
NO_STRUCTURE = structures.NONE
"""The letter for an unknown structure or an unknown residue in a token of two letters."""
IN_TEMPLATE = "chat_template"
"""The code of the reason for texts that a chat template does not accept."""
LEARNED_LETTERS = 4
"""A low estimate of the bases per token of a learned vocabulary (DNABERT-2's: five)."""


class Vocabulary(NamedTuple):
    """A vocabulary, and the function that tokenizes letters with it."""

    own: Callable[[bytes], Ids]
    """A function from letters to the ids of their own tokens, without special tokens."""
    first: Ends
    """Special tokens before the own tokens."""
    last: Ends
    """Special tokens after the own tokens."""
    pad: int
    unknown: int
    letters_per_token: int
    """Approximate number of letters per token, for costs."""
    least_letters: int = 1
    """Smallest number of letters that have a token."""
    is_by_letter: bool = True
    """Whether each letter is one token, and so has a vector."""
    rare_as_x: bool = False
    """Whether U, Z, O and B are read as X."""
    letters: bytes = b""
    size: int = 0
    """The largest possible id plus one."""

    has_small_bases: bool = False
    """Whether it has residues as capitals and bases as small letters."""
    with_structure: Callable[[bytes, bytes], Ids] | None = None
    """A function from letters and letters of structure to the ids of tokens for both."""
    has_3di: bool = False
    """Whether it has residues as capitals and letters of structure as small letters."""
    is_of_structure: bool = False
    """Whether the prefix announces letters of structure."""
    is_learned: bool = False
    """Whether tokens have any length, by the library tokenizers."""
    joints: Ends = ()
    """Special tokens between the parts of a record."""

    def spelled(self, letters: bytes, alphabet: str) -> bytes:
        """Return letters of an alphabet in the case that this vocabulary has."""
        are_bases = self.has_small_bases and alphabet == "nucleotides"
        return letters.lower() if are_bases or self.is_of_structure else letters

    @property
    def num_special(self) -> int:
        """Number of special tokens of each sequence."""
        return len(self.first) + len(self.last)

    @property
    def has_first(self) -> bool:
        """Whether a sequence begins with a special token."""
        return bool(self.first)

    def tokens(self, letters: bytes, structure: bytes = b"", most: int | None = None) -> Ids:
        """Return the ids of all tokens of a sequence with its structure, if it has one; at `most`
        that many, with special tokens."""
        own = self.own(letters)
        if structure:
            assert self.with_structure
            own = self.with_structure(letters, structure)
        if most is not None:
            own = own[: most - self.num_special]
        return np.concatenate((self.first, own, self.last)).astype(np.int64)

    def letters_in(self, num_tokens: int) -> int:
        """Return the largest number of letters that fit `num_tokens`, with special tokens."""
        own = num_tokens - self.num_special
        return own * self.letters_per_token + self.least_letters - 1


@functools.lru_cache(maxsize=4)
def load(
    folder: Path,
    model_type: str,
    prefix: str = "",
    passes_rare: bool = False,
    is_causal: bool = False,
    in_chat: bool = False,
) -> Vocabulary:
    """Return the vocabulary in `folder` for an encoder of this type, with the token `prefix` before
    each sequence ("": the authors' default). A BERT or T5 reads U, Z, O and B as X, unless it
    `passes_rare`. With `in_chat`, the tokens of the chat template are the first and last tokens.

    Raises:
        UserError: if there is no vocabulary, or it cannot be read.
    """
    files = vocabulary_files.read(folder, GLM2_TOKENS if model_type == "gLM2" else ())
    plain = {token: id for token, id in files.ids.items() if not SPECIAL.fullmatch(token)}
    if all(token.startswith(WORD_START) for token in plain if len(token) > 1):
        starts = {token for token in plain if token.startswith(WORD_START)}
        bare = {token: id for token, id in plain.items() if token not in starts}
        plain = bare | {token.removeprefix(WORD_START): plain[token] for token in starts}
    prefix = _prefix(files, prefix, folder)
    first, last = _around(files, model_type, prefix)
    if is_causal:  # padding is not attended to, and no token is unknown
        pad = unknown = min(files.ids.values())
    else:
        pad, unknown = (_special(files.ids, folder, *names) for names in (PADS, UNKNOWNS))
    known = {token.lstrip(JOINTS) for token in plain}

    def make(own: Callable[[bytes], Ids], letters_per_token: int, **more: Any) -> Vocabulary:
        letters = "".join(sorted(token for token in known if len(token) == 1))
        size = max(*plain.values(), *first, *last, pad, unknown) + 1
        more = {"has_small_bases": model_type == "gLM2"} | more
        facts: dict[str, Any] = {"letters": letters.encode("ascii", "ignore"), "size": size}
        return Vocabulary(own, first, last, pad, unknown, letters_per_token, **(facts | more))

    if (k := _kmer_length(plain)) and model_type == "esm":
        return make(_kmers_in_a_row(plain, k, unknown), k, is_by_letter=False)
    if k and model_type == "bert":
        own = _overlapping_kmers(plain, k, unknown)
        letters = BASES.encode()
        return make(own, 1, least_letters=k, is_by_letter=False, letters=letters)
    if plain and all(
        len(token) == 2 and (token[1] == NO_STRUCTURE or token[1].islower()) for token in plain
    ):  # each token is a residue with its letter of structure, as in SaProt
        with_structure = _letters_and_structure(plain, unknown)
        known = {token[0] for token in plain}

        def alone(letters: bytes) -> Ids:
            return with_structure(letters, NO_STRUCTURE.encode() * len(letters))

        return make(alone, 1, with_structure=with_structure)
    if plain and max(map(len, plain)) == 1:
        has_3di = model_type == "t5" and set(THREE_DI) <= known
        if is_of_structure := has_3di and prefix == OF_STRUCTURE:
            known = set(THREE_DI)
        rare_as_x = model_type in ("bert", "t5") and "X" in plain and not passes_rare
        if rare_as_x and not is_of_structure:
            known |= set("UZOB")
        more = {"has_3di": has_3di, "is_of_structure": is_of_structure, "rare_as_x": rare_as_x}
        return make(_letters(plain, unknown, rare_as_x), 1, **more)
    if files.tokenizer is None:
        raise UserError(
            f"{folder}: its vocabulary is neither letters nor k-mers, and there is no "
            "tokenizer.json, which cuts sequences; save the model's fast tokenizer there."
        )
    own = _learned(files.tokenizer, first, last)
    words = make(own, LEARNED_LETTERS, is_by_letter=False, is_learned=True)
    return _in_chat(words, folder) if in_chat else words


def _special(ids: Mapping[str, int], folder: Path, *names: str) -> int:
    for name in names:
        if name in ids:
            return ids[name]
    raise UserError(
        f"{folder}: its vocabulary has no token {' or '.join(names)}; download the folder again."
    )


def _prefix(files: Files, chosen: str, folder: Path) -> str:
    """Return the token before each sequence that names its kind; "" if there is none.

    Raises:
        UserError: if the vocabulary lacks the `chosen` token.
    """
    there = [token for token in PREFIXES if token in files.ids]
    if chosen and chosen not in there:
        remedy = f"take one of {', '.join(there)}" if there else "leave it out"
        raise UserError(
            f"options.prefix: the vocabulary in {folder} has no token {chosen!r} that may stand in "
            f"front of a sequence; {remedy}."
        )
    return chosen or next((token for token in USUAL_PREFIXES if token in files.ids), "")


def _around(files: Files, model_type: str, prefix: str) -> tuple[Ends, Ends]:
    if files.around is None or model_type == "gLM2":  # gLM2's tokenizer adds no strand
        before, behind = map(list, USUAL_ENDS.get(model_type, (["<cls>"], ["<eos>"])))
        behind = behind if files.has_end else []
    else:
        before, behind = map(list, files.around)
    if prefix in STRANDS:
        before = [token for token in before if token not in STRANDS]
    if prefix and prefix not in before:
        before.insert(0, prefix)
    first, last = (
        tuple(files.ids[name] for name in names if name in files.ids) for names in (before, behind)
    )
    return first, last


def _kmer_length(plain: Mapping[str, int]) -> int:
    """Return k if the vocabulary has all k-mers of bases and no longer token, else 0."""
    k = max(map(len, plain), default=0)
    kmers = [token for token in plain if len(token) == k and not token.strip(BASES)]
    others = [token for token in plain if len(token) not in (1, k)]
    return k if k > 1 and len(kmers) == 4**k and not others else 0


def _letters(plain: Mapping[str, int], unknown: int, rare_as_x: bool) -> Callable[[bytes], Ids]:
    table = np.full(256, unknown, np.int64)
    for token, id in plain.items():
        if token.isascii() and token:
            table[ord(token)] = id
    if rare_as_x:
        table = table[np.frombuffer(AS_X, np.uint8)]

    def own(letters: bytes) -> Ids:
        ids: Ids = table[np.frombuffer(letters, np.uint8)]
        return ids

    return own


def _letters_and_structure(plain: Mapping[str, int], unknown: int) -> Callable[[bytes, bytes], Ids]:
    table = np.full((256, 256), unknown, np.int64)
    for structure in {token[1] for token in plain}:
        table[:, ord(structure)] = plain.get(NO_STRUCTURE + structure, unknown)
    for token, id in plain.items():
        table[ord(token[0]), ord(token[1])] = id

    def own(letters: bytes, structure: bytes) -> Ids:
        ids: Ids = table[np.frombuffer(letters, np.uint8), np.frombuffer(structure, np.uint8)]
        return ids

    return own


def _overlapping_kmers(plain: Mapping[str, int], k: int, unknown: int) -> Callable[[bytes], Ids]:
    """Return a function that tokenizes each k adjacent bases, with stride 1."""
    code = np.full(256, 4**k, np.int64)  # other letters make a code above those of all k-mers
    for number, base in enumerate(BASES.encode()):
        code[base] = number
    table = np.full(4**k + 1, unknown, np.int64)
    for token, id in plain.items():
        if len(token) == k and not token.strip(BASES):
            table[int(token.translate(DIGITS), base=4)] = id

    def own(letters: bytes) -> Ids:
        codes = code[np.frombuffer(letters, np.uint8)]
        if len(codes) < k:
            return np.empty(0, np.int64)
        windows = np.lib.stride_tricks.sliding_window_view(codes, k)
        ids: Ids = table[np.minimum(windows @ (4 ** np.arange(k - 1, -1, -1)), 4**k)]
        return ids

    return own


def _kmers_in_a_row(plain: Mapping[str, int], k: int, unknown: int) -> Callable[[bytes], Ids]:
    """Return a function that tokenizes the next k known bases, else one base. Adjacent letters
    without a token are one unknown token, as in EsmTokenizer."""
    single = "".join(re.escape(token) for token in plain if len(token) == 1)
    cut = re.compile(f"[{BASES}]{{{k}}}|[{single}]|[^{single}]+")

    def own(letters: bytes) -> Ids:
        tokens = cut.findall(letters.decode("ascii"))
        return np.array([plain.get(token, unknown) for token in tokens], np.int64)

    return own


def _learned(path: Path, first: Ends, last: Ends) -> Callable[[bytes], Ids]:
    """Return a function that tokenizes letters by the library tokenizers and the file `path`."""
    tokenizer = functools.cache(functools.partial(_tokenizer, path, first, last))

    def own(letters: bytes) -> Ids:
        encoded = tokenizer().encode(letters.decode("utf-8"), add_special_tokens=False)
        return np.array(encoded.ids, np.int64)

    return own


def _in_chat(words: Vocabulary, folder: Path) -> Vocabulary:
    """Return a vocabulary with the tokens of the chat template around any text. Whitespace around a
    text is removed, as it might merge with a token of the template."""
    tokenizer = chat.opened(folder)
    ids_1, ids_2 = (chat.tokens(tokenizer, text) for text in chat.SAMPLE_TEXTS)
    first, last = chat.in_common(ids_1, ids_2), chat.in_common(ids_1[::-1], ids_2[::-1])[::-1]

    def own(letters: bytes) -> Ids:
        try:
            ids = chat.tokens(tokenizer, letters.decode("utf-8").strip())
        except Exception as error:  # a template may raise any exception, with data in its message
            detail = f"it raised {type(error).__name__}"
            raise RecordFailed(IN_TEMPLATE, detail) from None
        end = len(ids) - len(last)
        if ids[: len(first)] != first or ids[end:] != last or end < len(first):
            raise RecordFailed(IN_TEMPLATE, "a token is of the text and of the template")
        return np.array(ids[len(first) : end], np.int64)

    size = max(words.size, *(id + 1 for id in (*first, *last)))
    return words._replace(own=own, first=tuple(first), last=tuple(last), size=size)


def _tokenizer(path: Path, first: Ends, last: Ends) -> Any:
    """Return the tokenizer at `path`.

    Raises:
        UserError: if it cannot be read, or adds other special tokens than `first` and `last`.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exceptions
        raise UserError(f"{path}: it cannot be read ({error}); save it anew.") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    bare = tokenizer.encode(BASES, add_special_tokens=False).ids
    if tokenizer.encode(BASES).ids != [*first, *bare, *last]:
        raise UserError(
            f"{path}: its post_processor puts special tokens in an unsupported way; save "
            "it with a TemplateProcessing."
        )
    return tokenizer
