"""What the processes share: the messages they exchange, and the place where they find each other.

Knows nothing of models or editors; both sides of the wire import it, it imports neither. Only `look` speaks HTTP.
"""

from dg_lsp.wire.messages import PROTOCOL_MAJOR, PROTOCOL_MAX, PROTOCOL_MIN, WireError

__all__ = ["PROTOCOL_MAJOR", "PROTOCOL_MAX", "PROTOCOL_MIN", "WireError"]
