"""Corpora that are read in parts, and a stand-in of the hub that serves one over HTTP."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow
import pyarrow.parquet

from threeml_core.data.prepare import PreparedData

SHARDS, ROWS = 4, 60
COMMIT = "1" * 40


def document(name: str, number: int) -> str:
    return f"{name} {number} says {number * 7919} to the {name}, and goes on for a while about it.\n" * 3


def write_shards(folder: Path) -> list[Path]:
    """A dataset of four parquet shards in several row groups, with nulls."""
    folder.mkdir()
    paths = []
    for shard in range(SHARDS):
        texts = [document(f"shard{shard}", i) if i % 10 else None for i in range(ROWS)]
        paths.append(folder / f"train-{shard:05}-of-{SHARDS:05}.parquet")
        pyarrow.parquet.write_table(pyarrow.table({"id": [*range(ROWS)], "text": texts}), paths[-1], row_group_size=16)
    return paths


def write_two(folder: Path) -> dict[str, object]:
    """Parameters of a training text made of a long and a short corpus, 3 to 1."""
    for name, count in (("cat", 600), ("dog", 30)):
        (folder / f"{name}.txt").write_text("\n".join(document(name, i) for i in range(count)))
    corpus = f"{folder / 'cat.txt'}=0.75, {folder / 'dog.txt'}=0.25"
    return {"corpus": corpus, "max_tokens": 1001 * 32}


def files_of(data: PreparedData) -> dict[str, bytes]:
    """Every file of a prepared folder."""
    return {str(p.relative_to(data.folder)): p.read_bytes() for p in data.folder.rglob("*") if p.is_file()}


class HubOfOne(ThreadingHTTPServer):
    """The hub's HTTP as far as `datasets` streams the dataset `some/set` over it: the files of a folder.

    Attributes:
        asked: names of the files whose bytes were asked for.
        broken: those that are answered with status 500.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.folder, self.asked, self.broken = folder, list[str](), set[str]()
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubOfOne

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path = unquote(urlparse(self.path).path)
        files = {file.name: file for file in sorted(self.server.folder.iterdir())}
        if found := re.fullmatch(r"/datasets/some/set/resolve/\w+/(.*)", path):
            self.send_file(files.get(found[1]))
        elif re.fullmatch(rf"/api/datasets/some/set/tree/{COMMIT}", path):
            entries = [{"type": "file", "path": n, "size": f.stat().st_size, "oid": "2" * 40} for n, f in files.items()]
            self.answer(200, json.dumps(entries).encode(), Content_Type="application/json")
        elif re.fullmatch(rf"/api/datasets/some/set(/revision/{COMMIT})?", path):
            about = {"id": "some/set", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            self.answer(200, json.dumps(about).encode(), Content_Type="application/json")
        else:
            self.answer(200) if path == "/" else self.answer(404, X_Error_Code="EntryNotFound")

    do_HEAD = do_GET

    def send_file(self, file: Path | None) -> None:
        if file is None:
            return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        if self.command == "GET":
            self.server.asked.append(file.name)
            if file.name in self.server.broken:
                return self.answer(500)
        content, headers = file.read_bytes(), {"X_Repo_Commit": COMMIT, "ETag": f'"{"2" * 40}"'}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if not asked:
            return self.answer(200, content, **headers)
        first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
        headers["Content_Range"] = f"bytes {first}-{last}/{len(content)}"
        return self.answer(206, content[first : last + 1], **headers)


@contextlib.contextmanager
def hub_of_one(folder: Path) -> Iterator[HubOfOne]:
    """It answers as long as this lasts."""
    with HubOfOne(folder) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
