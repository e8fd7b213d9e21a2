"""From letters to tokens, by the vocabulary in an encoder's folder; runs no code of it. No torch.

Three kinds of vocabularies have tables here, which give the ids that the models' own tokenizers
give (tests/test_encoder_workload.py): a token a letter (proteins), overlapping k-mers of bases (the
first DNABERT), and k-mers one after the other with single bases in between (the Nucleotide
Transformer). Every other one is left to the `tokenizers` library and the folder's tokenizer.json.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from featuremill.base.errors import UserError
from featuremill.workloads.encoder import folder as folders
from featuremill.workloads.encoder import spiece

Ids = np.ndarray[tuple[int], np.dtype[np.int64]]
WORD_START = "▁"
"""SentencePiece's mark of a token that begins a word: there, every residue is a word."""
SPECIAL = re.compile(r"[<\[].*[>\]]")
AS_X = bytes.maketrans(b"UZOB", b"XXXX")
"""What the authors of ProtBERT and of the T5s for proteins have read in their place."""
BASES = "ACGT"
FOLDING = "<AA2fold>"
"""With which ProstT5 is told that residues follow, and not the alphabet of structures."""
LEARNED_LETTERS = 4
"""Bases to a token of a learned vocabulary, roughly and on the small side (DNABERT-2's: five)."""


class Vocabulary(NamedTuple):
    """What makes tokens of letters."""

    own: Callable[[bytes], Ids]
    """Letters → the ids of their own tokens, without special ones."""
    first: tuple[int, ...]
    """Special tokens before them."""
    last: tuple[int, ...]
    """And behind them."""
    pad: int
    unknown: int
    letters_per_token: int
    """How many letters a token takes up, roughly; costs are reckoned by it."""
    least_letters: int = 1
    """Fewer make no token."""
    is_by_letter: bool = True
    """Whether each letter has a token of its own, and so a vector."""
    rare_as_x: bool = False
    """Whether U, Z, O and B are read as X."""

    @property
    def num_special(self) -> int:
        """How many special tokens each sequence gets."""
        return len(self.first) + len(self.last)

    @property
    def has_first(self) -> bool:
        """Whether a special token at the beginning stands for the whole sequence."""
        return bool(self.first)

    def tokens(self, letters: bytes) -> Ids:
        """Return the ids of all tokens of a sequence."""
        return np.concatenate((self.first, self.own(letters), self.last)).astype(np.int64)

    def letters_in(self, num_tokens: int) -> int:
        """Return how many letters have at most so many tokens, special ones included."""
        own = num_tokens - self.num_special
        return own * self.letters_per_token + self.least_letters - 1


@functools.lru_cache(maxsize=4)
def of(folder: Path, model_type: str) -> Vocabulary:
    """Return the vocabulary in `folder`, of an encoder of this type.

    Raises:
        UserError: there is none that can be read.
    """
    found = _read(folder)
    plain = {token: id for token, id in found.ids.items() if not SPECIAL.fullmatch(token)}
    if all(token.startswith(WORD_START) for token in plain if len(token) > 1):
        plain = {token.removeprefix(WORD_START): id for token, id in plain.items()}
    first, last = _around(found, model_type)
    special = functools.partial(_special, found.ids, folder)
    pad, unknown = special("<pad>", "[PAD]"), special("<unk>", "[UNK]")
    make = functools.partial(Vocabulary, first=first, last=last, pad=pad, unknown=unknown)
    if k := _kmer_length(plain):
        if model_type == "esm":
            own = _kmers_in_a_row(plain, k, unknown)
            return make(own, letters_per_token=k, is_by_letter=False)
        if model_type == "bert":
            own = _overlapping_kmers(plain, k, unknown)
            return make(own, letters_per_token=1, least_letters=k, is_by_letter=False)
    if plain and max(map(len, plain)) == 1:
        rare_as_x = model_type in ("bert", "t5") and "X" in plain
        return make(_letters(plain, unknown, rare_as_x), letters_per_token=1, rare_as_x=rare_as_x)
    if found.tokenizer is None:
        raise UserError(
            f"{folder}: its vocabulary is neither letters nor k-mers, and there is no "
            "tokenizer.json that says how sequences are cut; save the model's fast tokenizer there."
        )
    own = _learned(found.tokenizer)
    return make(own, letters_per_token=LEARNED_LETTERS, is_by_letter=False)


class _Found(NamedTuple):
    """What the files of a folder tell."""

    ids: Mapping[str, int]
    tokenizer: Any
    """The `tokenizers.Tokenizer` of tokenizer.json; None without one."""
    settings: Mapping[str, Any]
    """Of tokenizer_config.json."""


