"""The runner inside the process of a program under test: it applies the sandbox's layers, runs the program and reports.

`execute` passes the text of this file to a new Python with `-c`, because that process may run as a user who can't read
the file. So this module imports only the standard library, and only inside functions: an imported module stays within
the program's reach.

These are the layers, in the order in which they are applied. If one that was requested can't be applied, nothing runs.

* `mounts`: makes every mount read-only except the program's folder. Needs a mount namespace.
* `capabilities`: drops all capabilities, also from the bounding set, and sets `no_new_privs` so that none comes back.
  Otherwise the capability from the namespace could make the mounts writable again.
* `landlock`: the kernel lets the process write only in its folder, and read only what Python needs of the system. It
  may not bind or connect over TCP, or signal or trace processes outside.
* `seccomp`: system calls that create sockets, mounts, namespaces, traces and the like fail.
* An audit hook, always: it refuses library calls by name. Code that bypasses the library bypasses the hook.
"""

# ruff: noqa: PTH109, PTH118 -- it imports little, see above

from __future__ import annotations

import sys

_READ_FILE, _READ_DIR, _EXECUTE, _WRITE_FILE, _TRUNCATE, _IOCTL = 1 << 2, 1 << 3, 1 << 0, 1 << 1, 1 << 14, 1 << 15
_MAKE_DEVICES = 1 << 6 | 1 << 11
# How many access rights each version of Landlock defines.
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
# The files that Python and its library read, besides their own.
_READABLE = (
    "/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types",
    "/dev/urandom", "/dev/random", "/dev/zero",
)  # fmt: skip

# For each processor, its `AUDIT_ARCH` value and the numbers of calls that only an attack needs. Calls above 424 have
# the same number on every processor: io_uring, and the newer calls for mounts and processes.
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
# These modules write files without calling an audit hook.
_UNAUDITED = ("_dbm", "_gdbm", "_sqlite3", "readline")


def apply_mounts(here: bytes) -> bool:
    """Make every mount read-only except a second mount of our folder; return whether that worked."""
    import ctypes
    import struct

    call = ctypes.CDLL(None, use_errno=True)
    call.syscall.restype = ctypes.c_long
    bind, recursive, current, set_attributes, read_only = 0x1000, 0x8000, -100, 442, 1

    def change(path: bytes, flags: int, add: int, drop: int) -> int:
        # mount_setattr has this number on every processor but Alpha. Most C libraries have no function for it.
        attributes = struct.pack("=4Q", add, drop, 0, 0)
        failed: int = call.syscall(
            ctypes.c_long(set_attributes), ctypes.c_long(current), path, ctypes.c_long(flags), attributes, ctypes.c_long(32)
        )
        return failed

    if call.mount(here, here, None, ctypes.c_ulong(bind), None):
        return False
    return not (change(b"/", recursive, read_only, 0) or change(here, 0, 0, read_only))


def apply_capabilities(here: bytes) -> bool:
    """Drop all capabilities permanently; return whether none is left."""
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
    # Without the needed capability the bounding set stays. That is safe, because no_new_privs refuses all that it would allow.
    for capability in range(64):
        control(drop_bounding, capability)
    header, none = struct.pack("=Ii", version_3, 0), struct.pack("=6I", *[0] * 6)
    remaining = ctypes.create_string_buffer(24)
    return not call.capset(header, none) and not call.capget(header, remaining) and remaining.raw == none


def apply_landlock(here: bytes) -> bool:
    """Let the kernel refuse writes outside our folder, reads beyond what Python needs, TCP and signals."""
    import ctypes
    import os
    import stat
    import struct

    call = ctypes.CDLL(None, use_errno=True)
    call.syscall.restype = ctypes.c_long

    def landlock(number: int, *arguments: bytes | int | None) -> int:
        converted = (argument if isinstance(argument, bytes) else ctypes.c_long(argument or 0) for argument in arguments)
        answer: int = call.syscall(ctypes.c_long(number), *converted)
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
    rights_by_path = {os.fsdecode(here): every & ~_MAKE_DEVICES & ~_EXECUTE, os.devnull: _READ_FILE | _WRITE_FILE | _TRUNCATE}
    rights_by_path.update(dict.fromkeys((*sys.path, os.path.join(sys.base_prefix, "lib"), *_READABLE), reading))
    for path, rights in rights_by_path.items():
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # a missing path needs no rule
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _READ_FILE | _WRITE_FILE | _EXECUTE | _TRUNCATE | _IOCTL
        failed = landlock(445, handle, 1, struct.pack("=Qi", rights & every, place), 0)
        os.close(place)
        if failed:
            return False
    # Landlock requires no_new_privs. Setting it a second time changes nothing.
    call.prctl(ctypes.c_int(38), *(ctypes.c_ulong(number) for number in (1, 0, 0, 0)))
    failed = landlock(446, handle, 0)
    os.close(handle)
    return not failed


