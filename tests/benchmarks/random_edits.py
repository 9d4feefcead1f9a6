"""Edit files of 14 languages at random by every command: python tests/benchmarks/random_edits.py [N] [SEED]

Three quarters of the edits come through the real language server, a quarter through a batch run. Of ten answers nine are
an adversary's (`tests.server.adversary`), one is the embedded model's. Prints how many edits each command made, and each
edit that changes anything outside its hole or selection, puts a placeholder for a working statement without the user's
consent, or adds a syntax error. Ends with 1 where there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.batch.engines import connecting  # noqa: E402  # found only now
from tests.benchmarks import arguments  # noqa: E402
from tests.e2e import random_edits  # noqa: E402
from tests.e2e.editor import CODE, NEOVIM, Editor, command, environment  # noqa: E402
from tests.e2e.random_edits import Desk, Tally  # noqa: E402
from tests.server.adversary import Adversary  # noqa: E402

PREVIEW = {**CODE, "experimental": {"dgLsp": {"preview": True}}}
SETTINGS = {"completion": {"debounce": 0, "speculate": False, "threshold": 0, "tokenThreshold": 0, "deadline": 0}}


async def main(n: int, seed: int) -> int:
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="dg") as name:
        os.environ["XDG_RUNTIME_DIR"] = name
        shares = ((CODE, "adversary", 0.25), (PREVIEW, "adversary", 0.2), (NEOVIM, "adversary", 0.2), (CODE, "embedded", 0.1))
        for number, (capabilities, engine, share) in enumerate(shares):
            folder = Path(name) / str(number)
            folder.mkdir()
            async with opened(folder, capabilities, engine, seed + number) as client:
                async for trial in Desk(client, random.Random(seed + number)).trials(round(n * share)):
                    tally.add(trial)
        n_left = n - sum(tally.counts.values())
        connect = connecting(Adversary(seed))
        async for trial in random_edits.in_the_shell(n_left, random.Random(seed), Path(name), connect):
            tally.add(trial)
    for each in tally.lines():
        print(each)
    print(f"{sum(tally.counts.values())} edits, seed {seed}: {dict(tally.counts.most_common())}")
    print(f"in {len(tally.names)} languages: {dict(tally.names.most_common())}")
    print(f"{len(tally.wrong)} of them wrong")
    return int(bool(tally.wrong))


@contextlib.asynccontextmanager
async def opened(folder: Path, capabilities: dict[str, object], engine: str, seed: int) -> AsyncIterator[Editor]:
    name = "" if engine == "embedded" else f"tests.server.{engine}:engine"
    client = Editor(*command(), env=environment(folder, DG_LSP_SERVE_ENGINE=name, DG_LSP_TEST_SEED=str(seed)))
    async with client:
        await client.hello(capabilities, settings=SETTINGS, options=SETTINGS)
        await client.until_ready()
        yield client
        await client.end()
    # The embedded model's engine would stay for ten minutes.
    stop = [sys.executable, "-m", "dg_lsp", "engine", "stop", "--now", "--all"]
    await (await asyncio.create_subprocess_exec(*stop, stdout=asyncio.subprocess.DEVNULL)).wait()


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(*arguments.parsed(__doc__, n=3_000, seed=1))))
