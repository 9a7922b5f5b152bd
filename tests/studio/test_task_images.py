"""Images of a task beside its answers."""

import io
import re
from dataclasses import replace

import pytest
from PIL import Image
from studio_jobs import GROUPS, STEPS, _group, client_of, make_job

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.media import Media

NUMBER = STEPS * GROUPS + 1  # of the group that is added


def drawn(form):
    out = io.BytesIO()
    Image.new("RGB", (4, 3), "red").save(out, form)
    return Media(out.getvalue(), "image")


SVG = Media(b"<svg xmlns='http://www.w3.org/2000/svg'><script>window.stolen=1</script></svg>", "image")
SOUND = Media(b"RIFF....WAVE", "bytes")


@pytest.fixture
def studio(tmp_path):
    root = make_job(tmp_path / "toy")
    buffer = open_buffer(f"sqlite:///{root}/buffer/experiences.db")
    group = _group(STEPS + 1, 0, evil=False)
    content = [{"type": "image", "image": each} for each in (drawn("PNG"), drawn("JPEG"), drawn("PNG"), SVG)]
    task = {**group.task, "raw_prompt": [{"role": "user", "content": content}], "audio": SOUND}
    buffer.put_groups([replace(group, task=task)])
    buffer.close()
    return client_of(tmp_path)


def shown(studio):
    page = studio.get(f"/group/toy?id={NUMBER}").text
    return [place.replace("&amp;", "&") for place in re.findall(r'<img src="(/image/[^"]+)"', page)]


def test_a_group_shows_each_image_once(studio):
    found = [studio.get(place) for place in shown(studio)]
    assert [answer.headers["content-type"] for answer in found[:2]] == ["image/png", "image/jpeg"]
    assert found[0].content == drawn("PNG").data
    assert len(found) == 3


def test_what_could_hold_a_script_is_not_sent(studio):
    answer = studio.get(f"/image/toy?id={NUMBER}&digest={SVG.digest}")
    assert answer.status_code == 415 and "stolen" not in answer.text


@pytest.mark.parametrize("number", [1, NUMBER + 1])
def test_an_image_of_another_group_or_none_is_not_found(studio, number):
    assert studio.get(f"/image/toy?id={number}&digest={drawn('PNG').digest}").status_code == 404


@pytest.mark.parametrize("query", ["id=x&digest=y", "", f"id={NUMBER}"])
def test_an_address_that_names_no_image_is_wrong(studio, query):
    assert studio.get(f"/image/toy?{query}").status_code == 400


def test_a_group_without_images_shows_none(studio):
    assert "/image/" not in studio.get("/group/toy?id=1").text
