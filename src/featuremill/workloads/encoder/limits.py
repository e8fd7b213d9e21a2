"""The network in a folder, as the options use it: its facts and its vocabulary, and the limits that
they set. Reads no weights."""

from __future__ import annotations

from pathlib import Path

from featuremill.kit.errors import UserError
from featuremill.workloads.encoder import joined, vocabulary
from featuremill.workloads.encoder.architectures import Facts, facts_of
from featuremill.workloads.encoder.options import Options
from featuremill.workloads.encoder.vocabulary import Vocabulary

USUAL_TOKENS = 1024
"""The default token limit if positions and config set none, and the authors truncate records."""
MOST_TOKENS = 4096
"""The largest default token limit for tokens of any length."""
NO_BASES = b"EFILPQ"
"""Letters of residues that are not IUPAC codes of bases."""
PAIRING = ("bert", "t5")
"""Model types of networks for pairs of chains; the token that ends a sequence separates them."""


def opened(folder: Path, options: Options) -> tuple[Facts, Vocabulary]:
    """Return the facts about the network in `folder`, and its vocabulary with the `options`.

    Raises:
        UserError: if the network is not supported, or its vocabulary is of another one.
    """
    facts = facts_of(folder)
    # Authors of T5s for proteins replace U, Z, O and B by X, except Ankh's, whose T5 is gated.
    passes_rare = str(facts.config.get("feed_forward_proj")).startswith("gated-")
    kind, is_causal = facts.config["model_type"], facts.architecture.is_causal
    words = vocabulary.load(folder, kind, options.prefix, passes_rare, is_causal, options.chat)
    if words.size > int(facts.config.get("vocab_size") or words.size):
        raise UserError(
            f"{folder}: its vocabulary has {words.size:,} tokens, and its network takes "
            f"{facts.config['vocab_size']:,}; give a folder in which the two belong together."
        )
    if options.alphabet == "contigs" and words.has_small_bases:
        strands = [vocabulary.load(folder, kind, prefix).first for prefix in ("<+>", "<->")]
        ids = {byte: id for byte, (id,) in zip(joined.STRANDS, strands, strict=True)}
        words = joined.with_joints(words._replace(first=()), ids)
    reads_pairs = kind in PAIRING and words.is_by_letter and not words.is_of_structure
    if options.paired and reads_pairs:
        words = joined.with_joints(words, {joined.BETWEEN[0]: words.last[-1]})
    return facts, words


def settled(options: Options, folder: Path, facts: Facts, words: Vocabulary) -> Options:
    """Return `options` with the limits of the network in `folder`.

    Raises:
        UserError: if the network does not support an option.
    """
    _refuse_other_alphabet(words, options.alphabet, folder)
    if options.structures and not words.with_structure:
        raise UserError(
            f"options.structures: the vocabulary in {folder} has no letters of structure; leave "
            "structures out, or give a SaProt."
        )
    if joined.joints_of(options) and not words.joints:
        option, what, model = "alphabet", "contigs", "a gLM2"
        if options.paired:
            option, what, model = "paired", "pairs of chains", "an IgBert or IgT5"
        raise UserError(
            f"options.{option}: the network in {folder} reads no {what}; give {model}, or leave "
            "that out."
        )
    if options.regions and not words.is_by_letter:
        raise UserError(
            f"options.regions: the tokens of the vocabulary in {folder} are no single letters, so "
            "no stretch of letters has vectors of its own; leave regions out."
        )
    most = facts.max_tokens
    is_by_token = _is_by_token(facts, words, options, folder)
    if options.max_tokens and most is not None and options.max_tokens > most:
        raise UserError(
            f"options.max_tokens: this network has positions for {most:,} tokens; give at most "
            "that."
        )
    if options.max_tokens and options.max_tokens <= words.num_special:
        raise UserError(
            f"options.max_tokens: {options.max_tokens} leave no token of a record beside the "
            f"{words.num_special} special ones; give more."
        )
    if options.long == "full" and most is not None:
        raise UserError(
            f"options.long: this network has positions for {most:,} tokens only; set long: "
            "truncate or refuse."
        )
    usual = most or facts.trained_tokens or USUAL_TOKENS
    long, most_letters, most_tokens = options.long, options.max_residues, options.max_tokens
    if facts.architecture.is_whole and most_letters is None and not is_by_token:
        if long == "refuse":
            raise UserError(
                "options.long: refuse: this network takes records of any length; give max_residues "
                "with it, or leave long out."
            )
        long = "full"
    if long != "full" and is_by_token:
        most_tokens = most_tokens or min(usual, MOST_TOKENS)
    elif long != "full":
        most_letters = most_letters or words.letters_in(usual)
    limits = {
        "long": long,
        "max_residues": most_letters,
        "max_tokens": most_tokens,
        "letters_per_token": options.letters_per_token or words.letters_per_token,
    }
    return options.model_copy(update=limits)


def _is_by_token(facts: Facts, words: Vocabulary, options: Options, folder: Path) -> bool:
    """Return whether the length of a record is its number of tokens, which have any length.

    Raises:
        UserError: if it is not, but an option needs it.
    """
    if words.is_learned and (options.alphabet == "texts" or facts.architecture.is_causal):
        return True
    option, remedy = "max_tokens", "set max_residues"
    if options.alphabet == "texts":
        option, remedy = "alphabet", "give a network with a tokenizer.json for texts"
    elif options.max_tokens is None:
        return False
    raise UserError(
        f"options.{option}: the vocabulary in {folder} is of letters or k-mers; {remedy}."
    )


def _refuse_other_alphabet(words: Vocabulary, alphabet: str, folder: Path) -> None:
    """Raise UserError if the vocabulary is of residues and the alphabet of bases, or vice versa."""
    has_residues = set(NO_BASES) <= set(words.letters.upper())
    if alphabet == "proteins" and not has_residues:
        raise UserError(
            f"options.alphabet: proteins: the vocabulary in {folder} lacks residues, as a network "
            "of nucleotides does; set alphabet: nucleotides, or give a network of proteins."
        )
    is_of_residues = has_residues and words.is_by_letter and not words.has_small_bases
    if alphabet == "nucleotides" and is_of_residues:
        raise UserError(
            f"options.alphabet: nucleotides: the vocabulary in {folder} is of residues, so A, C, G "
            "and T would be amino acids; set alphabet: proteins, or give a network of nucleotides."
        )
