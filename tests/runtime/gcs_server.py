"""As much of Cloud Storage's JSON API, in memory, as a checkpoint on gs:// needs. For tests.

    with gcs_server.running() as server:
        environ = os.environ | server.environment

What speaks to it is what speaks to the real one: TensorStore's own client, gcsfs behind etils, and Google's client.
"""

from __future__ import annotations

import contextlib
import http.server
import itertools
import json
import re
import sys
import threading
import urllib.parse
from collections.abc import Iterator

_OBJECT = re.compile(r"(?:/download)?/storage/v1/b/([^/]+)/o(?:/([^/]+))?$")
_COPY = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/(?:rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)$")


class Server:
    """The objects, and what is counted of their use.

    Attributes:
      objects: {"bucket/name": (content, generation)}.
      environment: variables that bring all clients of a process here.
      broken: while True every upload is refused, as where a quota has run out.
    """

    def __init__(self, port: int) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.generations = itertools.count(1)
        self.uploads: dict[str, tuple[str, bytearray]] = {}  # resumable ones under way: (key, what has come)
        self.lock = threading.Lock()
        self.broken = False
        url = f"http://127.0.0.1:{port}"
        self.environment = {
            "TENSORSTORE_GCS_HTTP_URL": url,
            "STORAGE_EMULATOR_HOST": url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",
            "GOOGLE_CLOUD_PROJECT": "test",
            "NO_GCE_CHECK": "true",  # and no look for credentials that a test does not have
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def names(self, prefix: str) -> list[str]:
        """Objects below "bucket/prefix"."""
        return sorted(key for key in self.objects if key.startswith(prefix))


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Server

    def log_message(self, *_: object) -> None:
        pass

    def _say(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in ({"Content-Type": "application/json"} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: object, **headers: str) -> None:
        self._say(200, json.dumps(value).encode(), **headers)

    def _refuse(self, code: int, reason: str) -> None:
        self._say(code, json.dumps({"error": {"code": code, "message": reason}}).encode())

    def _parts(self) -> tuple[str, dict[str, str]]:
        url = urllib.parse.urlsplit(self.path)
        return re.sub("^/+", "/", url.path), dict(urllib.parse.parse_qsl(url.query))

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _metadata(self, key: str) -> dict[str, object]:
        content, generation = self.state.objects[key]
        bucket, name = key.split("/", 1)
        return {
            "kind": "storage#object", "id": f"{key}/{generation}", "bucket": bucket, "name": name,
            "size": str(len(content)), "generation": str(generation), "metageneration": "1",
            "updated": "2026-01-01T00:00:00.000Z", "timeCreated": "2026-01-01T00:00:00.000Z",
        }  # fmt: skip

    def _put(self, key: str, content: bytes, query: dict[str, str]) -> None:
        with self.state.lock:
            if self.state.broken:
                self._refuse(403, "The quota of this project has run out")
                return
            wanted, (_, generation) = query.get("ifGenerationMatch"), self.state.objects.get(key, (b"", 0))
            if wanted is not None and int(wanted) != generation:
                self._refuse(412, "conditionNotMet")
                return
            self.state.objects[key] = (content, next(self.state.generations))
            self._json(self._metadata(key))

    def do_GET(self) -> None:
        path, query = self._parts()
        found = _OBJECT.search(path)
        if not found:
            bucket = path.rpartition("/")[2]
            self._json({"kind": "storage#bucket", "name": bucket, "id": bucket, "location": "NOWHERE"})
            return
        bucket, name = found[1], urllib.parse.unquote(found[2] or "")
        if not name:
            self._list(bucket, query)
            return
        with self.state.lock:
            key = f"{bucket}/{name}"
            if key not in self.state.objects:
                self._refuse(404, f"No such object: {key}")
                return
            content, generation = self.state.objects[key]
            metadata = self._metadata(key)
        if query.get("alt") != "media" and not path.startswith("/download"):
            self._json(metadata)
            return
        headers = {"x_goog_generation": str(generation), "Content_Type": "application/octet-stream"}
        if query.get("ifGenerationNotMatch") == str(generation):
            self._say(304, b"", **headers)
            return
        code, size = 200, len(content)
        if wanted := re.match(r"bytes=(\d*)-(\d*)$", self.headers.get("Range", "")):
            first, last = wanted.groups()
            begin = int(first) if first else max(0, size - int(last))
            end = min(size, int(last) + 1) if first and last else size
            if begin >= size:
                self._refuse(416, "range not satisfiable")
                return
            content, code = content[begin:end], 206
            headers["Content_Range"] = f"bytes {begin}-{end - 1}/{size}"
        self._say(code, content, **headers)

    do_HEAD = do_GET

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        items, prefixes = [], set()
        with self.state.lock:
            for key in self.state.names(f"{bucket}/{prefix}"):
                name = key.split("/", 1)[1]
                rest = name[len(prefix) :]
                if query.get("startOffset", "") > name or (query.get("endOffset") or "\U0010ffff") <= name:
                    continue
                if delimiter and delimiter in rest:
                    prefixes.add(prefix + rest.split(delimiter, 1)[0] + delimiter)
                else:
                    items.append(self._metadata(key))
        self._json({"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)})

    def do_POST(self) -> None:
        path, query = self._parts()
        if "upload_id" in query:
            self._go_on(query)
            return
        body = self._body()
        if copy := _COPY.search(path):
            source, target = (f"{copy[i]}/{urllib.parse.unquote(copy[i + 1])}" for i in (1, 3))
            with self.state.lock:
                if source not in self.state.objects:
                    self._refuse(404, f"No such object: {source}")
                    return
                self.state.objects[target] = (self.state.objects[source][0], next(self.state.generations))
                self._json({"done": True, "resource": self._metadata(target)})
            return
        bucket = re.search(r"/b/([^/]+)/o", path)[1]
        if query["uploadType"] == "media":
            self._put(f"{bucket}/{query['name']}", body, query)
        elif query["uploadType"] == "multipart":
            boundary = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])[1].encode()
            metadata, content = (part.partition(b"\n\n")[2][:-1] for part in body.split(b"--" + boundary)[1:3])
            self._put(f"{bucket}/{json.loads(metadata)['name']}", content, query)
        else:
            name = query.get("name") or json.loads(body)["name"]
            upload = str(len(self.state.uploads))
            self.state.uploads[upload] = (f"{bucket}/{name}", bytearray())
            url = f"{self.state.environment['STORAGE_EMULATOR_HOST']}/resumable?upload_id={upload}"
            self._say(200, b"{}", Location=url)

    def _go_on(self, query: dict[str, str]) -> None:
        key, content = self.state.uploads[query["upload_id"]]
        content += self._body()
        if self.headers["Content-Range"].endswith("/*"):
            self._say(308, b"", Range=f"bytes=0-{len(content) - 1}")
        else:
            self._put(key, bytes(content), query)

    def do_DELETE(self) -> None:
        bucket, name = _OBJECT.search(self._parts()[0]).groups()
        with self.state.lock:
            if self.state.objects.pop(f"{bucket}/{urllib.parse.unquote(name)}", None) is None:
                self._refuse(404, "No such object")
                return
        self._say(204)


class _HTTPServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that has heard enough
            super().handle_error(request, client_address)


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """A server on a free port of this machine."""
    handler = type("Handler", (_Handler,), {})
    server = _HTTPServer(("127.0.0.1", 0), handler)
    handler.state = Server(server.server_port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield handler.state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
