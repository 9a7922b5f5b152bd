"""The service for Data-Juicer in this process: what it answers to whom, with a pipeline that takes notes."""

import http.client
import json
import socket
import threading
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from trinity_compat.trinity.pipelines.juicer import KEY_VARIABLE, server
from trinity_compat.trinity.pipelines.juicer.server import (
    HOST,
    JuicerService,
    RequestRefused,
    form_parts,
    make_server,
)
from trinity_compat.trinity.pipelines.operators import _selection


class Doubling:
    """A pipeline."""

    def __init__(self, asked):
        if asked.get("operators") == "none":
            raise ValueError("no such operator")
        self.closed = False

    def experiences(self, table):
        return pa.table({"x": [2 * value for value in table["x"].to_pylist()]})

    def tasks(self):
        return {"kept": 3}

    def close(self):
        self.closed = True


@pytest.fixture(params=["", "the key"])
def ask(request):
    """(method, path, body, headers) → status, what was said; ``key`` is the service's."""
    listening = socket.create_server((HOST, 0))
    serving = make_server(JuicerService(Doubling, request.param), listening)
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    key = {"Authorization": f"Bearer {request.param}"} if request.param else {}

    def one(method, path, body=b"", **headers):
        connection = http.client.HTTPConnection(HOST, listening.getsockname()[1], timeout=300)
        connection.request(method, path, body, {**key, **headers})
        reply = connection.getresponse()
        said = reply.read()
        whole = reply.getheader("Content-Type") == "application/octet-stream"
        return reply.status, (said if whole else json.loads(said))

    one.key = request.param
    yield one
    serving.shutdown()
    thread.join()
    serving.server_close()


def stream(values):
    sink = pa.BufferOutputStream()
    table = pa.table({"x": values})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def form(**parts):
    body = b"".join(
        b'--edge\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), content)
        for name, content in parts.items()
    )
    return body + b"--edge--\r\n", "multipart/form-data; boundary=edge"


def test_a_session_from_its_beginning_to_its_end(ask):
    assert ask("GET", "/health") == (200, {"status": "ok"})
    status, made = ask("POST", "/create", b'{"operators": "some"}')
    session = made["session_id"]
    assert status == 200
    body, kind = form(session_id=session.encode(), arrow_data=stream([1, 2]))
    status, answer = ask("POST", "/process_experience", body, **{"Content-Type": kind})
    assert status == 200 and pa.ipc.open_stream(answer).read_all()["x"].to_pylist() == [2, 4]
    named = json.dumps({"session_id": session}).encode()
    assert ask("POST", "/process_task", named) == (200, {"metrics": {"kept": 3}})
    assert ask("POST", "/close", named)[0] == 200
    assert ask("POST", "/close", named) == (404, {"error": "Session ID not found."})


def test_what_cannot_be_done_is_said_with_its_status(ask):
    refused = {"error": "Failed to parse config: ValueError: no such operator"}
    assert ask("POST", "/create", b'{"operators": "none"}') == (400, refused)
    assert ask("GET", "/create") == (404, {"error": "/create is not served"})
    assert ask("POST", "/health", b"{}") == (404, {"error": "/health is not served"})
    assert ask("POST", "/create", b"no JSON")[0] == 500
    body, kind = form(session_id=b"s")
    lacking = {"error": "the form lacks arrow_data"}
    assert ask("POST", "/process_experience", body, **{"Content-Type": kind}) == (400, lacking)


def test_pages_in_a_browser_and_those_without_the_key_are_refused(ask):
    assert ask("GET", "/health", Origin="http://a.page")[0] == 403
    assert ask("GET", "/health", Host="a.page:5005")[0] == 403
    assert ask("GET", "/health", Host="localhost:5005")[0] == 200
    assert ask("GET", "/health", Authorization="Bearer another")[0] == (401 if ask.key else 200)


def test_a_form_s_parts_come_back_byte_for_byte():
    parts = {"session_id": b"s", "arrow_data": bytes(range(256)) + b"\r\n\r\n"}
    body, kind = form(**parts)
    assert form_parts(kind, body) == parts
    with pytest.raises(RequestRefused, match=r"^the form lacks arrow_data, session_id$"):
        form_parts("text/plain", body)


@pytest.mark.parametrize("given", [{}, {KEY_VARIABLE: "the key"}])
def test_the_service_asks_for_the_key_of_its_environment(monkeypatch, capsys, given):
    made = []

    def serving(service, listening):
        made.append((service._key, listening.getsockname()))
        listening.close()
        return SimpleNamespace(serve_forever=lambda: made.append("served"))

    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(server, "make_server", serving)
    monkeypatch.setattr("trinity_compat.trinity.pipelines.juicer.work.install_nothing", lambda: None)
    monkeypatch.setattr("sys.argv", ["server", "--port", "0"])
    server.main()
    (key, (host, port)), served = made
    assert (key, host, served) == (given.get(KEY_VARIABLE, ""), HOST, "served")
    assert capsys.readouterr().out == f"http://{HOST}:{port}\n"


@pytest.mark.parametrize(
    ("rate", "counted"),
    [
        (0.0, {"<1_ratio", "<15_16_ratio"}),
        (1 / 16, {"valid_ratio", "<1_ratio", ">0_ratio", "<15_16_ratio"}),
        (0.5, {"valid_ratio", "strict_valid_ratio", "<1_ratio", ">0_ratio", "<15_16_ratio", ">1_16_ratio"}),
        (15 / 16, {"valid_ratio", "<1_ratio", ">0_ratio", ">1_16_ratio"}),
        (1.0, {">0_ratio", ">1_16_ratio"}),
    ],
)
def test_a_task_is_counted_by_the_rate_of_its_right_answers(rate, counted):
    found = _selection(np.array([rate]))
    assert {name.removeprefix("selection/") for name, part in found.items() if part == 1.0} == counted
    assert set(found.values()) <= {0.0, 1.0} and len(found) == 6
    assert _selection(np.array([])) == {}
