"""Run by the interpreter that has trinity-rft: (priority function, arguments, version, uses) rows on stdin →
what the real function gives, [priority, whether the item goes into the queue], as JSON."""

import json
import sys
from types import SimpleNamespace

import numpy as np
from trinity.buffer.storage import PRIORITY_FUNC


def given(name, arguments, version, uses):
    item = [SimpleNamespace(info={"model_version": version, "use_count": uses})]
    function = PRIORITY_FUNC.get(name)
    return function(**{**function.default_config(), **arguments})(item=item)


if __name__ == "__main__":
    np.random.seed(5)
    print(json.dumps([given(*row) for row in json.load(sys.stdin)]))
