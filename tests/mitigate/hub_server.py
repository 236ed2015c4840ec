"""A stand-in for the hub, as much of its HTTP API as publishing a model takes.

Repositories are made by name, files come in by a commit, large ones before it by git-LFS's batch
protocol. Who sends another token than the server's is refused.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_test"


class Hub:
    """What was sent to the server."""

    def __init__(self) -> None:
        self.address = ""
        self.repositories: dict[str, dict[str, Any]] = {}  # name: what it was made with
        self.files: dict[str, dict[str, bytes]] = {}  # name: path: content
        self.stored: dict[str, bytes] = {}  # sha256: content
        self.commits: list[str] = []
        self.unknown: list[str] = []  # requests that are not part of the stand-in
        self.broken = False  # answers every commit by an error of its own


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _answer(self, said: Any, status: int = 200) -> None:
            content = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if status >= 400:
                self.send_header("X-Error-Message", said["error"])
            self.end_headers()
            self.wfile.write(content)

        def do_PUT(self) -> None:
            content = self._body()
            oid = self.path.rpartition("/")[2]
            assert hashlib.sha256(content).hexdigest() == oid
            hub.stored[oid] = content
            self._answer({})

        def do_GET(self) -> None:
            hub.unknown.append(f"GET {self.path}")
            self._answer({"error": "not here"}, 404)

        def do_POST(self) -> None:
            body = self._body()
            path = self.path.partition("?")[0]
            if self.headers.get("Authorization") != f"Bearer {TOKEN}" and "validate" not in path:
                self._answer({"error": "this token may not write"}, 401)
            elif path == "/api/repos/create":
                said = json.loads(body)
                name = f"{said['organization']}/{said['name']}"
                hub.repositories[name] = said
                self._answer({"url": f"{hub.address}/{name}"})
            elif path == "/api/validate-yaml":
                self._answer({"errors": [], "warnings": []})
            elif "/preupload/" in path:
                self._answer(
                    {
                        "files": [
                            {
                                "path": file["path"],
                                "uploadMode": "lfs"
                                if file["path"].endswith(".safetensors")
                                else "regular",
                                "shouldIgnore": False,
                                "oid": None,
                            }
                            for file in json.loads(body)["files"]
                        ]
                    }
                )
            elif path.endswith("/info/lfs/objects/batch"):
                objects = json.loads(body)["objects"]
                self._answer(
                    {
                        "transfer": "basic",
                        "objects": [
                            some
                            | {"actions": {"upload": {"href": f"{hub.address}/lfs/{some['oid']}"}}}
                            for some in objects
                        ],
                    }
                )
            elif "/commit/" in path and hub.broken:
                self._answer({"error": "out of order"}, 400)
            elif "/commit/" in path:
                name = path.removeprefix("/api/models/").partition("/commit/")[0]
                files = hub.files.setdefault(name, {})
                for line in body.splitlines():
                    entry = json.loads(line)
                    value = entry["value"]
                    if entry["key"] == "header":
                        hub.commits.append(value["summary"])
                    elif entry["key"] == "file":
                        files[value["path"]] = base64.b64decode(value["content"])
                    elif entry["key"] == "lfsFile":
                        files[value["path"]] = hub.stored[value["oid"]]
                oid = f"{len(hub.commits):040x}"
                self._answer(
                    {
                        "success": True,
                        "commitOid": oid,
                        "commitUrl": f"{hub.address}/{name}/commit/{oid}",
                    }
                )
            else:
                hub.unknown.append(f"POST {self.path}")
                self._answer({"error": "not here"}, 404)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
