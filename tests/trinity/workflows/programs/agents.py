"""Agents as their authors write them: against the OpenAI SDK, and nothing of ours."""

import json
import os
import sys
import time

import openai

client = openai.OpenAI()
MODEL = os.environ["OPENAI_MODEL"]
TOOL = {
    "type": "function",
    "function": {
        "name": "check",
        "parameters": {"type": "object", "properties": {"digits": {"type": "string"}}},
    },
}


def ask(messages, **more):
    return client.chat.completions.create(model=MODEL, messages=messages, **more).choices[0].message


def once(row):
    print("what an agent prints is no answer")
    return ask([{"role": "user", "content": row["prompt"]}], temperature=0.5).content


def with_a_tool(row):
    """Two turns: the tool's answer goes back, then a last word."""
    messages = [{"role": "user", "content": row["prompt"]}]
    said = ask(messages, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "check"}})
    (call,) = said.tool_calls
    right = call.function.arguments == row["response"]
    messages += [
        said.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "ok"},
    ]
    ask(messages, tools=[TOOL])
    return {"right": right, "calls": 2}


async def streaming(row):
    found = ""
    asked = {"model": MODEL, "messages": [{"role": "user", "content": row["prompt"]}], "stream": True}
    async with openai.AsyncOpenAI() as other:
        async for chunk in await other.chat.completions.create(**asked):
            found += "".join(choice.delta.content or "" for choice in chunk.choices)
    return found


def process(row):
    ask([{"role": "user", "content": row["prompt"]}])
    return float(os.getpid())


def failing(row):
    raise ZeroDivisionError("the agent's own fault")


def silent(row):
    return 1.0


def ending(row):
    os._exit(3)


def hanging(row):
    time.sleep(600)


def refused(row):
    """What the endpoint says to what it does not serve, and to whom it does not know."""
    told = []
    for asks in (
        lambda: ask([]),
        lambda: ask([{"role": "user", "content": "a"}], tools=[TOOL], tool_choice="any"),
        lambda: openai.OpenAI(api_key="guessed", max_retries=0).models.list(),
        lambda: client.embeddings.create(model=MODEL, input="a"),
    ):
        try:
            asks()
        except openai.APIStatusError as error:
            told.append(error.status_code)
    assert told == [400, 400, 401, 404], told
    assert [model.id for model in client.models.list()] == [MODEL]
    return once(row)


if __name__ == "__main__":
    print(json.dumps({"reward": len(once(json.load(sys.stdin)))}))
