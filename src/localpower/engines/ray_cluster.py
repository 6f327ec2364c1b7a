"""Being part of a Ray cluster: one that is there, or a local one that we start and end.

A cluster of our own listens on loopback only, leaves the user's environment, signals and home as
they are, and ends with its last engine or with this process.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import ray

from localpower.core.errors import EngineError
from localpower.engines.signals import end, leave, on_termination, undisturbed

LONGEST = 27  # characters of a folder in which paths of Ray's sockets are short enough
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
CONSTANTS = {"ENABLE_RAY_CLUSTER": False, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": False}
QUIET: Any = dict.fromkeys(["include_dashboard", "log_to_driver", "configure_logging"], False)

_lock = threading.RLock()
_ours = ExitStack()  # ends our cluster
_node, _users = "", 0  # where that is, and how many engines use it


def node() -> str:
    """Name the node that this process is connected to: another one in every cluster."""
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def alive() -> bool:
    """Whether the cluster that this process is connected to has a node left."""
    nodes: Any = ray.nodes
    return any(node["Alive"] for node in nodes())


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a cluster, and leave it running."""
    if ray.is_initialized():
        raise EngineError(
            "this process is connected to a Ray cluster already; engine='ray' works on that one, "
            "or call ray.shutdown() first"
        )
    try:
        ray.init(address)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        raise EngineError(f"{address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def at_hand(size: int) -> Iterator[None]:
    """Use the cluster that this process is connected to; if there is none, start a local one."""
    global _node, _users
    with _lock:
        if not ray.is_initialized():
            _ours.close()
            _node, _users = _ours.enter_context(_local(size)), 0
        mine = node()
        _users += mine == _node
    try:
        yield
    finally:
        with _lock:
            _users -= mine == _node
            if mine == _node and not _users:
                _node = ""
                _ours.close()


@contextmanager
def _local(size: int) -> Iterator[str]:
    """Start a cluster of our own on this machine; in the end stop it and remove its files."""
    usual = signal.getsignal(signal.SIGTERM)
    handler = leave if usual is signal.SIG_DFL else usual
    where, short = tempfile.gettempdir(), os.path.join(os.sep, "tmp")
    where = short if len(where) > LONGEST and os.path.isdir(short) else where
    folder = tempfile.mkdtemp(prefix="lp-ray-", dir=where)
    started: list[Any] = []
    mine = ""
    try:
        on_termination(handler)
        with _settings(started):
            ray.init("local", num_cpus=size, _temp_dir=folder, **QUIET)
        on_termination(handler)  # again, as Ray's C++ has set one that prints a stack
        mine = node()
        yield mine
    finally:
        on_termination(usual)
        with undisturbed():
            try:
                if not mine or mine == node():  # else the user has ended it
                    ray.shutdown()
                    for process in started:
                        _end(process)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _settings(started: list[Any]) -> Iterator[None]:
    """Settings for a cluster of our own, while it starts: no file in the home, loopback only.

    The user's variables of the environment are left as they are. Ray has no option for loopback on
    Linux; what it does so on other systems is a constant of its own. Nor has it one for processes
    that signals to this one's group do not reach (it could not end them then, only abort), or for
    leaving SIGTERM alone.
    """
    parts: Any = ray._private
    changes: list[tuple[Any, str, Any]] = [
        *((parts.ray_constants, name, value) for name, value in CONSTANTS.items()),
        (parts.services, "ConsolePopen", _apart(started)),
        (parts.utils, "set_sigterm_handler", lambda handler: None),
    ]
    old = [(part, name, getattr(part, name)) for part, name, _ in changes if hasattr(part, name)]
    usual = {name: os.environ.get(name) for name in (*ENVIRONMENT, "PYTHONBREAKPOINT")}
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        for change in changes:
            setattr(*change)
        yield
    finally:
        for name, before in usual.items():
            os.environ.pop(name, None)
            os.environ.update({} if before is None else {name: before})
        for change in old:
            setattr(*change)


def _apart(started: list[Any]) -> Any:
    """Return what starts processes in sessions of their own, and notes them."""
    usual: Any = ray._private.services.ConsolePopen

    def start(*args: Any, **options: Any) -> Any:
        process = usual.__new__(usual)
        started.append(process)  # before a signal can come
        process.__init__(*args, start_new_session=True, **options)
        return process

    return start


def _end(process: Any) -> None:
    """Kill a process and what it has started."""
    if getattr(process, "pid", None):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        end(process)
