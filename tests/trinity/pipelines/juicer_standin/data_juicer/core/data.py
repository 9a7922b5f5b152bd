"""Stands in for data_juicer.core.data."""


def NestedDataset(dataset):
    return dataset
