"""The groups of a step: figures, the distribution of rewards, filters, neighbours, and their page."""

import itertools
import re
import sqlite3
import statistics
from dataclasses import replace

import numpy as np
import pytest
from studio_jobs import EVIL, GROUPS, STEPS, _group, client_of, make_job

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import TRUNCATED
from trinity_compat.studio import experiences, group_index, groups_page
from trinity_compat.studio.group_index import GroupQuery
from trinity_compat.studio.index import Index, stretches
from trinity_compat.studio.jobs import Jobs

REWARDS = [(1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.1, 0.1, 0.1)]


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(experiences, "_AT_ONCE_S", 30.0)


@pytest.fixture
def root(tmp_path):
    """A job with one step of groups that are all right, all wrong, mixed, and of equal small rewards."""
    root = make_job(tmp_path / "job", evil=False, steps=1)
    put(root, 2, REWARDS)
    return root


def put(root, step, rewards, **changes):
    made = []
    for number, each in enumerate(rewards):
        group = _group(step, number, evil=False)
        answers = [replace(a, reward=r, **changes) for a, r in zip(group.experiences, each, strict=True)]
        made.append(replace(group, experiences=tuple(answers)))
    buffer = open_buffer(f"sqlite:///{root}/buffer/experiences.db")
    buffer.put_groups(made)
    buffer.close()


@pytest.fixture
def index(tmp_path, root):
    made = Index(Jobs(tmp_path).get("job"))
    made.fill(60)
    return made


@pytest.fixture
def db(index):
    with index.connected() as db:
        yield db


def found(db, **wanted):
    return [row["id"] for row in group_index.page(db, GroupQuery(**{"up": True, **wanted}))]


def test_a_group_has_the_mean_spread_and_best_advantage_of_its_rewards(db):
    rows = group_index.page(db, GroupQuery(step=2, up=True))
    mixed = REWARDS[2]
    assert [(row["mean"], row["spread"]) for row in rows] == [
        (pytest.approx(statistics.fmean(each)), pytest.approx(statistics.stdev(each))) for each in REWARDS
    ]
    assert rows[3]["spread"] == 0.0  # and not what 0.1 three times rounds to
    assert rows[2]["advantage"] == pytest.approx((1 - statistics.fmean(mixed)) / statistics.stdev(mixed))
    assert (rows[0]["answers"], rows[0]["tools"], rows[0]["turns"], rows[0]["version"]) == (3, 1, 4, 1)


def test_truncated_answers_are_counted(tmp_path, root):
    put(root, 3, [(0.0, 1.0, 0.5)], metrics={TRUNCATED: 1.0})
    put(root, 4, [(0.0, 1.0, 0.5)], metrics={TRUNCATED: 0.0})
    made = Index(Jobs(tmp_path).get("job"))
    made.fill(60)
    with made.connected() as db:
        assert [group_index.page(db, GroupQuery(step=step))[0]["truncated"] for step in (3, 4)] == [3, 0]
        assert len(found(db, least={"truncated": 1})) == 1


def test_a_tool_call_is_a_stretch_of_tokens_that_the_policy_did_not_generate():
    masks = {(1, 1): 0, (0, 0, 1): 1, (1, 0, 0, 1, 0): 2, (0,): 1, (): 0, (1, 0, 1, 0, 1, 0): 3}
    assert {mask: stretches(np.array(mask, np.uint8).tobytes()) for mask in masks} == masks


@pytest.mark.parametrize(("outcome", "places"), [("right", [0]), ("wrong", [1, 3]), ("mixed", [2])])
def test_groups_all_right_all_wrong_or_mixed(db, outcome, places):
    first = GROUPS + 1
    assert found(db, step=2, outcome=outcome) == [first + place for place in places]
    assert group_index.outcomes(db, GroupQuery(step=2)) == {"right": 1, "wrong": 2, "mixed": 1, "all": 4}


def test_the_least_reward_of_a_right_answer_can_be_set(db):
    assert group_index.outcomes(db, GroupQuery(step=2, right=0.05))["right"] == 2


