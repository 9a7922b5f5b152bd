"""Trinity's experience pipeline: operators between a scored answer and the buffer.

``operators`` are upstream's by their names, ``table`` knows them without importing torch, ``running`` takes
groups through them. Behaviour: trinity-rft 0.6.0, trinity/buffer/pipelines and trinity/buffer/operators;
tests/pipelines holds what the package itself gives. Ours differ in what becomes of what they drop: it stays
in the buffer, marked (docs/pipelines.md).
"""

DATA_JUICER = "data_juicer"  # the operator whose own operators are Data-Juicer's: ``juicer``
SECTION = "data.experience_pipeline"  # of veRL's configuration, as the processes of a run know it
