"""Reading Universal Dependencies: spans, labels, documents, and what is said of bad files."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from threeml_core.foundation.errors import CorpusError, StudyError
from threeml_core.information.treebank import read_treebank, read_treebanks

UPOS = {*"ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X".split()}
"""Source: https://universaldependencies.org/u/pos."""

SAMPLE = """\
# newdoc id = first
# sent_id = 1
1	She	she	PRON	_	_	4	nsubj:pass	_	_
2-3	didn't	_	_	_	_	_	_	_	_
2	did	do	AUX	_	_	4	aux	_	_
3	n't	not	PART	_	_	4	advmod	_	SpaceAfter=No
4	pay	pay	VERB	_	_	0	root	_	_
5	10 000	10000	NUM	_	_	4	obj	_	Note=x|SpaceAfter=No
5.1	paid	pay	VERB	_	_	_	_	4:conj	_
6	!	!	PUNCT	_	_	4	punct	_	_


# newpar
1-2	Del	_	_	_	_	_	_	_	_
1	de	de	ADP	_	_	3	case	_	_
2	el	el	DET	_	_	3	det	_	_
3	mar	mar	NOUN	_	_	0	root	_	SpaceAfter=No

# newdoc
1	#	#	SYM	_	_	0	root	_	_
2	_	_	SYM	_	_	1	dep	_	_
"""


def written(folder: Path, text: str | bytes, name: str = "a.conllu") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def sentence_of(*rows: str) -> str:
    """Rows of id, form, upos, head, deprel."""
    columns = (row.split() for row in rows)
    return "".join(f"{i}\t{form}\t_\t{pos}\t_\t_\t{head}\t{label}\t_\t_\n" for i, form, pos, head, label in columns)


def test_words_spans_labels_and_documents(tmp_path: Path) -> None:
    first, second, third = read_treebank(written(tmp_path, SAMPLE))
    assert (first.document, first.text) == ("first", "She didn't pay 10 000!")
    assert [first.text[start:end] for start, end in first.spans] == ["She", "did", "n't", "pay", "10 000", "!"]
    assert first.labels["upos"] == ("PRON", "AUX", "PART", "VERB", "NUM", "PUNCT")
    assert first.labels["deprel"] == ("nsubj", "aux", "advmod", "root", "obj", "punct")
    assert (second.document, second.text) == ("first", "Del mar")
    assert second.spans == ((0, 3), (0, 3), (4, 7)), "parts that do not spell the token have its span"
    assert (third.document, third.text, third.spans) == ("", "# _", ((0, 1), (2, 3)))
    assert (first.depth, second.depth, third.depth) == (1, 1, 1)


