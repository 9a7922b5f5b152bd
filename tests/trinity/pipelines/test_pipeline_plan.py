"""A YAML's operators in the plan, and what is refused before a run starts."""

from pathlib import Path

import pytest
import yaml

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import put, value_at
from trinity_compat.explorer.scheduling.filtering import GroupFilter
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions

YAML = Path(__file__).parents[3] / "examples" / "workflows" / "simple.yaml"
OPERATORS = "data_processor.experience_pipeline.operators"


def planned(*operators, options=None, **changes):
    config = yaml.safe_load(YAML.read_text())
    put(config, OPERATORS, list(operators))
    for path, value in changes.items():
        put(config, path.replace("__", "."), value)
    return make_plan(config, options or RunOptions(), cwd=Path("/work"), device="cpu")


def test_operators_are_told_to_the_run_s_processes():
    made = planned({"name": "reward_filter", "args": {"threshold": 0.5}}, {"name": "pass_rate_calculator"})
    assert value_at(made.spec.verl, "data.experience_pipeline.operators") == [
        {"name": "reward_filter", "args": {"threshold": 0.5}},
        {"name": "pass_rate_calculator", "args": {}},
    ]
    assert not [path for path in made.unread if path.startswith("data_processor")]
    (note,) = [note for note in made.notes if note.startswith("experience pipeline")]
    assert "reward_filter, pass_rate_calculator" in note


def test_a_step_is_drawn_until_its_groups_have_passed():
    assert GroupFilter.of(planned().spec.verl) is None
    drawn = GroupFilter.of(planned({"name": "reward_filter"}).spec.verl)
    assert (drawn.metric, drawn.batch_size, drawn.draw_size) == ("", 16, 16)


def test_an_operator_of_a_plugin_is_known_by_its_name(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from trinity.buffer.operators import EXPERIENCE_OPERATORS\n"
        "@EXPERIENCE_OPERATORS.register_module('mine')\nclass Mine: ...\n"
    )
    made = planned({"name": "mine", "args": {"a": 1}}, options=RunOptions(plugin_dirs=(str(tmp_path),)))
    assert value_at(made.spec.verl, "data.experience_pipeline.operators")[0]["name"] == "mine"


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        ({"name": "reward_fliter"}, "operators.0.name=reward_fliter: no operator of that name"),
        ({"name": "data_juicer"}, "operators.0.args.operators is None: write a list of operators"),
        (
            {"name": "data_juicer", "args": {"operators": [{"text_length_filter": {}}]}},
            "operators.0.args needs Data-Juicer, and service.data_juicer names no service",
        ),
        ({"name": "data_juicer", "args": {"operator": []}}, r"args\.operator: data_juicer takes operators"),
        ({"name": "reward_filter", "args": {"treshold": 1}}, "operators.0.args of reward_filter: .*treshold"),
        (
            {"name": "reward_filter", "args": {"threshold": "high"}},
            "args.threshold is 'high': write a number",
        ),
        ({"name": "reward_filter", "args": 3}, "operators.0.args is 3, it should be a section"),
        (
            {"name": "reward_shaping_mapper", "args": {"reward_shaping_configs": [{"op_type": "POW"}]}},
            "reward_shaping_configs.0.op_type=POW: write one of ADD, SUB",
        ),
    ],
)
def test_what_does_not_run_is_refused_with_its_place(operator, message):
    with pytest.raises(UserError, match=message) as error:
        planned(operator)
    if operator["name"] == "reward_fliter":
        assert "reward_filter" in error.value.hint


def test_several_explorers_and_remax_are_refused():
    with pytest.raises(UserError, match="one explorer takes a batch through them, and the run has 2"):
        planned({"name": "reward_filter"}, options=RunOptions(explorers=2))
    with pytest.raises(UserError, match="remax"):
        planned({"name": "reward_filter"}, algorithm__algorithm_type="remax")


def test_groups_that_are_made_later_are_refused_beside_operators():
    changes = {"synchronizer__sync_style": "fully_async", "explorer__over_rollout": {"ratio": 0.2}}
    with pytest.raises(
        UserError, match=r"with data_processor\.experience_pipeline\.operators a step trains all"
    ):
        planned({"name": "reward_filter"}, **changes)
