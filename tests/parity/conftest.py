import sys
from pathlib import Path

# The replay uses the small job and the stock run of the trainer's tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))
