"""NVFLARE as a transport: real servers and sites on loopback, and what a job may carry."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace

import numpy as np
import pandas as pd
import psutil
import pytest

import localpower as lp
from localpower.core.errors import ConvergenceWarning, DataError, EngineError, SiteRefused, warn
from localpower.core.ledger import Record
from localpower.progress import Progress

pytest.importorskip("nvflare")

from localpower.federation.flare import Watch
from localpower.federation.flare_calls import OUTCOME, Call, relive, write_outcome
from localpower.federation.flare_kits import SERVER_CLASS, SITE_CLASS, command_of, make_kits
from localpower.federation.identity import make_federation

SITES = {"north": 400, "south": 150, "west-2": 230}
HOW = {"method": "block_krylov:start=random", "tol": 1e-8, "center": True, "rng": 7}
CODE = Path(lp.__file__).parents[1]
COMMAND = [sys.executable, "-m", "localpower"]


def shards():
    rng = np.random.default_rng(0)
    spread = 0.8 ** np.arange(12)
    return {site: rng.standard_normal((rows, 12)) * spread + 2 for site, rows in SITES.items()}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def write_policies(folder):
    """Three sites with three formats; each says in its own policy where its rows are."""
    for site, rows in shards().items():
        table = pd.DataFrame(rows, columns=[f"x{i}" for i in range(12)])
        kind = {"north": "csv", "south": "parquet", "west-2": "npy"}[site]
        path = folder / site / f"rows.{kind}"
        if kind == "csv":
            table.to_csv(path, index=False, float_format="%.17g")
        elif kind == "parquet":
            table.to_parquet(path)
        else:
            np.save(path, rows)
        policy = folder / site / "policy.toml"
        policy.write_text(policy.read_text().replace('data = ""', f'data = "rows.{kind}"'))


class Federation:
    """The processes of an NVFLARE project, and what was started by them."""

    def __init__(self, folder, kits):
        self.folder, self.kits, self.started = folder, kits, []

    def start(self, who):
        environment = dict(os.environ, PYTHONPATH=str(CODE), OMP_NUM_THREADS="1")
        environment["PYTHONWARNINGS"] = "default"  # NVFLARE's own are its own
        with open(self.folder / f"{who}.log", "wb") as log:
            self.started.append(
                psutil.Popen(
                    [*COMMAND, "federation", "start", self.kits[who]],
                    env=environment,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                )
            )

    def wait_for(self, port):
        while True:
            assert self.started[0].poll() is None, (self.folder / "server.log").read_text()
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)

    def processes(self):
        parents = [each for each in self.started if each.is_running()]
        return [*parents, *(child for each in parents for child in each.children(recursive=True))]

    def listening(self):
        every = (found for each in self.processes() for found in each.net_connections("tcp"))
        return {found.laddr for found in every if found.status == psutil.CONN_LISTEN}

    def stop(self):
        ended = self.processes()
        for each in self.started:
            each.terminate()
        left = psutil.wait_procs(ended, 20)[1]
        for each in left:  # whatever it is, it does not outlive the tests
            each.kill()
        assert not left

    def submit(self, change):
        """Submit a job from a process of its own, after a `change` of what is submitted."""
        asked = {
            "kit": str(self.kits["lead"]),
            "scratch": mkdtemp(dir=self.folder),
            "sites": list(SITES),
            "patience": 120,
            "lead": Call({"rank": 2, "method": "gram", "rng": 0}).text(),
        }
        done = subprocess.run(
            [sys.executable, "-c", f"{SESSION}{change}\nsession.main()"],
            input=json.dumps(asked),
            env=dict(os.environ, PYTHONPATH=str(CODE)),
            capture_output=True,
            text=True,
            timeout=120,
        )
        told = json.loads([line for line in done.stdout.splitlines() if line][-1])
        if "folder" not in told:
            return told["error"]
        return json.loads(Path(told["folder"], OUTCOME).read_text())["error"][1]

    def log(self, who):
        return (self.folder / f"{who}.log").read_text()


SESSION = "import localpower.federation.flare_session as session\n"


def allow_code(local):
    """Have a server let everything pass, several jobs at once: sites look after themselves."""

    def resources(told):
        (scheduler,) = [part for part in told["components"] if part["id"] == "job_scheduler"]
        scheduler["args"]["max_jobs"] = 3
        told["class_allow_list"] = ["*"]

    for name, change in (
        ("authorization.json", lambda told: told["permissions"]["lead"].update(byoc="any")),
        ("resources.json", resources),
    ):
        told = json.loads((local / name).read_text())
        change(told)
        (local / name).write_text(json.dumps(told))


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    folder, port = tmp_path_factory.mktemp("flare"), free_port()
    make_federation(folder, list(SITES))
    write_policies(folder)
    done = subprocess.run(
        [*COMMAND, "federation", "flare", folder, "--port", str(port)],
        env=dict(os.environ, PYTHONPATH=str(CODE)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"localpower federation start {folder / 'server'}" in done.stdout
    kits = {"server": folder / "server", "lead": folder / "lead"}
    running = Federation(folder, kits | {site: folder / site / "kit" for site in SITES})
    allow_code(folder / "server" / "local")
    try:
        running.start("server")
        running.wait_for(port)
        for site in SITES:
            running.start(site)
        yield running
    finally:
        running.stop()


CLASS = "session.SITE_CLASS = 'localpower.federation.journal.Journal'"
SHIPS = """
plain = session.write_job
def write_job(folder, *rest):
    plain(folder, *rest)
    (folder / "app" / "custom").mkdir()
    (folder / "app" / "custom" / "own.py").write_text("own = 1")
    return folder
