"""The page of every field of a Trinity YAML."""

import html
import itertools
import re

import pytest
from starlette.testclient import TestClient
from studio_jobs import stranger_of

from trinity_compat.translate.form import made_from
from trinity_compat.translate.form.expert import by_path, made_of_fields

RUNS = {
    "v:model.model_path": "m",
    "v:model.max_model_len": "64",
    "v:buffer.explorer_input.taskset.path": "/data",
    "v:mode": "both",
}
EVIL = "</textarea><script>window.stolen=1</script>\"'{{7*7}}"


def post(studio: TestClient, path, **given):
    secret = studio.app.state.studio.listener.csrf
    return studio.post(path, data={"csrf": secret, **given})


def texts_in(page):
    """Path → text of every field of a page that is not empty."""
    found = {}
    for name, text in re.findall(r'name="v:([^"]+)"[^>]*?\svalue="([^"]*)"', page):
        found[name] = html.unescape(text)
    for name, text in re.findall(r'<textarea[^>]*name="v:([^"]+)"[^>]*>\n([^<]*)</textarea>', page):
        found[name] = html.unescape(text)
    for name, options in re.findall(r'<select[^>]*name="v:([^"]+)"[^>]*>(.*?)</select>', page):
        found[name] = next(iter(re.findall(r"<option selected>([^<]*)<", options)), "")
    return {name: text for name, text in found.items() if text}


def test_a_new_page_has_every_field_and_none_is_set(studio):
    page = studio.get("/configure/expert").text
    for path, field in by_path().items():
        paths = [path] if field.kind != "entries" else [f"{path}.0.{each.path}" for each in field.first]
        for each in paths:
            assert f'id="f-{each}" name="v:{each}"' in page
    assert texts_in(page) == {}


def test_the_files_are_those_of_the_fields(studio):
    made = made_of_fields({name.removeprefix("v:"): text for name, text in RUNS.items()})
    page = post(studio, "/configure/expert", **RUNS).text
    assert made.yaml in html.unescape(page) and "mode:" not in made.yaml
    answer = post(studio, "/configure/expert/file/yaml", **RUNS)
    assert answer.text == made.yaml
    assert answer.headers["content-disposition"] == 'attachment; filename="trinity.yaml"'
    assert post(studio, "/configure/expert/file/script", **RUNS).status_code == 400
    part = post(studio, "/configure/expert", part="1", **RUNS).text
    assert "<form" not in part and made.yaml in html.unescape(part)


def test_the_beginner_s_form_goes_on_with_every_field(studio):
    page = studio.get("/configure/expert?epochs=7&test_first=on").text
    assert texts_in(page)["buffer.total_epochs"] == "7" and "Nothing." in page
    assert made_from({"epochs": "7"}).script in html.unescape(page)  # what it was loaded from
    assert "12 are not whole nodes" in studio.get("/configure/expert?gpus=12").text


def test_a_loaded_script_is_shown_and_a_change_is_told(studio):
    script = made_from({}).script
    page = post(studio, "/configure/load", text=script).text
    texts = texts_in(page)
    assert texts["explorer.rollout_model.gpu_memory_utilization"] == "0.6"
    fields = {f"v:{path}": text for path, text in texts.items()} | {"v:algorithm.optimizer.lr": "3e-6"}
    changed = post(studio, "/configure/expert", origin=script, **fields).text
    table = changed[changed.index("Changed since it was loaded") :]
    assert re.search(r"<code>algorithm.optimizer.lr</code></th><td>.*?</td><td>\s*<code>3e-06</code>", table)
    assert "actor.optim.lr=3e-06" in html.unescape(changed)


def test_lines_may_end_as_a_browser_sends_them(studio):
    script = made_from({}).script.replace("\n", "\r\n")
    page = post(studio, "/configure/load", text=script).text
    assert "Nothing." in page and texts_in(page)["algorithm.repeat_times"] == "8"


def test_a_loaded_yaml_is_shown(studio):
    text = "model: {model_path: m, max_model_len: 64}\nbuffer: {batch_size: 3}\n"
    page = post(studio, "/configure/load", text=text).text
    assert texts_in(page) == {"model.model_path": "m", "model.max_model_len": "64", "buffer.batch_size": "3"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo hello", "neither a launch of veRL nor a YAML"),
        ("model: {modle_path: m}", "no such field"),
        ("python3 -m verl.trainer.main_ppo trainer.nnode=2", "no such key"),
    ],
)
def test_a_text_that_cannot_be_loaded_is_kept_and_says_why(studio, text, said):
    page = html.unescape(post(studio, "/configure/load", text=text).text)
    assert said in page and f">\n{text}</textarea>" in page


def test_a_script_is_read_and_not_run(studio, tmp_path):
    text = f"touch {tmp_path}/stolen; $(touch {tmp_path}/stolen)\n{made_from({}).script}"
    assert "v:model.model_path" in post(studio, "/configure/load", text=text).text
    assert not (tmp_path / "stolen").exists()


def test_a_script_without_an_end_is_ended_and_nothing_else(studio):
    server = studio.app.state.studio.text_server
    server.warm()
    process = server._process
    names = [f"v{number}" for number in range(40)]
    text = "v0=" + "x" * 100 + "".join(f"\n{b}=${a}${a}" for a, b in itertools.pairwise(names))
    page = post(studio, "/configure/load", text=f"{text}\npython3 -m verl.trainer.main_ppo a=$v39").text
    assert "It would not run" in page
    assert "v:model.model_path" in post(studio, "/configure/load", text=made_from({}).script).text
    assert server._process is process


