"""Where documents come from, and in which order they are drawn.

Sources: the documentation text that ships with every Python (`pydoc_data.topics`), or
a path: JSONL (.jsonl, .jsonl.gz, .jsonl.zst) and parquet with a `text` or `orig_doc`
field, a text file, or a folder of any of these.

Drawing is without replacement within an epoch; the order is a function of (seed,
source, epoch) alone, so the cursor (a few integers) resumes it exactly.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import dataclasses
import gzip
import hashlib
import importlib
import io
import json
import keyword
import pathlib
import random
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

TEXT_FIELDS = ("text", "orig_doc")
TEXT_SUFFIXES = (".txt", ".md", ".rst")
JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
PARQUET_SUFFIXES = (".parquet",)
SUFFIXES = JSONL_SUFFIXES + PARQUET_SUFFIXES + TEXT_SUFFIXES

PYDOC = "pydoc"

Cursor = dict[str, dict[str, int]]  # source name -> {"epoch", "index"}; JSON-able


@dataclasses.dataclass(frozen=True)
class Document:
    """One chunk of text that grounds one designer prompt.

    Attributes:
      id: first 16 hex digits of the SHA-256 of `text`.
      text: the chunk, untrusted.
      source: where it came from: "pydoc/<topic>", or "<file>:<line>".
    """

    id: str
    text: str
    source: str


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Documents of one source.

    Attributes:
      documents: chunks in file order, near-duplicates removed.
      skipped: number of bad records that were left out.
      duplicates: number of chunks removed as near-duplicates.
    """

    documents: tuple[Document, ...]
    skipped: int
    duplicates: int


def load_pydoc(chunk_words: int, *, deduplicate: bool = True) -> Loaded:
    """The documentation that ships with Python, in chunks of about `chunk_words` words."""
    topics = importlib.import_module("pydoc_data.topics").topics
    records = ((f"{PYDOC}/{topic}", topics[topic]) for topic in sorted(topics))
    return _chunked(records, chunk_words, skipped=[], deduplicate=deduplicate)


def load_path(
    path: str,
    chunk_words: int,
    *,
    skip_bad: bool = False,
    deduplicate: bool = True,
) -> Loaded:
    """Documents of a file or folder.

    Args:
      path: a file with one of `SUFFIXES`, or a folder that holds such files.
      chunk_words: chunks hold about this many words, whole paragraphs where possible.
      skip_bad: leave out and count bad records instead of raising.
      deduplicate: drop near-duplicate chunks (paper: False).

    Raises:
      ValueError: a missing path, an unsupported file, or (unless `skip_bad`) a bad
        record, named by file and line.
    """
    root = pathlib.Path(path)
    if not root.exists():
        raise ValueError(f"corpus path {path} does not exist; name a file or folder")
    if not root.is_dir() and not root.is_file():
        raise ValueError(f"corpus path {path} is neither a file nor a folder; name one of these")
    if root.is_dir():
        files = sorted(file for file in root.rglob("*") if file.is_file() and file.name.lower().endswith(SUFFIXES))
        if not files:
            raise ValueError(f"corpus folder {path} holds no file that ends in {', '.join(SUFFIXES)}")
    else:
        files = [root]
    skipped: list[str] = []

    def records() -> Iterator[tuple[str, str]]:
        for file in files:
            for place, outcome in _read(file):
                if isinstance(outcome, str):
                    yield place, outcome
                elif skip_bad:
                    skipped.append(place)
                else:
                    raise ValueError(
                        f"{place}: {outcome}; fix the record, or skip bad ones by corpus.skip_bad_records=true"
                    )

    loaded = _chunked(records(), chunk_words, skipped, deduplicate)
    if not loaded.documents:
        raise ValueError(f"corpus path {path} yields no document ({loaded.skipped} bad records); give it text")
    return loaded