session.write_job = write_job
"""


@pytest.fixture(scope="session")
def foreign(federation):
    """Errors of jobs that no site may run, which are under way while others are."""
    with ThreadPoolExecutor(2) as pool:
        yield [pool.submit(federation.submit, change) for change in (CLASS, SHIPS)]


@pytest.mark.usefixtures("foreign")
def test_a_fit_has_the_bits_of_a_sum_in_one_process(federation):
    engine, seen = f"flare:{federation.kits['lead']}", []
    found = lp.svd("sites", 3, engine=engine, callback=lambda r, _: seen.append(r), **HOW)
    here = lp.svd(list(shards().values()), 3, engine="ring", **HOW)
    assert found.converged
    for name in ("components", "singular_values", "mean", "explained_variance", "basis"):
        np.testing.assert_array_equal(getattr(found, name), getattr(here, name), err_msg=name)
    for name, known in asdict(here.certificate).items():
        np.testing.assert_array_equal(getattr(found.certificate, name), known, err_msg=name)
    assert found.run["engine"] == "flare"
    told = {**HOW, "engine": engine}
    for name, value in told.items():
        assert f"{name}={value!r}" in found.run["call"]
    assert seen == list(found.history)
    listening = federation.listening()
    assert len(listening) >= 4
    assert {address.ip for address in listening} <= {"127.0.0.1", "::1"}


def test_a_class_that_is_not_listed_is_refused(federation, foreign):
    assert "ended" in foreign[0].result()
    logs = "".join(federation.log(site) for site in SITES)
    assert "'localpower.federation.journal.Journal'" in logs
    assert "is not in allow_list" in logs


def test_a_job_that_ships_code_is_refused(foreign):
    error = foreign[1].result()
    for site in SITES:
        assert f"{site}: NVFLARE_ERROR: BYOC not permitted" in error
    assert "server: OK" in error


def test_what_a_site_refuses_is_raised_here(federation):
    policy = federation.folder / "south" / "policy.toml"
    before = policy.read_text()
    policy.write_text(before.replace("min_rows = 100", "min_rows = 100000"))
    try:
        with pytest.raises(SiteRefused, match=r"site south refused.*min_rows"):
            lp.svd("sites", 3, engine=f"flare:{federation.kits['lead']}", **HOW)
    finally:
        policy.write_text(before)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kits")
    path = make_federation(folder, list(SITES))
    path.write_text(path.read_text().replace("wait = 120", "wait = 1"))
    kits = make_kits(folder, list(SITES), port=free_port())
    return folder, {who: kit.relative_to(folder) for who, kit in kits.items()}


@pytest.fixture
def kits(made, tmp_path):
    """Kits of a federation whose processes do not run."""
    folder, names = made
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return {who: tmp_path / name for who, name in names.items()}


def test_kits_allow_one_class_and_no_code_and_send_no_logs(kits):
    for who, kit in kits.items():
        if who == "lead":
            continue
        resources = json.loads((kit / "local" / "resources.json").read_text())
        allowed = SERVER_CLASS if who == "server" else SITE_CLASS
        assert resources["class_allow_list"] == [allowed]
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert "site_log_streamer" not in [part["id"] for part in resources["components"]]
        rights = json.loads((kit / "local" / "authorization.json").read_text())["permissions"]
        assert {role["byoc"] for role in rights.values()} == {"none"}
        assert {role["shell_commands"] for role in rights.values()} == {"none"}
    module, _ = SITE_CLASS.rsplit(".", 1)
    assert module == SERVER_CLASS.rsplit(".", 1)[0] == "localpower.federation.flare"


def test_a_server_keeps_its_jobs_in_its_kit(kits, tmp_path):
    moved = kits["server"].rename(tmp_path / "elsewhere")
    assert "org=lead" in command_of(moved)
    text = (moved / "local" / "resources.json").read_text()
    assert f'"{moved}/jobs"' in text
    assert f'"{moved}/snapshots"' in text
    assert "/tmp/nvflare" not in text


def test_kits_are_not_written_over_and_names_are_checked(kits, tmp_path):
    with pytest.raises(FileExistsError, match="server is there already"):
        make_kits(tmp_path, list(SITES))
    for names in ([], ["a", "a"], ["server"], ["no_good"], ["../up"]):
        with pytest.raises(ValueError, match="sites="):
            make_kits(tmp_path / "new", names)
    assert not (tmp_path / "new").exists()


def test_errors_name_what_to_do(kits, tmp_path):
    with pytest.raises(ValueError, match=r"startup/fed_admin\.json"):
        lp.svd("sites", 2, engine=f"flare:{tmp_path}")
    engine = f"flare:{kits['lead']}"
    with pytest.raises(ValueError, match="give 'sites' as data"):
        lp.svd(np.eye(3), 2, engine=engine)
    with pytest.raises(EngineError, match="localpower federation start"):  # no server is there
        lp.svd("sites", 2, engine=engine)
    with lp.connect(engine) as opened, pytest.raises(EngineError, match=r"localpower\.svd"):
        opened.measure(again=True)
    with pytest.raises(ValueError, match=r"startup/sub_start\.sh"):
        command_of(kits["lead"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"warm_start": lp.svd(np.eye(3), 1, rng=0)}, "warm_start="),
        ({"rng": np.random.default_rng(0)}, "rng= a whole number"),
        ({"rank": min}, "rank="),
        ({"workers": 3}, "workers="),
        ({"return_u": True}, "return_u"),
        ({"method": "tsqr"}, "tsqr"),
    ],
)
def test_what_cannot_travel_is_refused_before_a_job_is_submitted(kits, given, said):
    with pytest.raises((ValueError, EngineError), match=said):
        lp.svd("sites", **({"rank": 2, "rng": 0, "engine": f"flare:{kits['lead']}"} | given))


def test_a_callback_sees_each_round_once_and_cannot_end_a_job():
    seen = []
    asked = SimpleNamespace(callback=lambda record, _: seen.append(record.round) or len(seen) == 2)
    watch = Watch(SimpleNamespace(display=Progress(False), asked=asked))
    one, two = (Record(number, 1, 0, 0, 0.0) for number in (1, 2))
    watch.rounds([one])
    watch.rounds([one])
    with pytest.raises(EngineError, match="max_rounds"):
        watch.rounds([one, two])
    assert seen == [1, 2]


def test_a_call_is_plain_data_there_and_back():
    options = {"rank": 0.9, "method": "dpi", "budget": lp.Budget(bytes=1e6), "rng": 1}
    plain = Call({"rank": 0.9, "method": "dpi", "rng": 1,
                  "budget": {"Budget": {"bytes": 1e6, "seconds": None}}})  # fmt: skip
    assert Call.read(plain.text()) == Call(options)
    for strange in ({"callback": 1}, {"checkpoint": "x"}, {"data": "rows.csv"}, {"engine": "ray"}):
        with pytest.raises(ValueError, match="cannot give"):
            Call.read(Call(strange).text())
    with pytest.raises(KeyError):
        Call.read(Call({"budget": {"Checkpoint": {"path": "x"}}}).text())


@pytest.mark.parametrize("error", [SiteRefused("no"), DataError("bad row"), ValueError("k=9")])
def test_errors_come_home_as_they_were(tmp_path, error):
    write_outcome(tmp_path / "out", error, [])
    with pytest.raises(type(error), match=str(error)):
        relive(tmp_path / "out")


def test_other_errors_and_warnings_come_home(tmp_path):
    write_outcome(tmp_path / "out", ZeroDivisionError("by 0"), [])
    with pytest.raises(EngineError, match="ZeroDivisionError: by 0"):
        relive(tmp_path / "out")
    with warnings.catch_warnings(record=True, action="always") as caught:
        warn("take more rounds", ConvergenceWarning)
        warn("of somebody else", DeprecationWarning)
    write_outcome(tmp_path / "out", None, caught)
    with pytest.warns(ConvergenceWarning, match="take more rounds"):
        relive(tmp_path / "out")


def test_an_interrupt_ends_what_was_started(kits, tmp_path):
    text = kits["lead"].parent / "federation.toml"
    text.write_text(text.read_text().replace("wait = 1", "wait = 1000"))
    script = f"import localpower as lp; lp.svd('sites', 2, engine='flare:{kits['lead']}')"
    environment = dict(os.environ, PYTHONPATH=str(CODE), TMPDIR=str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    with psutil.Popen(
        [sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE
    ) as process:
        while not (children := process.children()):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.stderr.read()
    assert process.returncode
    assert not psutil.wait_procs(children, 20)[1]
    assert not any((tmp_path / "scratch").iterdir())
