"""The commands ``federation flare`` and ``federation start``: kits of NVFLARE, and their use."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from localpower.cli.options import add_command
from localpower.federation.flare_kits import make_kits, serve


def flare(options: argparse.Namespace) -> None:
    """``localpower federation flare``."""
    from localpower.federation.identity import FederationFile

    folder = Path(options.folder)
    sites = list(FederationFile.read(folder).sites)
    kits = make_kits(folder, sites, options.host, options.port)
    print(f"1. bring each site its own folder ({', '.join(str(kits[s].parent) for s in sites)})")
    print(f"2. here, run: localpower federation start {kits['server']}")
    print("3. each site writes data = into its policy.toml, then runs: localpower federation start "
          f"{sites[0]}/kit")  # fmt: skip
    print(f"4. here, run: localpower fit --engine flare:{kits['lead']} -k 5 --center -o model")


def start(options: argparse.Namespace) -> None:
    """``localpower federation start``."""
    serve(options.kit)


def add_flare(actions: Any) -> None:
    """Add both."""
    command = add_command(
        actions,
        "flare",
        flare,
        "make NVFLARE start-up kits for the sites of a federation",
        "federation flare FOLDER --host server.example.org",
    )
    add = command.add_argument
    add("folder", metavar="FOLDER", help="folder that federation init made")
    add(
        "--host",
        default="localhost",
        metavar="NAME",
        help="host name of NVFLARE's server (localhost, this machine only)",
    )
    add("--port", type=int, default=8002, metavar="N", help="port on which it listens (8002)")
    command = add_command(
        actions,
        "start",
        start,
        "run the server or site of such a kit until Ctrl-C",
        "federation start FOLDER/server",
    )
    command.add_argument("kit", metavar="KIT", help="folder of the kit")
