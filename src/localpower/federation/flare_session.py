"""One job at an NVFLARE server, from a process of its own: NVFLARE's threads end with that.

Reads what is asked as JSON from standard input, and writes a line of JSON for everything that is
worth telling: ``{"stage": …}`` and ``{"records": …}``, and at the end ``{"folder": …}`` or
``{"error": …}``.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from nvflare.fuel.flare_api.api_spec import AuthenticationError, AuthorizationError, NoConnection
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from localpower.core.errors import EngineError
from localpower.engines.signals import terminable
from localpower.federation.flare_calls import OUTCOME
from localpower.federation.flare_kits import FOLDER, SERVER_CLASS, SITE_CLASS, TASK

SLOW, QUICK = 60.0, 3.0  # seconds that a server may take for what must be known, and what may
SETTLED = 4.0  # seconds until the lead of a job can be asked
POLL = 0.25  # seconds between two looks at a job
INTERVAL = 0.05  # seconds after which a site asks for work again


class Told:
    """Writes what is worth telling, each thing once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._last = stream, ""

    def __call__(self, **what: Any) -> None:
        """Write one line; nothing but a blank if it was the last already."""
        line = json.dumps(what)
        print("" if line == self._last else line, file=self._stream, flush=True)
        self._last = line


def run(asked: dict[str, Any], told: Told) -> None:
    """Submit the job that is asked for, wait for it, and fetch what it wrote."""
    kit, scratch = Path(asked["kit"]), Path(asked["scratch"])
    told(stage="connecting to NVFLARE")
    session, job = opened(kit, asked["patience"]), ""
    try:
        sites = gathered(session, asked["sites"], asked["patience"], told)
        folder = write_job(scratch / "job", sites, asked["lead"])
        told(stage="submitting a job")
        job = session.submit_job(str(folder))
        finished(session, job, told)
        written = fetched(session, job, scratch)
        if not (written / OUTCOME).exists():
            raise EngineError(
                f"NVFLARE ended the job ({why(session, job)}): log.txt in the kits of the server "
                "and of the sites says more"
            )
        job = ""
        told(folder=str(written))
    finally:
        with suppress(Exception):
            if job:
                session.abort_job(job)
            session.close()


def opened(kit: Path, patience: float) -> Session:
    """Open a session as the person whose kit this is."""
    admin = json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]
    try:
        session: Session = new_secure_session(
            admin["username"], str(kit), timeout=patience, command_timeout=SLOW
        )
    except NoConnection:
        raise EngineError(
            f"no NVFLARE server answers at {admin['host']}:{admin['port']}: start it with "
            "'localpower federation start' and the folder of its kit"
        ) from None
    session.api.file_download_progress_timeout = SLOW
    return session


def gathered(session: Session, wanted: Sequence[str], patience: float, told: Told) -> list[str]:
    """Wait for the sites that are to take part; all that are there if none are named."""
    end = time.monotonic() + patience
    while True:
        there = sorted(client.name for client in session.get_system_info().client_info)
        missing = [site for site in wanted or ["any site"] if wanted or not there]
        missing = [site for site in missing if site not in there]
        if not missing:
            return list(wanted) or there
        if time.monotonic() > end:
            raise EngineError(
                f"sites that did not connect within {patience:g} s: {', '.join(missing)}; start "
                "them with 'localpower federation start' and the folders of their kits"
            )
        told(stage=f"waiting for {', '.join(missing)}")
        time.sleep(POLL)


def write_job(folder: Path, sites: Sequence[str], lead: str) -> Path:
    """Write a job: names of classes that sites have, and arguments. There is no code in it."""
    server = {
        "format_version": 2,
        "server": {"task_request_interval": INTERVAL},
        "workflows": [{"id": "lead", "path": SERVER_CLASS, "args": {"asked": lead}}],
    }
    executor = {"tasks": [TASK], "executor": {"path": SITE_CLASS, "args": {}}}
    meta = {
        "name": FOLDER,
        "min_clients": len(sites),
        "mandatory_clients": list(sites),
        "deploy_map": {"app": ["server", *sites]},
    }
    parts = {
        "meta.json": meta,
        "app/config/config_fed_server.json": server,
        "app/config/config_fed_client.json": {"format_version": 2, "executors": [executor]},
    }
    (folder / "app" / "config").mkdir(parents=True)
    for name, content in parts.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def finished(session: Session, job: str, told: Told) -> None:
    """Wait for the end of a job, and tell meanwhile where it stands."""
    began = math.inf
    while True:
        status = str(session.get_job_meta(job)["status"])
        if status.startswith("FINISHED"):
            return
        began = min(began, time.monotonic() if status == "RUNNING" else math.inf)
        records = recent(session, job) if time.monotonic() - began > SETTLED else []
        if records:
            told(records=records)
        else:
            told(stage=f"job {status.lower()}")
        time.sleep(POLL)


def fetched(session: Session, job: str, scratch: Path) -> Path:
    """Download what a job wrote."""
    return Path(session.download_job_result(job, str(scratch))) / "workspace" / FOLDER


def why(session: Session, job: str) -> str:
    """What server and sites said of a job that did not run; they say it after its end."""
    end = time.monotonic() + SETTLED
    while True:
        about = session.get_job_meta(job)
        said = about.get("job_deploy_detail")
        if said or time.monotonic() > end:
            return "; ".join(map(str, [about["status"], *(said or ())]))
        time.sleep(POLL)


def recent(session: Session, job: str) -> list[dict[str, Any]]:
    """The last rounds, as the lead tells."""
    session.set_timeout(QUICK)
    try:
        return list(session.show_stats(job, "server")["server"][FOLDER]["records"])
    except Exception:  # a job that has just begun, or ended, tells nothing
        return []
    finally:
        session.set_timeout(SLOW)


def main() -> None:
    """Do what standard input asks for."""
    told = Told(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # NVFLARE prints
    try:
        with terminable():
            run(json.load(sys.stdin), told)
    except (AuthenticationError, AuthorizationError) as error:
        told(error=f"NVFLARE does not let this kit submit jobs: {error}")
    except NoConnection:
        told(error="the server of NVFLARE is gone: start it again, and then the fit")
    except Exception as error:
        told(error=str(error) or type(error).__name__)


if __name__ == "__main__":
    main()