class Corpus:
    """Weighted sources, drawn from one document at a time, resumable from a cursor.

    Attributes:
      fingerprint: {source name: SHA-256 of its documents' ids in order}; equal only for the same documents.
    """

    def __init__(
        self,
        sources: Mapping[str, Sequence[Document]],
        weights: Mapping[str, float],
        seed: int,
        *,
        replacement: bool = False,
    ):
        """`sources` and `weights` are keyed by source name; weights need not sum to 1.

        With `replacement` every draw is uniform and independent of the others (paper).
        """
        self._replacement = replacement
        if not sources or set(sources) != set(weights):
            raise ValueError(
                f"corpus sources {sorted(sources)} and weights {sorted(weights)} must name the same sources"
            )
        for name in sources:
            if not sources[name]:
                raise ValueError(f"corpus source {name} is empty; remove it or give it documents")
            if not weights[name] > 0:
                raise ValueError(f"corpus weight {name}={weights[name]} must be positive; remove the source instead")
        total = sum(weights.values())
        self._sources = {name: tuple(sources[name]) for name in sorted(sources)}
        self._weights = {name: weights[name] / total for name in self._sources}
        self._seed = seed
        self.fingerprint = {
            name: hashlib.sha256(" ".join(document.id for document in documents).encode()).hexdigest()
            for name, documents in self._sources.items()
        }
        self._orders: dict[str, tuple[int, list[int]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._sources.values()))

    def start(self) -> Cursor:
        """The cursor before the first draw."""
        return {name: {"epoch": 0, "index": 0} for name in self._sources}

    def check(self, cursor: Cursor) -> None:
        """Raises ValueError for a cursor of another corpus, as far as it shows: other sources, or too few documents."""
        if set(cursor) != set(self._sources):
            raise ValueError(f"the corpus cursor names {sorted(cursor)}, the corpus {sorted(self._sources)}")
        for name, at in cursor.items():
            if at["index"] >= len(self._sources[name]):
                raise ValueError(
                    f"the corpus cursor is at document {at['index']} of {len(self._sources[name])} in {name}: another "
                    "corpus"
                )

    def draw(self, cursor: Cursor) -> tuple[Document, Cursor]:
        """The next document and the cursor behind it; `cursor` is left alone.

        The source is the one furthest behind its weight, so the mixture is exact over
        any stretch of draws, to within one document a source.
        """
        self.check(cursor)
        drawn = {name: at["epoch"] * len(self._sources[name]) + at["index"] for name, at in cursor.items()}
        target = sum(drawn.values()) + 1
        name = max(self._sources, key=lambda source: self._weights[source] * target - drawn[source])
        documents = self._sources[name]
        epoch, index = cursor[name]["epoch"], cursor[name]["index"]
        if self._replacement:
            digest = hashlib.sha256(f"{self._seed}:{name}:{epoch}:{index}".encode()).digest()
            document = documents[int.from_bytes(digest, "big") % len(documents)]
        else:
            document = documents[self._order(name, epoch)[index]]
        following = {"epoch": epoch, "index": index + 1}
        if following["index"] == len(documents):
            following = {"epoch": epoch + 1, "index": 0}
        return document, {**cursor, name: following}

    def _order(self, name: str, epoch: int) -> list[int]:
        """The shuffle of one epoch; the latest one of each source is kept."""
        kept = self._orders.get(name)
        if kept is None or kept[0] != epoch:
            digest = hashlib.sha256(f"{self._seed}:{name}:{epoch}".encode()).digest()
            order = list(range(len(self._sources[name])))
            random.Random(int.from_bytes(digest, "big")).shuffle(order)
            kept = self._orders[name] = (epoch, order)
        return kept[1]


