"""Agent loops in processes that can be killed: one that computes without awaiting, or crashes, costs its own
group at most, and never the engine's process. docs/decisions/agent-loop-processes.md"""
