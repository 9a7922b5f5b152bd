"""Trinity's workflows and rewards in the explorer, without trinity-rft.

A taskset's ``default_workflow_type`` builds the prompts, its ``default_reward_fn_type`` scores the answers;
``registry`` lists those that are implemented. Source: trinity-rft 0.6.0, trinity/common/workflows and
trinity/common/rewards; tests/trinity/workflows compares with the package itself.
"""
