"""The GitHub Action's steps and the pre-commit hook, as far as they run without GitHub."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.batch.conftest import STUB
from tests.engine.backends_kit import Recorder, serving

pytestmark = pytest.mark.e2e

yaml: Any = pytest.importorskip("yaml", reason="PyYAML is not installed")
ROOT = Path(__file__).parents[2]
GH = """#!/bin/bash
printf '%s\\n' "$*" >> "$GH_LOG"
for each in "$@"; do case $each in body=@*) cp "${each#body=@}" "$GH_LOG.body";; --jq) jq=1;; esac; done
if [ -n "${jq:-}" ]; then [ -z "${GH_BEFORE:-}" ] || echo "$GH_BEFORE"; exit 0; fi
exit "${GH_STATUS:-0}"
"""


class Runner:
    """A repository with a hole, and the environment in which an action's steps run."""

    def __init__(self, folder: Path) -> None:
        self.project, self.output, self.log = folder / "project", folder / "output", folder / "gh.log"
        self.project.mkdir()
        (self.project / "a.py").write_text(STUB)
        for command in ("init -q", "add .", "-c user.name=T -c user.email=t@example.com commit -qm first"):
            subprocess.run(["git", *command.split()], cwd=self.project, check=True)
        (folder / "bin").mkdir()
        (folder / "bin" / "gh").write_text(GH)
        (folder / "bin" / "gh").chmod(0o755)
        self.environ = {
            **os.environ,
            "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(folder),
            "GITHUB_OUTPUT": str(self.output),
            "GITHUB_STEP_SUMMARY": str(folder / "summary"),
            "GITHUB_REPOSITORY": "owner/name",
            "GH_LOG": str(self.log),
            "NUMBER": "7",
        }

    def step(self, script: str, **environ: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(ROOT / ".github" / "action" / script)]
        return subprocess.run(
            command, cwd=self.project, env={**self.environ, **environ}, capture_output=True, text=True, check=False
        )

    def action(self, **inputs: str) -> list[tuple[str, int]]:
        """Run the action's own steps that need no network, with these inputs; return each step's name and exit code.

        As on GitHub, no step runs after one that failed.
        """
        action = yaml.safe_load((ROOT / "action.yml").read_text())
        values = {name: str(about["default"]) for name, about in action["inputs"].items()} | inputs
        codes: list[tuple[str, int]] = []
        for step in action["runs"]["steps"]:
            if step.get("name") not in ("Fill", "Exit"):
                continue
            outputs = self.outputs if self.output.exists() else {}

            def value(match: re.Match[str], outputs: dict[str, str] = outputs) -> str:
                kind, _, name = match[1].strip().rpartition(".")
                return {"inputs": values, "steps.fill.outputs": outputs}.get(kind, {}).get(name, "")

            environ = {name: re.sub(r"\$\{\{(.*?)\}\}", value, text) for name, text in step["env"].items()}
            process = subprocess.run(
                ["bash", "-e", "-c", step["run"]],
                cwd=self.project,
                env={**self.environ, **environ, "GITHUB_ACTION_PATH": str(ROOT)},
                capture_output=True,
                text=True,
                check=False,
            )
            codes.append((step["name"], process.returncode))
            if process.returncode:
                break
        return codes

    @property
    def outputs(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.output.read_text().splitlines())


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@pytest.mark.usefixtures("engines")
def test_the_action_comments_a_patch_that_applies(runner: Runner) -> None:
    answer = Recorder([{"choices": [{"text": 'return "```"\n'}]}])
    with serving({"POST /v1/completions": answer.answer}) as url:
        process = runner.step("fill.sh", INPUT_PATHS="a.py", INPUT_ARGS=f"--all\n--model\nfim:openai:{url}#m\n")
        assert process.returncode == 0, process.stderr
        again = runner.step("fill.sh", INPUT_ARGS=f"--model\nfim:openai:{url}#m\n", BASE_SHA="HEAD")
        assert again.returncode == 0, again.stderr
    first = dict(line.split("=", 1) for line in runner.output.read_text().splitlines()[:4])
    subprocess.run(["git", "apply", first["patch"]], cwd=runner.project, check=True)
    assert (runner.project / "a.py").read_text() == STUB.replace("raise NotImplementedError", 'return "```"')
    body = Path(first["body"]).read_text()
    assert body.startswith("<!-- dg-lsp -->\n**dg-lsp** filled 1 of 1 hole in 1 file, ")
    assert "\n````diff\n--- a/a.py\n" in body
    assert body.rstrip().endswith("````\n</details>")
    assert runner.step("comment.sh", BODY=first["body"]).returncode == 0
    assert "--method POST repos/owner/name/issues/7/comments --field body=@" in runner.log.read_text()
    assert Path(f"{runner.log}.body").read_text() == body
    assert runner.step("comment.sh", BODY=first["body"], GH_BEFORE="41").returncode == 0
    assert "--method PATCH repos/owner/name/issues/comments/41 " in runner.log.read_text()
    # A pull request from a fork may not comment, but the job does not fail.
    refusal = runner.step("comment.sh", BODY=first["body"], GH_STATUS="1")
    assert (refusal.returncode, refusal.stdout.startswith("::warning::")) == (0, True)
    # Nothing has changed since HEAD, so there is no patch; the old comment is replaced anyway.
    second = runner.outputs
    assert "no holes found" in Path(second["body"]).read_text()
    runner.log.unlink()
    assert runner.step("comment.sh", BODY=second["body"]).returncode == 0
    assert "--method" not in runner.log.read_text()
    assert runner.step("comment.sh", BODY=second["body"], GH_BEFORE="41").returncode == 0
    assert "--method PATCH" in runner.log.read_text()


