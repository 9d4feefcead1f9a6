"""The life of one engine as a client sees it: a state machine with one pure transition function, `next`.

The client passes events in and carries out the actions that `next` returns. Nothing here waits, reads a clock or touches a
process. A cancelled request is no event, because the next request needs the same engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

START_PATIENCE_S = 150.0
"""A start fails when no connection exists after this long."""
FAILED_PAUSE_S = 10.0
"""After a failure, no request retries for this long."""
N_PINGS = 3
"""After this many missed pings in a row, the engine counts as not responding."""
MOST_CRASHES, CRASH_WINDOW_S = 3, 300.0
"""After so many crashes within this time, the engine may not be started until the oldest of them is older."""
PAUSES_S = (0.0, 0.0, 1.0)
"""How long a start waits after so many recent crashes."""


@dataclass(frozen=True, slots=True)
class Absent:
    """No engine has been requested yet, or the last one ended normally."""


@dataclass(frozen=True, slots=True)
class Starting:
    """The client has been connecting to an engine or starting one, since this time."""

    since: float


@dataclass(frozen=True, slots=True)
class Loading:
    """The engine responds and is loading its model."""

    share: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine with this process id serves requests; `version` is its build (`wire.discovery`)."""

    pid: int
    version: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The engine crashed too often, or does not respond and can't be killed; from `until` on, the next request retries."""

    why: str
    until: float


@dataclass(frozen=True, slots=True)
class Failed:
    """No engine can be reached or started, or its model can't be loaded; from `until` on, the next request retries."""

    why: str
    until: float


State = Absent | Starting | Loading | Ready | Lost | Failed


@dataclass(frozen=True, slots=True)
class Asked:
    """A request needs the engine."""

    now: float


@dataclass(frozen=True, slots=True)
class Answered:
    """The engine answered a request."""


@dataclass(frozen=True, slots=True)
class Silent:
    """The engine missed its pings; with `is_killed` the client has killed it, so that a new one can start."""

    now: float
    pid: int
    is_killed: bool


@dataclass(frozen=True, slots=True)
class Exited:
    """The engine's process has ended; with `is_crash` without announcing it."""

    now: float
    is_crash: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """No engine can be reached or started, or its model can't be loaded; `why` is a sentence for the user."""

    now: float
    why: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    now: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """The client disconnects from the engine."""


Event = Asked | Loading | Ready | Answered | Silent | Exited | Refused | Tick | Stopped
"""What happens to an engine. That it loads its model or is ready is its own report, and becomes its state."""


@dataclass(frozen=True, slots=True)
class Join:
    """Connect to an engine or start one, after this many seconds. At most one such attempt runs at a time."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection, and cancel a running connection attempt."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Show a sentence to the user."""

    sentence: str


Action = Join | Drop | Tell


@dataclass(frozen=True, slots=True)
class Breaker:
    """The recent crashes of the engine, which decide whether it may be started again."""

    crashes: tuple[float, ...] = ()

    def crashed(self, now: float) -> Breaker:
        """Return the breaker after one more crash."""
        return Breaker((*self._recent(now), now)[-MOST_CRASHES:])

    def answered(self) -> Breaker:
        """Return the breaker after a success: only the last crash still counts, because this is no crash loop."""
        return Breaker(self.crashes[-1:])

    def closed_for_s(self, now: float) -> float:
        """Return for how many seconds the engine must not be started; 0.0 when it may."""
        recent = self._recent(now)
        return recent[0] + CRASH_WINDOW_S - now if len(recent) >= MOST_CRASHES else 0.0

    def pause_s(self, now: float) -> float:
        """Return how long to wait before the next start."""
        return PAUSES_S[min(len(self._recent(now)), len(PAUSES_S) - 1)]

    def _recent(self, now: float) -> tuple[float, ...]:
        return tuple(at for at in self.crashes if now - at < CRASH_WINDOW_S)


@dataclass(frozen=True, slots=True)
class Life:
    """The engine's state, and the crashes that decide when it may be started again; `own_version` is the client's build."""

    state: State = Absent()
    breaker: Breaker = field(default_factory=Breaker)
    own_version: str = ""


def next(life: Life, event: Event) -> tuple[Life, tuple[Action, ...]]:  # noqa: A001 -- reads as life.next
    """Return the life after an event, and the actions for the client."""
    match life.state, event:
        case _, Stopped():
            return replace(life, state=Absent()), (Drop(),)
        case Absent(), Asked(now):
            return _start(life, now)
        case Lost(_, until) | Failed(_, until), Asked(now) if now >= until:
            return _start(life, now)
        case Starting(since), (Asked(now) | Tick(now)) if now >= since + START_PATIENCE_S:
            why = f"no engine could be started within {START_PATIENCE_S:.0f} s; see: dg-lsp engine logs"
            return replace(life, state=Failed(why, now + FAILED_PAUSE_S)), (Drop(),)
        case ((Starting() | Loading() | Ready()), Loading()):
            return replace(life, state=event), ()
        case ((Starting() | Loading()), Ready(version=version)):
            about = (
                f"the running engine is from dg-lsp {version}, this is dg-lsp {life.own_version}; "
                "it ends and is replaced when no client uses it"
            )
            is_same = not life.own_version or version == life.own_version
            return replace(life, state=event), () if is_same else (Tell(about),)
        case Ready(), Answered():
            return replace(life, breaker=life.breaker.answered()), ()
        case ((Starting() | Loading() | Ready()), Silent(now, pid, is_killed)):
            why = f"the engine does not respond (process {pid})"
            if not is_killed:
                why += f"; end it with: kill -9 {pid}"
                return replace(life, state=Lost(why, now + FAILED_PAUSE_S)), (Tell(why), Drop())
            after, actions = _start(replace(life, breaker=life.breaker.crashed(now)), now, drops=True)
            restart = ", and a new one is starting" if len(actions) > 1 else ""
            return after, (Tell(f"{why}; it was killed{restart}"), *actions)
        case ((Starting() | Loading() | Ready()), Refused(now, why)):
            return replace(life, state=Failed(why, now + FAILED_PAUSE_S)), (Drop(),)
        case Ready(), Exited(is_crash=False):
            return replace(life, state=Absent()), (Drop(),)
        case ((Starting() | Loading() | Ready()), Exited(now)):
            # Restart at once, as often as the breaker allows, because the next keystroke needs the engine. An engine that
            # ends before it served a request counts as crashed, even when it announced its end.
            return _start(replace(life, breaker=life.breaker.crashed(now)), now, drops=True)
    # An event from an engine that was given up changes nothing.
    return life, ()


def trouble(state: State, now: float) -> str:
    """Return why no unprompted request should be sent now, as a sentence; "" when one may.

    Requests are allowed while the engine starts or loads. A user who pauses then gets a suggestion when it is ready.
    """
    match state:
        case Lost(why, until) | Failed(why, until) if now < until:
            return why
    return ""


def _start(life: Life, now: float, *, drops: bool = False) -> tuple[Life, tuple[Action, ...]]:
    before: tuple[Action, ...] = (Drop(),) if drops else ()
    if closed_for_s := life.breaker.closed_for_s(now):
        minutes = max(1, round(closed_for_s / 60))
        why = f"the engine crashed {MOST_CRASHES} times; the next request after {minutes} min starts it again"
        return replace(life, state=Lost(why, now + closed_for_s)), before
    return replace(life, state=Starting(now)), (*before, Join(life.breaker.pause_s(now)))
