"""The list of experiences, a group side by side, exports, and the index below them."""

import io
import json
import sqlite3
import threading
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from studio_jobs import ANSWERS, EVIL, GROUPS, STEPS, client_of, make_job
from tokenizers import Tokenizer, models

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import Experience
from trinity_compat.buffer.report import BufferReport
from trinity_compat.studio import experiences, tokens
from trinity_compat.studio.index import ExperienceQuery, Index, search_words
from trinity_compat.studio.jobs import Jobs

ALL = STEPS * GROUPS * ANSWERS


@pytest.fixture
def root(tmp_path):
    return make_job(tmp_path / "job")


@pytest.fixture
def index(tmp_path, root):
    made = Index(Jobs(tmp_path).get("job"))
    made.fill(60)
    return made


def everything(index, wanted, limit=7):
    """All pages of a selection."""
    column = "id" if wanted.text else {"newest": "id"}.get(wanted.sort, wanted.sort)
    found = []
    while rows := index.page(wanted, limit=limit):
        found += rows[:limit]
        if len(rows) <= limit:
            break
        last = found[-1]
        wanted = ExperienceQuery(
            **{
                **{f: getattr(wanted, f) for f in ExperienceQuery.__slots__},
                "after": (last[column], last["id"]),
            }
        )
    return found


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("sort", ["newest", "step", "reward", "length", "version"])
def test_pages_hold_every_row_once_and_in_order(index, sort, up):
    rows = everything(index, ExperienceQuery(sort=sort, up=up))
    assert sorted(row["id"] for row in rows) == list(range(1, ALL + 1))
    keys = [(row["id" if sort == "newest" else sort], row["id"]) for row in rows]
    assert keys == sorted(keys, reverse=not up)


def test_bounds_task_and_search_select(index):
    assert {
        row["step"] for row in everything(index, ExperienceQuery(least={"step": 3}, most={"step": 4}))
    } == {3, 4}
    rewarded = everything(index, ExperienceQuery(least={"reward": 0.5}))
    assert rewarded and all(row["reward"] >= 0.5 for row in rewarded)
    of_task = everything(index, ExperienceQuery(task="toy/sort 3"))
    assert {row["step"] for row in of_task} == {1, 3, 5}
    (hit,) = everything(index, ExperienceQuery(text="answer5x2x1"))
    assert (hit["step"], hit["run"]) == (5, 1)
    assert len(everything(index, ExperienceQuery(text="sort"))) == ALL
    assert len(everything(index, ExperienceQuery(text="answer5x2"))) == ANSWERS  # the beginning of a word


@pytest.mark.parametrize("few", [0, 2000])  # rows that bounds may leave
def test_a_search_within_bounds_has_its_pages_either_way(index, monkeypatch, few):
    monkeypatch.setattr("trinity_compat.studio.index._FEW", few)
    found = everything(index, ExperienceQuery(text="sort answer*", least={"step": 3}, up=True))
    assert [row["id"] for row in found] == list(range(2 * GROUPS * ANSWERS + 1, ALL + 1))
    assert everything(index, ExperienceQuery(text="nowhere")) == []


def test_hits_are_counted_up_to_a_limit(studio, index):
    assert index.count(ExperienceQuery(text="answer5x2"), most=100) == ANSWERS
    assert index.count(ExperienceQuery(least={"step": 3}, most={"step": 3}), most=100) == GROUPS * ANSWERS
    assert index.count(ExperienceQuery(), most=7) == 7
    assert f"<b>{ANSWERS} hits</b>" in studio.get("/experiences/toy/grpo?text=answer5x2").text
    assert f"<b>{ALL} experiences</b>" in studio.get("/experiences/toy/grpo").text


def test_the_kinds_are_those_of_the_rows_training_first(index):
    with index.connected() as db:
        db.execute("UPDATE rows SET kind = 'eval:1' WHERE id < 5")
        db.execute("UPDATE rows SET kind = 'bench' WHERE id = 9")
    assert index.kinds() == ["train", "bench", "eval:1"]


