"""Tokenizers: a byte-level BPE trained on the corpus, or any Hugging Face tokenizer with a [MASK]."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import regex
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from threeml_core.foundation.errors import CorpusError
from threeml_core.foundation.files import find_path, fingerprint
from threeml_core.foundation.hub import hub_or_cache, hub_reason

SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
"""RoBERTa's, with its ids for the first four; a trained vocabulary has <mask> at 4."""


def limited(pieces: Iterable[str], megabytes: int | Fraction) -> Iterator[str]:
    """Pass on pieces until about `megabytes` MB of text went through."""
    left = int(megabytes * 1_000_000)
    for piece in pieces:
        if left <= 0:
            return
        left -= len(piece)
        yield piece


def train_tokenizer(pieces: Iterable[str], vocab_size: int, sequence_length: int = 512) -> PreTrainedTokenizerFast:
    """Train RoBERTa's kind of tokenizer: byte-level BPE, no unknown tokens.

    Args:
        pieces: text, streamed; the same text gives the same tokenizer.
        vocab_size: tokens wanted, at least 261 (bytes, special tokens; `CorpusError`); a small corpus may give fewer.
        sequence_length: recorded as the tokenizer's `model_max_length`.
    """
    if vocab_size < (smallest := len(SPECIAL_TOKENS) + 256):
        needs = f"at least {smallest} (256 bytes and 5 special tokens)"
        raise CorpusError(f"vocab_size={vocab_size}: a byte-level tokenizer needs {needs}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")],
    )
    kinds = {"bos": "<s>", "cls": "<s>", "pad": "<pad>", "eos": "</s>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
    tokens = {f"{kind}_token": token for kind, token in kinds.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=sequence_length, **tokens)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without transformers' warnings, reports and progress bars."""
    before, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
        if bars:
            transformers_logging.enable_progress_bar()


def load_tokenizer(name_or_folder: str | Path) -> PreTrainedTokenizerFast:
    """A Hugging Face tokenizer by name or folder; a `CorpusError` if it is not there, not fast, or lacks a token."""
    place = folder if (folder := find_path(name_or_folder)).is_dir() else name_or_folder
    with quiet_transformers(), hub_or_cache(place) as offline:
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(place), trust_remote_code=False)
        except Exception as error:  # transformers' and the hub's errors have no common base
            raise CorpusError(
                f"tokenizer {name_or_folder}: cannot be loaded ({hub_reason(error, offline)}); expected 'train', a "
                "folder, or a name on the Hugging Face hub with the network up"
            ) from None
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise CorpusError(f"tokenizer {name_or_folder}: has no fast (tokenizers) version; choose one that has")
    start, end = boundary_ids(tokenizer)
    needed = {
        "mask_token": tokenizer.mask_token_id,
        "pad_token": tokenizer.pad_token_id,
        "cls_token or bos_token": start,
        "sep_token or eos_token": end,
    }
    if missing := [label for label, value in needed.items() if value is None]:
        raise CorpusError(
            f"tokenizer {name_or_folder}: has no {', no '.join(missing)}; a masked language model needs <mask>, "
            "<pad>, <s> and </s>: choose roberta-base's kind, or `tokenizer: train`"
        )
    return tokenizer


_WORDS = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
"""GPT-2's and RoBERTa's division of text into words, which the tokenizers library calls ByteLevel."""

_MOST_WORDS = 200_000  # kept; about 30 MB


class Encoder:
    """Token ids of texts, special tokens left out, as the tokenizer itself gives them.

    Byte-level BPE, RoBERTa's kind, works on one word after the other and most words were seen before: they are looked
    up, and the tokenizer gets the new ones only. Any other kind of tokenizer, and any text with a special token
    written out in it, goes to the tokenizer whole.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._added = [token.content for token in self._backend.get_added_tokens_decoder().values()]
        about = json.loads(self._backend.to_str())
        bytes_of_words = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
        self._by_words = (
            about["normalizer"] is None
            and bytes_of_words.items() <= (about["pre_tokenizer"] or {}).items()
            and about["model"]["type"] == "BPE"
            and not about["model"]["dropout"]
        )
        self._known: dict[str, bytes] = {}

    def __call__(self, texts: list[str]) -> list[np.ndarray]:
        """(tokens,) uint32 of each text."""
        split = [self._split(text) for text in texts]
        new = sorted({word for words in split if words is not None for word in words} - self._known.keys())
        found = dict(zip(new, self._encode(new), strict=True))
        if len(self._known) + len(found) <= _MOST_WORDS:
            self._known |= found
        whole = iter(self._encode([text for text, words in zip(texts, split, strict=True) if words is None]))
        known = self._known if found.keys() <= self._known.keys() else {**self._known, **found}
        ids = (next(whole) if words is None else b"".join(map(known.__getitem__, words)) for words in split)
        return [np.frombuffer(part, np.uint32) for part in ids]

    def _split(self, text: str) -> list[str] | None:
        whole = not self._by_words or any(token in text for token in self._added)
        return None if whole else _WORDS.findall(text)

    def _encode(self, texts: list[str]) -> list[bytes]:
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32).tobytes() for encoding in encodings]


def boundary_ids(tokenizer: PreTrainedTokenizerFast) -> tuple[int | None, int | None]:
    """Ids of the tokens that open and close a sequence: <s> and </s>, or [CLS] and [SEP]."""
    start = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    end = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    return start, end


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerFast) -> str:
    """Of its vocabulary, merges and templates."""
    tokenizer.backend_tokenizer.no_truncation()  # a setting left by an earlier call is not part of it
    tokenizer.backend_tokenizer.no_padding()
    names = sorted(tokenizer.special_tokens_map.items())
    return fingerprint([tokenizer.backend_tokenizer.to_str(), names, tokenizer.truncation_side], 32)