@pytest.mark.parametrize(
    "wanted",
    [
        GroupQuery(),
        GroupQuery(step=2),
        GroupQuery(step=2, outcome="wrong", sort="spread"),
        GroupQuery(least={"mean": 0.1}),
        GroupQuery(step=2, most={"spread": 0.0}, right=0.05),
        GroupQuery(task="toy/sort 4"),
        GroupQuery(step=2, task="toy/sort 4", outcome="right"),
    ],
)
def test_the_counts_of_the_outcomes_are_those_of_the_filter(db, wanted):
    lists = {name: found(db, **asked(wanted, name)) for name in ("right", "wrong", "mixed", "")}
    counts = group_index.outcomes(db, replace(wanted, after=(0.0, 0)))
    assert counts == {name or "all": len(each) for name, each in lists.items()}
    assert counts["all"] == sum(counts[name] for name in group_index.OUTCOMES) > 0


def asked(wanted, outcome):
    return {name: getattr(wanted, name) for name in ("step", "task", "least", "most", "sort", "right")} | {
        "outcome": outcome
    }


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("sort", group_index.SORTS)
def test_pages_of_groups_hold_each_once_and_in_order(db, sort, up):
    wanted, rows = GroupQuery(sort=sort, up=up), []
    while page := group_index.page(db, wanted, limit=3):
        rows += page[:3]
        column = group_index.SORTS[sort]
        wanted = replace(wanted, after=(rows[-1][column], rows[-1]["id"]))
    assert sorted(row["id"] for row in rows) == list(range(1, 2 * GROUPS + 1))
    keys = [(row[column], row["id"]) for row in rows]
    assert keys == sorted(keys, reverse=not up)


@pytest.mark.parametrize("name", group_index.BOUNDS)
def test_each_figure_bounds_a_selection(db, name):
    values = {row["id"]: row[name] for row in group_index.page(db, GroupQuery())}
    for value in set(values.values()):
        assert set(found(db, least={name: value})) == {n for n, each in values.items() if each >= value}
        assert set(found(db, most={name: value})) == {n for n, each in values.items() if each <= value}


@pytest.mark.parametrize(
    "wanted", [GroupQuery(up=True), GroupQuery(sort="spread"), GroupQuery(outcome="wrong")]
)
def test_neighbours_lead_through_a_selection_and_back(db, wanted):
    order = [row["id"] for row in group_index.page(db, wanted)]
    pairs = [group_index.neighbours(db, wanted, number) for number in order]
    assert pairs == list(zip([None, *order[:-1]], [*order[1:], None], strict=True))


def test_few_different_rewards_have_a_bar_each_and_many_share_them(tmp_path, root, index):
    with index.connected() as db:
        bars, count = group_index.distribution(db, "train", 2)
    assert [(bar.low, bar.count) for bar in bars] == [(0.0, 5), (0.1, 3), (1.0, 4)] and count == 12
    put(root, 5, [(number / 7, number / 9, number / 11) for number in range(30)])
    index.fill(60)
    with index.connected() as db:
        many, count = group_index.distribution(db, "train", 5)
    assert len(many) <= 24 and sum(bar.count for bar in many) == count == 90
    assert all(a.high < b.low for a, b in itertools.pairwise(many))


@pytest.mark.parametrize("extremes", [(-1.7e308, 1.7e308), (5e-324, 1e-323)])
def test_the_largest_and_smallest_rewards_have_bars(tmp_path, root, extremes):
    low, high = extremes
    put(
        root,
        5,
        [
            (low, high, low + (high - low) * number / 40 if high < 1 else float(number))
            for number in range(40)
        ],
    )
    studio = client_of(tmp_path)
    assert studio.get("/groups/job?step=5").status_code == 200


def test_an_infinite_reward_is_left_out_of_the_figures(tmp_path, root):
    put(root, 5, [(float("inf"), 1.0, 0.0), (float("-inf"),) * 3])
    studio = client_of(tmp_path)
    page = studio.get("/groups/job?step=5").text
    assert "Rewards of 2 answers" in page and "0.7071" in page
    assert page.count('<a class="name" href="/group/') == 2 and 'mean <b class="reward-tag rx">–' in page
    assert page.index("id=10&amp;") < page.index("id=9&amp;")  # without a reward that counts: the worst


def test_groups_written_while_the_index_is_filled_have_all_their_answers(tmp_path, root, monkeypatch):
    monkeypatch.setattr("trinity_compat.studio.index._BATCH", 2)  # in the middle of a group
    made = Index(Jobs(tmp_path).get("job"))
    made.fill(60)
    with made.connected() as db:
        assert {row["answers"] for row in group_index.page(db, GroupQuery())} == {3}


