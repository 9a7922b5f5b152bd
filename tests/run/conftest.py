import pytest


@pytest.fixture(autouse=True)
def flash_attention(monkeypatch):
    """GPU plans are those of a machine with flash-attn; test_attention has the others."""
    from trinity_compat.run.plan import attention

    monkeypatch.setattr(attention, "installed", lambda: True)
