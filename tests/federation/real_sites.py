"""A federation of real processes on loopback, whose sites have files of different kinds."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import localpower as lp
from localpower.federation.identity import make_federation

NAMES = ("north", "south", "west")
COUNTS = (300, 450, 700)
SOURCE = str(Path(lp.__file__).parents[1])
PATIENCE = 60.0  # seconds, on a busy machine
COLUMNS = 12


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def is_free(port):
    """Whether nobody listens, and another could."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            return False
    with socket.socket() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind(("127.0.0.1", port))
    return True


def until(true, what="what was waited for"):
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.02)


def parts_of_rows(seed=0):
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((COLUMNS, COLUMNS)))[0]
    scales = 0.6 ** np.arange(COLUMNS)
    return [rng.standard_normal((n, COLUMNS)) * scales @ V.T + 2.0 for n in COUNTS]


def write_rows(folder, parts):
    """CSV in the north, Parquet in the south, NumPy's format in the west."""
    import pandas as pd

    names = [f"c{i}" for i in range(COLUMNS)]
    frames = [pd.DataFrame(part, columns=names) for part in parts]
    frames[0].to_csv(folder / "north" / "rows.csv", index=False, float_format="%.17g")
    frames[1].to_parquet(folder / "south" / "rows.parquet")
    np.save(folder / "west" / "rows.npy", parts[2])
    for name, suffix in zip(NAMES, ("csv", "parquet", "npy"), strict=True):
        change(folder / name / "policy.toml", 'data = ""', f'data = "rows.{suffix}"')


def change(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def localpower(*arguments, **how):
    """Start the command."""
    command = [sys.executable, "-m", "localpower", *map(str, arguments)]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": SOURCE}, text=True, **how)


def told(*arguments, cwd=None):
    """Run the command; its status and all that it printed."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "cwd": cwd}
    process = localpower(*arguments, **how)
    text, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, text


class Sites:
    """The folder of a federation, and the processes of its sites."""

    def __init__(self, folder, names=NAMES):
        self.folder, self.port = Path(folder), free_port()
        self.file = make_federation(self.folder, names, port=self.port)
        self.address = f"sites:{self.file}"
        self.parts = parts_of_rows()
        write_rows(self.folder, self.parts)
        self.processes = {}

    def start(self, *names):
        for name in names:
            policy = self.folder / name / "policy.toml"
            with open(self.folder / f"{name}.log", "a", encoding="utf-8") as log:
                self.processes[name] = localpower(
                    "site", "join", policy, stdout=log, stderr=subprocess.STDOUT
                )

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def kill(self, name):
        process = self.processes.pop(name)
        process.kill()
        process.wait(PATIENCE)

    def stop(self):
        """End all sites as Ctrl-C does; their statuses."""
        for process in self.processes.values():
            process.send_signal(signal.SIGINT)
        try:
            return {name: p.wait(PATIENCE) for name, p in self.processes.items()}
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()
            self.processes.clear()
