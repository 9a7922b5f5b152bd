"""Checks before Ray starts.

They find what veRL and vLLM would refuse in their first seconds.

``start`` is the supervisor's side: it starts ``python -m trinity_compat.run.checks`` and turns what that
reports into errors with the launch's file and line. All else here runs in that process, which imports verl
and vllm, and lets their own code build the run's configuration objects, from the trainer's roles to the
engine's arguments, with recorders where models and processes would be.
"""
