"""Start-up kits of an NVFLARE project whose sites run our classes, and no code that is sent."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from localpower.core.errors import EngineError, MissingExtra

LEAD = "lead@localpower.org"  # who submits jobs
PROJECT = "localpower"
FOLDER = "localpower"  # of what a job writes
TASK = "ask"
SITE_CLASS = "localpower.federation.flare.SiteExecutor"
SERVER_CLASS = "localpower.federation.flare.Lead"
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?")
SETTINGS = "localpower.json"  # in the folder `local` of a kit: where our own files are
STREAMER = "site_log_streamer"  # sends a site's log of errors to the server
RIGHTS = {
    "submit_job": "any",
    "clone_job": "none",
    "manage_job": "n:submitter",
    "download_job": "n:submitter",
    "view": "any",
    "operate": "o:site",
    "shell_commands": "none",
    "byoc": "none",
    "server-predeployed-flwr": "none",
}


def make_kits(
    folder: str | Path, sites: Sequence[str], host: str = "localhost", port: int = 8002
) -> dict[str, Path]:
    """Provision an NVFLARE project, and close everything that our jobs do not need.

    Every kit allows one class of ours in jobs and nothing else, nobody may send code or run shell
    commands, sites do not send their logs, and the server keeps jobs in its own kit. A site's kit
    knows the policy beside it, the lead's kit the file of the federation beside it.

    Parameters
    ----------
    folder
        Of the federation, as ``localpower federation init`` makes it. ``server`` and ``lead`` in it
        are new, and ``kit`` in the folder of every site.
    sites
        Names of the sites, as their policies have them.
    host, port
        Where sites and the lead reach the server.

    Returns
    -------
    dict
        The kit of ``"server"``, of ``"lead"``, and of every site by its name.
    """
    folder = Path(folder)
    kits = {"server": folder / "server", "lead": folder / "lead"}
    kits |= {site: folder / site / "kit" for site in sites}
    _check(sites, host, list(kits.values()))
    people = {"server": host, "lead": LEAD} | {site: site for site in sites}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = _provision(Path(scratch), sites, host, port)
        for who, kit in kits.items():
            kit.parent.mkdir(exist_ok=True)
            (made / people[who]).rename(kit)
    for who, kit in kits.items():
        local = kit / "local"
        if who == "lead":
            _write(local / SETTINGS, {"federation": "../../federation.toml"})
            continue
        if who != "server":
            _write(local / SETTINGS, {"policy": "../../policy.toml"})
        _close(local, SERVER_CLASS if who == "server" else SITE_CLASS)
    return kits


def command_of(kit: str | Path) -> list[str]:
    """What starts the server or the site of a kit, without the endless restart of its script.

    A server keeps its jobs in the kit, wherever that is by now.
    """
    kit = Path(kit).resolve()
    if not (kit / "startup" / "sub_start.sh").is_file():
        raise ValueError(
            f"kit='{kit}' is not the kit of a server or of a site: give a folder that holds "
            "startup/sub_start.sh, as FOLDER/server or FOLDER/north/kit"
        )
    side = "server" if (kit / "startup" / "fed_server.json").exists() else "client"
    if side == "server":
        _keep_jobs(kit)
    module = f"nvflare.private.fed.app.{side}.{side}_train"
    script = (kit / "startup" / "sub_start.sh").read_text()
    told = re.findall(r"\b(?:uid|org)=[^\s\"']+", script)
    wanted = ["secure_train=true", "config_folder=config", *dict.fromkeys(told)]
    start = [sys.executable, "-u", "-m", module, "-m", str(kit), "-s", f"fed_{side}.json"]
    return [*start, "--set", *wanted]


def serve(kit: str | Path) -> None:
    """Run the server or the site of a kit until it ends, or this process is told to.

    Jobs are processes in sessions of their own, which outlive whoever started them: they are ended,
    too.
    """
    try:
        import psutil  # type: ignore[import-untyped] # which NVFLARE brings
    except ImportError as error:
        raise MissingExtra("a process of NVFLARE", "flare") from error
    with psutil.Popen(command_of(kit), start_new_session=True) as process:
        try:
            status = process.wait()
        finally:
            with suppress(psutil.NoSuchProcess):
                for each in [*process.children(recursive=True), process]:
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
    if status:
        raise EngineError(f"{kit} ended with status {status}; log.txt in it may say why")


def setting(local: str | Path, name: str) -> Path:
    """The path of this name that the owner of a kit has written into its ``local`` folder."""
    path = Path(local) / SETTINGS
    try:
        return path.parent / str(json.loads(path.read_text())[name])
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path} must hold the path of the {name}, relative to its folder, as "
            f'{{"{name}": "../../{name}.toml"}}'
        ) from None


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def _check(sites: Sequence[str], host: str, kits: Sequence[Path]) -> None:
    reserved = {"server", "lead", host}
    bad = [site for site in sites if not NAME.fullmatch(site) or site in reserved]
    if bad or not sites or len(set(sites)) < len(sites):
        raise ValueError(
            f"sites={list(sites)!r} must be names of their own, made of letters, digits and -, "
            f"and none of {', '.join(sorted(reserved))}"
        )
    for kit in kits:
        if kit.exists():
            raise FileExistsError(f"{kit} is there already: remove it, or take another folder")


def _provision(folder: Path, sites: Sequence[str], host: str, port: int) -> Path:
    """Run NVFLARE's own tool; return the folder of the kits that it made."""
    builder = "nvflare.lighter.impl"
    project = {
        "api_version": 3,
        "name": PROJECT,
        "participants": [
            {"name": host, "type": "server", "org": "lead", "fed_learn_port": port},
            *({"name": site, "type": "client", "org": site.replace("-", "_")} for site in sites),
            {"name": LEAD, "type": "admin", "org": "lead", "role": "lead"},
        ],
        "builders": [
            {"path": f"{builder}.workspace.WorkspaceBuilder"},
            {
                "path": f"{builder}.static_file.StaticFileBuilder",
                "args": {"config_folder": "config"},
            },
            {"path": f"{builder}.cert.CertBuilder"},
            {"path": f"{builder}.signature.SignatureBuilder"},
        ],
    }
    (folder / "project.yml").write_text(json.dumps(project))  # JSON is YAML
    tool = [sys.executable, "-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "made"]
    done = subprocess.run([*tool, "--force"], cwd=folder, capture_output=True, text=True)
    made = folder / "made" / PROJECT / "prod_00"
    if "No module named 'nvflare'" in done.stderr:
        raise MissingExtra("a kit for NVFLARE", "flare")
    if done.returncode or not made.is_dir():
        raise EngineError(f"nvflare provision failed: {(done.stderr or done.stdout).strip()}")
    return made


def _close(local: Path, allowed: str) -> None:
    """Write what a server or a site allows, beside the defaults that came with its kit."""
    resources: dict[str, Any] = json.loads((local / "resources.json.default").read_text())
    resources |= {"class_allow_list": [allowed], "class_list_enforcement_mode": "enforce"}
    resources["components"] = [part for part in resources["components"] if part["id"] != STREAMER]
    _write(local / "resources.json", resources)
    nothing = dict.fromkeys(RIGHTS, "none") | {"view": "any"}
    rights = {"project_admin": RIGHTS, "lead": RIGHTS, "org_admin": nothing, "member": nothing}
    authorization = {"format_version": "1.0", "permissions": rights}
    _write(local / "authorization.json", authorization)


def _keep_jobs(kit: Path) -> None:
    """Have a server keep jobs in its kit instead of in /tmp; NVFLARE takes absolute paths only."""
    path = kit / "local" / "resources.json"
    resources: dict[str, Any] = json.loads(path.read_text())
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit / "snapshots")
    for part in resources["components"]:
        if part["id"] == "job_manager":
            part["args"]["uri_root"] = str(kit / "jobs")
    _write(path, resources)
