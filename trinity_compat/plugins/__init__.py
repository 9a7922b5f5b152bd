"""Patches of verl, vLLM and upstream packages, one module for each."""