@pytest.mark.parametrize(
    "text",
    ['"', "a AND", "NOT", "prompt:x", "(", "*", "a*b", '"a"" b', "^x", "-x", "{{", EVIL, "é 你好", "\\", "%"],
)
def test_no_search_is_an_error(studio, text):
    assert studio.get("/experiences/toy/grpo", params={"text": text}).status_code == 200


def test_a_phrase_is_a_phrase():
    assert search_words('the "big one" yes') == '"the" "big one" "yes"*'


@pytest.mark.parametrize("bad", ["step_min=x", "reward_max=1,2", "after=x,1", "after=1,x"])
def test_a_number_that_is_none_is_said_so(studio, bad):
    answer = studio.get(f"/experiences/toy/grpo?{bad}")
    assert answer.status_code == 400 and f"{bad.partition('=')[0]}: " in answer.text


def test_the_pages_lead_from_one_to_the_next(studio):
    import re

    seen, place = [], "/experiences/toy/grpo?sort=reward"
    while place:
        page = studio.get(place).text
        seen += re.findall(r"#a(\d+)", page)
        following = re.search(r'href="([^"]+)" rel="next"', page)
        place = following and "/experiences/toy/grpo" + following[1].replace("&amp;", "&")
    assert len(seen) == ALL == len(set(seen))


def test_what_a_run_adds_is_indexed_later(root, index):
    buffer = open_buffer(f"sqlite:///{root}/buffer/experiences.db")
    from studio_jobs import _group

    buffer.put_groups([_group(STEPS + 1, 0, evil=False)])
    assert index.fill(0) == (ALL, ALL + ANSWERS)
    assert index.fill(60) == (ALL + ANSWERS, ALL + ANSWERS)
    assert len(everything(index, ExperienceQuery(least={"step": STEPS + 1}))) == ANSWERS


