"""The reward model of a run: a process that serves it with vLLM over HTTP, and how the explorers find it.

``serving`` is that process (role ``reward_model``): it places as many servers as the plan says, each vLLM's
own API server with GPUs of its own, puts veRL's router in front of several, and tells the address in the
run's database. ``scoring`` hands it to veRL's RewardLoopWorker, which asks ``/classify`` for a score where
the launch has no custom_reward_function, and hands the address to that function where it has one.
"""
