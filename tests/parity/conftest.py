import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
# The replay uses the small job and the stock run of the trainer's tests, images the explorer's.
sys.path[:0] = [str(TESTS / "trainer"), str(TESTS / "explorer")]
