"""A Spark session: the user's own, or one that is started here and ended with its Java process."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, TypeVar, cast
from uuid import uuid4

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from localpower.core.errors import EngineError, WorkerFailed, WorkerLost
from localpower.core.machine import available, cores
from localpower.engines.cluster import ClusterEngine, late, lost
from localpower.engines.registry import endpoints
from localpower.engines.signals import end, to_its_end
from localpower.version import __version__

R = TypeVar("R")
REACH = 5.0  # seconds that a master may take to accept a connection
MISSING = re.compile(r"No module named '(?:numpy|scipy|threadpoolctl|localpower[\w.]*)'")
LOST = ("exited unexpectedly", "ExecutorLost", "connect back", "shut down", "FetchFailed")
QUIET = {"spark.ui.enabled": "false", "spark.log.level": "OFF"}
LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",
    "spark.driver.maxResultSize": "0",
}
JAVA_FRAMES = re.compile(
    r"^\s+at .*\n?|^\s*\.\.\. \d+ more\n?|^Driver stacktrace:\n?"
    r"|^[\w.$/<>]+\((?:Native Method|Unknown Source|\w+\.(?:java|scala):\d+)\)\n?",
    re.M,
)


class SparkJobs(ClusterEngine):
    """The part of the engine that knows the session: the user's, one on a master, or our own.

    `_ours` tells whether it was started here.
    """

    def __init__(self, address: Any = None, size: int | None = None) -> None:
        super().__init__()
        self._address, self._wanted, self._ours = address, size, False
        self._context: Any = None
        self._gateway: Any = None  # to a Java process of our own
        self._connect()

    def _connect(self) -> None:
        """Use what was given or is open in this process already; else start Spark."""
        if self._context is not None and self._context._jsc is not None:
            return
        mine = self._address is None or isinstance(self._address, str)
        open_here = SparkContext._active_spark_context
        context = open_here if mine else getattr(self._address, "sparkContext", self._address)
        self._ours = context is None
        if context is None:
            context = self._start()
        elif not hasattr(context, "_jsc"):
            raise EngineError("Spark Connect has no RDDs; give a classic session, or a master")
        elif context._jsc is None:
            raise EngineError("this Spark session was stopped: open another one")
        elif mine and self._address not in (None, context.master):
            raise EngineError(
                f"this process has a Spark session on {context.master} open, and may have only "
                f"one: stop it, or give it as engine= instead of {self._address!r}"
            )
        self._context = context
        self._size = self._wanted or self._within(lambda: int(context.defaultParallelism))

    def _start(self) -> SparkContext:
        """Start Spark; its Java process is quiet, and ends with this one at the latest."""
        conf = SparkConf().setAppName("localpower").setAll([*QUIET.items()])
        if self._address is None:
            files = TemporaryDirectory(prefix="localpower-spark-", ignore_cleanup_errors=True)
            folder = self._stack.enter_context(files)
            java = f"-Djava.io.tmpdir={folder}"
            conf.setAll([*LOCAL.items(), ("spark.driver.memory", f"{heap()}m")])
            conf.setAll([("spark.local.dir", folder), ("spark.driver.extraJavaOptions", java)])
        else:
            _reach(self._address)
        conf.setMaster(self._address or f"local[{self._wanted or cores()},4]")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about versions of pandas, which is not used
                if SparkContext._gateway is None:
                    to_its_end(partial(self._launch, conf))
                context = SparkContext(conf=conf, gateway=self._gateway)
        except BaseException as error:
            told = _words(error)  # by Java, while it is there
            self._stack.close()
            if not isinstance(error, Py4JError | PySparkException | OSError):
                raise
            raise EngineError(
                f"Spark did not start ({told}): it needs Java 17 or later, on the PATH or "
                "in JAVA_HOME, and a master that can be reached"
            ) from None
        self._stack.callback(_stop, context)
        if self._address is None:
            context.pythonExec = sys.executable
            paths = [os.path.abspath(path) for path in sys.path]
            context.environment |= {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        return context

    def _launch(self, conf: SparkConf) -> None:
        self._gateway = cast(Any, launch_gateway)(conf, {"stderr": subprocess.DEVNULL})
        self._stack.callback(_end_java, self._gateway)
        _hang_up(self._gateway)

    def _within(self, job: Callable[[], R], seconds: float | None = None) -> R:
        """Run a job; cancel it if it is late, and say what went wrong in our own errors."""
        context, tag, seconds = self._context, f"localpower-{uuid4().hex}", seconds or self.deadline
        done, overdue = Event(), Event()
        if context is None or context._jsc is None:
            raise WorkerLost("the Spark session was stopped: open another one, and run again")

        def watch() -> None:
            wait = seconds
            while not done.wait(wait):
                overdue.set()
                with suppress(Exception):
                    context.cancelJobsWithTag(tag)
                wait = 0.5  # it may have been submitted just after

        try:
            context.addJobTag(tag)
            if seconds:
                InheritableThread(target=watch, daemon=True).start()
            return job()
        except (Py4JError, PySparkException, EOFError, OSError) as error:
            if overdue.is_set():
                raise late("a Spark job was cancelled", seconds) from None
            raise _translated(error, context.master, self._ours) from None
        except (KeyboardInterrupt, SystemExit):
            self._abandon(partial(context.cancelJobsWithTag, tag))
            raise
        finally:
            done.set()
            tell(partial(context.removeJobTag, tag))

    def _abandon(self, cancel: Callable[[], Any]) -> None:
        """Leave a job in its middle, and with it the connection it answers on: end Java if ours."""
        ours = self._gateway is SparkContext._gateway
        if ours and self._gateway is not None:
            self._gateway.proc.kill()
            return
        _hang_up(SparkContext._gateway)
        thread = InheritableThread(target=cancel, daemon=True)
        thread.start()
        thread.join(5)


def heap() -> int:
    """MiB that Java may take: half of what is free, 1024 at least."""
    return max(available() >> 21, 1024)


def tell(ask: Callable[[], Any]) -> None:
    """Ask Java for something that may fail, as it may be gone; a signal leaves no answer behind."""
    try:
        with suppress(Exception):
            ask()
    except (KeyboardInterrupt, SystemExit):
        _hang_up(SparkContext._gateway)
        raise


def _reach(address: str) -> None:
    """Make sure that a master listens, before Java is started and tries for minutes."""
    reasons = []
    for host, port in endpoints(address, 7077):
        try:
            socket.create_connection((host, port), REACH).close()
            return
        except (OSError, ValueError) as error:  # the latter of a name that cannot be one
            reasons.append(f"{host}:{port}: {error}")
    raise EngineError(
        f"engine={address!r} cannot be reached ({'; '.join(reasons)}): start a master there, or "
        "give the address of one that runs"
    )


def _words(error: BaseException) -> str:
    """Return what Spark says, without the frames of Java."""
    text = ""
    with suppress(Py4JError, OSError):  # where Java is asked for it, and is gone
        text = error._desc if hasattr(error, "_desc") else str(error)
    return JAVA_FRAMES.sub("", text or type(error).__name__).strip()


def _translated(error: BaseException, master: str, ours: bool) -> EngineError:
    text = _words(error)
    if "SparkContext has been shutdown" in text or "stopped SparkContext" in text:
        return EngineError(f"Spark has ended the session on {master}: open another session")
    if missing := MISSING.search(text):
        return EngineError(
            f"Python on the Spark executors cannot import localpower ({missing[0]}): install "
            f"version {__version__} there, and set PYSPARK_PYTHON to that Python before you open "
            "the session"
        )
    if "Traceback (most recent call last)" in text:
        return WorkerFailed(f"a task failed on a Spark executor:\n{text}")
    if any(sign in text for sign in LOST):
        return lost("a Spark worker was lost, also when its task was tried again", text)
    if isinstance(error, PySparkException) or hasattr(error, "java_exception"):
        return EngineError(f"Spark could not finish a job:\n{text}")
    then = "run again" if ours else "start Python anew, and open another session"
    return WorkerLost(f"the Java process of Spark is gone ({text}), and its session: {then}")


def _stop(context: Any) -> None:
    for _ in range(2):  # what a dead Java kept the first from doing
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            context.stop()


def _end_java(gateway: Any) -> None:
    with suppress(Exception):
        gateway.shutdown()
    with suppress(OSError):
        gateway.proc.stdin.close()  # which ends it
    end(gateway.proc, patience=10.0)
    if SparkContext._gateway is gateway:
        SparkContext._gateway = SparkContext._jvm = None


def _hang_up(gateway: Any) -> None:
    """Close this thread's connection to Java, if it keeps one; the next question opens another."""
    if isinstance(gateway, ClientServer):
        connection = gateway._gateway_client.get_thread_connection()
        if connection is not None:
            connection.close()
