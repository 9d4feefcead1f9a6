"""The life of one engine as a client sees it: one value, and one pure function from event to event.

A front end feeds events in and carries out the actions that come back. Nothing here waits, looks at a clock or touches a
process. Cancelling a request changes nothing: the engine that it wanted is wanted by the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

START_PATIENCE_S = 150.0
"""A start that has not led to a connection by then is given up."""
FAILED_PAUSE_S = 10.0
"""So long after an engine could not be had, nobody tries again."""
N_PINGS = 3
"""So many pings missed in a row mean that the engine does not respond."""


@dataclass(frozen=True, slots=True)
class Absent:
    """No engine is wanted yet, or the last one ended on purpose."""


@dataclass(frozen=True, slots=True)
class Starting:
    """An engine is looked for, or started, since that time."""

    since: float


@dataclass(frozen=True, slots=True)
class Loading:
    """The engine answers and loads its model."""

    share: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine with this process id serves requests; `version` is that of its dg-lsp."""

    pid: int
    version: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The engine crashed too often, or does not respond and can't be ended; from `until` on the next request tries again."""

    why: str
    until: float


@dataclass(frozen=True, slots=True)
class Failed:
    """No engine can be had, as the model can't be loaded; from `until` on the next request tries again."""

    why: str
    until: float


State = Absent | Starting | Loading | Ready | Lost | Failed


@dataclass(frozen=True, slots=True)
class Asked:
    """A request wants the engine."""

    now: float


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A request no longer wants the engine."""


@dataclass(frozen=True, slots=True)
class Reported:
    """The engine says how far its loading is."""

    share: float
    message: str


@dataclass(frozen=True, slots=True)
class Connected:
    """The engine answers and its model is loaded."""

    pid: int
    version: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The engine answered a request."""


@dataclass(frozen=True, slots=True)
class Silent:
    """The process missed its pings; `is_killed` says that it could be ended, so that another can take its place."""

    now: float
    pid: int
    is_killed: bool


@dataclass(frozen=True, slots=True)
class Exited:
    """The engine is gone; with `is_crash` it did not say so before."""

    now: float
    is_crash: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """No engine can be had, for a reason that a user can read."""

    now: float
    why: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    now: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """The client gives the engine back."""


Event = Asked | Cancelled | Reported | Connected | Answered | Silent | Exited | Refused | Tick | Stopped


@dataclass(frozen=True, slots=True)
class Join:
    """Find an engine or start one, after so many seconds. It is only asked for while no other join is under way."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection, and give up a join that is under way."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the user."""

    sentence: str


Action = Join | Drop | Tell


@dataclass(frozen=True, slots=True)
class Breaker:
    """How often the engine crashed lately, and whether it may be started again.

    After `most` crashes within the window it may not, until the oldest of them is past. A start after n of them waits for
    the nth of the pauses, or for the last.
    """

    crashes: tuple[float, ...] = ()
    window_s: float = 300.0
    most: int = 3
    pauses_s: tuple[float, ...] = (0.0, 0.0, 1.0)

    def crashed(self, now: float) -> Breaker:
        """Return the breaker after one more crash."""
        return replace(self, crashes=(*self._recent(now), now)[-self.most :])

    def answered(self) -> Breaker:
        """Return the breaker after a success: what has worked is no crash loop, but the last crash still counts."""
        return replace(self, crashes=self.crashes[-1:]) if len(self.crashes) > 1 else self

    def closed_for_s(self, now: float) -> float:
        """Return for how many seconds the engine must not be started; 0.0 when it may."""
        recent = self._recent(now)
        return recent[0] + self.window_s - now if len(recent) >= self.most else 0.0

    def pause_s(self, now: float) -> float:
        """Return how long to wait before the next start."""
        return self.pauses_s[min(len(self._recent(now)), len(self.pauses_s) - 1)]

    def _recent(self, now: float) -> tuple[float, ...]:
        return tuple(at for at in self.crashes if now - at < self.window_s)