def chunk(text: str, chunk_words: int) -> list[str]:
    """Splits text at blank lines into pieces of at most `chunk_words` words.

    Paragraphs stay whole unless one alone is longer; such a one is cut between words.
    """
    if chunk_words < 1:
        raise ValueError(f"corpus chunks of {chunk_words} words are impossible; use 1 or more")
    pieces: list[str] = []
    gathered: list[str] = []
    words = 0
    for paragraph in re.split(r"\n\s*\n", text):
        size = len(paragraph.split())
        if size == 0:
            continue
        if gathered and words + size > chunk_words:
            pieces.append("\n\n".join(gathered))
            gathered, words = [], 0
        if size > chunk_words:
            # Cut from a place, not from the front: a record of one line may have millions of words.
            place, cut = 0, re.compile(rf"(?:\s*\S++){{{chunk_words}}}")
            while size > chunk_words:
                head = cut.match(paragraph, place)
                pieces.append(head[0].strip("\n"))
                place = head.end()
                size -= chunk_words
            paragraph = paragraph[place:]
        gathered.append(paragraph.strip("\n"))
        words += size
    if gathered:
        pieces.append("\n\n".join(gathered))
    return pieces


def first_words(text: str, count: int) -> str:
    """The text up to and including its `count`-th word, white space as it was."""
    return re.match(rf"(?:\s*\S++){{0,{count}}}", text)[0]


def theme_words(text: str, n: int) -> list[str]:
    """`n` distinct lowercase ASCII words of 3-10 letters that could name things in a program.

    The text's own words come first, most frequent first and earlier first among equals;
    Python keywords, builtins and stop words are left out. Where the text has too few, a
    fixed list fills up. A function of its arguments alone.

    Raises:
      ValueError: `n` is larger than the text and the fixed list together allow.
    """
    found = (word.lower() for word in re.findall(r"(?<![\w.])[A-Za-z][a-z]{2,9}(?!\w)", text))
    counts = collections.Counter(word for word in found if word not in _UNUSABLE_WORDS)
    ranked = [word for word, _ in counts.most_common()]  # stable: insertion order among equals
    words = list(dict.fromkeys(ranked[:n] + [word for word in _SPARE_WORDS if word not in ranked[:n]]))[:n]
    if len(words) < n:
        raise ValueError(f"{n} theme words are too many for this text; ask for at most {len(words)}")
    return words


def _read(file: pathlib.Path) -> Iterator[tuple[str, str | _Bad]]:
    """Yields (place, text or what is wrong with it) for each record of a file."""
    name = file.name.lower()
    if name.endswith(TEXT_SUFFIXES):
        yield _read_text(file)
    elif name.endswith(JSONL_SUFFIXES):
        yield from _read_jsonl(file)
    elif name.endswith(PARQUET_SUFFIXES):
        yield from _read_parquet(file)
    else:
        raise ValueError(f"corpus file {file} is of an unknown kind; use one that ends in {', '.join(SUFFIXES)}")


@dataclasses.dataclass(frozen=True)
class _Bad:
    """Why a record cannot be used."""

    reason: str

    def __str__(self) -> str:
        return self.reason


def _read_text(file: pathlib.Path) -> tuple[str, str | _Bad]:
    data = file.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return f"{file}:{line}", _Bad("not UTF-8 text")
    return f"{file}:1", text if text.strip() else _Bad("the file is empty")


def _read_jsonl(file: pathlib.Path) -> Iterator[tuple[str, str | _Bad]]:
    line = 0
    with _open_binary(file) as stream:
        try:
            for line, data in enumerate(stream, start=1):
                if data.strip():
                    yield f"{file}:{line}", _text_of_line(data)
        except (OSError, EOFError, *_decompression_errors()) as error:
            # A broken archive ends here; what came before it is still good.
            yield f"{file}:{line + 1}", _Bad(f"cannot be decompressed ({error})")


def _open_binary(file: pathlib.Path) -> Any:
    if file.name.lower().endswith(".gz"):
        return gzip.open(file, "rb")
    if file.name.lower().endswith(".zst"):
        zstandard = _optional("zstandard", file)
        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(open(file, "rb"), closefd=True))
    return open(file, "rb")


