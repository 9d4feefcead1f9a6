"""Kill the engine repeatedly during typing in VS Code with default settings; suggestions must return each time.

The test runs only if `KILLS` is set, because a window of its own takes half a minute and `test_vscode` kills the engine
once. The time from a ready engine to each suggestion is printed (`-s`), not asserted. See `kills` for the variables.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.editors import kills
from tests.editors.kills import Sample, Victim
from tests.editors.waiting import until
from tests.editors.workbench import Workbench, workbench

pytestmark = pytest.mark.skipif(not kills.N_KILLS, reason="set KILLS=20 to kill the engine that often")
DEFAULTS = {
    "dgLsp.completion.deadline": kills.DEADLINE_MS or 1500,
    "dgLsp.completion.threshold": 0.2,
    "dgLsp.completion.tokenThreshold": 0.1,
}


@pytest.fixture
def code(environment: Mapping[str, str], tmp_path: Path, watch: Callable[[Callable[[], str]], None]) -> Iterator[Workbench]:
    with workbench(tmp_path, environment, DEFAULTS) as window:
        watch(lambda: window.picture("killed"))
        yield window


def type_line(code: Workbench, chance: random.Random, sample: Sample) -> None:
    """Type a line of a new text with varying pauses."""
    code.run(
        "const editor = vscode.window.activeTextEditor, all = editor.document.getText();"
        "const whole = new vscode.Range(editor.document.positionAt(0), editor.document.positionAt(all.length));"
        f"await editor.edit((edit) => edit.replace(whole, {json.dumps(sample.text)}));"
    )
    code.put(kills.LINE, len("        "))
    for key in kills.KEYS:
        code.page.keyboard.type(key)
        time.sleep(chance.uniform(0.03, 0.2))


@pytest.mark.slow
def test_a_suggestion_comes_after_each_of_many_kills(code: Workbench, environment: Mapping[str, str]) -> None:
    chance, samples = random.Random(16), kills.samples()
    code.open("shapes.py", next(samples).text)
    waits_ms, others = [], list[str]()
    for number in range(kills.N_KILLS):
        victim = Victim(environment, chance)
        ready_at = 0.0

        def is_back(victim: Victim = victim, number: int = number) -> bool:
            nonlocal ready_at
            was_dead, sample = victim.is_dead, next(samples)
            type_line(code, chance, sample)
            # A patient user waits this long before typing on; on a busy machine an answer takes seconds.
            end = time.monotonic() + 10.0
            while time.monotonic() < end and not code.ghost():
                if was_dead and not ready_at and code.told().get("state") == "ready":
                    ready_at = time.monotonic()
            ghost = code.ghost()
            if was_dead and ghost != sample.answer:
                others.append(f"kill {number + 1}: {ghost or code.told().get('suppressed') or code.told().get('state')}")
            if ghost:
                code.press("Tab")
            return was_dead and ghost == sample.answer

        until(is_back, f"a suggestion after kill {number + 1}", tell=code.picture)
        # 0 if the suggestion came before the state was polled.
        waits_ms.append(round(1000 * (time.monotonic() - ready_at)) if ready_at else 0)
    print("\nms from the engine's being ready to a suggestion that was seen:", sorted(waits_ms))
    print("instead of the right suggestion:", "\n".join(others) or "nothing")
    assert len(waits_ms) == kills.N_KILLS
