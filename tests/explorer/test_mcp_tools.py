"""Tools of a real MCP server in veRL's tool loop, as launches for veRL up to 0.7 have them."""

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time

import pytest
from explorer_job import verl_config
from omegaconf import OmegaConf

from trinity_compat.common.errors import UserError
from trinity_compat.explorer.agents import mcp_tools
from trinity_compat.explorer.agents.verl_loops import AgentLoops
from trinity_compat.explorer.engine.inflight_requests import InflightRequests
from trinity_compat.explorer.engine.trajectory import RolloutTask
from trinity_compat.explorer.engine.vllm import Completion
from trinity_compat.run.toy import make_tokenizer

SERVER = """
import os, sys
try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # before 2
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("digits")

@server.tool()
def smallest(digits: str, limit: int | None = None) -> str:
    '''The smallest digit.'''
    if not digits.isdigit():
        raise ValueError("no digits")
    if digits == "0":
        os._exit(3)
    return f"{min(digits)} of {os.environ['WHOSE']} in {os.getpid()}"

@server.tool()
def largest(digits: str) -> str:
    '''The largest digit.'''
    return max(digits)

if len(sys.argv) < 2:
    server.run()
else:
    import uvicorn

    app, key = server.streamable_http_app(), sys.argv[1]

    async def guarded(scope, receive, send):
        given = dict(scope["headers"]).get(b"authorization") if scope["type"] == "http" else None
        if scope["type"] == "http" and given != f"Bearer {key}".encode():
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    uvicorn.run(guarded, port=int(sys.argv[2]), log_level="warning")
"""


class Calling:
    """Calls ``tool`` with the prompt's digits, then says done."""

    def __init__(self, tool="smallest"):
        self.tokenizer, self.tool = make_tokenizer(), tool

    async def submit(self, requests):
        (request,) = requests
        text = self.tokenizer.decode(list(request.prompt_ids))
        call = {"name": self.tool, "arguments": {"digits": re.search(r"sort (\w+)", text)[1]}}
        first = text.count("<|im_start|>assistant") == 1
        line = f"<tool_call>\n{json.dumps(call)}\n</tool_call>" if first else "done"
        ids = self.tokenizer.encode(line + "<|im_end|>")
        future = asyncio.get_running_loop().create_future()
        future.set_result([Completion(ids, [-0.5] * len(ids), "stop")])
        return [future]


@pytest.fixture
def config(toy, tmp_path):
    def make(selected=("smallest",), command=sys.executable):
        (tmp_path / "server.py").write_text(SERVER)
        server = {"command": command, "args": [str(tmp_path / "server.py")], "env": {"WHOSE": "ours"}}
        (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"digits": server}}))
        tool = {
            "class_name": "verl.tools.mcp_search_tool.MCPSearchTool",
            "config": {"rate_limit": 120, "timeout": 30, "type": "mcp"},
            "mcp": {
                "mcp_servers_config_path": str(tmp_path / "servers.json"),
                **({"tool_selected_list": list(selected)} if selected else {}),
            },
        }
        OmegaConf.save(OmegaConf.create({"tools": [tool]}), tmp_path / "tools.yaml")
        return OmegaConf.create(
            verl_config(
                toy,
                "data.max_prompt_length=1024",
                "data.max_response_length=512",
                "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
                "actor_rollout_ref.rollout.multi_turn.enable=True",
                f"actor_rollout_ref.rollout.multi_turn.tool_config_path={tmp_path}/tools.yaml",
            )
        )

    return make


@pytest.fixture
def over_http(config, tmp_path):
    """A function: token → a configuration of the same server, which listens on a port and wants the key."""
    started = []

    def serve():
        with socket.create_server(("127.0.0.1", 0)) as place:
            port = place.getsockname()[1]
        words = [sys.executable, str(tmp_path / "server.py"), "the key", str(port)]
        started.append(subprocess.Popen(words, env={**os.environ, "WHOSE": "ours"}))
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return f"http://127.0.0.1:{port}/mcp"
            time.sleep(0.1)
        raise TimeoutError("the server does not listen")

    def make(token):
        made = config()
        server = {"url": serve(), "auth_token": token}
        (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"digits": server}}))
        return made

    yield make
    for each in started:
        each.kill()
        each.wait()


def job(number, digits="4213"):
    task = {
        "raw_prompt": [{"role": "user", "content": f"sort {digits}"}],
        "data_source": "toy/sort",
        "index": number,
        "tools_kwargs": {},
    }
    return RolloutTask(number, task, 1, {"temperature": 1.0, "seed": 1})


def ran(config, *digits, engine=None):
    """What each dialogue is, one after the other in one process."""

    async def go():
        loops = AgentLoops(config, InflightRequests(engine or Calling()))
        return [(await loops.run(job(number, each)))[0] for number, each in enumerate(digits)]

    return [make_tokenizer().decode(each.response_ids) for each in asyncio.run(go())]


def test_a_server_s_tool_answers_in_the_loop_over_one_connection(config):
    first, second = ran(config(), "4213", "987")
    assert "1 of ours" in first and "7 of ours" in second
    assert len({re.search(r"in (\d+)", text)[1] for text in (first, second)}) == 1
    assert "done" in first


def test_a_server_over_http_answers_who_has_its_token(over_http):
    first, second, wrong = ran(over_http("the key"), "4213", "987", "letters")
    assert "1 of ours" in first and "7 of ours" in second and "Error executing tool" in wrong
    with pytest.raises(
        UserError, match=r"the MCP server 'digits' of .* does not list its tools: .*it answers 401"
    ):
        ran(over_http("another"), "1")


@pytest.mark.parametrize(("selected", "answers"), [(None, True), (("smallest",), False)])
def test_all_tools_are_there_where_none_is_selected(config, selected, answers):
    (only,) = ran(config(selected=selected), "4213", engine=Calling("largest"))
    assert ("<|im_start|>tool\n4<|im_end|>" in only) is answers


def test_what_a_tool_raises_is_its_answer(config):
    (only,) = ran(config(), "letters")
    assert "Error executing tool smallest" in only and "done" in only


def test_a_server_that_ends_is_started_again(config):
    async def go():
        loops = AgentLoops(config(), InflightRequests(Calling()))
        before, _, after = [
            (await asyncio.gather(loops.run(job(number, digits)), return_exceptions=True))[0]
            for number, digits in enumerate(("12", "0", "34"))
        ]
        return before, after

    told = [make_tokenizer().decode(each[0].response_ids) for each in asyncio.run(go())]
    pids = [re.search(r"[13] of ours in (\d+)", text)[1] for text in told]
    assert pids[0] != pids[1]


def test_a_server_that_cannot_start_is_a_user_s_error(config, tmp_path):
    with pytest.raises(UserError, match=r"the MCP server 'digits' of .*servers.json does not list its tools"):
        ran(config(command=str(tmp_path / "nowhere")), "1")
    made = config()
    (tmp_path / "servers.json").write_text("{}")
    with pytest.raises(UserError, match="mcp_servers_config_path"):
        ran(made, "1")


def test_a_property_of_several_types_keeps_them():
    given = {
        "name": "a",
        "inputSchema": {"properties": {"x": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}},
    }
    properties = mcp_tools._schema(given)["function"]["parameters"]["properties"]
    assert properties == {"x": {"type": ["integer", "null"]}}
