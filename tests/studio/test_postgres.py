"""Pages of a job whose buffer is PostgreSQL: the same as over SQLite."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import needs
import numpy as np
import pytest
from studio_jobs import EVIL, GROUPS, _group, client_of, large_group, make_job, make_tokenizer

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import TRUNCATED
from trinity_compat.studio import experiences

pytestmark = pytest.mark.postgres
NAMES = ("one", "two")
PAGES = [
    "/",
    "/run/{}",
    "/metrics/{}?name=critic/score/mean",
    "/seconds/{}",
    "/look/{}?history=0",
    "/groups/{}",
    "/groups/{}?step=2",
    "/groups/{}?step=all&mean_min=0.3&outcome=mixed&sort=spread&up=on",
    "/groups/{}?step=all&truncated_min=1&tools_min=2",
    "/group/{}?id=1",
    "/group/{}?id=9",
    "/group/{}?id=10",
    "/tokens/{}?id=25&from=0",
    "/tokens/{}?id=28&from=256",
    "/tokens/{}?id=28&from=16300",
    "/tokens/{}?id=28&from=9223372036854775807",
    "/tokens/{}?id=28&whole=1",
    "/answers?a={0}&b={0}&task=toy/sort 1",
    "/experiences/{}?text=sort&reward_min=0.2&sort=reward",
    "/selection/{}",
    "/configuration/{}",
]


@pytest.fixture(scope="module")
def server():
    sys.path.append(str(Path(__file__).parents[1] / "buffer"))
    from buffer_postgres import PostgresServer, Unavailable

    try:
        running = PostgresServer(fsync=False)
    except Unavailable as reason:
        needs.lacking(str(reason))
    yield running
    running.close()


@pytest.fixture(scope="module")
def studio(server, tmp_path_factory):
    """A studio over two equal jobs; the buffer of the first is SQLite, the other's PostgreSQL."""
    root = tmp_path_factory.mktemp("jobs")
    model = make_tokenizer(tmp_path_factory.mktemp("toy") / "model")
    for name, url in zip(NAMES, ("", server.new_database("studio")), strict=True):
        make_job(root / name, steps=2, model=model, url=url)
        buffer = open_buffer(url or f"sqlite:///{root}/{name}/buffer/experiences.db")
        group = _group(3, 0, evil=True)
        odd = [
            replace(
                answer, metrics={TRUNCATED: 1.0}, response_mask=np.array([0, 1, 0, 1, 0, 1], np.uint8)[:n]
            )
            for n, answer in zip((4, 5, 6), group.experiences, strict=True)
        ]
        buffer.put_groups([replace(group, task={**group.task, "data_source": EVIL}, experiences=tuple(odd))])
        buffer.put_groups([replace(large_group(2, 16_384), key="long", task_no=99)])
        buffer.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiences, "_AT_ONCE_S", 1e9)
        yield client_of(root)


def text_of(answer):
    """The page's text without its times and the marks of one start of the studio."""
    assert answer.status_code == 200, answer.text
    text = re.sub(r'name="csrf" value="[^"]+"', "", answer.text)
    return re.sub(r"one|two", "JOB", re.sub(r"\d+(\.\d+)? ?s ago|[\d.]+ s\b", "AGO", text))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_over_postgresql_says_what_it_says_over_sqlite(studio, page):
    one, two = (text_of(studio.get(page.format(name))) for name in NAMES)
    assert one == two


def test_groups_and_their_tokens_are_there_over_postgresql(studio):
    rows = re.findall(r'<a class="name" href="/group/two[^>]+>', studio.get("/groups/two?step=2").text)
    assert len(rows) == GROUPS
    odd = studio.get("/groups/two?step=all&truncated_min=1&tools_min=2").text
    assert len(re.findall(r'<a class="name" href="/group/two', odd)) == 1 and "&lt;/script&gt;" in odd
    (spans,) = studio.get("/tokens/two?id=28&from=256").json()["spans"]
    assert spans[0] and [each[0] for each in spans[1]][:2] == ["word56 ", "word57 "]
    assert (
        studio.get("/group/two?id=99").status_code
        == studio.get("/tokens/two?id=99&from=0").status_code
        == 404
    )
