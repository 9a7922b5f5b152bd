"""Trinity's experience pipeline: operators between a scored answer and the buffer.

``operators`` has upstream's by their names, without importing torch, ``runner`` applies them to groups.
Behaviour: trinity-rft 0.6.0, trinity/buffer/pipelines and trinity/buffer/operators; tests/trinity/pipelines
compares with the package itself. One difference: dropped answers stay in the buffer, marked as dropped
(docs/pipelines.md).
"""

DATA_JUICER = "data_juicer"  # the operator whose own operators are Data-Juicer's: ``juicer``
SECTION = "data.experience_pipeline"  # section of veRL's configuration, read by all processes
