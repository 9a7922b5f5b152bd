"""Trinity's workflows and rewards in our explorer, without trinity-rft.

A taskset's ``default_workflow_type`` says what a model is asked, its ``default_reward_fn_type`` what an
answer is worth. ``table`` has those that run here by name. Behaviour: trinity-rft 0.6.0,
trinity/common/workflows and trinity/common/rewards; tests/workflows holds what the package itself gives.
"""
