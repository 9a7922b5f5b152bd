"""Programs that start others, down to the training main that becomes a `Launch`."""
