"""Who may ask, and what no text of a run can do to a page."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from starlette.routing import Route
from studio_jobs import EVIL, SECRET, client_of, make_job

from trinity_compat.studio.guard import Door

PAGES = [
    "/",
    "/run/toy/grpo",
    "/configuration/toy/grpo",
    "/stop/toy/grpo",
    "/resume/toy/grpo",
    "/experiences/toy/grpo",
    "/group/toy/grpo?id=2",
    "/compare?a=toy/grpo&b=plain",
    "/answers?a=toy/grpo&b=plain&task=toy/sort 1",
]


class Tags(HTMLParser):
    """All start tags of a page."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def inline(text):
    """What the policy would refuse to run."""
    for tag, attributes in Tags(text).found:
        if tag == "style" or (tag == "script" and "src" not in attributes):
            yield tag
        yield from (name for name in attributes if name == "style" or name.startswith("on"))
        yield from (value for value in attributes.values() if (value or "").startswith("javascript:"))


@pytest.mark.parametrize("page", PAGES)
def test_a_hostile_text_stays_text_and_nothing_is_inline(studio, page):
    answer = studio.get(page)
    assert answer.status_code == 200
    assert "window.stolen=1</script>" not in answer.text and "<img src=x" not in answer.text
    assert list(inline(answer.text)) == []
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_hostile_text_is_there_to_be_escaped(studio):
    assert "&lt;/script&gt;" in studio.get("/configuration/toy/grpo").text
    assert "{{7*7}}" in studio.get("/configuration/toy/grpo").text


@pytest.mark.parametrize("page", ["/configuration/toy/grpo", "/run/toy/grpo"])
def test_secrets_are_masked(studio, page):
    assert SECRET not in studio.get(page).text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1:81", ""])
def test_another_name_than_this_machine_s_is_refused(studio, host):
    assert studio.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "[::1]:8080"])
def test_this_machine_s_names_are_known(studio, host):
    assert studio.get("/", headers={"host": host}).status_code == 200


def test_a_host_beyond_the_loopback_has_a_token_and_the_loopback_none():
    assert Door.at("127.0.0.1", 1).token is None and Door.at("::1", 1).token is None
    assert len(Door.at("0.0.0.0", 1).token) >= 32


def test_a_token_is_asked_of_everybody_once(folder):
    guarded = client_of(folder, token="the-token")
    for path in ("/", "/metrics/plain", "/static/style.css", "/?token=wrong"):
        assert guarded.get(path).status_code == 401
    let_in = guarded.get("/run/plain?token=the-token&x=1")
    assert let_in.status_code == 303 and let_in.headers["location"] == "/run/plain?x=1"
    cookie = let_in.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert guarded.get("/").status_code == 200


def test_a_token_in_an_address_cannot_lead_elsewhere(folder):
    guarded = client_of(folder, token="the-token")
    answer = guarded.get("http://127.0.0.1:8080//evil.example/?token=the-token")
    assert answer.headers["location"] == "/evil.example/"


def changing(studio):
    routes = [route for route in studio.app.routes if isinstance(route, Route)]
    return [route.path.replace("{job:path}", "plain") for route in routes if "POST" in route.methods]


def test_what_changes_something_wants_the_form_s_secret(studio):
    assert len(changing(studio)) >= 2
    for path in changing(studio):
        for form in ({}, {"csrf": "guess"}):
            assert studio.post(path, data=form).status_code in (403, 409)


@pytest.mark.parametrize(
    "sent", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}]
)
def test_a_form_of_another_site_is_refused_even_with_the_secret(studio, sent):
    csrf = studio.app.state.studio.door.csrf
    assert studio.post("/stop/plain", data={"csrf": csrf}, headers=sent).status_code == 403


@pytest.mark.parametrize(
    "path",
    ["../plain", "toy%2fgrpo%2f..%2f..%2fplain", "%2e%2e/plain", "toy", "nope", "/etc", "toy/grpo/config"],
)
def test_only_jobs_that_were_found_have_pages(studio, path):
    for page in ("run", "metrics", "configuration", "stop", "experiences", "group", "selection", "events"):
        assert studio.get(f"/{page}/{path}").status_code in (404, 400)


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py"])
def test_only_static_files_are_handed_out(studio, path):
    assert studio.get(path).status_code == 404


def test_an_address_that_is_markup_is_text_on_the_error_s_page(studio):
    answer = studio.get("/run/<script>x</script>")
    assert answer.status_code == 404 and "<script>x" not in answer.text


def test_a_job_s_own_name_may_be_hostile(tmp_path):
    make_job(tmp_path / "<img src=x onerror=alert(1)>" / "a?b#c%d 'q'")
    studio = client_of(tmp_path)
    page = studio.get("/").text
    assert "<img src=x" not in page
    link = re.search(r'href="(/run/[^"]+)"', page)[1]
    assert studio.get(link).status_code == 200
    assert EVIL not in studio.get(link).text


def test_links_out_of_the_folder_are_not_followed(tmp_path, folder):
    (tmp_path / "out").symlink_to(folder)
    assert "plain" not in client_of(tmp_path).get("/").text


def test_the_studio_s_process_has_no_torch():
    heavy = "{'torch', 'ray', 'verl', 'vllm', 'transformers'}"
    code = f"import sys, trinity_compat.studio.serving; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
