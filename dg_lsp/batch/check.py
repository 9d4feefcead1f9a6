"""Ask the user's own command whether a file is good with its fills in place.

The command runs in the current folder, through the shell, as its author typed it; `{}` in it stands for the file. It sees
the whole project, the file in its place, and nothing else of this run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from pathlib import Path

TIMEOUT_S = 600.0  # a check that hangs must not hold a run for ever
MAX_SAID_CHARS = 200


async def verdict(command: str, path: Path, *, timeout_s: float = TIMEOUT_S) -> str:
    """Run the command for the file and return "" when it passes, else why not, with its last line of output."""
    process = await _started(command.replace("{}", shlex.quote(str(path))), {**os.environ, "DG_LSP_FILE": str(path)})
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
        return f"the check took longer than {timeout_s:g} s"
    finally:
        if process.returncode is None:
            await _end(process)
    if process.returncode == 0:
        return ""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    said = f": {lines[-1][:MAX_SAID_CHARS]}" if lines else ""
    return f"the check ended with {process.returncode}{said}"


async def _started(command: str, environment: dict[str, str]) -> asyncio.subprocess.Process:
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_shell(
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # what the shell starts can then be ended with it
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # Cancelled half-way, asyncio would end the shell, and wait for ever for what the shell has started by then.
        await _end(await starting)
        raise


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    await process.wait()