def apply_seccomp(here: bytes) -> bool:
    """Refuse system calls that create sockets, namespaces, mounts and traces; return whether the kernel accepted the filter."""
    import ctypes
    import os
    import struct

    if os.uname().machine not in _ARCHITECTURES:
        return False
    architecture, numbers = _ARCHITECTURES[os.uname().machine]
    refused = sorted({*numbers, *_SAME_EVERYWHERE})
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | 1  # refuse fails with EPERM
    # Each line is a code, the jump distances if true and if false, and a value. The first lines refuse calls of another
    # architecture, whose numbers mean other calls, and those with the 30th bit, x86's second set of numbers.
    n = len(refused)
    lines = [(load, 0, 0, 4), (equal, 0, n + 3, architecture), (load, 0, 0, 0), (at_least, n + 1, 0, 0x40000000)]
    lines += [(equal, n - place, 0, number) for place, number in enumerate(refused)]
    lines += [(answer, 0, 0, allow), (answer, 0, 0, refuse)]
    text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    about = struct.pack("@HP", len(lines), ctypes.addressof(text))
    call = ctypes.CDLL(None, use_errno=True)
    call.prctl(ctypes.c_int(38), *(ctypes.c_ulong(number) for number in (1, 0, 0, 0)))
    return not call.prctl(ctypes.c_int(22), ctypes.c_ulong(2), about, ctypes.c_ulong(0), ctypes.c_ulong(0))


# The order matters: each layer needs what the next one removes.
LAYERS = {"mounts": apply_mounts, "capabilities": apply_capabilities, "landlock": apply_landlock, "seccomp": apply_seccomp}


def apply(here: str, layers: list[str]) -> bool:
    """Apply these layers, and return whether all of them are in place; the current folder becomes `here` again."""
    import os

    done = LAYERS.keys() >= set(layers) and all(layer(os.fsencode(here)) for name, layer in LAYERS.items() if name in layers)
    # The current folder is still the one below the new mount.
    os.chdir(here)
    for name in [name for name in sys.modules if "ctypes" in name]:
        del sys.modules[name]
    return done


def watch(here: str) -> None:
    """Install the audit hook, which refuses all calls that a program under test may not make."""
    import os

    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    here += os.sep

    def is_own(path: str | bytes) -> bool:
        return (os.path.realpath(os.fsdecode(path)) + os.sep).startswith(here)

    def audit(event: str, details: tuple[object, ...]) -> None:
        if event.startswith(_REFUSED):
            raise PermissionError("a program under test may not do this: " + event)
        if event == "import" and details[0] in _UNAUDITED:
            raise ImportError(f"a program under test may not import {details[0]}")
        if event == "os.mkdir" and not (details[2] == -1 and isinstance(details[0], (str, bytes)) and is_own(details[0])):
            raise PermissionError("a program under test may not make folders outside of its own")
        path, flags = (details[0], details[2]) if event == "open" else (None, None)
        if isinstance(path, (str, bytes)) and isinstance(flags, int) and flags & writes and not is_own(path):
            raise PermissionError("a program under test may not write outside of its folder")

    for module in (os, sys.modules["posix"]):
        for name in ("mkfifo", "mknod", "chroot"):
            if hasattr(module, name):
                delattr(module, name)
    sys.addaudithook(audit)


def main() -> None:
    """Run the program from standard input. A secret word precedes the verdict, so that no output passes for one by accident.

    A program that inspects the frames of this process can still read the word: the verdict is no protection.
    """
    import json
    import os
    import resource
    import types

    order = json.loads(sys.stdin.buffer.read())
    word, out = order.pop("secret"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    here = os.path.realpath(os.getcwd())
    if not apply(here, order["layers"]):
        os._exit(1)
    for name, bound in order["limits"].items():
        try:
            resource.setrlimit(getattr(resource, name), (bound, bound))
        except (AttributeError, ValueError, OSError):
            continue  # this system lacks the limit but may have the others
    # The program becomes the main module, as if it ran alone; this module is no longer reachable by name.
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    watch(here)
    try:
        exec(compile(order["program"], "program.py", "exec"), module.__dict__)  # noqa: S102 -- running the program is the purpose
        verdict = "passed"
    except BaseException:  # any exception means that the program failed
        verdict = "failed"
    os.write(out, f"{word} {verdict}".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
