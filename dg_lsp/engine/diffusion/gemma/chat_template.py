"""Compare a checkpoint's own chat template with the turns that the instruct layout writes.

The layout builds its turns from token ids, because a template would trim the code. A checkpoint whose template writes other
turns was trained on those, and fills worse with ours.
"""

from __future__ import annotations

import json
from pathlib import Path

from dg_lsp.core import wording
from dg_lsp.core.values import n_common
from dg_lsp.wire import files

FILE = "chat_template.jinja"
CONFIG = "tokenizer_config.json"
MAX_BYTES = 1 << 20
QUESTION = "What is missing?"
EXCERPT = 60


def warning(folder: Path) -> str | None:
    """Return a warning if the folder's chat template differs from our turns or can't be rendered; otherwise None."""
    try:
        template, names = _template_and_tokens(folder)
        if template is None:
            return None
        from transformers.utils.chat_template_utils import render_jinja_template

        # The library renders in a sandbox, so a template can access neither files nor code.
        conversation = [{"role": "user", "content": QUESTION}]
        [rendered], _ = render_jinja_template(
            conversations=[conversation], chat_template=template, add_generation_prompt=True, enable_thinking=False, **names
        )
    except Exception as error:  # a template can make the renderer raise anything
        first = wording.reason(error)
        return f"the chat template of {folder} can't be compared with the turns that dg-lsp writes: {first}"
    opened, thought = turns(QUESTION)
    if rendered in (opened, opened + thought):
        return None
    same = n_common(rendered, opened)
    return (
        f"the chat template of {folder} differs from the turns that dg-lsp writes, so this model may fill worse than it could: "
        f"after {opened[:same][-EXCERPT:]!r} it writes {rendered[same : same + EXCERPT]!r}, "
        f"dg-lsp {(opened + thought)[same : same + EXCERPT]!r}"
    )


def _template_and_tokens(folder: Path) -> tuple[str | None, dict[str, str]]:
    """Return the template, or None if there is none, and the special tokens that it may use, by name."""
    path, config = folder / FILE, folder / CONFIG
    settings = json.loads(files.read_regular(config.resolve(), MAX_BYTES)) if config.exists() else {}
    names = {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in settings.items()
        if name.endswith("_token") and isinstance(value, str | dict)
    }
    if path.exists():
        return files.read_regular(path.resolve(), MAX_BYTES).decode("utf-8"), names
    template = settings.get("chat_template")
    if isinstance(template, list):  # several templates by name
        template = next((each["template"] for each in template if each.get("name") == "default"), None)
    return template, names


def turns(user_turn: str) -> tuple[str, str]:
    """Return the chat of the instruct layout as text: the user's turn with the model's opened one, and its empty thought."""
    return f"<bos><|turn>user\n{user_turn}<turn|>\n<|turn>model\n", "<|channel>thought\n<channel|>"
