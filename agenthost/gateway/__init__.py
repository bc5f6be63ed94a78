"""The Session's listeners inside the view's network namespace: proxy, model, MCP.

`provider` and `destinations` hold values and load neither aiohttp nor asyncio; `Gateway` is in `server`.
"""

from __future__ import annotations

from agenthost.gateway.destinations import AllowedHost
from agenthost.gateway.provider import McpServer, Provider

__all__ = ["AllowedHost", "McpServer", "Provider"]
