"""Whatever an address or a form says, the answer is a page of the studio's and no error of the server's."""

import json

import pytest
from starlette.routing import Route
from studio_jobs import client_of, make_job

from trinity_compat.studio import experiences, group_index
from trinity_compat.studio.pages import as_json

# Address → the parameters that its handler reads; "" for none.
PARAMETERS = {
    "/": ["table", "words", "state", "sort", "up", "group", "column", "after", "run"],
    "/overlay": ["run", "a", "b"],
    "/baseline": ["of", "seed", "name", "state"],
    "/panels": ["name", "metric", "run", "a", "b", "view", "remove", "csrf"],
    "/run/{job:path}": ["evaluations"],
    "/metrics/{job:path}": ["name"],
    "/seconds/{job:path}": [],
    "/alive": [],
    "/look/{job:path}": ["history", "last", "log", "rows"],
    "/log/{job:path}": ["name"],
    "/configuration/{job:path}": ["status"],
    "/proof/{job:path}": [],
    "/experiences/{job:path}": [
        *("kind", "text", "task", "sort", "after", "up"),
        *(f"{name}_{end}" for name in ("step", "reward", "version", "length") for end in ("min", "max")),
    ],
    "/groups/{job:path}": [
        *("kind", "since", "step", "task", "outcome", "right", "sort", "up", "after"),
        *(f"{name}_{end}" for name in group_index.BOUNDS for end in ("min", "max")),
    ],
    "/group/{job:path}": ["id", "a", "b", "step", "sort", "mean_min"],
    "/tokens/{job:path}": ["id", "from", "whole"],
    "/image/{job:path}": ["id", "digest"],
    "/selection/{job:path}": ["kind", "text", "task", "sort", "after", "step_min", "reward_max", "format"],
    "/compare": ["a", "b", "run", "x", "axis", "words", "state", "sort", "after"],
    "/verdict": ["a", "b", "axis", "state"],
    "/curves": ["a", "b", "axis", "name"],
    "/report": ["a", "b", "axis"],
    "/answers": ["a", "b", "axis", "task"],
    "/advise": ["text", "gpus", "verl-version", "csrf"],
    "/configure": ["epochs", "part"],
    "/configure/file/{kind}": ["epochs"],
    "/configure/expert": ["v:buffer.batch_size", "csrf"],
    "/configure/expert/file/{kind}": ["v:buffer.batch_size", "csrf"],
    "/configure/load": ["text", "form", "csrf"],
    "/configure/check": ["text", "csrf"],
    "/configure/check/{check}": [],
    "/configure/figures": ["text", "csrf"],
    "/translate": ["name", "csrf"],
    "/keys": [],
    "/start": [
        *("source", "text", "file_name", "name", "folder", "profiles", "settings", "mode", "device"),
        *("release", "arguments", "environment", "draft", "check", "csrf"),
    ],
    "/start/expert/{kind}": ["v:buffer.batch_size", "csrf"],
    "/start/{draft}": ["csrf"],
    "/stop/{job:path}": ["moment", "csrf"],
    "/resume/{job:path}": ["csrf"],
}
# What makes the rest of an address right, so that the hostile value is reached.
RIGHT = {
    "/advise": {"text": "echo"},
    "/start": {"source": "run.sh", "check": "1"},
    "/panels": {"name": "x", "metric": "y", "run": "one"},
    "/baseline": {"of": "baseline:three.csv", "seed": "0", "name": "x"},
    "/group/{job:path}": {"id": "1"},
    "/tokens/{job:path}": {"id": "1", "from": "0"},
    "/image/{job:path}": {"id": "1", "digest": "0" * 64},
    "/compare": {"a": "one", "b": "two"},
    "/verdict": {"a": "one", "b": "two"},
    "/curves": {"a": "one", "b": "two", "name": "actor/entropy"},
    "/report": {"a": "one", "b": "two"},
    "/answers": {"a": "one", "b": "two", "task": "toy/sort 1"},
}
BYTES = [
    *("", "0", "-1", "1.5", "x", "%00", "a%00b", "%ff%fe", "%ed%a0%80", "%F0%9F%98%80", "%C2%B2", "%D9%A1"),
    *("nan", "inf", "-inf", "nan,nan", "inf,1", "1,nan", "1,", ",1", "1,1", "1,-1", "-1,-1", "1e999,1"),
    *("9223372036854775807", "9223372036854775808", "99999999999999999999999", "9" * 5000, "1e308", "1_0"),
    *("a:1:1", "trainer:1", "trainer:-1:x", "trainer:99999999999999999999:1", ":::"),
    *("%27;DROP TABLE rows;--", '%22', '%22%22%22', "*", "NEAR(", "a AND", "%22a%22b*", "-- ", "{{7*7}}"),
    *("baseline:", "baseline:../x", "baseline:%00"),
    *("x%20" * 300, "A" * 9000, "../../etc/passwd", "%0d%0aset-cookie:x=1", "<script>", "step", "parquet"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("jobs")
    make_job(root / "one")
    make_job(root / "two", wobble=0.1)
    (root / "three.csv").write_text("step,x\n1,1\n")
    return root


@pytest.fixture(scope="module")
def studio(folder):
    client = client_of(folder)
    yield client
    client.app.state.studio.text_server.close()


def address_of(path):
    path = path.replace("{job:path}", "one").replace("{kind}", "yaml")
    return path.replace("{draft}", "x").replace("{check}", "x")


def no_process(*_):
    raise OSError("no process starts here")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(experiences, "_AT_ONCE_S", 30.0)


def test_every_address_is_tried(studio):
    assert set(PARAMETERS) == {route.path for route in studio.app.routes if isinstance(route, Route)}


@pytest.mark.parametrize(
    "path", [path for path, names in PARAMETERS.items() if names and "csrf" not in names]
)
def test_a_hostile_value_gets_a_page(studio, path):
    refused = 0
    for name in PARAMETERS[path]:
        for value in BYTES:
            right = [f"{key}={said}" for key, said in RIGHT.get(path, {}).items() if key != name]
            query = "&".join([*right, f"{name}={value}"]).replace(" ", "%20")
            answer = studio.get(f"{address_of(path)}?{query}")
            assert answer.status_code < 500, (name, value, answer.text)
            assert answer.status_code != 400 or "Content-Security-Policy".lower() in answer.headers
            refused += answer.status_code == 400
    assert refused or not {"id", "after", "axis", "history"} & set(PARAMETERS[path])


@pytest.mark.parametrize("path", [path for path, names in PARAMETERS.items() if "csrf" in names])
def test_a_hostile_form_gets_a_page(studio, path, monkeypatch):
    monkeypatch.setattr("trinity_compat.studio.control._start", lambda *_: None)
    monkeypatch.setattr("trinity_compat.studio.start_drafts.BoundedProcess", no_process)
    address = address_of(path)
    csrf = studio.app.state.studio.listener.csrf
    plain = {"content-type": "application/x-www-form-urlencoded"}
    for name in PARAMETERS[path]:
        for value in BYTES:
            words = {"csrf": csrf, **RIGHT.get(path, {}), name: value}
            body = "&".join(f"{key}={said}" for key, said in words.items())
            answer = studio.post(address, content=body.encode(), headers=plain)
            assert answer.status_code < 500 or "cannot start" in answer.text, (name, value, answer.text)
    as_file = studio.post(address, files=dict.fromkeys(PARAMETERS[path], ("x", b"1")))
    assert as_file.status_code == 400
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x", "application/json", "x"):
        assert studio.post(address, content=b"\xff--x\r\n", headers={"content-type": kind}).status_code < 500


@pytest.mark.parametrize("value", [value for value in BYTES if value and len(value) < 5000])
def test_a_hostile_path_is_not_found(studio, value):
    for path in PARAMETERS:
        if "{job:path}" in path:
            assert studio.get(path.replace("{job:path}", value)).status_code in (400, 404)


WRONG = [
    "/group/one?id=99999999999999999999999",
    "/group/one?id=-1",
    "/image/one?id=1&digest=x",
    "/experiences/one?after=nan,nan",
    "/experiences/one?after=1",
    "/experiences/one?after=1,-1",
    "/experiences/one?after=",
    "/experiences/one?step_min=inf",
    "/experiences/one?reward_max=nan",
    "/experiences/one?sort=x",
    "/selection/one?format=x",
    "/selection/one?length_max=x",
    "/look/one?history=-1",
    "/look/one?last=trainer",
    "/look/one?log=trainer:x",
    "/look/one?last=trainer:1:99999999999999999999",
    "/compare?a=one&b=two&axis=x",
    "/verdict?a=one",
    "/baseline?of=baseline:three.csv&seed=x",
    "/curves?a=one",
    "/answers?a=one&b=two",
]


@pytest.mark.parametrize("address", WRONG)
def test_a_value_that_nothing_has_is_said_to_be_wrong(studio, address):
    answer = studio.get(address)
    assert answer.status_code == 400 and 'class="alert"' in answer.text


def test_many_of_a_parameter_are_no_harm(studio):
    for path in (
        "/metrics/one?name=",
        "/curves?a=one&b=two&name=",
        "/compare?a=one&b=two&a=",
        "/look/one?last=x:1:",
    ):
        name = path.rpartition("&")[2].rpartition("?")[2]
        many = "&".join(f"{name}{number}" for number in range(2000))
        assert studio.get(f"{path}1&{many}").status_code in (200, 404)


def test_what_json_cannot_say_is_sent_all_the_same():
    body = as_json({"half \ud800": [1.0, float("nan"), {"x": float("-inf")}]}).body
    assert json.loads(body) == {"half \ud800": [1.0, "NaN", {"x": "-Infinity"}]}
