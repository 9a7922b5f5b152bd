"""The page Which mode: the command's advice, drawn, for texts that others may have written."""

import html
import json
import re

import pytest
from click.testing import CliRunner
from studio_jobs import EVIL, client_of

from trinity_compat.cli import cli
from trinity_compat.studio.timeline import MARGIN, ROW, WIDTH, shared_span_s, timeline

SCRIPT = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=/d/train.parquet \\
  data.train_batch_size=16 data.max_response_length=1024 trainer.n_gpus_per_node=4 trainer.nnodes=1 \\
  actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.rollout.n=4 \\
  actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4
"""


def asked(studio, text=SCRIPT, **given):
    data = {"csrf": studio.app.state.studio.listener.csrf, "text": text, **given}
    return studio.post("/advise", data=data)


def told(answer):
    assert answer.status_code == 200
    return html.unescape(answer.text)


def test_the_page_says_what_the_command_says(studio, tmp_path, monkeypatch):
    given = {"gpus": "8", "answer-length": "300,900", "card": "A100", "verl-version": "0.9.1"}
    page = told(asked(studio, **given))
    words = "advise run.sh --gpus=8 --answer-length=300,900 --card=A100 --verl-version=0.9.1"
    assert f"trinity-compat {words}</pre>" in page
    (tmp_path / "run.sh").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    advice = json.loads(CliRunner().invoke(cli, [*words.split(), "--json"]).output)
    for mode in advice["modes"]:
        row = page[page.index(f'<th scope="row">{mode["name"]}</th>') :]
        cells = re.findall(r"<td[^>]*>([^<]*)</td>", row[: row.index("</tr>")])
        assert cells[1] == f"{round(100 * mode['gpu_time_used'])} %" and cells[-1] == str(
            mode["staleness_max"]
        )
    assert all(html.unescape(line) in page for line in advice["assumptions"])
    # Modes of the same figures are one picture, as stock's and that of turns are.
    figures = ("explorer_gpus", "trainer_gpus", "in_turns", "step_s", "gpu_time_used", "staleness_mean")
    drawn = {tuple(mode[name] for name in figures): mode for mode in advice["modes"]}
    assert len(drawn) < len(advice["modes"])
    assert page.count('class="timeline"') == len(drawn) == page.count("<summary>Values</summary>")
    lanes = sum(len(mode["lanes"]) for mode in drawn.values())
    assert len(re.findall(r'<tr><th scope="row">(?:explorer|trainer)</th>', page)) == lanes


def test_a_launch_that_was_configured_is_advised_on_by_a_button(studio):
    page = studio.get("/configure").text
    form = page[page.index('action="/advise"') :]
    text = html.unescape(re.search(r'name="text" value="([^"]+)"', form)[1])
    assert "main_ppo" in text and "Fastest here" in told(asked(studio, text, gpus="2"))


def test_a_split_or_a_mode_that_cannot_run_says_why(studio):
    whole = SCRIPT.replace("n=4", "n=4 actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean")  # no fillers
    page = told(asked(studio, whole, gpus="8"))
    assert '<th scope="row">2 + 6</th><td colspan=' in page
    assert "cannot run: buffer.train_batch_size=64 does not divide by 6 trainer ranks" in page
    page = told(asked(studio, gpus="1"))
    assert "cannot run here: one GPU cannot be split" in page
    assert page.count('class="timeline"') == page.count("in turns</td>") == 5  # stock's, and four of ours


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        (SCRIPT, {"gpus": "12"}, "--gpus 12: not whole nodes of 8 GPUs"),
        (SCRIPT, {"gpus": "x"}, "'x' is not a valid integer"),
        (SCRIPT, {"answer-length": "900"}, "--answer-length 900: not two numbers"),
        (SCRIPT, {"card": "H1000"}, "this card is not known"),
        ("echo no launch", {}, "run.sh"),
        (SCRIPT.replace("main_ppo", "sft_trainer"), {}, "run.sh"),
        ("  ", {}, "The text is empty"),
    ],
)
def test_a_launch_or_a_number_that_is_wrong_says_so_and_is_kept(studio, text, given, said):
    page = told(asked(studio, text, **given))
    alert = re.search(r'<p class="alert" role="alert">([^<]+)</p>', page)
    assert said in alert[1] and f">\n{text}</textarea>" in page and 'class="timeline"' not in page
    assert all(f'value="{value}"' in page or name == "card" for name, value in given.items())


def test_a_script_is_read_and_not_run_and_what_it_says_is_escaped(studio, tmp_path):
    text = f"touch {tmp_path}/stolen; $(touch {tmp_path}/stolen)\n{SCRIPT}  {EVIL}"
    answer = asked(studio, text)
    assert "<img src=x" not in answer.text and "</script><script>" not in answer.text
    assert not (tmp_path / "stolen").exists()


def test_no_control_becomes_another_option(studio):
    page = told(asked(studio, gpus="4 --job /etc", **{"model-size": "--seed=3"}))
    assert "'4 --job /etc' is not a valid integer" in page
    assert "--model-size --seed=3: not a number of parameters" in told(
        asked(studio, **{"model-size": "--seed=3"})
    )
    assert asked(studio, gpus="1" * 61).status_code == 400


def test_a_page_without_this_start_s_secret_is_refused_and_a_read_only_studio_answers(tmp_path):
    studio = client_of(tmp_path, read_only=True)
    try:
        assert studio.post("/advise", data={"text": SCRIPT, "csrf": "x"}).status_code == 403
        assert "Fastest here" in asked(studio).text
        assert asked(studio, "x" * (13 << 20)).status_code == 413
    finally:
        studio.app.state.studio.text_server.close()


LANES = [
    {"side": "explorer", "step": 1, "version": 0, "begin_s": 0.0, "end_s": 4.0, "busy": 0.5, "lag": 0},
    {"side": "trainer", "step": 1, "version": 0, "begin_s": 4.0, "end_s": 6.0, "busy": 1.0, "lag": 0},
    {"side": "explorer", "step": 2, "version": 0, "begin_s": 4.0, "end_s": 8.0, "busy": 1.0, "lag": 0},
    {"side": "trainer", "step": 2, "version": 1, "begin_s": 8.0, "end_s": 12.0, "busy": 1.0, "lag": 1},
]


def test_blocks_stand_at_their_times_and_idle_is_what_they_leave():
    drawn = timeline({"in_turns": False, "lanes": LANES}, 10.0)
    scale = (WIDTH - MARGIN) / 10
    assert [(round((b.x - MARGIN) / scale, 1), round(b.width / scale, 1)) for b in drawn.blocks] == [
        (0, 4), (4, 2), (4, 4), (8, 2),
    ]  # fmt: skip
    assert [b.height for b in drawn.blocks] == [ROW / 2, ROW, ROW, ROW]
    (_, explorer), (_, trainer) = drawn.rows
    assert [b.y for b in drawn.blocks] == [explorer, trainer, explorer, trainer]


def test_a_trained_step_has_the_colour_of_the_weights_that_its_oldest_answers_are_of():
    _, first, made, second = timeline({"in_turns": False, "lanes": LANES}, 12.0).blocks
    assert first.colour == made.colour == second.colour and "1 steps old" in second.title
    drawn = timeline({"in_turns": False, "lanes": [{**LANES[3], "lag": 0}]}, 12.0)
    assert drawn.blocks[0].colour != second.colour


def test_sides_in_turns_share_a_row_and_all_modes_the_seconds_that_each_has():
    assert [name for name, _ in timeline({"in_turns": True, "lanes": LANES}, 12.0).rows] == ["all GPUs"]
    assert shared_span_s([{"lanes": LANES}, {"lanes": LANES[:3]}, {"refused": "why"}]) == 8.0
