"""An agent with a tool, as one writes it against the OpenAI SDK. Nothing of trinity-compat is imported.

The SDK takes address and key from OPENAI_BASE_URL and OPENAI_API_KEY; by itself, against any server:

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=x OPENAI_MODEL=m python sorter.py "Sort 4213"
"""

import os
import sys

from openai import OpenAI

client = OpenAI()
HAND_IN = {
    "type": "function",
    "function": {
        "name": "hand_in",
        "description": "Hand in the digits in ascending order.",
        "parameters": {"type": "object", "properties": {"digits": {"type": "string"}}},
    },
}


def hand_in(digits: str, truth: str) -> float:
    """The tool: it knows what is right."""
    return float(digits.strip() == truth)


def solve(row: dict) -> dict:
    """One task. What it returns is the reward, by its parts."""
    reply = client.chat.completions.create(
        model=os.environ["OPENAI_MODEL"],
        messages=[{"role": "user", "content": row["question"]}],
        tools=[HAND_IN],
        tool_choice={"type": "function", "function": {"name": "hand_in"}},
        max_tokens=8,
    )
    calls = reply.choices[0].message.tool_calls or []
    return {"right": sum(hand_in(call.function.arguments, row["answer"]) for call in calls)}


if __name__ == "__main__":
    digits = "".join(sorted(letter for letter in sys.argv[1] if letter.isdigit()))
    print(solve({"question": sys.argv[1], "answer": digits}))
