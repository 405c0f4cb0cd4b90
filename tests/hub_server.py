"""A stand-in for the Hugging Face hub: as much of its HTTP as huggingface_hub's client calls to push a model."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import http.server
import json
import re
import threading
from typing import Any

TOKEN = "hf_" + "aWriteTokenOfMe" * 2
READ_TOKEN = "hf_" + "aReadTokenOfMe" * 2


@dataclasses.dataclass
class Repo:
    private: bool
    branches: dict[str, dict[str, bytes]] = dataclasses.field(
        default_factory=lambda: {"main": {".gitattributes": b"*.safetensors filter=lfs"}}
    )
    commits: list[tuple[str, list[str]]] = dataclasses.field(default_factory=list)
    """(branch, paths) of each commit."""


class Hub(http.server.ThreadingHTTPServer):
    """Of one user, `me`. Large files lie by their SHA-256, as on the hub, and are sent once."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, Repo] = {"other/model": Repo(False)}
        self.large: dict[str, bytes] = {}
        self.received: list[str] = []
        """SHA-256 of what was sent, in turn."""
        self.dies_after: int | None = None
        """So many large files; then it closes each connection without an answer."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def handle_one_request(self) -> None:
        died = self.server.dies_after is not None and len(self.server.received) >= self.server.dies_after
        if died:
            self.close_connection = True
        else:
            super().handle_one_request()

    def answer(self, content: Any = None, status: int = 200) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", f"{len(body)}")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do(self) -> None:
        """Answer by the first route that fits; all but a large file's own upload ask for the token."""
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        path = self.path.partition("?")[0]
        for method, pattern, route in _ROUTES:
            if method == self.command and (found := re.fullmatch(pattern, path)):
                if path != "/" and not path.startswith("/large/") and token not in (TOKEN, READ_TOKEN):
                    return self.answer({"error": f"Invalid user token {token}"}, 401)
                repo = found[1] if found.groups() and "/" in found[1] else "me/"
                if self.command == "POST" and (token == READ_TOKEN or not repo.startswith("me/")):
                    return self.answer({"error": "Forbidden"}, 403)
                if repo != "me/" and repo not in self.server.repos:
                    return self.answer({"error": "Repository not found"}, 404)
                return route(self, *found.groups())
        self.answer({"error": f"no route: {self.command} {path}"}, 404)

    do_GET = do_HEAD = do_POST = do_PUT = do

    def hello(self) -> None:
        self.answer({})

    def who(self) -> None:
        self.answer({"type": "user", "name": "me", "auth": {}})

    def create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked['organization'] or 'me'}/{asked['name']}"
        if not name.startswith("me/"):
            return self.answer({"error": "no right to create a model there"}, 403)
        there = name in self.server.repos
        self.server.repos.setdefault(name, Repo(asked.get("visibility") == "private"))
        self.answer({"url": f"{self.server.endpoint}/{name}"}, 409 if there else 200)

    def info(self, repo: str, branch: str = "main") -> None:
        files = self.server.repos[repo].branches[branch]
        self.answer({"id": repo, "sha": _sha(files), "siblings": [{"rfilename": path} for path in files]})

    def tree(self, repo: str, branch: str) -> None:
        files = self.server.repos[repo].branches[branch]
        self.answer([{"type": "file", "path": p, "size": len(c), "oid": _git_oid(c)} for p, c in sorted(files.items())])

    def branch(self, repo: str, branch: str) -> None:
        branches = self.server.repos[repo].branches
        there = branch in branches
        branches.setdefault(branch, dict(branches["main"]))
        self.answer({}, 409 if there else 200)

    def yaml(self) -> None:
        assert json.loads(self.body)["content"].startswith("---\n")
        self.answer({"errors": [], "warnings": []})

    def preupload(self, repo: str, branch: str) -> None:
        there = self.server.repos[repo].branches[branch]
        answers = []
        for file in json.loads(self.body)["files"]:
            path, large = file["path"], file["path"].endswith(".safetensors")
            oid = None
            if path in there:
                oid = hashlib.sha256(there[path]).hexdigest() if large else _git_oid(there[path])
            mode = "lfs" if large else "regular"
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.answer({"files": answers})

    def batch(self, repo: str) -> None:
        objects = []
        for asked in json.loads(self.body)["objects"]:
            upload = {"upload": {"href": f"{self.server.endpoint}/large/{asked['oid']}"}}
            objects.append(asked | ({} if asked["oid"] in self.server.large else {"actions": upload}))
        self.answer({"transfer": "basic", "objects": objects})

    def put(self, oid: str) -> None:
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.server.large[oid] = self.body
        self.server.received.append(oid)
        self.answer({})

    def commit(self, repo: str, branch: str) -> None:
        files, paths = self.server.repos[repo].branches[branch], []
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
            else:
                assert line["key"] == "header"
                continue
            paths.append(value["path"])
        self.server.repos[repo].commits.append((branch, paths))
        url = f"{self.server.endpoint}/{repo}/commit/{_sha(files)}"
        self.answer({"success": True, "commitOid": _sha(files), "commitUrl": url})

    def resolve(self, repo: str, branch: str, path: str) -> None:
        self.answer(self.server.repos[repo].branches[branch][path])


def _sha(files: dict[str, bytes]) -> str:
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


_REPO, _REV = "([^/]+/[^/]+)", "([^/]+)"
_ROUTES = [
    ("HEAD", "/", _Handler.hello),
    ("GET", "/api/whoami-v2", _Handler.who),
    ("POST", "/api/repos/create", _Handler.create),
    ("POST", "/api/validate-yaml", _Handler.yaml),
    ("GET", f"/api/models/{_REPO}", _Handler.info),
    ("GET", f"/api/models/{_REPO}/revision/{_REV}", _Handler.info),
    ("GET", f"/api/models/{_REPO}/tree/{_REV}", _Handler.tree),
    ("POST", f"/api/models/{_REPO}/branch/{_REV}", _Handler.branch),
    ("POST", f"/api/models/{_REPO}/preupload/{_REV}", _Handler.preupload),
    ("POST", f"/api/models/{_REPO}/commit/{_REV}", _Handler.commit),
    ("POST", rf"/{_REPO}\.git/info/lfs/objects/batch", _Handler.batch),
    ("PUT", "/large/([0-9a-f]+)", _Handler.put),
    ("GET", f"/{_REPO}/resolve/{_REV}/(.+)", _Handler.resolve),
]
