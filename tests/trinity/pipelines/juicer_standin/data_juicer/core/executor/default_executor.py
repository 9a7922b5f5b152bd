"""Stands in for data_juicer.core.executor.default_executor."""

from data_juicer.ops import load_ops


class DefaultExecutor:
    def __init__(self, cfg):
        self.cfg = cfg

    def run(self, dataset, skip_export=False):
        assert skip_export
        for operator, arguments in load_ops(self.cfg.process):
            dataset = operator(dataset, **arguments)
        return dataset
