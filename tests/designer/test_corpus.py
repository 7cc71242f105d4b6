from __future__ import annotations

import gzip
import json
import sys

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from spade_jax.designer import corpus
from spade_jax.designer.corpus import Corpus, Document


def documents(name: str, n: int) -> list[Document]:
    return [Document(f"{name}{i}", f"text {i}", name) for i in range(n)]


def write_lines(path, *lines: str):
    path.write_text("\n".join(lines) + "\n")
    return path


# ---- chunks and words ----


def test_chunks_keep_paragraphs_whole_and_cut_long_ones_between_words():
    assert corpus.chunk("a b\n\nc d\n \ne", 4) == ["a b\n\nc d", "e"]
    assert corpus.chunk("a b c\n\nd e", 4) == ["a b c", "d e"]
    assert corpus.chunk("a b c d e", 2) == ["a b", " c d", " e"]
    assert corpus.chunk("x\n\na b c d", 2) == ["x", "a b", " c d"]
    assert corpus.chunk(" \n\n ", 2) == []


def test_a_record_of_one_line_is_cut_in_linear_time():
    text = "word " * 2_000_000
    pieces = corpus.chunk(text, 100)  # copying the rest after each cut takes minutes
    assert len(pieces) == 20_000 and {len(piece.split()) for piece in pieces} == {100}


def test_no_word_is_lost_in_chunking():
    text = "\n\n".join(" ".join(f"w{i}_{j}" for j in range(i)) for i in range(40))
    for size in (1, 7, 100):
        pieces = corpus.chunk(text, size)
        assert " ".join(pieces).split() == text.split()
        assert max(len(piece.split()) for piece in pieces) <= size


def test_theme_words_by_hand():
    text = "The Falcon saw a falcon; while print(Tower_x) Ünder glacier glacier, glacier os.path mx extraordinarily"
    # glacier 3, falcon 2, then saw; the rest is a stop word, Python's, not ASCII, part of an
    # identifier or of a wrong length. The fixed list fills up without repeating.
    assert corpus.theme_words(text, 5) == ["glacier", "falcon", "saw", "river", "stone"]
    assert corpus.theme_words(text, 5) == corpus.theme_words(text, 5)
    assert len(set(corpus.theme_words("", 20))) == 20
    assert corpus.theme_words("falcon", 24).count("falcon") == 1


def test_too_many_theme_words():
    with pytest.raises(ValueError, match="at most 24"):
        corpus.theme_words("", 25)


# ---- loading ----


def test_pydoc_is_the_default_and_deterministic():
    loaded = corpus.load_pydoc(150)
    assert len(loaded.documents) > 200
    assert loaded.skipped == 0
    assert len({document.id for document in loaded.documents}) == len(loaded.documents)
    assert corpus.load_pydoc(150) == loaded


def compressed(path, data: bytes):
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data))
    elif path.suffix == ".zst":
        path.write_bytes(zstandard.ZstdCompressor().compress(data))
    else:
        path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_jsonl_by_text_and_orig_doc(tmp_path, name):
    data = b'{"text": "one two"}\n\n{"orig_doc": "three four"}\n'
    loaded = corpus.load_path(str(compressed(tmp_path / name, data)), 100)
    assert [document.text for document in loaded.documents] == ["one two", "three four"]
    assert loaded.documents[1].source.endswith(f"{name}:3")


