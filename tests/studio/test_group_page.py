"""A group's page: identical answers once, advantages, and the tokens of long answers part by part."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from studio_jobs import _group, client_of, large_group, make_job, make_tokenizer

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import DROPPED
from trinity_compat.studio import differences, experiences, group_page, tokens
from trinity_compat.trinity import stored_advantages

TOKENS, ANSWERS = 16_384, 8
PAGE_BYTES, PART_BYTES = 300_000, 64_000


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(experiences, "_AT_ONCE_S", 30.0)


def stored(folder, group, algorithm=None, **given):
    """A studio over a job of ``folder`` with this group."""
    root = make_job(folder / "job", evil=False, steps=0, **given)
    spec = json.loads((root / "config" / "run.json").read_text())
    spec["verl"]["algorithm"] = algorithm or {"adv_estimator": "grpo"}
    (root / "config" / "run.json").write_text(json.dumps(spec))
    buffer = open_buffer(f"sqlite:///{root}/buffer/experiences.db")
    buffer.put_groups([group])
    buffer.close()
    return client_of(folder)


def with_rewards(group, *rewards, text="the same"):
    one = group.experiences[0]
    answers = (replace(one, run=k, reward=r, response_text=text) for k, r in enumerate(rewards))
    return replace(group, experiences=tuple(answers))


def test_identical_answers_are_shown_once_with_their_number(tmp_path):
    studio = stored(tmp_path, with_rewards(_group(1, 0, evil=False), 1.0, 0.0, 1.0, 1.0))
    page = studio.get("/group/job?id=1").text
    assert page.count("<article") == 2 and "4 answers, 2 different" in page
    assert "<b>3 times</b>: answers 0" in page and 'id="a3"' in page and "answer 1<" in page


def test_two_answers_stand_side_by_side_with_their_difference(tmp_path):
    one = _group(1, 0, evil=False).experiences[0]
    texts = ("so 6 times 7 is\n42 & done", "so 6 plus 7 is\n13 & done", "other")
    answers = tuple(replace(one, run=k, reward=k / 2, response_text=text) for k, text in enumerate(texts))
    studio = stored(tmp_path, replace(_group(1, 0, evil=False), experiences=answers))
    page = studio.get("/group/job?id=1&a=1&b=2&mean_min=0.1").text
    shown = page.partition('id="difference"')[2].partition("</section>")[0]
    assert re.findall(r"<mark>(.*?)</mark>", shown, re.S) == [" times", "\n42", " plus", "\n13"]
    assert "&amp; done" in shown and 'name="mean_min" value="0.1"' in shown
    assert re.findall(r'value="(\d)" selected', shown) == ["1", "2"]
    assert re.findall(r'value="(\d)" selected', studio.get("/group/job?id=1").text) == ["1", "3"]
    for unknown in ("a=1&b=99", "a=x&b=", "b=1"):
        assert "<mark>" not in studio.get(f"/group/job?id=1&{unknown}").text


def test_very_long_answers_are_compared_by_their_beginnings():
    a, b, cut = differences.differing("same " * 5000, "same " * 5000 + "end")
    assert cut and a == b == [(False, "same" + " same" * 2999)]
    assert differences.differing("", "x") == ([], [(True, "x")], False)


def test_the_worst_answer_comes_first(tmp_path):
    one = _group(1, 0, evil=False)
    answers = tuple(
        replace(a, reward=r) for a, r in zip(one.experiences, (0.5, float("-inf"), 0.1), strict=True)
    )
    page = stored(tmp_path, replace(one, experiences=answers)).get("/group/job?id=1").text
    assert re.findall(r'<article class="card answer" id="a(\d)"', page) == ["2", "3", "1"]
    assert "Groups of step 1</a>" in page and "?kind=train&amp;step=1" in page


def test_an_answer_has_its_advantage(tmp_path):
    studio = stored(tmp_path, with_rewards(_group(1, 0, evil=False), 1.0, 0.0, 0.0))
    page = studio.get("/group/job?id=1").text
    assert "advantage 1.155<" in page and "advantage -0.5773<" in page and "spread 0.5774" in page


def test_a_single_answer_has_no_advantage(tmp_path):
    studio = stored(tmp_path, with_rewards(_group(1, 0, evil=False), 1.0))
    article = studio.get("/group/job?id=1").text.partition("<article")[2]
    assert "advantage 1<" in article  # veRL's: mean 0, deviation 1


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        (
            {"adv_estimator": "gae"},
            "is not shown: gae: GAE needs the critic&#39;s values, which are not stored",
        ),
        (
            {"adv_estimator": "reinforce_plus_plus"},
            "is not shown: reinforce_plus_plus: it is normalized over",
        ),
        ({"adv_estimator": "grpo", "use_kl_in_reward": True}, "is not shown: algorithm.use_kl_in_reward"),
        ({"adv_estimator": "my_own"}, "is not shown: my_own: it needs more than rewards"),
        ({"adv_estimator": "rloo"}, "advantage 0.75<"),
        ({"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": False}, "advantage 0.5<"),
        ({"adv_estimator": "trinity_asymre", "trinity_args": {"baseline_shift": -0.5}}, "advantage 1<"),
    ],
)
def test_the_advantage_is_that_of_the_run_s_algorithm_or_says_why_not(tmp_path, algorithm, told):
    group = with_rewards(_group(1, 0, evil=False), 1.0, 0.5, 0.0)
    page = stored(tmp_path, group, algorithm=algorithm).get("/group/job?id=1").text
    assert told in page and ("is not shown" in told) == ("is not shown" in page)


@pytest.mark.verl
@pytest.mark.parametrize("rewards", [(1.0, 0.25, -3.0, 0.5), (2.0,), (1.0, 1.0)])
@pytest.mark.parametrize(
    "algorithm", [("grpo", True), ("grpo", False), ("grpo_vectorized", True), ("rloo", True)]
)
def test_the_advantages_are_veRL_s(rewards, algorithm):
    import torch
    from verl.trainer.ppo import core_algos

    name, by_std = algorithm
    given = {"norm_adv_by_std_in_grpo": by_std} if name != "rloo" else {}
    estimate = core_algos.get_adv_estimator_fn(name)
    scores, _ = estimate(
        token_level_rewards=torch.tensor([[reward] for reward in rewards]),
        response_mask=torch.ones(len(rewards), 1),
        index=np.zeros(len(rewards), dtype=int),
        **given,
    )
    answers = with_rewards(_group(1, 0, evil=False), *rewards).experiences
    verl = {"algorithm": {"adv_estimator": name, "norm_adv_by_std_in_grpo": by_std}}
    made = stored_advantages.of_group(verl, "train", answers)
    assert made.values == pytest.approx(scores[:, 0].tolist(), abs=1e-5)


def test_a_dropped_answer_has_no_advantage_and_is_in_no_baseline():
    one, *others = with_rewards(_group(1, 0, evil=False), 9.0, 1.0, 0.0).experiences
    verl = {"algorithm": {"adv_estimator": "rloo"}}
    found = stored_advantages.of_group(verl, "train", [replace(one, metrics={DROPPED: 1.0}), *others])
    assert found.values == [None, 1.0, -1.0]
    assert "of a validation are not trained" in stored_advantages.of_group(verl, "eval:1", others).why


@pytest.mark.parametrize("name", stored_advantages._OF_TRINITY)
def test_each_formula_of_ours_takes_an_array(name):
    answers = with_rewards(_group(1, 0, evil=False), 1.0, 0.0, 0.5).experiences
    arguments = {"opmd_baseline": "logavgexp"} if name == "opmd" else {}
    verl = {"algorithm": {"adv_estimator": f"trinity_{name}", "trinity_args": arguments}}
    found = stored_advantages.of_group(verl, "train", answers)
    assert len(found.values) == 3 and found.values[0] > found.values[2] > found.values[1] and found.formula


def test_a_task_of_a_validation_is_followed_over_all_of_them(tmp_path):
    root = make_job(tmp_path / "job", evil=False, steps=0)
    made = [
        replace(_group(step, 0, evil=False), kind=f"eval:{number}", key=f"v{number}", task={"index": 3})
        for number, step in ((1, 2), (2, 10), (10, 20))
    ]
    open_buffer(f"sqlite:///{root}/buffer/experiences.db").put_groups(made)
    page = client_of(tmp_path).get("/group/job?id=2").text
    assert "<span>validation at step 10 (eval:2)</span> <span>group 2" in page
    table = page.partition("The same task over training")[2]
    assert re.findall(r'id=(\d+)">(\d+)</a>', table) == [("1", "2"), ("2", "10"), ("3", "20")]
    kinds = client_of(tmp_path).get("/experiences/job?kind=eval:10").text
    assert re.findall(r">validation at step (\d+) ", kinds) == ["2", "10", "20"]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    model = make_tokenizer(folder / "model")
    return stored(folder, large_group(ANSWERS, TOKENS), model=model)


def test_a_page_of_long_answers_is_small(large):
    page = large.get("/group/job?id=1")
    assert len(page.content) <= PAGE_BYTES and page.text.count("<article") == ANSWERS


def test_the_page_and_the_parts_have_each_token_once_and_in_order(large):
    page = large.get("/group/job?id=1").text
    box = re.search(r'data-id="1" data-shown="(\d+)" data-total="(\d+)" data-size="(\d+)">(.*)', page)
    shown, total, size = map(int, box.groups()[:3])
    seen = re.findall(r'id (\d+)">', box[4].partition("</div>")[0])
    for begin in range(shown, total, size):
        part = large.get(f"/tokens/job?id=1&from={begin}")
        assert len(part.content) <= PART_BYTES
        seen += [title.rpartition(" ")[2] for _, found in part.json()["spans"] for _, _, title in found]
    assert total == TOKENS and seen == [str(number % 200) for number in range(TOKENS)]


def test_a_part_after_the_end_is_empty(large):
    assert large.get(f"/tokens/job?id=1&from={TOKENS}").json() == {"spans": []}
    assert large.get(f"/tokens/job?id=1&from={2**63 - 1}").json() == {"spans": []}


def test_the_whole_text_is_plain(large):
    answer = large.get("/tokens/job?id=1&whole=1")
    assert answer.headers["content-type"].startswith("text/plain") and len(answer.text) > TOKENS


@pytest.mark.parametrize(("address", "status"), [("id=1", 400), ("id=1&from=x", 400), ("id=99&from=0", 404)])
def test_a_part_of_no_answer_is_an_error(large, address, status):
    assert large.get(f"/tokens/job?{address}").status_code == status


def test_without_a_tokenizer_the_text_comes_in_parts(tmp_path):
    studio = stored(tmp_path, large_group(ANSWERS, 4096))
    page = studio.get("/group/job?id=1")
    assert len(page.content) <= PAGE_BYTES
    box = re.search(r'data-id="1" data-shown="(\d+)" data-total="(\d+)" data-size="(\d+)">([^<]*)', page.text)
    shown, total, size = map(int, box.groups()[:3])
    text = box[4] + "".join(
        studio.get(f"/tokens/job?id=1&from={begin}").json()["text"] for begin in range(shown, total, size)
    )
    assert text == large_group(1, 4096).experiences[0].response_text and total == len(text)


def test_a_very_large_group_has_a_page_of_its_first_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(group_page, "MOST_ANSWERS", 4)
    studio = stored(tmp_path, large_group(6, 8))
    page = studio.get("/group/job?id=1").text
    assert page.count("<article") == 4 and "The first 4 answers" in page


def test_long_prompts_rows_and_reasons_do_not_fill_the_page(tmp_path):
    group = large_group(2, 8)
    many = {f"reason {number}": "x" * 5000 for number in range(500)}
    answers = tuple(replace(each, prompt_text="p" * 500_000, info=many) for each in group.experiences)
    task = {**group.task, "raw_prompt": "q" * 500_000}
    studio = stored(tmp_path, replace(group, task=task, experiences=answers))
    page = studio.get("/group/job?id=1")
    assert len(page.content) < PAGE_BYTES and "more characters" in page.text


@pytest.mark.parametrize("size", [1, 7, 64])
def test_parts_of_characters_of_several_tokens_have_each_once(size):
    """Ids are bytes; 你 is three of them."""
    text = "a你b你你 not 你" * 40
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    mask, logprobs = np.ones(len(ids), np.uint8), np.zeros(len(ids), np.float32)
    mask[100:140] = 0

    def decode(numbers):
        return bytes(numbers).decode(errors="replace")

    def part(begin):
        start = max(0, begin - tokens.BEFORE)
        cut = slice(start, begin + size + tokens.LONGEST)
        return tokens.spans(ids[cut], mask[cut], [logprobs[cut]], decode, begin - start, begin - start + size)

    whole = tokens.spans(ids, mask, [logprobs], decode)
    flat = [(span.ours, token) for span in whole for token in span.tokens]
    parts = [part(begin) for begin in range(0, len(ids), size)]
    assert [(span.ours, token) for found in parts for span in found for token in span.tokens] == flat