@dataclass(frozen=True, slots=True)
class Life:
    """The engine's state, and the crashes that decide when it may be started again; `own_version` is the client's."""

    state: State = Absent()
    breaker: Breaker = field(default_factory=Breaker)
    own_version: str = ""


def next(life: Life, event: Event) -> tuple[Life, tuple[Action, ...]]:  # noqa: A001 -- reads as life.next
    """Return the life after an event, and what is to be done."""
    match life.state, event:
        case _, Stopped():
            return replace(life, state=Absent()), (Drop(),)
        case Absent(), Asked(now):
            return _start(life, now)
        case Lost(_, until) | Failed(_, until), Asked(now) if now >= until:
            return _start(life, now)
        case Starting(since), (Asked(now) | Tick(now)) if now >= since + START_PATIENCE_S:
            why = f"no engine could be started within {START_PATIENCE_S:.0f} s; dg-lsp engine logs may say why"
            return replace(life, state=Failed(why, now + FAILED_PAUSE_S)), (Drop(),)
        case ((Starting() | Loading() | Ready()), Reported(share, message)):
            return replace(life, state=Loading(share, message)), ()
        case ((Starting() | Loading()), Connected(pid, version)):
            return replace(life, state=Ready(pid, version)), _about(version, life.own_version)
        case Ready(), Answered():
            return replace(life, breaker=life.breaker.answered()), ()
        case ((Starting() | Loading() | Ready()), Silent(now, pid, is_killed)):
            return _silent(life, now, pid, is_killed=is_killed)
        case ((Starting() | Loading() | Ready()), Refused(now, why)):
            return replace(life, state=Failed(why, now + FAILED_PAUSE_S)), (Drop(),)
        case Ready(), Exited(is_crash=False):
            return replace(life, state=Absent()), (Drop(),)
        case ((Starting() | Loading() | Ready()), Exited(now)):
            # Started again unasked, as often as the breaker allows: somebody may wait for it, or will with the next key.
            # What ends before it served anybody counts as a crash, whatever it says.
            return _start(_crashed(life, now), now, drops=True)
    # A request that is cancelled, and news of an engine that is given up already, change nothing.
    return life, ()


def trouble(state: State, now: float) -> str:
    """Return why the engine should not be asked unprompted just now, as a sentence; "" when it may be.

    One that starts or loads may be asked: a user who pauses meanwhile gets a suggestion once it is up, without another key.
    """
    match state:
        case Lost(why, until) | Failed(why, until) if now < until:
            return why
    return ""


def _start(life: Life, now: float, *, drops: bool = False) -> tuple[Life, tuple[Action, ...]]:
    before: tuple[Action, ...] = (Drop(),) if drops else ()
    if closed_for_s := life.breaker.closed_for_s(now):
        minutes = max(1, round(closed_for_s / 60))
        why = f"the engine failed {life.breaker.most} times; this client starts it again in {minutes} min"
        return replace(life, state=Lost(why, now + closed_for_s)), before
    return replace(life, state=Starting(now)), (*before, Join(life.breaker.pause_s(now)))


def _crashed(life: Life, now: float) -> Life:
    return replace(life, breaker=life.breaker.crashed(now))


def _silent(life: Life, now: float, pid: int, *, is_killed: bool) -> tuple[Life, tuple[Action, ...]]:
    why = f"the engine does not respond (process {pid})"
    if not is_killed:
        why += f"; end it with: kill -9 {pid}"
        return replace(life, state=Lost(why, now + FAILED_PAUSE_S)), (Tell(why), Drop())
    after, actions = _start(_crashed(life, now), now, drops=True)
    return after, (Tell(f"{why}; it was killed" + (", and another one is started" if len(actions) > 1 else "")), *actions)


def _about(version: str, own_version: str) -> tuple[Action, ...]:
    if not own_version or version == own_version:
        return ()
    return (
        Tell(
            f"the engine that runs is of dg-lsp {version}, this is dg-lsp {own_version}; "
            "it was asked to end, and is replaced as soon as nobody uses it"
        ),
    )
