"""Recognise what may be a secret, by a file's name and by the text itself, and mask it.

This module is pure. The file names come from gitrob, shhgit and GitHub's `gitignore` templates, or from the documentation of
the program that writes the file: rclone, Ansible Vault, kubectl, Firebase, google-github-actions/auth, kinit, Databricks,
Kaggle, R, Oracle Cloud, Snowflake, dbt, huggingface_hub, the SFTP extension of VS Code. The token shapes (each
service's prefix, and the length) come from gitleaks (`config/gitleaks.toml`), detect-secrets (its plugins) and GitHub's
list of secret scanning patterns.

A value without a known shape is judged by the name that it is assigned to and by how random it looks. In doubt a value
is masked, because a mask hardly harms a completion.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib import resources

from dg_lsp.core.edits import Edit, Question
from dg_lsp.core.values import InfillRequest, Span, joined

MASK = "REDACTED"

_LINES = (resources.files("dg_lsp.core") / "secret_names.txt").read_text(encoding="utf-8").splitlines()
_NAMES = [name for line in _LINES if not line.startswith("#") for name in line.split()]
FOLDERS = frozenset(name.removesuffix("/") for name in _NAMES if name.endswith("/"))
# `PLACES` are recognised only together with their folders.
PLACES = tuple(name for name in _NAMES if "/" in name[:-1])
FILES = tuple(name for name in _NAMES if "/" not in name)


def in_name(parts: Sequence[str]) -> bool:
    """Return whether the file's name, or a folder in its path, is one that commonly holds keys or passwords."""
    small = [part.casefold() for part in parts]
    if not small:
        return False
    return any(part in FOLDERS for part in small) or any(fnmatchcase(small[-1], glob) for glob in FILES) or in_place(small)


def in_place(parts: Sequence[str]) -> bool:
    """Return whether the path ends with a known location of keys or passwords."""
    small = [part.casefold() for part in parts]
    return any(fnmatchcase("/".join(small[-(place.count("/") + 1) :]), place) for place in PLACES)


def mask(text: str) -> str:
    """Return the text with each secret replaced by `MASK`."""
    return mask_pieces((text,))[0]


def mask_pieces(pieces: Sequence[str]) -> tuple[str, ...]:
    """Return consecutive texts with each secret replaced by `MASK`; a secret may continue from one text into the next."""
    secret_spans = spans("".join(pieces))
    if not secret_spans:
        return tuple(pieces)
    masked, start = [], 0
    for piece in pieces:
        parts, at = [], 0
        for span in secret_spans:
            left, right = max(span.start - start, 0), min(span.end - start, len(piece))
            if left < right:
                parts += [piece[at:left], MASK]
                at = right
        masked.append("".join([*parts, piece[at:]]))
        start += len(piece)
    return tuple(masked)


def mask_request(request: InfillRequest) -> InfillRequest:
    """Return the request with the secrets masked in each of its texts."""
    prefix, *between, suffix = mask_pieces((request.prefix, *request.between, request.suffix))
    return replace(
        request,
        prefix=prefix,
        suffix=suffix,
        between=tuple(between),
        related=tuple(replace(item, text=mask(item.text)) for item in request.related),
        holes=tuple(replace(hole, instruction=mask(hole.instruction)) for hole in request.holes),
        question=None if request.question is None else _mask_question(request.question),
    )


def _mask_question(question: Question) -> Question:
    """Return the question with masked secrets; raise ValueError if one is in the window, which the answer replaces."""
    if spans(question.window.text):
        raise ValueError("the lines around the cursor hold what looks like a secret, so no remote model is asked for an edit")
    return replace(question, shown=mask(question.shown), edits=tuple(map(mask_edit, question.edits)))


def mask_edit(edit: Edit) -> Edit:
    """Return the edit with the secrets masked in its lines."""
    above, old, below = mask_pieces((edit.above, edit.old, edit.below))
    return replace(edit, above=above, old=old, new=mask_pieces((edit.above, edit.new, edit.below))[1], below=below)


def spans(text: str) -> tuple[Span, ...]:
    """Return the spans of the secrets in the text, in order and without overlaps."""
    tokens = (match for hint, shape in _SHAPES if hint in text for match in shape.finditer(text))
    places = (*_keys(text), *(token.span(1 if token.re.groups else 0) for token in tokens), *_assigned(text))
    return joined(Span(start, end) for start, end in places if start < end)


# --- Blocks of key material -------------------------------------------------------------------------------------------

