"""Data-Juicer's operators (py-data-juicer) on a run's tasks and on its answers.

They run in a service, a process of its own, with trinity-rft 0.6.0's protocol (trinity/service/data_juicer):
``service.data_juicer.auto_start`` starts ours (``server``) beside the run; ``server_url`` is the address of a
running one, ours or trinity-rft's, in any environment. ``client`` calls it, ``experiences`` is the operator
``data_juicer`` of an experience pipeline; a task pipeline is ``run/supervise/task_pipeline.py``. Only
``work`` imports Data-Juicer, in the service's process.
"""

SECTION = "data.task_pipeline"  # section of veRL's configuration, read by the supervisor
PACKAGE = "py-data-juicer"
KEY_VARIABLE = "TRINITY_COMPAT_JUICER_KEY"  # what a service that a run started wants as Bearer
