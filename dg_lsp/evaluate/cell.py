"""What runs inside the process of a program under test: it shuts the doors, runs the program, and says what came of it.

`execute` passes this file's text to a Python of its own with `-c`, since the process may run as somebody who can't read the
file. So it imports the standard library alone, and that late: what is imported stays in the program's reach.

The doors, from the outside in. Each that was asked for is shut, or nothing runs:

* `mounts`: every mount is made read-only but the program's folder. Needs a mount namespace.
* `capabilities`: all are dropped, from the bounding set too, and `no_new_privs` keeps them from coming back. Without this the
  one that the namespace gives would make the mounts writable again.
* `landlock`: the kernel lets the process write in its folder alone, read only what Python needs of the system, and neither
  bind nor connect over TCP, signal or trace what is outside.
* `seccomp`: system calls that make sockets, mounts, namespaces, traces and the like fail.
* An audit hook, always: it refuses by name what the library would do, and holds nothing against code that gets around it.
"""

# ruff: noqa: PTH109, PTH118 -- it imports little, see above

from __future__ import annotations

import sys

_READ_FILE, _READ_DIR, _EXECUTE, _WRITE_FILE, _TRUNCATE, _IOCTL = 1 << 2, 1 << 3, 1 << 0, 1 << 1, 1 << 14, 1 << 15
_MAKE_DEVICES = 1 << 6 | 1 << 11
# So many rights the versions of Landlock know.
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
# What Python and its library read of a system, besides themselves.
_READABLE = (
    "/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types",
    "/dev/urandom", "/dev/random", "/dev/zero",
)  # fmt: skip

# The processor's number for `AUDIT_ARCH`, and of the calls that only something bad needs. Those above 424 have one number
# everywhere: the ring of io_uring and the newer ones for mounts and processes.
_ARCHITECTURES = {
    "x86_64": (
        0xC000003E,
        # socket, ptrace, pivot_root, mount, umount2, kexec_load, add_key, request_key, keyctl, unshare, perf_event_open,
        # open_by_handle_at, setns, process_vm_readv, process_vm_writev, bpf, userfaultfd
        (41, 101, 155, 165, 166, 246, 248, 249, 250, 272, 298, 304, 308, 310, 311, 321, 323),
    ),
    "aarch64": (
        0xC00000B7,
        (198, 117, 41, 40, 39, 104, 217, 218, 219, 97, 241, 265, 268, 270, 271, 280, 282),
    ),
}
_SAME_EVERYWHERE = (425, 428, 429, 430, 431, 432, 438, 442)

_REFUSED = (
    "socket.", "subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "pty.",
    "os.startfile", "ctypes.", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.chmod", "os.chown",
    "os.link", "os.symlink", "os.setxattr", "os.removexattr", "os.utime", "os.chflags", "shutil.",
    "sqlite3.", "syslog.", "ftplib.", "http.", "smtplib.", "urllib.", "webbrowser.",
)  # fmt: skip
# These write files by themselves, without a word to a hook.
_UNAUDITED = ("_dbm", "_gdbm", "_sqlite3", "readline")


def shut_mounts(here: bytes) -> bool:
    """Make everything that is mounted read-only, but for a second mount of our folder; return whether that was done."""
    import ctypes
    import struct

    call = ctypes.CDLL(None, use_errno=True)
    call.syscall.restype = ctypes.c_long
    bind, recursive, current, set_attributes, read_only = 0x1000, 0x8000, -100, 442, 1

    def change(path: bytes, flags: int, add: int, drop: int) -> int:
        # mount_setattr has this number on every processor but Alpha, and no function in most C libraries.
        attributes = struct.pack("=4Q", add, drop, 0, 0)
        failed: int = call.syscall(
            ctypes.c_long(set_attributes), ctypes.c_long(current), path, ctypes.c_long(flags), attributes, ctypes.c_long(32)
        )
        return failed

    if call.mount(here, here, None, ctypes.c_ulong(bind), None):
        return False
    return not (change(b"/", recursive, read_only, 0) or change(here, 0, 0, read_only))


def shut_capabilities(here: bytes) -> bool:
    """Drop all capabilities for good; return whether none is left."""
    import ctypes
    import struct

    call = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, drop_bounding, ambient, clear_all, version_3 = 38, 24, 47, 4, 0x20080522

    def control(*numbers: int) -> int:
        failed: int = call.prctl(
            ctypes.c_int(numbers[0]), *(ctypes.c_ulong(number) for number in (*numbers[1:], 0, 0, 0, 0)[:4])
        )
        return failed

    if control(no_new_privileges, 1):
        return False
    control(ambient, clear_all)
    # Without the capability for it the bounding set stays, which gives nothing that no_new_privs does not refuse.
    for capability in range(64):
        control(drop_bounding, capability)
    header, none = struct.pack("=Ii", version_3, 0), struct.pack("=6I", *[0] * 6)
    left = ctypes.create_string_buffer(24)
    return not call.capset(header, none) and not call.capget(header, left) and left.raw == none


