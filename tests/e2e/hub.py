"""A local server with a hub's layout: api/models/..., resolve/..., redirects, ranges; it misbehaves on request."""

import hashlib
import http.server
import json
import re
import ssl
import subprocess
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        hub = self.server.hub
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        hub.seen.append((self.server.part, path, dict(self.headers)))
        if self.server.part == "store":
            return self.bytes_of(hub, path)
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.answer(401 if "Authorization" not in self.headers else 403, b'{"error":"no"}')
        if hub.gate.pop("status", None):
            return self.answer(503, b"busy")
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            known = found[1] in hub.repositories and found[2] in ("main", "v1", COMMIT)
            return self.answer(200, json.dumps({"sha": COMMIT}).encode()) if known else self.answer(404, b"{}")
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/(.+)", path):
            return self.tree(hub, found[1])
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([0-9a-f]+)/(.+)", path):
            data = hub.repositories[found[1]].get(found[3])
            if data is None:
                return self.answer(404)
            if found[3] in hub.large:
                return self.answer(302, Location=f"{hub.store_url}/{found[1]}/{found[3]}?signature=a%2Fb", X_Linked_Size=str(len(data)))
            return self.bytes_of(hub, f"/{found[1]}/{found[3]}")
        return self.answer(404)

    def tree(self, hub, repository):
        entries = []
        for path, data in sorted(hub.repositories[repository].items()):
            entry = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
            if path in hub.large:
                entry["lfs"] = {"oid": hub.sha256.get(path, hashlib.sha256(data).hexdigest()), "size": len(data), "pointerSize": 130}
            entries.append(entry)
        entries.append({"type": "directory", "path": "folder", "oid": "0" * 40, "size": 0})
        half = len(entries) // 2
        if "cursor=2" in self.path:
            return self.answer(200, json.dumps(entries[half:]).encode())
        here = self.path.split("?")[0]
        return self.answer(200, json.dumps(entries[:half]).encode(), Link=f'<{hub.url}{here}?recursive=true&cursor=2>; rel="next"')

    def bytes_of(self, hub, path):
        _, organization, name, file = path.split("/", 3)
        data = hub.repositories[f"{organization}/{name}"][file]
        start, headers, status = 0, {}, 200
        if hub.ranges and (found := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))):
            start = int(found[1])
            if start >= len(data):
                return self.answer(416)
            status, headers = 206, {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        rest = data[start:]
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        cut = hub.cuts.pop(0) if hub.cuts and file in hub.large else None
        for at in range(0, len(rest) if cut is None else min(cut, len(rest)), 65536):
            end = at + 65536 if cut is None else min(at + 65536, cut)
            self.wfile.write(rest[at:end])
            if hub.pause:
                self.wfile.flush()
                threading.Event().wait(hub.pause)
        if cut is not None and cut < len(rest):
            self.close_connection = True
            self.connection.close()


class Hub:
    """`repositories`: {"org/name": {path: bytes}}; files of `large` are kept on another host (origin)."""

    def __init__(self, repositories, large=(), token="", tls=None):
        self.repositories, self.large, self.token = repositories, set(large), token
        self.seen, self.cuts, self.sha256, self.gate = [], [], {}, {}
        self.ranges, self.pause = True, 0
        self.servers = []
        scheme = "https" if tls else "http"
        for part in ("api", "store"):
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
            server.hub, server.part, server.daemon_threads = self, part, True
            if tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*tls)
                server.socket = context.wrap_socket(server.socket, server_side=True)
            server.handle_error = lambda *_: None
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.servers.append(server)
        self.url, self.store_url = (f"{scheme}://localhost:{server.server_address[1]}" for server in self.servers)

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()


def certificate(directory, name="localhost"):
    """A certificate of our own authority (itself); returns the paths of certificate and key."""
    pem, key = directory / f"{name}.pem", directory / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-keyout", key, "-out", pem],
                   check=True, capture_output=True)
    return str(pem), str(key)
