"""An agent with a tool, as one writes it against the OpenAI SDK. Nothing of trinity-compat is imported.

The SDK takes address and key from OPENAI_BASE_URL and OPENAI_API_KEY; by itself, against any server:

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=x OPENAI_MODEL=m python sorter.py "Sort 4213"
"""

import json
import os
import sys
from collections import Counter

from openai import OpenAI

client = OpenAI()
HAND_IN = {
    "type": "function",
    "function": {
        "name": "hand_in",
        "description": "Hand in the digits in ascending order.",
        "parameters": {
            "type": "object",
            "properties": {"digits": {"type": "string", "pattern": "^[0-9]{4}$"}},
            "required": ["digits"],
        },
    },
}


def hand_in(arguments: str, truth: str) -> dict:
    """The tool: half for the share of the digits that are there, half for those in their places."""
    try:
        digits = str(json.loads(arguments)["digits"])
    except (ValueError, KeyError, TypeError):  # cut off, or no such call
        return {"there": 0.0, "in_place": 0.0}
    there = (Counter(digits) & Counter(truth)).total()
    in_place = sum(given == right for given, right in zip(digits, truth, strict=False))
    return {"there": there / len(truth) / 2, "in_place": in_place / len(truth) / 2}


def solve(row: dict) -> dict:
    """One task. What it returns is the reward, by its parts."""
    reply = client.chat.completions.create(
        model=os.environ["OPENAI_MODEL"],
        messages=[{"role": "user", "content": row["question"]}],
        tools=[HAND_IN],
        tool_choice={"type": "function", "function": {"name": "hand_in"}},
        max_tokens=20,
    )
    (call,) = reply.choices[0].message.tool_calls
    return hand_in(call.function.arguments, row["answer"])


if __name__ == "__main__":
    digits = "".join(sorted(letter for letter in sys.argv[1] if letter.isdigit()))
    print(solve({"question": sys.argv[1], "answer": digits}))