@pytest.mark.usefixtures("engines")
def test_the_actions_own_steps_fail_the_job_as_its_inputs_say(runner: Runner) -> None:
    answer = Recorder([{"choices": [{"text": "return 1"}]}])
    with serving({"POST /v1/completions": answer.answer}) as url:
        model = f"--model\nfim:openai:{url}#m\n"
        assert runner.action(args=model) == [("Fill", 0), ("Exit", 0)]
        [hole] = json.loads(Path(runner.outputs["report"]).read_text())["holes"]
        assert hole["status"] == "unsure"
        assert runner.action(**{"args": model, "fail-on": "open"}) == [("Fill", 0), ("Exit", 1)]
        assert runner.action(**{"args": f"{model}--all\n", "fail-on": "open"}) == [("Fill", 0), ("Exit", 0)]
        assert "+    return 1" in Path(runner.outputs["patch"]).read_text()
    # The server is gone now.
    assert runner.action(args=model) == [("Fill", 0), ("Exit", 3)]
    assert runner.outputs["status"] == "3"
    assert runner.action(args="--nonsense") == [("Fill", 2)]


@pytest.mark.smoke
def test_the_action_names_what_exists() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    text = (ROOT / "action.yml").read_text()
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(action["inputs"])
    for script in re.findall(r"\.github/action/\w+\.sh", text):
        assert (ROOT / script).is_file()
    assert all("${{" not in step.get("run", "") for step in action["runs"]["steps"])
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"].startswith("dg-lsp infill")


@pytest.mark.smoke
def test_the_documented_workflow_names_what_the_action_has() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    block = next(
        each for each in re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "infill.md").read_text(), re.S) if "jobs:" in each
    )
    steps = yaml.safe_load(block)["jobs"]["infill"]["steps"]
    (ours,) = [step for step in steps if step.get("id") == "infill"]
    assert set(ours["with"]) <= set(action["inputs"])
    kept = [step["with"]["path"] for step in steps if "upload-artifact" in step["uses"]]
    outputs = re.findall(r"steps\.infill\.outputs\.(\w+)", "".join(kept))
    assert set(outputs) == {"patch", "report"} <= set(action["outputs"])


@pytest.mark.usefixtures("engines")
def test_a_job_with_the_documented_inputs_fails_for_an_open_hole(runner: Runner) -> None:
    block = next(
        each for each in re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "infill.md").read_text(), re.S) if "jobs:" in each
    )
    (ours,) = [step for step in yaml.safe_load(block)["jobs"]["infill"]["steps"] if step.get("id") == "infill"]
    answer = Recorder([{"choices": [{"text": "return 1"}]}])
    with serving({"POST /v1/completions": answer.answer}) as url:
        inputs = {**ours["with"], "paths": "a.py"}
        # The documented check installs a package; this repository has none, so the check is a test that fails.
        inputs["args"] = f"--model\nfim:openai:{url}#m\n--check\nfalse\n"
        assert runner.action(**inputs) == [("Fill", 0), ("Exit", 1)]
    assert Path(runner.outputs["patch"]).read_text().count("\n") <= 1
    assert json.loads(Path(runner.outputs["report"]).read_text())["holes"][0]["status"] == "failed"