def test_an_index_of_an_earlier_layout_is_made_again(tmp_path, root, index):
    with sqlite3.connect(root / "studio.db") as raw:
        raw.execute("DELETE FROM meta WHERE name = 'layout'")
        raw.execute("ALTER TABLE rows DROP COLUMN tools")
    again = Index(Jobs(tmp_path).get("job"))
    again.fill(60)
    with again.connected() as db:
        assert len(group_index.page(db, GroupQuery())) == 2 * GROUPS


def test_the_page_shows_the_newest_step_and_leads_to_the_others(studio):
    page = studio.get("/groups/toy/grpo").text
    assert f"Groups of step {STEPS}" in page and page.count('<a class="name" href="/group/') == GROUPS
    earlier = re.search(r'href="([^"]+)" data-key="p"', page)[1].replace("&amp;", "&")
    before = studio.get(f"/groups/toy/grpo{earlier}").text
    assert f"Groups of step {STEPS - 1}" in before and 'data-key="n"' in before
    whole = studio.get("/groups/toy/grpo?step=all").text
    assert whole.count('<a class="name" href="/group/') == STEPS * GROUPS


def test_a_filter_is_in_the_address_of_each_link(studio):
    page = studio.get("/groups/toy/grpo?step=all&mean_min=0.3&sort=mean").text
    links = re.findall(r'href="(/group/[^"]+)"', page)
    assert links and all("mean_min=0.3" in link and "sort=mean" in link for link in links)
    group = studio.get(links[1].replace("&amp;", "&")).text
    after, before = (re.search(rf'href="([^"]+)" data-key="{key}"', group)[1] for key in "np")
    assert before == links[0] and after == links[2]


def test_the_page_counts_the_groups_that_its_filter_leaves(tmp_path, root):
    studio = client_of(tmp_path)
    for query, counts in (("step=2", [4, 1, 2, 1]), ("step=2&mean_min=0.05", [3, 1, 1, 1])):
        page = studio.get(f"/groups/job?{query}").text
        assert re.findall(r"(?:groups|right|wrong) <b>(\d+)</b>", page) == list(map(str, counts))


def test_a_row_has_prompt_worst_and_best_answer_ground_truth_and_strip(tmp_path, root):
    page = client_of(tmp_path).get("/groups/job?step=2").text
    rows = page.split('<li class="card answer">')[1:]
    assert [re.search(r'class="name" href="[^"]*id=(\d+)', row)[1] for row in rows] == ["6", "8", "7", "5"]
    mixed = rows[2]
    assert re.findall(r'<rect x="(\d+)" y="[\d.]+" width="5" height="([\d.]+)" class="(r.)"', mixed) == [
        ("0", "3.0", "r0"), ("6", "3.0", "r0"), ("12", "18.0", "r6")
    ]  # fmt: skip
    parts = re.findall(
        r'<dt>(\w+ ?\w*)(?:<b class="reward-tag (r\d)">.*?</b>)?</dt><dd class="text(?: end)?">(.*?)</dd>',
        mixed,
    )
    assert [(name.strip(), shade, text) for name, shade, text in parts] == [
        ("prompt", "", "sort 6 "),
        ("worst", "r0", "answer2x2x0 is sort 6 "),
        ("best", "r6", "answer2x2x1 is sort 6 "),
        ("ground truth", "", "6"),
    ]
    assert "an answer" in rows[0] and ">best " not in rows[0]


def test_the_colour_of_a_reward_is_its_place_among_all_of_its_kind(db):
    scale = group_index.scale(db, "train")
    assert (scale.low, scale.high) == (0.0, 1.0)
    assert [scale.shade(reward) for reward in (0.0, 0.5, 1.0, None, float("nan"))] == [
        "r0",
        "r3",
        "r6",
        "rx",
        "rx",
    ]
    assert [group_index.RewardScale(one, one).shade(one) for one in (0.0, 1.0)] == ["r0", "r6"]
    assert group_index.RewardScale(-1.7e308, 1.7e308).shade(0.0) == "r3"


def test_the_order_of_groups_is_in_links_that_turn_it_around(studio):
    page = studio.get("/groups/toy/grpo?step=3").text
    order = page.partition('aria-label="Order"')[2].partition("</nav>")[0]
    assert re.findall(r'<a href="([^"]+)" aria-current="true">mean reward', order) == [
        "?step=3&amp;sort=mean"
    ]
    turned = studio.get("/groups/toy/grpo?step=3&sort=mean").text
    assert 'href="?step=3&amp;sort=mean&amp;up=on" aria-current="true"' in turned


