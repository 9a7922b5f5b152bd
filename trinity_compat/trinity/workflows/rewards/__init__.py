"""Trinity's reward functions, each equal to trinity-rft 0.6.0's (tests/trinity/workflows/answers.json)."""
