"""The reward model of a run: a process that serves it with vLLM over HTTP, and its address.

``serving`` is that process (role ``reward_model``): it places as many servers as planned, each vLLM's API
server with separate GPUs, puts veRL's router in front of several, and stores the address in the run's
database. ``scoring`` passes it to veRL's RewardLoopWorker, which requests a score from ``/classify`` where
the launch has no custom_reward_function, and else passes the address to that function.
"""
