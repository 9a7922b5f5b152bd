"""Who may ask, and what no text of a run can do to a page."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from starlette.routing import Route
from studio_jobs import EVIL, SECRET, client_of, make_job, stranger_of

from trinity_compat.studio.guard import Listener

PAGES = [
    "/",
    "/?group=folder&column=actor.optim.lr",
    "/overlay?run=toy/grpo&run=plain",
    "/run/toy/grpo",
    "/configuration/toy/grpo",
    "/proof/toy/grpo",
    "/groups/toy/grpo",
    "/stop/toy/grpo",
    "/resume/toy/grpo",
    "/experiences/toy/grpo",
    "/group/toy/grpo?id=2",
    "/compare?a=toy/grpo&b=plain",
    "/answers?a=toy/grpo&b=plain&task=toy/sort 1",
    "/configure?gpus=12&model=</script><img src=x>",
    "/translate",
    "/start?file=</script><img src=x>",
    "/start?configured=yaml&model=</script><img src=x>",
    "/configure/expert",
    "/configure/expert?epochs=2&model=</script><img src=x>",
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
    for name in ("referrer-policy", "cross-origin-opener-policy", "cross-origin-resource-policy"):
        assert answer.headers[name] == "same-origin"


def test_the_hostile_text_is_there_to_be_escaped(studio):
    assert "&lt;/script&gt;" in studio.get("/configuration/toy/grpo").text
    assert "{{7*7}}" in studio.get("/configuration/toy/grpo").text


@pytest.mark.parametrize("page", ["/configuration/toy/grpo", "/run/toy/grpo"])
def test_secrets_are_masked(studio, page):
    assert SECRET not in studio.get(page).text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example:8080", ":1", ""]
)
def test_another_name_than_this_machine_s_is_refused(studio, host):
    assert studio.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "[::1]:8080", "localhost", "[::1]"])
def test_this_machine_s_names_are_known(studio, host):
    cookie = "; ".join(f"{name}={value}" for name, value in studio.cookies.items())
    assert studio.get("/", headers={"host": host, "cookie": cookie}).status_code == 200


def test_another_port_is_a_tunnel_s(studio):
    assert studio.get("/", headers={"host": "127.0.0.1:9090"}).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
def test_every_studio_has_a_token_of_its_own(host):
    one, other = Listener(host, 1), Listener(host, 1)
    assert len(one.token) >= 32 and one.token != other.token
    assert one.token not in repr(one) and one.token not in one.url


def every_address(app):
    for route in app.routes:
        if isinstance(route, Route):
            yield from ((method, route.path.replace("{job:path}", "plain")) for method in route.methods)


def test_without_the_token_there_is_no_page_and_no_form_s_secret(folder):
    stranger = stranger_of(folder)
    listener = stranger.app.state.studio.listener
    asked = list(every_address(stranger.app))
    assert len(asked) > 20
    asked += [("GET", "/?token=wrong"), ("GET", "/nowhere"), ("POST", f"/stop/plain?token={listener.token}")]
    for method, path in asked:
        answer = stranger.request(method, path, data={"csrf": listener.csrf} if method == "POST" else None)
        assert answer.status_code == 401
        assert (
            listener.csrf not in answer.text
            and listener.token not in answer.text
            and "plain" not in answer.text
        )
        assert str(folder) not in answer.text and "set-cookie" not in answer.headers


def test_the_page_without_the_token_says_what_to_do(folder):
    answer = stranger_of(folder).get("/run/plain")
    assert "trinity-compat studio" in answer.text and 'name="token"' in answer.text
    assert list(inline(answer.text)) == []
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/static/style.css", "/static/icon.svg", "/shared/base.css"])
def test_style_sheets_and_icons_hold_nothing_of_the_user_s(folder, path):
    assert stranger_of(folder).get(path).status_code == 200


def test_the_token_is_shown_once_then_a_cookie_stands_for_it(folder):
    browser = stranger_of(folder)
    listener = browser.app.state.studio.listener
    let_in = browser.get(f"/run/plain?token={listener.token}&x=1")
    assert let_in.status_code == 303 and let_in.headers["location"] == "/run/plain?x=1"
    cookie = let_in.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and listener.token not in cookie
    assert browser.get("/").status_code == 200
    again = browser.get(f"/?token={listener.token}")  # never stays in the browser's history
    assert again.status_code == 303 and again.headers["location"] == "/"


def test_the_cookie_of_an_earlier_start_or_of_another_port_opens_nothing(folder):
    earlier = stranger_of(folder)
    listener = earlier.app.state.studio.listener
    earlier.cookies.set(Listener("127.0.0.1", 8080).cookie, Listener("127.0.0.1", 8080).ticket)
    assert earlier.get("/").status_code == 401
    earlier.cookies.set(listener.cookie, Listener("127.0.0.1", 8081, listener.token).ticket)
    assert earlier.get("/").status_code == 401


@pytest.mark.parametrize("cookie", ["x" * 64, "\xff", '"'])
def test_any_other_cookie_opens_nothing(folder, cookie):
    stranger = stranger_of(folder)
    header = f"{stranger.app.state.studio.listener.cookie}={cookie}".encode("latin-1")
    assert stranger.get("/", headers={"cookie": header}).status_code == 401


@pytest.mark.parametrize("place", ["//evil.example/", "/\\evil.example/", "//\\evil.example/"])
def test_a_token_in_an_address_cannot_lead_elsewhere(folder, place):
    stranger = stranger_of(folder)
    answer = stranger.get(f"http://127.0.0.1:8080{place}?token={stranger.app.state.studio.listener.token}")
    location = answer.headers["location"]
    assert location.startswith("/") and location[1:2] not in ("/", "\\") and "%5C%5C" not in location


def test_a_name_with_a_question_mark_survives_the_token(tmp_path):
    make_job(tmp_path / "a?b")
    stranger = stranger_of(tmp_path)
    answer = stranger.get(f"/run/a%3Fb?token={stranger.app.state.studio.listener.token}")
    assert answer.headers["location"] == "/run/a%3Fb"
    assert stranger.get(answer.headers["location"]).status_code == 200


def changing(studio):
    routes = [route for route in studio.app.routes if isinstance(route, Route)]
    return [route.path.replace("{job:path}", "plain") for route in routes if "POST" in route.methods]


def test_what_changes_something_wants_the_form_s_secret(studio):
    assert len(changing(studio)) >= 2
    for path in changing(studio):
        for form in ({}, {"csrf": "guess"}):
            assert studio.post(path, data=form).status_code == 403


def test_a_form_that_is_too_large_or_hides_its_length_is_not_read(studio):
    secret = f"csrf={studio.app.state.studio.listener.csrf}&x=".encode()
    for path in changing(studio):
        for content in (secret + b"x" * (13 << 20), iter([secret])):
            headers = {"content-type": "application/x-www-form-urlencoded"}
            assert studio.post(path, content=content, headers=headers).status_code == 413, path


def test_the_head_of_a_page_with_a_form_is_that_of_the_page(studio):
    for path in ("/stop/plain", "/resume/plain", "/translate", "/configure/expert"):
        assert studio.head(path).status_code == studio.get(path).status_code == 200


@pytest.mark.parametrize(
    "sent", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}]
)
def test_a_form_of_another_site_is_refused_even_with_the_secret(studio, sent):
    csrf = studio.app.state.studio.listener.csrf
    assert studio.post("/stop/plain", data={"csrf": csrf}, headers=sent).status_code == 403


@pytest.mark.parametrize(
    "path",
    ["../plain", "toy%2fgrpo%2f..%2f..%2fplain", "%2e%2e/plain", "toy", "nope", "/etc", "toy/grpo/config"],
)
def test_only_jobs_that_were_found_have_pages(studio, path):
    for page in ("run", "metrics", "configuration", "stop", "experiences", "group", "selection", "look"):
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
