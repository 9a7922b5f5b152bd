"""Tools of MCP servers in veRL's tool loops, by the ``mcp`` package.

veRL up to 0.7 took ``type: mcp`` in ``multi_turn.tool_config_path`` (tools/utils/tool_registry.py, 0.7.1);
the pinned release does not. Here each tool of a server becomes a native one, of the class ``McpTool``.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from trinity_compat.common import optional_packages
from trinity_compat.common.errors import UserError

KEY = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
START_S = 60.0  # for a server: to start and to list its tools
CALL_S = 120.0  # for a call, unless config.timeout is set
Server = Mapping[str, Any]  # of mcpServers: url and auth_token, or command, args and env


@contextmanager
def native_tools(config: DictConfig) -> Iterator[DictConfig]:
    """Yield ``config`` with a tool configuration that veRL reads.

    Tools of MCP servers are listed by starting the servers. Raises UserError.
    """
    path = OmegaConf.select(config, KEY)
    tools = OmegaConf.to_container(OmegaConf.load(path))["tools"] if path and Path(path).is_file() else ()
    if not any(_is_mcp(tool) for tool in tools):
        yield config
        return
    optional_packages.need("mcp")
    native = [entry for tool in tools for entry in (_entries(tool) if _is_mcp(tool) else [tool])]
    with tempfile.NamedTemporaryFile(
        "w", suffix=".yaml"
    ) as file:  # readable by this user alone: it has tokens
        OmegaConf.save(OmegaConf.create({"tools": native}), file.name)
        yield cast(DictConfig, OmegaConf.merge(config, OmegaConf.from_dotlist([f"{KEY}={file.name}"])))


def _is_mcp(tool: Mapping[str, Any]) -> bool:
    return (tool.get("config") or {}).get("type") == "mcp"


def _entries(tool: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one of veRL's native tools for each tool of the servers."""
    path = Path(tool["mcp"]["mcp_servers_config_path"])
    wanted = tool["mcp"].get("tool_selected_list")
    for name, server in _servers(path).items():
        for listed in _in_a_thread(_tools(server), f"the MCP server {name!r} of {path}"):
            if not wanted or listed["name"] in wanted:
                yield {
                    "class_name": f"{__name__}.{McpTool.__name__}",
                    "config": {**tool["config"], "type": "native", "server": dict(server)},
                    "tool_schema": _schema(listed),
                }


def _servers(path: Path) -> Mapping[str, Server]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["mcpServers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"mcp_servers_config_path={path}: {type(error).__name__}: {error}",
            hint='write JSON: {"mcpServers": {"name": {"url": …}}}, or command, args and env in place of url',
        ) from error


def _in_a_thread(listing: Any, server: str) -> list[dict[str, Any]]:
    """Run a coroutine, whether or not this thread has a loop. Raises UserError."""
    with ThreadPoolExecutor(1) as thread:
        try:
            return list(thread.submit(asyncio.run, asyncio.wait_for(listing, START_S)).result())
        except BaseException as error:  # groups of exceptions too
            raise UserError(f"{server} does not list its tools: {_innermost(error)}") from error


async def _tools(server: Server) -> list[dict[str, Any]]:
    async with connected(server) as session:
        return [tool.model_dump(by_alias=True) for tool in (await session.list_tools()).tools]


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Any]:
    """Open an initialized mcp.ClientSession."""
    from mcp import ClientSession
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async with AsyncExitStack() as open_:
        if url := server.get("url"):
            streams = await open_.enter_async_context(_over_http(url, server.get("auth_token")))
        else:
            parameters = StdioServerParameters(
                command=server["command"], args=server.get("args") or [], env=server.get("env")
            )
            streams = await open_.enter_async_context(stdio_client(parameters))
        session = await open_.enter_async_context(ClientSession(*streams[:2]))
        await session.initialize()
        yield session


@asynccontextmanager
async def _over_http(url: str, token: str | None) -> AsyncIterator[Any]:
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    headers = {"Authorization": f"Bearer {token}"} if token else None
    async with create_mcp_http_client(headers=headers) as client:
        client.event_hooks["response"].append(_check_access)
        async with streamable_http_client(url, http_client=client) as streams:
            yield streams


async def _check_access(response: Any) -> None:
    """Raise PermissionError for a refusal, which the package reports as an unnamed error."""
    if response.status_code in (401, 403):
        raise PermissionError(f"it answers {response.status_code}: is its auth_token right?")


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Convert to veRL's OpenAIFunctionToolSchema, with a property's type, description and enum."""
    schema = tool.get("inputSchema") or {}
    properties = {name: _property(each) for name, each in (schema.get("properties") or {}).items()}
    parameters = {"type": "object", "properties": properties, "required": list(schema.get("required") or ())}
    function = {"name": tool["name"], "description": tool.get("description") or "", "parameters": parameters}
    return {"type": "function", "function": function}


def _property(schema: Mapping[str, Any]) -> dict[str, Any]:
    several = [each["type"] for each in schema.get("anyOf") or () if isinstance(each.get("type"), str)]
    kept = {name: schema[name] for name in ("description", "enum") if schema.get(name) is not None}
    return {"type": schema.get("type") or several or "string", **kept}


class McpTool(BaseTool):
    """One tool of a server. The tools of a process share connections."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema) -> None:
        super().__init__(config, tool_schema)
        self._limit_s = float(config.get("timeout") or CALL_S)

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Return the server's answer, also a tool's error. Raises TimeoutError, and connection errors."""
        # A session belongs to the event loop that opened it.
        server = self.config["server"]
        key = id(asyncio.get_running_loop()), json.dumps(dict(server), sort_keys=True)
        connection = _connections.setdefault(key, _Connection(server))
        session = await connection.session()
        try:
            result = await asyncio.wait_for(session.call_tool(self.name, parameters), self._limit_s)
        except TimeoutError:
            raise
        except Exception:  # a tool's error is an answer; here the server has ended, or its answer is invalid
            connection.drop()
            raise
        texts = [getattr(part, "text", f"[{part.type}]") for part in result.content]
        return ToolResponse(text="\n".join(texts)), 0.0, {}


class _Connection:
    """A session that several tasks use. A separate task opens and closes it, as the package requires."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._opened: asyncio.Future[Any] | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def session(self) -> Any:
        """Return the open session, or a new one where it has ended."""
        if self._keeper is None or self._keeper.done():
            self._opened = asyncio.get_running_loop().create_future()
            self._keeper = asyncio.ensure_future(self._keep(self._opened))
        assert self._opened is not None
        return await asyncio.wait_for(asyncio.shield(self._opened), START_S)

    def drop(self) -> None:
        """Close the session; the next call opens another one."""
        if self._keeper:
            self._keeper.cancel()
        self._keeper = None

    async def _keep(self, opened: asyncio.Future[Any]) -> None:
        try:
            async with connected(self._server) as session:
                opened.set_result(session)
                await asyncio.Event().wait()
        except BaseException as error:
            if opened.done() or isinstance(error, asyncio.CancelledError):
                raise
            opened.set_exception(RuntimeError(f"the MCP server cannot be reached: {_innermost(error)}"))


_connections: dict[tuple[int, str], _Connection] = {}


def _innermost(error: BaseException) -> str:
    """Describe the innermost of a group of exceptions."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