def test_a_problem_stands_at_its_field(studio):
    given = RUNS | {"v:buffer.explorer_input.tasksets": "- pth: x", "v:synchronizer.sync_method": "ncl"}
    page = html.unescape(post(studio, "/configure/expert", **given).text)
    for path in ("buffer.explorer_input.tasksets", "synchronizer.sync_method"):
        assert f'name="v:{path}" aria-describedby="h-{path}" aria-invalid="true"' in page
    assert 'value="ncl"' in page and "It would not run: 2 problems." in page


def test_fields_that_a_run_here_refuses_are_red_and_have_a_file(studio):
    page = html.unescape(studio.get("/configure/expert").text)
    assert "It would not run: 1 problem." in page and "a run here refuses it" in page
    assert "h-figures" not in page  # no prediction of what does not run


def test_workflows_and_rewards_that_run_here_are_offered_by_name(studio):
    page = studio.get("/configure/expert").text
    for name, list_of, one in (
        ("workflow", "workflows", "math_boxed_workflow"),
        ("reward_fn", "rewards", "math_dapo_reward"),
    ):
        field = f"buffer.explorer_input.tasksets.0.default_{name}_type"
        assert f'name="v:{field}" aria-describedby="h-{field}" list="{list_of}"' in page
        assert f'<option value="{one}"></option>' in page.partition(f'<datalist id="{list_of}">')[2]
    assert 'id="t-yaml"' in page and "</code> trains it" not in page


def test_entries_of_a_repeated_section_are_fields(studio):
    sets, models = "buffer.explorer_input.eval_tasksets", "explorer.auxiliary_models"
    given = {
        f"{sets}.0.path": "/a",
        f"{sets}.2.path": "/b",
        f"{sets}.2.repeat_times": "two",
        f"{models}.0.model_path": "j",
    }
    page = html.unescape(
        post(studio, "/configure/expert", **RUNS, **{f"v:{path}": text for path, text in given.items()}).text
    )
    assert texts_in(page).items() >= given.items() and f'name="v:{sets}.3.path"' in page
    assert "'two' where an integer is expected" in page
    del given[f"{sets}.2.repeat_times"]
    yaml = post(
        studio, "/configure/expert/file/yaml", **RUNS, **{f"v:{path}": text for path, text in given.items()}
    ).text
    page = post(studio, "/configure/load", text=yaml).text
    assert (
        texts_in(page).items()
        >= {f"{sets}.0.path": "/a", f"{sets}.1.path": "/b", f"{models}.0.model_path": "j"}.items()
    )


def test_a_hostile_text_stays_text(studio):
    given = dict.fromkeys(
        ["v:model.model_path", "v:explorer.env_vars", "v:mode", "origin", f"v:{EVIL}"], EVIL
    )
    for answer in (post(studio, "/configure/expert", **given), post(studio, "/configure/load", text=EVIL)):
        assert answer.status_code == 200
        assert "<script>window" not in answer.text and ">49<" not in answer.text


def test_only_a_form_of_this_studio_is_read(studio, folder):
    for path in ("/configure/expert", "/configure/load", "/configure/expert/file/yaml"):
        assert studio.post(path, data=RUNS).status_code == 403
        other = {"origin": "http://elsewhere"}
        secret = studio.app.state.studio.listener.csrf
        assert studio.post(path, data={"csrf": secret}, headers=other).status_code == 403
        assert stranger_of(folder).post(path, data=RUNS).status_code == 401
        assert post(studio, path, text="a" * (1 << 20)).status_code == 413
    assert studio.get("/configure/load").status_code == 405


def test_another_file_is_refused(studio):
    assert post(studio, "/configure/expert/file/passwd", **RUNS).status_code == 400


def test_a_loaded_script_fills_the_beginner_s_form_and_what_has_no_field_is_kept(studio):
    script = made_from({"epochs": "7", "settings": "actor_rollout_ref.actor.entropy_coeff=0.5"}).script
    answer = post(studio, "/configure/load", form="beginner", text=script).text
    page = html.unescape(answer)
    assert 'name="epochs" aria-describedby="h-epochs" value="7"' in page
    assert ">\nactor_rollout_ref.actor.entropy_coeff=0.5</textarea>" in page
    assert "1 setting has no field" in page and "The form means the same" in page
    assert 'id="form" class="card" action="/configure"' in page and (
        f'name="text" value="{html.escape(script).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")}"'
        in answer
    )
    text = made_from({}).yaml.replace("sync_offset: 0", "sync_offset: 1")
    page = html.unescape(post(studio, "/configure/load", form="beginner", text=text).text)
    assert re.search(r"<code>synchronizer.sync_offset</code></th><td>\s*<code>1</code>", page)
    assert "Open it in Expert, which holds all of it" in page


def test_a_text_without_a_beginner_s_form_is_kept_and_says_why(studio):
    text = "model: {model_path: m}\nbuffer: {batch_size: 3}\n"
    page = html.unescape(post(studio, "/configure/load", form="beginner", text=text).text)
    assert "translate did not write it" in page and "Expert has every field of it" in page
    assert f">\n{text}</textarea>" in page
    evil = post(
        studio, "/configure/load", form="beginner", text=f"{EVIL} python3 -m verl.trainer.main_ppo {EVIL}"
    )
    assert "<script>window" not in evil.text


def test_the_expert_s_yaml_goes_back_into_the_beginner_s_form(studio):
    page = post(studio, "/configure/load", text=made_from({"epochs": "7"}).script).text
    form = page[: page.index("In the beginner")]
    text = html.unescape(form[form.rindex('name="text" value="') :].split('"')[3])
    page = post(studio, "/configure/load", form="beginner", text=text).text
    assert 'name="epochs" aria-describedby="h-epochs" value="7"' in page
