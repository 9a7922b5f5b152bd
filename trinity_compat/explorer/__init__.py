"""The explorer's process: takes tasks, generates and scores answers, writes groups to the buffer."""