def test_threads_that_fill_at_once_index_each_row_once(tmp_path, root):
    job = Jobs(tmp_path).get("job")
    made = Index(job)
    threads = [threading.Thread(target=made.fill, args=(60,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(everything(made, ExperienceQuery())) == ALL


def test_two_studios_over_one_job_index_each_row_once(tmp_path, root):
    both = [Index(Jobs(tmp_path).get("job")) for _ in range(2)]
    threads = [threading.Thread(target=one.fill, args=(60,)) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(everything(both[0], ExperienceQuery())) == ALL


def test_rows_that_another_studio_indexes_after_they_were_read_are_indexed_once(tmp_path, root, monkeypatch):
    one, other = (Index(Jobs(tmp_path).get("job")) for _ in range(2))
    database, read = one.job.database(), []

    def overtaken(asked, *, write):
        found = type(database).run(database, asked, write=write)
        read.append(found)
        if len(read) == 2:  # the last id there, then the first batch of rows
            other.fill(60)
        return found

    monkeypatch.setattr(one.job, "database", lambda: SimpleNamespace(run=overtaken, dialect=database.dialect))
    assert one.fill(60) == (ALL, ALL)
    assert len(read) == 2 and len(read[1]) == ALL  # nothing was left to read again
    assert len(everything(one, ExperienceQuery())) == ALL


def test_another_run_s_database_in_the_same_place_is_indexed_anew(tmp_path, root, index):
    for path in (root / "buffer").iterdir():
        path.unlink()
    make_job(tmp_path / "other", steps=1)
    for path in (tmp_path / "other" / "buffer").iterdir():
        path.rename(root / "buffer" / path.name)
    again = Index(Jobs(tmp_path).get("job"))
    again.fill(60)
    assert len(everything(again, ExperienceQuery())) == GROUPS * ANSWERS


def test_a_file_that_is_not_an_index_is_named(tmp_path, root):
    (root / "studio.db").write_text("something else, longer than a header of a database would be " * 9)
    answer = client_of(tmp_path).get("/experiences/job")
    assert answer.status_code == 503 and "studio.db cannot be used" in answer.text


def test_a_group_shows_its_answers_and_why_they_were_rewarded(studio):
    page = studio.get("/group/toy/grpo?id=2").text
    assert page.count("<article") == ANSWERS
    assert "Reward details" in page and "trained in step 1" in page and "toy/sort 1" in page
    assert "The same task over training" in page


def test_a_group_that_is_not_there_is_not_found(studio):
    assert studio.get("/group/toy/grpo?id=999999").status_code == 404


@pytest.mark.parametrize("query", ["", "?id=x", "?id=-1", "?id=99999999999999999999999"])
def test_an_address_that_names_no_group_is_wrong(studio, query):
    assert studio.get(f"/group/toy/grpo{query}").status_code == 400


def test_a_pruned_group_says_so(tmp_path, root):
    report = BufferReport(f"sqlite:///{root}/buffer/experiences.db")
    report.prune(keep_steps=0)
    studio = client_of(tmp_path)
    assert "(pruned)" in studio.get("/group/job?id=2").text
    assert "(pruned)" in studio.get("/experiences/job").text
    assert len(studio.get("/selection/job?format=jsonl").text.splitlines()) == ALL


def test_the_selection_as_json_lines_and_as_parquet(studio):
    query = "least=1&step_min=2&step_max=3&sort=reward"
    lines = [json.loads(line) for line in studio.get(f"/selection/toy/grpo?{query}").text.splitlines()]
    assert len(lines) == 2 * GROUPS * ANSWERS and {line["step"] for line in lines} == {2, 3}
    first = lines[0]
    assert EVIL in first["prompt_text"] and len(first["response_ids"]) == first["length"] == len(
        first["logprobs"]
    )
    assert first["info"]["acc"] == 1.0 and first["task"].startswith("toy/sort")
    answer = studio.get(f"/selection/toy/grpo?{query}&format=parquet")
    table = pq.read_table(io.BytesIO(answer.content))
    assert table.num_rows == len(lines) and table.column("response_ids")[0].as_py() == first["response_ids"]
    assert "attachment" in answer.headers["content-disposition"]
    assert studio.get("/selection/toy/grpo?text=nothinglikeit&format=parquet").status_code == 200
    assert studio.get("/selection/toy/grpo?format=exe").status_code == 400


def answer(ids, mask=None, logprobs=None):
    size = len(ids)
    return Experience(
        run=0,
        prompt_ids=np.zeros(1, np.int32),
        response_ids=np.array(ids, np.int32),
        response_mask=np.array(mask or [1] * size, np.uint8),
        logprobs=np.array(logprobs or [0.0] * size, np.float32),
        reward=0.0,
        min_model_version=0,
        max_model_version=0,
    )


def pieces(it, decode, scores=(), clip=(0.8, 1.2)):
    arrays = (it.logprobs, *(np.array(each, np.float32) for each in scores))
    return tokens.spans(it.response_ids, it.response_mask, arrays, decode, clip=clip)


def test_tokens_are_cut_where_the_mask_changes():
    found = pieces(answer([1, 2, 3, 4], mask=[1, 0, 0, 1]), lambda ids: "".join(map(str, ids)))
    assert [(piece.ours, piece.text) for piece in found] == [(True, "1"), (False, "23"), (True, "4")]


def test_the_less_likely_a_token_the_darker_it_is():
    logprobs = [float(np.log(p)) for p in (0.95, 0.6, 0.3, 0.1, 0.02, 0.001)]
    (piece,) = pieces(answer(range(6), logprobs=logprobs), str)
    assert [token.classes for token in piece.tokens] == ["s0", "s1", "s2", "s3", "s4", "s5"]


def test_tokens_with_the_trainer_s_scores_have_classes_for_entropy_and_ratio():
    scores = ((-1.0, -1.04, -0.7), (0.05, 0.7, 4.0))
    (piece,) = pieces(answer(range(3), logprobs=[-1.0] * 3), str, scores)
    assert [token.classes for token in piece.tokens] == ["s2 e0 d0", "s2 e2 d1", "s2 e5 d4 clip"]
    assert piece.tokens[2].title.endswith("entropy 4 · trainer p 0.497, 1.35 of the engine's")
    (short,) = pieces(answer(range(3)), str, (scores[0][:2], scores[1]))
    assert [token.classes for token in short.tokens] == ["s0 e0 d5 clip", "s0 e2 d5 clip", "s0"]


def test_no_more_than_six_tokens_are_read_as_one_character():
    (piece,) = pieces(answer(range(8)), lambda ids: "\ufffd")
    assert [token.title.rpartition("id ")[2] for token in piece.tokens] == ["0 1 2 3 4 5", "6 7"]


def test_tokens_that_only_together_make_a_character_are_one():
    part = {1: b"\xe4", 2: b"\xbd", 3: b"\xa0", 4: b"!"}
    (piece,) = pieces(
        answer([1, 2, 3, 4]), lambda ids: b"".join(part[i] for i in ids).decode(errors="replace")
    )
    assert [token.text for token in piece.tokens] == ["你", "!"]
    (broken,) = pieces(answer([1, 1]), lambda ids: b"".join(part[i] for i in ids).decode(errors="replace"))
    assert "".join(token.text for token in broken.tokens) == "\ufffd\ufffd"


def test_the_run_s_own_tokenizer_colours_the_answer(tmp_path):
    Tokenizer(models.WordLevel({"<b>": 100, "you": 101}, unk_token="you")).save(
        str(tmp_path / "tokenizer.json")
    )
    decode = tokens.decoder({"actor_rollout_ref": {"model": {"path": str(tmp_path)}}})
    assert decode([100]) == "<b>"
    assert tokens.decoder({"actor_rollout_ref": {"model": {"path": str(tmp_path / "nope")}}}) is None
    assert tokens.decoder({}) is None


def test_coloured_tokens_are_escaped(studio, monkeypatch):
    monkeypatch.setattr(tokens, "decoder", lambda verl: lambda ids: "<b>" * len(ids))
    page = studio.get("/group/toy/grpo?id=2").text
    assert "&lt;b&gt;" in page and "<b><b>" not in page and "not generated by the policy" in page


def test_the_index_is_made_without_writing_to_the_job_s_database(tmp_path, root):
    before = (root / "buffer" / "experiences.db").read_bytes()
    client_of(tmp_path).get("/experiences/job")
    assert (root / "buffer" / "experiences.db").read_bytes() == before
    with sqlite3.connect(root / "studio.db") as db:
        assert db.execute("SELECT count(*) FROM rows").fetchone()[0] == ALL


def test_a_page_answers_before_a_large_index_is_whole(tmp_path, root, monkeypatch):
    monkeypatch.setattr(experiences, "_AT_ONCE_S", 0.0)
    monkeypatch.setattr(Index, "fill_beside", lambda self: None)
    page = client_of(tmp_path).get("/experiences/job").text
    assert f"Indexing: 0 of {ALL}" in page and "data-indexing" in page


def test_the_newest_experiences_are_indexed_first(tmp_path, root, monkeypatch):
    monkeypatch.setattr("trinity_compat.studio.index._BATCH", 5)
    made = Index(Jobs(tmp_path).get("job"))
    assert made.fill(0) == (0, ALL)
    assert made._batch()
    assert [row["id"] for row in made.page(ExperienceQuery())] == list(range(ALL, ALL - 5, -1))
    buffer = open_buffer(f"sqlite:///{root}/buffer/experiences.db")
    from studio_jobs import _group

    buffer.put_groups([_group(STEPS + 1, 0, evil=False)])
    assert made.fill(0) == (5, ALL + ANSWERS)
    assert made._batch()
    assert [row["id"] for row in made.page(ExperienceQuery())][:4] == [ALL + 3, ALL + 2, ALL + 1, ALL]
    assert made.fill(60) == (ALL + ANSWERS, ALL + ANSWERS)
    assert len(everything(made, ExperienceQuery())) == ALL + ANSWERS
    assert len(everything(made, ExperienceQuery(text="sort"))) == ALL + ANSWERS