@pytest.mark.parametrize("change", [lambda text: text.replace("\n", "\r\n"), lambda text: "\ufeff" + text, str.rstrip])
def test_line_ends_byte_order_mark_and_last_line(change: Callable[[str], str], tmp_path: Path) -> None:
    expected = read_treebank(written(tmp_path, SAMPLE))
    assert read_treebank(written(tmp_path, change(SAMPLE), "b.conllu")) == expected


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
def test_compressed_and_cut(suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    expected = read_treebank(written(tmp_path, SAMPLE))
    data = compress(SAMPLE.encode())
    assert read_treebank(written(tmp_path, data, f"a.conllu{suffix}")) == expected
    path = written(tmp_path, data[: len(data) // 2], f"cut.conllu{suffix}")
    with pytest.raises(CorpusError, match=rf"cut\.conllu{suffix} is damaged or truncated after line \d+"):
        read_treebank(path)


GOOD = sentence_of("1 a NOUN 0 root") + "\n"


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "", "no sentence in its 0 lines"),
        ("# newdoc id = a\n\n\n", "", "no sentence in its 3 lines"),
        (GOOD + "1\ta\tNOUN\n", ", line 3", "3 columns instead of 10"),
        (GOOD + sentence_of("1 a NOUN 0 root").replace("\n", "\tx\n"), ", line 3", "11 columns"),
        (GOOD + sentence_of("1 a NOUN 0 root").replace("a", " "), ", line 3", "9 columns"),
        (GOOD.replace("\t", "    "), ", line 1", "1 columns"),
        (sentence_of("1 a NOUN 0 root", "3 b NOUN 1 dep"), ", line 2", "id '3' is out of order, expected 2"),
        (sentence_of("1 a NOUN 0 root", "1 b NOUN 0 root"), ", line 2", "id '1' is out of order, expected 2"),
        (sentence_of("0 a NOUN 0 root"), ", line 1", "id '0' is out of order, expected 1"),
        (sentence_of("x a NOUN 0 root"), ", line 1", "id 'x' is out of order, expected 1"),
        (sentence_of("² a NOUN 0 root"), ", line 1", "id '²' is out of order, expected 1"),
        (sentence_of("2-1 ab _ _ _", "1 a NOUN 0 root"), ", line 1", "id '2-1' is out of order"),
        (sentence_of("1 a NOUN 0 root", "1-2 ab _ _ _"), ", line 2", "id '1-2' is out of order"),
        (sentence_of("1-3 ab _ _ _", "1 a NOUN 0 root", "2-3 b _ _ _"), ", line 3", "id '2-3' is out of order"),
        (sentence_of("1-2 ab _ _ _", "1 a NOUN 0 root"), ", line 2", "ends before word 2"),
        (sentence_of("1.1 a NOUN 0 root"), ", line 1", "no word of the sentence that begins here has head 0"),
        (sentence_of("1 a NOUN 0 root", "2 b NOUN 3 dep"), ", line 2", "head '3', expected 0 or a word"),
        (sentence_of("1 a NOUN 0 root", "2 b NOUN -1 dep"), ", line 2", "head '-1'"),
        (sentence_of("1 a NOUN _ root"), ", line 1", "head '_'"),
        (GOOD + sentence_of("1 a NOUN 2 dep", "2 b NOUN 1 dep"), ", line 3", "begins here has head 0"),
        (sentence_of("1 a X 0 root", "2 b X 4 dep", "3 c X 2 dep", "4 d X 3 dep"), ", line 2", "form a cycle, 2 <- "),
        (sentence_of("1 a NOUN 0 root", "2 b NOUN 2 dep"), ", line 2", "form a cycle, 2 <- 2"),
        (GOOD + sentence_of("1 a _ 0 root"), ", line 3", "no upos ('_')"),
        (sentence_of("1 a NOUN 0 root", "2 b NOUN 1 _"), ", line 2", "no deprel ('_')"),
        (sentence_of("1 a NOUN 0 :x"), ", line 1", "no deprel (':x')"),
        (GOOD.encode() + "1\té".encode("latin1"), " ", "is not valid UTF-8 after line"),
        (GOOD.encode("utf-16"), " ", "looks like UTF-16"),
        (GOOD + "\0", " ", "a NUL byte"),
    ],
)
def test_bad_files(text: str | bytes, where: str, what: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(CorpusError) as error:
        read_treebank(path)
    assert str(error.value).startswith(f"{path}{where}")
    assert what in str(error.value)
    assert "\n" not in str(error.value)


def test_exactly_the_heads_that_form_trees_are_read(tmp_path: Path) -> None:
    """All 5^4 assignments of heads to four words, against following them for four steps."""
    for heads in itertools.product(range(5), repeat=4):
        ends = set(range(1, 5))
        for _ in heads:
            ends = {heads[word - 1] if word else 0 for word in ends}
        path = written(tmp_path, sentence_of(*(f"{word} w X {head} dep" for word, head in enumerate(heads, 1))))
        if ends == {0}:
            (found,) = read_treebank(path)
            ways = [[word] for word in range(1, 5)]
            for way in ways:
                while way[-1]:
                    way.append(heads[way[-1] - 1])
            assert found.depth == max(map(len, ways)) - 2  # neither the root's head nor the first word is an arc
        else:
            with pytest.raises(CorpusError, match="has head 0|form a cycle"):
                read_treebank(path)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"a\.conllu cannot be used: No such file"):
        read_treebank(tmp_path / "a.conllu")


def test_sides_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    texts = {"b-dev.conllu": "two", "a-train.conllu.xz": "one", "more/c-ud-Test.conllu.gz": "three"}
    for name, form in texts.items():
        data = sentence_of(f"1 {form} NOUN 0 root").encode()
        written(tmp_path, {".xz": lzma.compress, ".gz": gzip.compress}.get(Path(name).suffix, bytes)(data), name)
    (tmp_path / "README.test").touch()
    training, test = read_treebanks(tmp_path)
    assert [sentence.text for sentence in training] == ["one", "two"]
    assert [sentence.text for sentence in test] == ["three"]


def test_folders_that_lack_a_side(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no such folder; expected a folder of .conllu files"):
        read_treebanks(tmp_path / "absent")
    written(tmp_path, "text", "test.txt")
    with pytest.raises(CorpusError, match="for training: a name without 'test'; there is: 1 .txt$"):
        read_treebanks(tmp_path)
    written(tmp_path, GOOD)
    with pytest.raises(CorpusError, match="for test: a name with 'test' in it; there is: 1 .conllu, 1 .txt$"):
        read_treebanks(tmp_path)


def test_real_treebanks(shared_data: Path) -> None:
    """Counts are those of the data's own description, and the text is what its comments say."""
    folder = shared_data / "ud"
    if not folder.is_dir():
        pytest.skip("../shared/data/ud is not here")
    words = {"gum-train": 82_874, "gum-test": 15_489, "ewt-dev": 25_147, "ewt-test": 25_094}
    for name, expected in words.items():
        sentences = read_treebank(folder / f"{name}.conllu.xz")
        assert sum(len(sentence.spans) for sentence in sentences) == expected
        with lzma.open(folder / f"{name}.conllu.xz", "rt", encoding="utf-8") as lines:
            texts = [line.removeprefix("# text = ").strip("\n") for line in lines if line.startswith("# text = ")]
        assert [sentence.text for sentence in sentences] == [text.replace("\xa0", " ") for text in texts]
        assert {label for sentence in sentences for label in sentence.labels["upos"]} <= UPOS
    training, test = read_treebanks(folder)
    assert [sum(len(sentence.spans) for sentence in side) for side in (training, test)] == [108_021, 40_583]
