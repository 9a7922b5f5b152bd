"""The order of work: which tasks are sampled next, under which weights, and when a step is committed."""