def shut_landlock(here: bytes) -> bool:
    """Let the kernel refuse writes outside of our folder, reads outside of what Python needs, TCP and signals."""
    import ctypes
    import os
    import stat
    import struct

    call = ctypes.CDLL(None, use_errno=True)
    call.syscall.restype = ctypes.c_long

    def landlock(number: int, *arguments: bytes | int | None) -> int:
        given = (argument if isinstance(argument, bytes) else ctypes.c_long(argument or 0) for argument in arguments)
        answer: int = call.syscall(ctypes.c_long(number), *given)
        return answer

    version = landlock(444, None, 0, 1)
    if version < 1:
        return False
    every = (1 << _RIGHTS.get(version, 16)) - 1
    rules = struct.pack("=3Q", every, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    handle = landlock(444, rules[:size], size, 0)
    if handle < 0:
        return False
    reading = _READ_FILE | _READ_DIR | _EXECUTE
    allowed = {os.fsdecode(here): every & ~_MAKE_DEVICES & ~_EXECUTE, os.devnull: _READ_FILE | _WRITE_FILE | _TRUNCATE}
    allowed.update(dict.fromkeys((*sys.path, os.path.join(sys.base_prefix, "lib"), *_READABLE), reading))
    for path, rights in allowed.items():
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # what is not there needs no rule
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _READ_FILE | _WRITE_FILE | _EXECUTE | _TRUNCATE | _IOCTL
        failed = landlock(445, handle, 1, struct.pack("=Qi", rights & every, place), 0)
        os.close(place)
        if failed:
            return False
    # The kernel wants to know first that nobody gains by it; the second time changes nothing.
    call.prctl(ctypes.c_int(38), *(ctypes.c_ulong(number) for number in (1, 0, 0, 0)))
    failed = landlock(446, handle, 0)
    os.close(handle)
    return not failed


def shut_seccomp(here: bytes) -> bool:
    """Refuse system calls that make sockets, namespaces, mounts and traces; return whether the kernel does."""
    import ctypes
    import os
    import struct

    if os.uname().machine not in _ARCHITECTURES:
        return False
    architecture, numbers = _ARCHITECTURES[os.uname().machine]
    refused = sorted({*numbers, *_SAME_EVERYWHERE})
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | 1  # the second with EPERM
    # Each is a code, how far to jump if so and if not, and a value. Another architecture's numbers mean other calls; those
    # with the 30th bit are x86's second set.
    n = len(refused)
    lines = [(load, 0, 0, 4), (equal, 0, n + 3, architecture), (load, 0, 0, 0), (at_least, n + 1, 0, 0x40000000)]
    lines += [(equal, n - place, 0, number) for place, number in enumerate(refused)]
    lines += [(answer, 0, 0, allow), (answer, 0, 0, refuse)]
    text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    about = struct.pack("@HP", len(lines), ctypes.addressof(text))
    call = ctypes.CDLL(None, use_errno=True)
    call.prctl(ctypes.c_int(38), *(ctypes.c_ulong(number) for number in (1, 0, 0, 0)))
    return not call.prctl(ctypes.c_int(22), ctypes.c_ulong(2), about, ctypes.c_ulong(0), ctypes.c_ulong(0))


# In this order: each needs what the next one takes away.
DOORS = {"mounts": shut_mounts, "capabilities": shut_capabilities, "landlock": shut_landlock, "seccomp": shut_seccomp}


def shut(here: str, doors: list[str]) -> bool:
    """Shut these doors, and return whether all of them are; the current folder is `here` again."""
    import os

    done = DOORS.keys() >= set(doors) and all(act(os.fsencode(here)) for name, act in DOORS.items() if name in doors)
    # It was a folder of the mount below.
    os.chdir(here)
    for name in [name for name in sys.modules if "ctypes" in name]:
        del sys.modules[name]
    return done


def limit(limits: dict[str, int]) -> None:
    """Bound what the process may use."""
    try:
        import resource
    except ImportError:
        return
    for name, bound in limits.items():
        try:
            resource.setrlimit(getattr(resource, name), (bound, bound))
        except (AttributeError, ValueError, OSError):
            continue  # a system without this limit has the others


def watch(here: str) -> None:
    """Have everything refused from now on that the library would tell a hook of and a program under test may not do."""
    import os

    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    here += os.sep

    def is_own(path: str | bytes) -> bool:
        return (os.path.realpath(os.fsdecode(path)) + os.sep).startswith(here)

    def audit(event: str, details: tuple[object, ...]) -> None:
        if event.startswith(_REFUSED):
            raise PermissionError("a program under test may not do this: " + event)
        if event == "import" and details[0] in _UNAUDITED:
            raise ImportError(f"a program under test may not have {details[0]}")
        if event == "os.mkdir" and not (details[2] == -1 and isinstance(details[0], (str, bytes)) and is_own(details[0])):
            raise PermissionError("a program under test may not make folders outside of its own")
        path, flags = (details[0], details[2]) if event == "open" else (None, None)
        if isinstance(path, (str, bytes)) and isinstance(flags, int) and flags & writes and not is_own(path):
            raise PermissionError("a program under test may not write outside of its folder")

    for module in (os, sys.modules["posix" if os.name == "posix" else "nt"]):
        for name in ("mkfifo", "mknod", "chroot"):
            if hasattr(module, name):
                delattr(module, name)
    sys.addaudithook(audit)


def main() -> None:
    """Run what standard input tells of. The answer stands behind a word that the program does not know."""
    import json
    import os
    import types

    order = json.loads(sys.stdin.buffer.read())
    word, out = order.pop("secret"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    here = os.path.realpath(os.getcwd())
    if not shut(here, order["doors"]):
        os._exit(1)
    limit(order["limits"])
    # The program is the main module, as it would be alone; ours, which is not, is out of its reach by name.
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    watch(here)
    try:
        exec(compile(order["program"], "program.py", "exec"), module.__dict__)  # noqa: S102 -- it is what was asked for
        verdict = "passed"
    except BaseException:  # whatever it raises, it has not passed
        verdict = "failed"
    os.write(out, f"{word} {verdict}".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
