"""NVFLARE as a transport: our frames as bytes, in jobs that hold configuration and no code.

`Flare` is the engine of a library call. It submits a job that names `Lead`, which runs our loop in
a process of NVFLARE's server, and `SiteExecutor`, which has the site's agent answer there.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, cast

from nvflare.apis.controller_spec import Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import ReturnCode, Shareable
from nvflare.apis.signal import Signal
from nvflare.widgets.info_collector import InfoCollector

from localpower.api import svd
from localpower.core.errors import EngineError, WorkerLate, WorkerLost
from localpower.core.ledger import Record
from localpower.engines.base import Engine
from localpower.federation.agent import SiteAgent
from localpower.federation.engine import SITES, Federation
from localpower.federation.flare_calls import Call, relive, write_outcome
from localpower.federation.flare_kits import FOLDER, TASK, setting
from localpower.federation.identity import FederationFile
from localpower.federation.link import Link
from localpower.federation.messages import Refusal, to_frame
from localpower.result import Result
from localpower.run import Run
from localpower.worker.shard import OpenBlock, Shard
from localpower.worker.tasks import R
from localpower.worker.tasks import Task as WorkerTask

FRAME = "frame"
RECENT = 1000  # rounds that a lead tells of
LOOK = 0.5  # seconds between two looks at whether the job was ended
GRACE = 10.0  # seconds for the process that submitted a job to end it
LATENCY, BANDWIDTH = 0.03, 1e7  # of a hop, in seconds; bytes a second


class FlareLink(Link):
    """Brings frames to the sites of a job, from inside of its controller.

    Nothing of NVFLARE's serialisation is used: a frame is one value of type ``bytes``.
    """

    def __init__(self, controller: Controller, context: FLContext, ended: Signal) -> None:
        self._controller, self._context, self._ended = controller, context, ended
        self.names = tuple(sorted(site.name for site in context.get_engine().get_clients()))

    def ask(
        self, frame: bytes, sites: Sequence[str], deadline: float | None
    ) -> Iterator[tuple[str, bytes]]:
        """Broadcast a task, and yield replies as they come."""
        replies: SimpleQueue[tuple[str, Shareable]] = SimpleQueue()

        def received(client_task: Any, fl_ctx: FLContext) -> None:
            replies.put((client_task.client.name, client_task.result))
            client_task.result = None

        task = Task(TASK, Shareable({FRAME: frame}), result_received_cb=received)
        self._controller.broadcast(task, self._context, list(sites), min_responses=len(sites))
        try:
            yield from self._replies(replies, set(sites), deadline)
        finally:
            self._controller.cancel_task(task)

    def _replies(
        self, replies: SimpleQueue[tuple[str, Shareable]], due: set[str], deadline: float | None
    ) -> Iterator[tuple[str, bytes]]:
        end = math.inf if deadline is None else time.monotonic() + deadline
        lost = {}
        while due:
            if self._ended.triggered:
                raise EngineError("the job was ended: submit it again")
            try:
                site, reply = replies.get(timeout=max(0.0, min(LOOK, end - time.monotonic())))
            except Empty:
                if time.monotonic() < end:
                    continue
                late = ", ".join(sorted(due))
                raise WorkerLate(f"no answer within {deadline:g} s from {late}") from None
            due.discard(site)
            content = reply.get(FRAME)
            if reply.get_return_code() == ReturnCode.OK and isinstance(content, bytes):
                yield site, content
            else:
                lost[site] = reply.get_return_code()
        if lost:
            raise WorkerLost(f"no answer came from {lost}: the logs of these sites say why")

    def close(self) -> None:
        """Leave everything to NVFLARE, which ends the job."""


class Lead(Controller):  # type: ignore[misc]
    """Runs our loop inside of NVFLARE's server, and writes the model where it is downloaded.

    Parameters
    ----------
    asked
        What `Call.text` wrote: JSON, with arguments of `svd`.
    """

    def __init__(self, asked: str) -> None:
        super().__init__()
        self._call = Call.read(asked)
        self._records: deque[dict[str, Any]] = deque(maxlen=RECENT)

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is to be started."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is to be stopped."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Tell of the last rounds, if that is asked."""
        super().handle_event(event_type, fl_ctx)
        if event_type == InfoCollector.EVENT_TYPE_GET_STATS:
            collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR)
            collector.add_info(FOLDER, {"records": list(self._records)})

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Fit a model with all sites of the job."""
        run = fl_ctx.get_workspace().get_run_dir(fl_ctx.get_job_id())
        folder, failed = Path(run, FOLDER), None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self._fit(FlareLink(self, fl_ctx, abort_signal), folder)
            except Exception as error:
                failed = error
        write_outcome(folder, failed, caught)
        if failed is not None:
            self.log_exception(fl_ctx, "the run failed")
            self.system_panic(f"{type(failed).__name__}: {failed}", fl_ctx)

    def _fit(self, link: FlareLink, folder: Path) -> None:
        call = self._call
        with Federation(link, secure=call.secure, bits=call.bits) as engine:
            engine.latency, engine.bandwidth = LATENCY, BANDWIDTH
            engine.deadline = call.deadline
            found = svd(SITES, engine=engine, callback=self._note, progress=False, **call.options)
        found.save(folder / "model")

    def _note(self, record: Record, state: Any) -> None:
        self._records.append(asdict(record))


class SiteExecutor(Executor):  # type: ignore[misc]
    """Has the agent of this site answer, by the site's own policy; a job has no say in it."""

    def __init__(self) -> None:
        super().__init__()
        self._agent: SiteAgent | None = None

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Answer one frame."""
        frame = shareable.get(FRAME)
        try:
            if self._agent is None:
                self._agent = SiteAgent.open(self._policy(fl_ctx))
        except Exception:
            self.log_exception(fl_ctx, "the agent of this site cannot be opened")
            why = "its policy or its data cannot be opened: the log of the site says why"
            return Shareable({FRAME: to_frame(Refusal(fl_ctx.get_identity_name(), why))})
        return Shareable({FRAME: self._agent.answer(frame if isinstance(frame, bytes) else b"")})

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Give the journal back when the job ends."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.END_RUN and self._agent is not None:
            self._agent.close()
            self._agent = None

    def _policy(self, fl_ctx: FLContext) -> Path:
        return setting(fl_ctx.get_workspace().get_site_config_dir(), "policy")


class Flare(Engine):
    """What ``engine="flare:KIT"`` means: fits a model in a job at the server of an NVFLARE project.

    Parameters
    ----------
    address
        ``flare:`` and the folder of the kit of somebody who may submit jobs. Its
        ``local/localpower.json`` names the file of the federation, which names the sites.
    """

    only_sums = True
    latency, bandwidth = LATENCY, BANDWIDTH

    def __init__(self, address: str) -> None:
        self.kit = Path(address.partition(":")[2])
        if not (self.kit / "startup" / "fed_admin.json").is_file():
            raise ValueError(
                f"engine={address!r}: {self.kit} is not the kit of somebody who may submit jobs; "
                "give the folder that holds startup/fed_admin.json"
            )
        self.federation = FederationFile.read(setting(self.kit / "local", "federation"))

    @property
    def size(self) -> int:
        """How many sites the federation has."""
        return len(self.federation.sites)

    def takes(self, data: Any) -> bool:
        """Tell the word for what the sites hold."""
        return isinstance(data, str) and data == SITES

    def run_on_coordinator(self, run: Callable[[], R], data: Any, open_block: OpenBlock) -> R:
        """Have the run done by a `Lead`, and fetch its result."""
        assert isinstance(run, Run)
        if not self.takes(data):
            raise ValueError(
                f"data= is a {type(data).__name__}, and rows stay at the sites of a federation: "
                f"give {SITES!r} as data"
            )
        call = Call.of(run.asked, self.federation.secure_sum, self.federation.answer)
        watch = Watch(run)
        with tempfile.TemporaryDirectory() as scratch:
            folder = self._job(call, Path(scratch), watch)
            relive(folder)
            found = Result.load(folder / "model")
        watch.rounds(found.history)
        about = {"engine": "flare", "call": run.asked.call({})}
        return cast(R, replace(found, run=dict(found.run) | about))

    def _job(self, call: Call, scratch: Path, watch: Watch) -> Path:
        """Run a job from a process of its own; return the folder of what it wrote."""
        asked = {
            "kit": str(self.kit.resolve()),
            "scratch": str(scratch),
            "sites": list(self.federation.sites),
            "patience": self.federation.wait,
            "lead": call.text(),
        }
        with (
            open(scratch / "log.txt", "wb") as log,
            subprocess.Popen(
                [sys.executable, "-m", "localpower.federation.flare_session"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            ) as process,
            ended(process),
        ):  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError), process.stdin:  # what it says is told below
                process.stdin.write(json.dumps(asked).encode())
            for line in process.stdout:
                told = json.loads(line) if line.strip() else {}
                if "stage" in told:
                    watch.display.stage(told["stage"])
                elif "records" in told:
                    watch.rounds([Record(**record) for record in told["records"]])
                elif "folder" in told:
                    return Path(told["folder"])
                elif "error" in told:
                    raise EngineError(told["error"])
        tail = (scratch / "log.txt").read_text(errors="replace")[-2000:]
        raise EngineError(f"the process that submits jobs to NVFLARE ended: {tail}")

    def place(self, shards: Sequence[Shard]) -> NoReturn:
        """Say that there is nothing to place."""
        raise EngineError(
            "the sites of an NVFLARE project are asked in jobs, not from here: call localpower.svd "
            "or localpower.pca with this engine"
        )

    def map(self, task: WorkerTask[R], order: Iterable[int] | None = None) -> NoReturn:
        """Say that nothing can be asked from here."""
        self.place(())


class Watch:
    """Shows the rounds of a run that is somewhere else, and has the callback see them."""

    def __init__(self, run: Run) -> None:
        self.display, self._callback = run.display, run.asked.callback
        self._history: list[Record] = []

    def rounds(self, records: Sequence[Record]) -> None:
        """Take note of the last rounds."""
        last = self._history[-1].round if self._history else 0
        new = [record for record in records if record.round > last]
        self._history += new
        self.display.round(self._history)
        no_state: Any = None  # it stays where the run is
        for record in new:
            if self._callback is not None and self._callback(record, no_state):
                raise EngineError(
                    "callback= wants to end the run, and a job goes on to its own end: give "
                    "max_rounds= or budget= instead"
                )


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process in any case; it ends its job first, if it has one."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
