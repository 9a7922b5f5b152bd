"""Run by the interpreter that has trinity-rft: cases on stdin → what the real selectors draw and estimate in
each step, as JSON; what comes back of a row is given with its case."""

import json
import sys
from types import SimpleNamespace

from trinity.buffer.selector import SELECTORS


def steps(case):
    source = SimpleNamespace(dataset=case["columns"], dataset_size=case["size"])
    config = SimpleNamespace(
        seed=case["seed"],
        feature_keys=list(case["columns"]),
        kwargs=case["arguments"],
        selector_type=case["kind"],
    )
    selector = SELECTORS.get(case["kind"])(source, config)
    learn = getattr(selector, "feedback", None) or selector.update  # 0.6.0, 0.4.1
    for count in case["counts"]:
        rows = [int(row) for row in selector.get_indices(count)]
        found = {"count": count, "rows": rows, "rates": [case["rates"][row] for row in rows]}
        learn(rows, found["rates"])
        if estimator := getattr(selector, "diff_estimator", None):
            found |= {"alphas": estimator.alphas.tolist(), "betas": estimator.betas.tolist()}
        yield found


if __name__ == "__main__":
    print(json.dumps([{**case, "steps": list(steps(case))} for case in json.load(sys.stdin)]))