_FRAME = re.compile(r"-{4,5} ?(BEGIN|END) [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)? ?-{4,5}")
# Lines of base64 and of headers, in a file or in a string whose line ends are written as \n.
_BODY = re.compile(r"(?:[A-Za-z0-9+/=\s\"'`,|>.;()#*]|\\[nr]|[A-Z][A-Za-z-]{1,20}: [^\n]{0,80}\n)*")
_TAIL_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\\ \t\r\n\"'`,+")


def _keys(text: str) -> Iterator[tuple[int, int]]:
    """Yield the text between the first and the last line of each private key; one of the two lines may be missing."""
    if "PRIVATE KEY" not in text:
        return
    begin: int | None = None
    for frame in _FRAME.finditer(text):
        if frame[1] == "BEGIN":
            begin = frame.end()
            body = _BODY.match(text, begin)
            yield begin, body.end() if body else begin
        else:
            # Without its first line, the key begins where the text stops looking like one.
            start = begin
            if start is None:
                start = frame.start()
                while start > 0 and text[start - 1] in _TAIL_CHARS:
                    start -= 1
            yield start, frame.start()
            begin = None


# --- Tokens with a known prefix ---------------------------------------------------------------------------------------

# Each shape comes with a text that must occur before the shape is searched for. Group 1, if there is one, is the secret.
_SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (hint, re.compile(shape))
    for hint, shape in (
        *((prefix, rf"(?<![A-Za-z0-9]){prefix}[A-Z2-7]{{16}}(?![A-Za-z0-9])") for prefix in ("AKIA", "ASIA", "ABIA", "ACCA")),
        *((f"gh{kind}_", rf"gh{kind}_[A-Za-z0-9]{{20,255}}") for kind in "pousr"),
        ("github_pat_", r"github_pat_[A-Za-z0-9_]{22,255}"),
        ("gl", r"(?<![A-Za-z0-9])gl(?:pat|oas|dt|rt|cbt|ptt|ft|imt|agent|soat|ffct)-[\w-]{20,}"),
        ("xox", r"xox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,}"),
        ("xapp-", r"xapp-\d-[A-Za-z0-9-]{10,}"),
        ("hooks.slack.com", r"hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9+/]{20,})"),
        ("discord", r"discord(?:app)?\.com/api/webhooks/(\d{10,}/[\w-]{30,})"),
        # OpenAI, Anthropic, OpenRouter and others that use the same form.
        ("sk-", r"(?<![A-Za-z0-9])sk-(?=[\w-]{0,200}\d)(?:[a-z0-9]{2,12}-){0,3}[A-Za-z0-9_-]{20,}"),
        *((f"{kind}k_", rf"(?<![A-Za-z0-9]){kind}k_(?:live|test|prod)_[A-Za-z0-9]{{10,}}") for kind in "srp"),
        ("whsec_", r"whsec_[A-Za-z0-9+/]{24,}"),
        ("AIza", r"(?<![A-Za-z0-9])AIza[\w-]{35}"),
        ("GOCSPX-", r"GOCSPX-[\w-]{20,}"),
        ("ya29.", r"ya29\.[\w-]{20,}"),
        ("SG.", r"(?<![A-Za-z0-9])SG\.[\w-]{16,}\.[\w-]{16,}"),
        ("npm_", r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{36}"),
        ("pypi-", r"pypi-[\w-]{50,}"),
        ("hf_", r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{30,}"),
        ("gsk_", r"(?<![A-Za-z0-9])gsk_[A-Za-z0-9]{40,}"),
        ("r8_", r"(?<![A-Za-z0-9])r8_[A-Za-z0-9]{37}"),
        ("_v1_", r"(?<![A-Za-z0-9])do[opr]_v1_[0-9a-f]{64}"),
        ("shp", r"(?<![A-Za-z0-9])shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
        ("SK", r"(?<![A-Za-z0-9])SK[0-9a-f]{32}(?![A-Za-z0-9])"),
        ("key-", r"(?<![A-Za-z0-9])key-[0-9a-f]{32}(?![A-Za-z0-9])"),
        (":AA", r"(?<!\d)\d{8,10}:AA[\w-]{33}"),
        ("dapi", r"(?<![A-Za-z0-9])dapi[0-9a-f]{32}"),
        ("hv", r"(?<![A-Za-z0-9])hv[sbr]\.[\w-]{24,}"),
        ("dp.", r"(?<![A-Za-z0-9])dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9]{40,}"),
        ("lin_", r"lin_(?:api|oauth)_[A-Za-z0-9]{30,}"),
        ("ntn_", r"(?<![A-Za-z0-9])ntn_[A-Za-z0-9]{40,}"),
        ("PMAK-", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),
        ("NRAK-", r"NRAK-[A-Z0-9]{27}"),
        ("glc_", r"(?<![A-Za-z0-9])glc_[A-Za-z0-9+/=]{32,}"),
        ("glsa_", r"glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}"),
        ("sq0", r"sq0(?:atp|csp|idp)-[\w-]{22,}"),
        ("EAAA", r"(?<![A-Za-z0-9])EAAA[\w-]{60,}"),
        ("AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[A-Z0-9]{58}"),
        ("ops_eyJ", r"ops_eyJ[A-Za-z0-9+/=]{100,}"),
        ("eyJ", r"(?<![A-Za-z0-9])eyJ[\w-]{10,1000}\.eyJ[\w-]{10,}(?:\.[\w-]*)?"),
        ("earer ", r"\b[Bb]earer ([A-Za-z0-9._~+/-]{20,}=*)"),
        ("Basic ", r"\bBasic ([A-Za-z0-9+/]{16,}={0,2})"),
        ("AccountKey=", r"AccountKey=([A-Za-z0-9+/]{60,}={0,2})"),
        ("://", r"://[^\s/:@\"'`{}<>$]{0,100}:([^\s/@\"'`{}<>$]{3,200})@"),
    )
)


# --- Values assigned to a name such as `password` ---------------------------------------------------------------------

_NAMED = re.compile(
    r"(?P<name>key|token|secret|passwo?r?d|passwd|pwd|passphrase|credentials?|bearer|auth)(?:_?(?:id|value|string|base64|base|hex))?"
    r"[\"'`\]]{0,2}\s{0,8}"
    r"(?::\s{0,8}[A-Za-z][\w.\[\] |*&]{0,30}?\s{0,8}=|=>|:=|={1,3}|!==?|:|,|\()\s{0,8}"
    r"(?:[bBrRuUfF]{1,2}(?=[\"']))?"
    r"(?:(?P<quote>[\"'`]{1,3})(?P<quoted>[^\s\"'`]{8,500})(?:(?P=quote)|\Z)"
    r"|(?P<bare>[A-Za-z0-9+/_~-]{16,500}={0,2})(?=[\s,;]|\Z))",
    re.IGNORECASE,
)
_PASSWORDS = ("pass", "pwd")
# Placeholders, which are not secrets.
_PLACEHOLDER = re.compile(
    r"\$\{|\{\{|<[^>]+>|%\(|^\$\w+$|\{\w+\}|^%\w+%$|example|changeme|placeholder|redacted|your[-_]|xxxx|\*\*\*|\.\.\.",
    re.IGNORECASE,
)


def _assigned(text: str) -> Iterator[tuple[int, int]]:
    """Yield the random-looking values assigned to a name such as key, token, secret or password."""
    for match in _NAMED.finditer(text):
        group = "quoted" if match["quoted"] is not None else "bare"
        value = match[group]
        is_password = match["name"].casefold().startswith(_PASSWORDS)
        if _looks_random(value, is_password=is_password, is_bare=group == "bare"):
            yield match.span(group)


def _looks_random(value: str, *, is_password: bool, is_bare: bool) -> bool:
    if _PLACEHOLDER.search(value):
        return False
    n_digits = sum(char.isdigit() for char in value)
    has_letter = any(char.isalpha() for char in value)
    if is_bare:
        # Without quotes it may be code: a name, or a call.
        if n_digits < 3 or value.isdigit() or "://" in value:
            return False
        return _entropy(value) >= 3.5 or (len(value) >= 32 and _entropy(value) >= 3.0)
    if is_password:
        return has_letter and (n_digits > 0 or any(not char.isalnum() and char not in "_-./" for char in value))
    # Words and numbers with separators between them are a name: `WINDOW_SIZE_2`, `items/{0}`, `2024-01-01`.
    if len(value) < 16 or all(part.isalpha() or part.isdigit() for part in re.findall(r"[^\W_]+", value)):
        return False
    return _entropy(value) >= 3.0 and (has_letter or len(value) >= 24)


def _entropy(text: str) -> float:
    """Return the entropy of the text's characters, in bits per character."""
    counts = Counter(text)
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts.values())
