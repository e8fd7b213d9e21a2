"""Downloads from a server that cuts, lies and stalls."""

import logging
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from featuremill.base import progress
from featuremill.workload import hugging_face as module
from featuremill.workload.hugging_face import download

CONTENT = bytes(range(256)) * 40_000
HALF = len(CONTENT) // 2


class Server(BaseHTTPRequestHandler):
    """Answers as the deeds in `server.deeds` ask, one a request, and well after them."""

    def do_GET(self):
        deed = self.server.deeds.pop(0) if self.server.deeds else "well"
        self.server.seen.append((deed, self.headers.get("Range"), self.path))
        if deed in (404, 503):
            self.send_error(deed)
            return
        content, tag = self.server.content, self.server.tag
        start = 0
        asked = self.headers.get("Range")
        if asked and (self.headers.get("If-Range") or tag) == tag and deed != "no ranges":
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        body = content[start:]
        if deed in ("cut", "stall"):
            body = body[: len(body) // 2]
        self.wfile.write(body)
        self.wfile.flush()
        if deed == "stall":
            self.server.is_over.wait(60)

    def log_message(self, *words):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(module, "STALL_SECONDS", 0.3)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    found = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    found.deeds, found.seen, found.content, found.tag = [], [], CONTENT, '"one"'
    found.is_over = threading.Event()
    found.url = f"http://127.0.0.1:{found.server_port}/model.pt"
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.is_over.set()
    found.shutdown()
    found.server_close()
    thread.join()


@pytest.mark.parametrize("deeds", [[], ["cut"] * 5, ["stall"], [503, "cut"]])
def test_what_is_cut_or_stalls_is_continued(server, tmp_path, deeds):
    path = tmp_path / "hub" / "model.pt"
    server.deeds[:] = deeds
    download(server.url, path)
    assert path.read_bytes() == CONTENT and [*path.parent.iterdir()] == [path]
    rest = [asked for deed, asked, _ in server.seen[1:] if deed != 503 and asked]
    assert len(rest) == sum(deed != 503 for deed in deeds), "each but the first asks for the rest"


def test_a_later_call_goes_on_and_a_file_that_changed_begins_anew(server, tmp_path):
    path = tmp_path / "model.pt"
    server.deeds[:] = ["cut", 404]
    with pytest.raises(OSError, match="404"):
        download(server.url, path)
    assert (tmp_path / "model.pt.partial").stat().st_size == HALF
    server.content, server.tag = CONTENT[::-1], '"two"'
    download(server.url, path)
    assert path.read_bytes() == CONTENT[::-1]
    assert server.seen[-1][1] == f"bytes={HALF}-" and [*tmp_path.iterdir()] == [path]


def test_a_server_without_ranges_sends_all_again(server, tmp_path):
    server.deeds[:] = ["cut", "no ranges"]
    download(server.url, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").read_bytes() == CONTENT


@pytest.mark.parametrize("tag", ["", 'W/"one"'])
def test_without_a_strong_etag_a_file_that_was_cut_begins_anew(server, tmp_path, tag):
    path = tmp_path / "model.pt"
    server.deeds[:], server.tag = ["cut", 404], tag
    with pytest.raises(OSError, match="404"):
        download(server.url, path)
    server.content = CONTENT[::-1]
    download(server.url, path)
    assert path.read_bytes() == CONTENT[::-1]
    assert not any(asked for _, asked, _ in server.seen)


def test_endless_failures_are_an_error_and_leave_no_file(server, tmp_path):
    path = tmp_path / "model.pt"
    server.deeds[:] = [503] * module.ATTEMPTS
    with pytest.raises(OSError, match="503"):
        download(server.url, path)
    assert not path.exists() and len(server.seen) == module.ATTEMPTS


def test_it_says_how_far_it_is(server, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    download(server.url, tmp_path / "model.pt")
    assert "downloading 5 of 10 MB" in re.sub(r"[:,] ", " ", caplog.text), caplog.text


def test_a_proxy_of_the_environment_is_used(server, tmp_path, monkeypatch):
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    download("http://weights.invalid/model.pt", tmp_path / "model.pt")
    assert server.seen[0][2] == "http://weights.invalid/model.pt"
    assert (tmp_path / "model.pt").read_bytes() == CONTENT