def _read(folder: Path) -> _Found:
    settings_path = folder / "tokenizer_config.json"
    settings = folders.json_of(settings_path) if settings_path.is_file() else {}
    fast, plain, pieces = (
        folder / name for name in ("tokenizer.json", "vocab.txt", "spiece.model")
    )
    if fast.is_file():
        tokenizer = _tokenizer(fast)
        return _Found(tokenizer.get_vocab(with_added_tokens=True), tokenizer, settings)
    if plain.is_file():
        tokens = [line.strip() for line in plain.read_text("utf-8").splitlines()]
    elif pieces.is_file():
        tokens = spiece.read(pieces)
    else:
        raise UserError(
            f"{folder}: there is no vocabulary in this folder; it needs a tokenizer.json, a "
            "vocab.txt or a spiece.model."
        )
    ids = {token: id for id, token in reversed(list(enumerate(tokens)))}
    added = folder / "added_tokens.json"
    if added.is_file():
        ids |= {token: int(id) for token, id in folders.json_of(added).items()}
    return _Found(ids, None, settings)


def _tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library's own are plain Exceptions
        raise UserError(f"{path}: it cannot be read ({error}); download it again.") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _special(ids: Mapping[str, int], folder: Path, *names: str) -> int:
    for name in names:
        if name in ids:
            return ids[name]
    raise UserError(f"{folder}: its vocabulary has no token {' or '.join(names)}; is it whole?")


def _around(found: _Found, model_type: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special tokens before and behind a sequence's own."""
    ids = found.ids
    if found.tokenizer is not None:
        encoded = found.tokenizer.encode("A")
        own = [place for place, is_special in enumerate(encoded.special_tokens_mask)
               if not is_special]  # fmt: skip
        start, end = (own[0], own[-1] + 1) if own else (len(encoded.ids), len(encoded.ids))
        first, last = encoded.ids[:start], encoded.ids[end:]
    else:
        names = {"bert": (["[CLS]"], ["[SEP]"]), "t5": ([], ["</s>"])}
        before, behind = names.get(model_type, (["<cls>"], ["<eos>"]))
        if found.settings.get("eos_token", "") is None:  # as of the Nucleotide Transformer
            behind = []
        first, last = ([ids[name] for name in names if name in ids] for names in (before, behind))
    if FOLDING in ids and ids[FOLDING] not in first:
        first = [ids[FOLDING], *first]
    return tuple(first), tuple(last)


def _kmer_length(plain: Mapping[str, int]) -> int:
    """Return k where all k-mers of bases and nothing longer are there, else 0."""
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


def _overlapping_kmers(plain: Mapping[str, int], k: int, unknown: int) -> Callable[[bytes], Ids]:
    """Return what makes a token of each k bases, one base further each time."""
    code = np.full(256, 4**k, np.int64)  # one that is no base lifts its k-mers above all others
    for number, base in enumerate(BASES.encode()):
        code[base] = number
    table = np.full(4**k + 1, unknown, np.int64)
    for token, id in plain.items():
        if len(token) == k and not token.strip(BASES):
            table[_number(token)] = id

    def own(letters: bytes) -> Ids:
        codes = code[np.frombuffer(letters, np.uint8)]
        if len(codes) < k:
            return np.empty(0, np.int64)
        windows = np.lib.stride_tricks.sliding_window_view(codes, k)
        ids: Ids = table[np.minimum(windows @ (4 ** np.arange(k - 1, -1, -1)), 4**k)]
        return ids

    return own


def _number(kmer: str) -> int:
    number = 0
    for base in kmer:
        number = 4 * number + BASES.index(base)
    return number


def _kmers_in_a_row(plain: Mapping[str, int], k: int, unknown: int) -> Callable[[bytes], Ids]:
    """Return what makes a token of the next k bases where these are known, else of one base;
    letters without a token are one unknown token together, as EsmTokenizer has it."""
    single = "".join(re.escape(token) for token in plain if len(token) == 1)
    cut = re.compile(f"[{BASES}]{{{k}}}|[{single}]|[^{single}]+")

    def own(letters: bytes) -> Ids:
        found = cut.findall(letters.decode("ascii"))
        return np.array([plain.get(token, unknown) for token in found], np.int64)

    return own


def _learned(tokenizer: Any) -> Callable[[bytes], Ids]:
    def own(letters: bytes) -> Ids:
        encoded = tokenizer.encode(letters.decode("ascii"), add_special_tokens=False)
        return np.array(encoded.ids, np.int64)

    return own


def unknown_letters(vocabulary: Vocabulary, letters: Sequence[int]) -> bytes:
    """Return those of `letters` (as bytes) that the vocabulary does not know."""
    filler = vocabulary.least_letters - 1
    return bytes(
        letter
        for letter in letters
        if vocabulary.unknown in vocabulary.own(bytes([letter]) + b"A" * filler)
    )