@pytest.fixture
def validated(tmp_path):
    """A studio over a job of three validations of four tasks, the last one repeated after a resume."""
    root = make_job(tmp_path / "job", evil=False, steps=2)
    buffer = open_buffer(f"sqlite:///{root}/buffer/experiences.db")
    for number, step, rewards in ((1, 5, "0011"), (2, 10, "0110"), (9, 20, "0000"), (10, 20, "1110")):
        made = [replace(_group(1, task, evil=False), explorer_step=step) for task in range(4)]
        buffer.put_groups(
            replace(
                group,
                kind=f"eval:{number}",
                key=f"{number} {task}",
                experiences=(replace(group.experiences[0], reward=float(rewards[task])),),
            )
            for task, group in enumerate(made)
        )
    buffer.close()
    return client_of(tmp_path)


def told(page):
    """The lists of tasks that changed between two validations, and the one that they are compared with."""
    section = page.partition('id="h-changes">')[2].partition("</section>")[0]
    lists = section.split("<details")[1:]
    return section.partition("</h2>")[0], [re.findall(r'id=\d+">(.*?)</a>', each) for each in lists]


def test_a_validation_lists_the_tasks_that_it_newly_solves_and_fails(validated):
    second = validated.get("/groups/job?kind=eval:2").text
    assert told(second) == ("Since the validation at step 5 (eval:1)", [["toy/sort 1"], ["toy/sort 3"]])
    last = validated.get("/groups/job?kind=eval:10&since=eval:1").text
    assert told(last)[1] == [["toy/sort 0", "toy/sort 1"], ["toy/sort 3"]]
    stricter = validated.get("/groups/job?kind=eval:2&right=1.5").text
    assert told(stricter)[1] == [[], []]
    for first in ("train", "eval:1", "eval:2&since="):  # without another before it, or chosen so
        assert "h-changes" not in validated.get(f"/groups/job?kind={first}").text


def test_a_validation_is_found_by_its_step_and_leads_to_the_next_one(validated):
    page = validated.get("/groups/job?kind=eval&step=10").text
    assert "<h2>Validation at step 10 (eval:2)</h2>" in page and page.count('<a class="name"') == 4
    addresses = [re.search(rf'href="([^"]+)" data-key="{key}"', page)[1] for key in "pn"]
    assert ["kind=eval%3A1" in addresses[0], "kind=eval%3A9" in addresses[1]] == [True, True]
    assert "Validation at step 20 (eval:10)" in validated.get("/groups/job?kind=eval&step=20").text
    assert "Validation at step 20 (eval:10)" in validated.get("/groups/job?kind=eval").text
    assert "Groups of step 2" in validated.get("/groups/job?kind=eval&step=2").text
    other = validated.get("/groups/job?kind=eval:1&step=2").text  # the kind was changed in the form
    assert "Validation at step 5" in other and other.count('<a class="name"') == 4


def test_a_prompt_of_parts_shows_its_texts():
    parts = [{"type": "image"}, {"type": "text", "text": "what is"}, {"type": "text", "text": "this?"}]
    assert (
        groups_page.asked({"raw_prompt": [{"content": "be brief"}, {"content": parts}]}) == " what is this?"
    )
    assert groups_page.asked({"raw_prompt": "plain"}) == "plain" and groups_page.asked({}) == ""


@pytest.mark.parametrize("bad", ["step=x", "mean_min=x", "right=nan", "sort=x", "outcome=x", "after=1"])
def test_an_address_that_names_no_selection_is_wrong(studio, bad):
    answer = studio.get(f"/groups/toy/grpo?{bad}")
    assert answer.status_code == 400 and f"{bad.partition('=')[0]}" in answer.text


def test_a_task_is_escaped(tmp_path):
    root = make_job(tmp_path / "job", evil=False, steps=0)
    group = _group(1, 0, evil=False)
    group = replace(group, task={**group.task, "data_source": EVIL})
    open_buffer(f"sqlite:///{root}/buffer/experiences.db").put_groups([group])
    page = client_of(tmp_path).get("/groups/job").text
    assert "&lt;/script&gt;" in page and "<img src=x" not in page