def test_parquet(tmp_path):
    parquet.write_table(pyarrow.table({"orig_doc": ["one two", None]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet:2: field orig_doc is a NoneType"):
        corpus.load_path(str(tmp_path / "a.parquet"), 100)
    assert len(corpus.load_path(str(tmp_path / "a.parquet"), 100, skip_bad=True).documents) == 1


def test_folder_in_name_order(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "z.md").write_text("last words")
    (tmp_path / "b.txt").write_text("first words")
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    loaded = corpus.load_path(str(tmp_path), 100)
    assert [document.text for document in loaded.documents] == ["first words", "last words"]


def test_near_duplicates_differ_in_case_spacing_and_punctuation(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", *(json.dumps({"text": t}) for t in ["One, two.", "one  TWO", "one three"]))
    loaded = corpus.load_path(str(path), 100)
    assert [document.text for document in loaded.documents] == ["One, two.", "one three"]
    assert loaded.duplicates == 1


def test_first_words_keeps_white_space():
    assert corpus.first_words("a  b\n\nc d", 3) == "a  b\n\nc"
    assert corpus.first_words("a b", 9) == "a b"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{oops", "not JSON"),
        ("[1]", "a JSON list, not an object"),
        ('{"body": "x"}', "no field text or orig_doc"),
        ('{"text": 3}', "field text is a int, not a string"),
        ('{"text": " "}', "field text is empty"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_bad_records_name_file_and_line(tmp_path, line, reason):
    path = write_lines(tmp_path / "a.jsonl", '{"text": "fine"}', line, '{"text": "also fine"}')
    with pytest.raises(ValueError, match=rf"a\.jsonl:2: {reason}"):
        corpus.load_path(str(path), 100)
    loaded = corpus.load_path(str(path), 100, skip_bad=True)
    assert (len(loaded.documents), loaded.skipped) == (2, 1)


def test_bad_encodings_and_archives_name_file_and_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine\nnot \xff fine\n")
    with pytest.raises(ValueError, match=r"a\.txt:2: not UTF-8"):
        corpus.load_path(str(tmp_path / "a.txt"), 100)
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(ValueError, match=r"b\.jsonl:1: not JSON"):
        corpus.load_path(str(tmp_path / "b.jsonl"), 100)
    whole = gzip.compress(b'{"text": "fine"}\n' * 10_000)
    for name, data in {"c.jsonl.gz": b"no gzip at all", "d.jsonl.gz": whole[: len(whole) // 2]}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=rf"{name}:\d+: cannot be decompressed"):
            corpus.load_path(str(tmp_path / name), 100)


def test_broken_zst(tmp_path):
    (tmp_path / "a.jsonl.zst").write_bytes(b"no zst at all")
    with pytest.raises(ValueError, match=r"a\.jsonl\.zst:1: cannot be decompressed"):
        corpus.load_path(str(tmp_path / "a.jsonl.zst"), 100)


def test_missing_optional_package_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl.zst").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ValueError, match="needs the package zstandard"):
        corpus.load_path(str(tmp_path / "a.jsonl.zst"), 100)


def test_unusable_paths(tmp_path):
    with pytest.raises(ValueError, match="nowhere does not exist"):
        corpus.load_path(str(tmp_path / "nowhere"), 100)
    with pytest.raises(ValueError, match="holds no file"):
        corpus.load_path(str(tmp_path), 100)
    (tmp_path / "a.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match="unknown kind"):
        corpus.load_path(str(tmp_path / "a.bin"), 100)
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="yields no document"):
        corpus.load_path(str(tmp_path / "a.jsonl"), 100)


# ---- drawing ----


def draw(source: Corpus, cursor, n: int):
    drawn = []
    for _ in range(n):
        document, cursor = source.draw(cursor)
        drawn.append(document.id)
    return drawn, cursor


def test_an_epoch_is_a_shuffle_without_replacement():
    source = Corpus({"a": documents("a", 20)}, {"a": 1.0}, seed=0)
    first, cursor = draw(source, source.start(), 20)
    second, cursor = draw(source, cursor, 20)
    assert sorted(first) == sorted(second) == sorted(d.id for d in documents("a", 20))
    assert first != second
    assert first != [d.id for d in documents("a", 20)]
    assert cursor == {"a": {"epoch": 2, "index": 0}}


def test_seeds_differ_and_repeat():
    def order(seed):
        source = Corpus({"a": documents("a", 20)}, {"a": 1.0}, seed=seed)
        return draw(source, source.start(), 20)[0]

    assert order(0) == order(0)
    assert order(0) != order(1)


def test_resume_from_a_json_cursor_is_exact():
    parts = {"a": documents("a", 5), "b": documents("b", 7)}
    source = Corpus(parts, {"a": 1, "b": 2}, seed=3)
    whole, _ = draw(source, source.start(), 40)
    head, cursor = draw(source, source.start(), 13)
    fresh = Corpus(parts, {"a": 1, "b": 2}, seed=3)
    tail, _ = draw(fresh, json.loads(json.dumps(cursor)), 27)
    assert head + tail == whole


def test_fingerprint_is_of_the_documents_and_their_order():
    """printf 'a0 a1' | sha256sum"""
    digest = "cd47418b5b6840ff487f07dab1fded55501449c33660e300c940fdcf08617df9"
    assert Corpus({"x": documents("a", 2)}, {"x": 1}, seed=3).fingerprint == {"x": digest}
    assert Corpus({"x": documents("a", 2)[::-1]}, {"x": 1}, seed=3).fingerprint != {"x": digest}


def test_mixture_weights_are_exact():
    source = Corpus({"a": documents("a", 5), "b": documents("b", 500)}, {"a": 1, "b": 3}, seed=0)
    drawn, _ = draw(source, source.start(), 400)
    for stretch in range(4, 401, 4):
        assert abs(sum(d.startswith("a") for d in drawn[:stretch]) - stretch / 4) <= 1
    assert sum(d.startswith("a") for d in drawn) == 100


def test_impossible_corpora():
    with pytest.raises(ValueError, match="same sources"):
        Corpus({"a": documents("a", 1)}, {"b": 1}, 0)
    with pytest.raises(ValueError, match="a is empty"):
        Corpus({"a": []}, {"a": 1}, 0)
    with pytest.raises(ValueError, match="a=0 must be positive"):
        Corpus({"a": documents("a", 1)}, {"a": 0}, 0)
    source = Corpus({"a": documents("a", 1)}, {"a": 1}, 0)
    with pytest.raises(ValueError, match="cursor names"):
        source.draw({"b": {"epoch": 0, "index": 0}})
    with pytest.raises(ValueError, match="another corpus"):
        source.draw({"a": {"epoch": 0, "index": 1}})