def _decompression_errors() -> tuple[type[BaseException], ...]:
    errors: list[type[BaseException]] = [zlib.error]
    with contextlib.suppress(ImportError):
        errors.append(importlib.import_module("zstandard").ZstdError)
    return tuple(errors)


def _text_of_line(data: bytes) -> str | _Bad:
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        return _Bad(f"not JSON ({error})")
    return _text_of_record(record)


def _text_of_record(record: object) -> str | _Bad:
    if not isinstance(record, dict):
        return _Bad(f"a JSON {type(record).__name__}, not an object")
    for field in TEXT_FIELDS:
        if field in record:
            text = record[field]
            if not isinstance(text, str):
                return _Bad(f"field {field} is a {type(text).__name__}, not a string")
            return text if text.strip() else _Bad(f"field {field} is empty")
    return _Bad(f"no field {' or '.join(TEXT_FIELDS)}")


def _read_parquet(file: pathlib.Path) -> Iterator[tuple[str, str | _Bad]]:
    parquet = _optional("pyarrow.parquet", file)
    pyarrow = importlib.import_module("pyarrow")
    try:
        table = parquet.ParquetFile(file)
        fields = [field for field in TEXT_FIELDS if field in table.schema_arrow.names]
        if not fields:
            yield f"{file}:1", _Bad(f"no column {' or '.join(TEXT_FIELDS)}")
            return
        row = 0
        for batch in table.iter_batches(columns=fields[:1]):
            for value in batch.column(0).to_pylist():
                row += 1
                yield f"{file}:{row}", _text_of_record({fields[0]: value})
    except (OSError, pyarrow.ArrowException) as error:
        yield f"{file}:1", _Bad(f"not a readable parquet file ({' '.join(str(error).split())[:200]})")


def _optional(module: str, file: pathlib.Path) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ValueError(f"reading {file} needs the package {package}; run `pip install {package}`") from None


def _chunked(
    records: Iterator[tuple[str, str]],
    chunk_words: int,
    skipped: list[str],
    deduplicate: bool,
) -> Loaded:
    """Chunks the records; of near-duplicates (equal but for case, spacing, punctuation) the first stays."""
    documents: list[Document] = []
    seen: set[bytes] = set()
    duplicates = 0
    for place, text in records:
        for piece in chunk(text, chunk_words):
            normal = " ".join(re.findall(r"\w+", piece.lower()))
            key = hashlib.sha256(normal.encode("utf-8", "surrogatepass")).digest()
            if not normal or (deduplicate and key in seen):
                duplicates += 1
                continue
            seen.add(key)
            digest = hashlib.sha256(piece.encode("utf-8", "surrogatepass")).hexdigest()
            documents.append(Document(digest[:16], piece, place))
    return Loaded(tuple(documents), len(skipped), duplicates)


_STOP_WORDS = """
    about above after again all also although always among and any anything are around because been before being below
    between both but called can cannot case cases could did does doing done down during each either else etc even ever
    every example few first following for from further get gets given gives giving had has have having hence her here
    him his how however into its itself just last later least less let like made make makes many may means might more
    most much must need needs neither never new nor not note nothing now off often old once one ones only other others
    otherwise our out over own per rather same second see seen several shall she should since some something still such
    take taken than that the their them then there therefore these they thing this those three thus too two under
    unless until upon use used uses using usually very via was way ways well were what whatever when where whether which
    while who whole whom whose why will with within without would yet you your true false none self cls
    """
_UNUSABLE_WORDS = frozenset(
    [*_STOP_WORDS.split(), *keyword.kwlist, *keyword.softkwlist, *(name.lower() for name in dir(builtins))]
)
_SPARE_WORDS_TEXT = """
    river stone lantern harbor garden bridge tower forest mirror signal cabin valley anchor copper falcon meadow
    orchard pebble quarry ribbon saddle timber velvet willow
    """
_SPARE_WORDS = _SPARE_WORDS_TEXT.split()
