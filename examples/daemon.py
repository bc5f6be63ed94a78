"""A daemon that runs one Codex turn in a view: `python examples/daemon.py WORKSPACE PROMPT`, key in OPENAI_API_KEY."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from agenthost import AgentHost, AgentHostError, Provider, SessionRequest


async def turn(workspace: Path, prompt: str) -> int:
    provider = Provider(base_url="https://api.openai.com/v1", api_key=os.environ["OPENAI_API_KEY"])
    async with AgentHost() as host, host.open(SessionRequest(workspace=workspace, provider=provider)) as session:
        process = await session.launch(["exec", "--json", prompt])
        assert process.stdout is not None
        async for line in process.stdout:
            print(line.decode(), end="", flush=True)
        return await process.wait()


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(turn(Path(sys.argv[1]).resolve(), sys.argv[2])))
    except AgentHostError as error:
        sys.exit(f"daemon: {error}")
