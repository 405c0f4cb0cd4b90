"""The tokenizer is of RoBERTa's kind, and what looks words up gives the same ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from threeml_core.config import make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.data.tokenizer import Encoder, train_tokenizer
from threeml_core.foundation.errors import CorpusError


def test_tokenizer_is_robertas_kind(corpus_file: Path) -> None:
    text = corpus_file.read_text().splitlines()
    tokenizer = train_tokenizer(text, 300)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert tokenizer.convert_tokens_to_ids(special) == [0, 1, 2, 3, 4] and len(tokenizer) == 300
    strange = "The cat, naïvely: 猫 \t\n<x> & 12"
    assert tokenizer.decode(tokenizer(strange, add_special_tokens=False).input_ids) == strange
    ids = tokenizer("The cat.").input_ids
    assert ids[0] == 0 and ids[-1] == 2
    assert tokenizer("a", "b").input_ids.count(2) == 3
    assert train_tokenizer(text, 300).get_vocab() == tokenizer.get_vocab()


def test_vocabulary_too_small() -> None:
    with pytest.raises(CorpusError, match="vocab_size=200: a byte-level tokenizer needs at least 261"):
        train_tokenizer(["text"], 200)


def test_unknown_tokenizer(small: dict) -> None:
    with pytest.raises(CorpusError, match="tokenizer no-such/tokenizer: cannot be loaded") as caught:
        prepare_data(make_config({**small, "tokenizer": "no-such/tokenizer"}))
    assert "\n" not in str(caught.value)


def test_words_looked_up_are_the_tokenizers_own(corpus_file: Path) -> None:
    """Every kind of character between letters, digits, blanks and line ends; all 1.1 M of them agree (checked once)."""
    tokenizer = train_tokenizer(corpus_file.read_text(encoding="utf-8").splitlines(), 300)
    encoder, backend = Encoder(tokenizer), tokenizer.backend_tokenizer
    points = [c for c in [*range(0x3100), *range(0x3100, 0x110000, 211)] if not 0xD800 <= c <= 0xDFFF]
    characters = [chr(c) for c in points]
    texts = [
        "".join(f"a{c}b {c}1 {c}{c} \n{c}  {c}'s" for c in characters[i : i + 500]) for i in range(0, len(points), 500)
    ]
    texts += ["", " ", "  \n\n ", "we'll I'M don't", corpus_file.read_text(encoding="utf-8")]
    expected = [e.ids for e in backend.encode_batch(texts, add_special_tokens=False)]
    for again in range(2):  # from the tokenizer, then from memory
        for text, found, ids in zip(texts, encoder(texts), expected, strict=True):
            assert found.tolist() == ids, (again, text[:40])


def test_text_with_a_special_token_written_out_goes_to_the_tokenizer(corpus_file: Path) -> None:
    tokenizer = train_tokenizer(corpus_file.read_text(encoding="utf-8").splitlines(), 300)
    text = "the cat <mask> sees </s>the dog"
    (found,) = Encoder(tokenizer)([text])
    assert found.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.mask_token_id in found.tolist()


def test_more_words_than_are_kept(corpus_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threeml_core.data.tokenizer._MOST_WORDS", 20)
    tokenizer = train_tokenizer(corpus_file.read_text(encoding="utf-8").splitlines(), 300)
    encoder = Encoder(tokenizer)
    texts = [f"word{i} the cat x{i}y" for i in range(40)]
    for part in (texts[:3], texts[3:], texts):
        expected = tokenizer(part, add_special_tokens=False)["input_ids"]
        assert [ids.tolist() for ids in encoder(part)] == expected


def test_another_kind_of_tokenizer_is_asked_itself() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"the": 0, "cat": 1, "?": 2}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    encoder = Encoder(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?"))
    assert [ids.tolist() for ids in encoder(["the cat", "cat dog the"])] == [[0, 1], [1, 2, 0]]
