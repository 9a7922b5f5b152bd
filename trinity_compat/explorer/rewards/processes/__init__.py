"""Scoring in processes that can be killed: a reward function may hang, crash or print for ever, and costs its
own answer at most. docs/rewards.md"""
