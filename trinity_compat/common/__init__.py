"""Helpers of every room, which import nothing of ours: errors, files, redaction, releases."""
