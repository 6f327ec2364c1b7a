"""The commands of a federation, as a new user meets them."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from cryptography.hazmat.primitives.serialization import Encoding
from helpers import with_spectrum
from real_sites import NAMES, PATIENCE, SOURCE, Sites, change, until

import localpower as lp
from localpower.cli import main
from localpower.data.blocks import Options
from localpower.federation import identity
from localpower.federation.join import answer_stream
from localpower.federation.outlier import explained_here
from localpower.federation.stream import grpc
from localpower.federation.templates import POLICY

TASKS = POLICY[POLICY.index("tasks = [") : POLICY.index("]", POLICY.index("tasks = [")) + 1]
PRIVATE = "privacy = {epsilon = 1.0, delta = 1e-6, clip = 1.0}"


@pytest.fixture
def run(capsys):
    def command(*arguments):
        status = main(list(map(str, arguments)))
        out, err = capsys.readouterr()
        return status, out, err

    return command


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Sites(tmp_path_factory.mktemp("commands") / "federation")


@pytest.fixture
def north(made, tmp_path):
    """The folder of a site, elsewhere."""
    return shutil.copytree(made.folder / "north", tmp_path / "north")


def test_init_says_what_to_do_next_in_three_lines(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = "federation", "init", "fed", "--site", "north", "--site", "south", "--site", "west"
    status, out, _ = run(*command, "--port", 9000)
    assert status == 0
    first, second, third = out.splitlines()
    assert "fed/north, fed/south, fed/west" in first
    assert "fed/ca.key is secret and stays" in first
    assert "localpower site join north/policy.toml" in second
    assert "localpower fit --engine sites:fed/federation.toml" in third
    assert 'coordinator = "127.0.0.1:9000"' in (tmp_path / "fed/west/policy.toml").read_text()
    status, _, err = run(*command)
    assert status == 1
    assert "is there already" in err


@pytest.mark.parametrize(
    "option", ["--missing=drop", "--columns=a", "--dtype=float32", "--no-header"]
)
def test_fit_takes_no_options_of_reading_as_policies_have_them(run, made, option):
    status, _, err = run("fit", "--engine", made.address, "-k", 2, option)
    assert status == 2
    name = option.removeprefix("--no-").partition("=")[0].removeprefix("--")
    assert f"read their rows as their policies say; leave --{name} out" in err


def test_check_explains_the_policy_and_reads_the_data(run, north):
    status, out, _ = run("site", "check", north / "policy.toml")
    assert status == 0
    assert "Site north" in out
    assert "rows.csv: 300 rows of 12 columns, float64." in out
    assert "it refuses questions for more than 30 columns at once" in out
    assert "It has answered 0 of max_columns = 1000 columns so far" in out
    assert "valid until" in out
    assert "EVERYTHING" not in out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("min_rows = 100", "min_rows = 301", "REFUSED: min_rows = 301, and there are only 300"),
        ("min_sites = 3", "min_sites = 4", "REFUSED: min_sites = 4, and peers has 2 others"),
        ("# privacy", 'missing = "mean"\nprivacy', "REFUSED: missing = 'mean' makes private"),
        ('secure_sum = "required"', f'secure_sum = "off"\n{PRIVATE}', "REFUSED: private runs have"),
        (TASKS, f'{PRIVATE}\ntasks = ["Sums"]', "REFUSED: of its tasks, private runs ask for none"),
        (
            'sum = "required"',
            'sum = "off"',
            "runs without masks ask for Describe and Triangle; add",
        ),
        (TASKS, 'tasks = ["NoisedGram"]', "REFUSED: of its tasks, private runs ask for none"),
    ],
)
def test_check_says_what_makes_everything_be_refused(run, north, old, new, said):
    change(north / "policy.toml", old, new)
    status, _, err = run("site", "check", north / "policy.toml")
    assert status == 1  # `check && join` ends here
    assert said in err


def test_check_of_a_private_site_tells_its_budget_and_no_limit_that_private_runs_lack(run, north):
    change(north / "policy.toml", "min_rows = 100", f"min_rows = 1000\n{PRIVATE}")
    status, out, _ = run("site", "check", north / "policy.toml")
    assert status == 0
    assert "It has spent epsilon = 0 of 1 so far." in out
    assert "It answers: NoisedGram, NoisedProduct. Everything else is refused" in out
    assert "EVERYTHING" not in out
    assert "1000 rows" not in out
    assert "columns at once" not in out


def test_init_of_two_sites_says_that_their_runs_are_refused(run, tmp_path):
    out = run("federation", "init", tmp_path / "fed", "--site", "a", "--site", "b")[1]
    assert "REFUSED UNTIL ALL SITES LOWER min_sites: policies ask for 3 sites" in out


@pytest.mark.filterwarnings("ignore::localpower.DataHint")
def test_data_that_cannot_be_read_are_mended_in_the_policy_as_the_error_says(run, north, model):
    rows = [f"{number},p{number},{'' if number == 3 else 1.5}" for number in range(300)]
    (north / "rows.csv").write_text("\n".join(["a,id,c", *rows]))
    policy = north / "policy.toml"
    for command in (("check", policy), ("project", model[2], policy, "-o", north / "s.npy")):
        status, _, err = run("site", *command)
        assert status == 1
        assert err.rstrip().endswith(f"; such lines belong into {policy}")
        assert "drop = ['id']" in err
        assert "--" not in err
    change(policy, "# drop", "drop = ['id']  # ")
    assert "missing = 'drop'" in run("site", "check", policy)[2]
    change(policy, "# missing", "missing = 'drop'  # ")
    status, out, _ = run("site", "check", policy)
    assert (status, "299 rows of 2 columns" in out) == (0, True)


def test_project_with_a_policy_reads_rows_as_that_says_and_in_no_other_way(run, north, model):
    command = "site", "project", model[2], north / "policy.toml", "-o", north / "s.npy"
    status, _, err = run(*command, "--drop", "id")
    assert status == 2
    assert f"--drop id: rows are read as {north / 'policy.toml'} says; write drop = there" in err


@pytest.mark.parametrize("command", ["check", "join"])
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('data = "rows.csv"', 'data = ""', 'data is not set: write data = "your-file.csv"'),
        ('data = "rows.csv"', 'data = "row.csv"', "data = 'row.csv' is not there"),
        ('coordinator = "127', 'coordinator = "" # "127', 'must be as "host:8443"'),
        ('coordinator = "127', 'coordinator = "https://127', 'must be as "host:8443"'),
        ('coordinator = "127.0.0.1:', 'coordinator = "::1:', 'must be as "host:8443"'),
        ('coordinator = "127.0.0.1:', 'coordinator = "localhost:99', 'must be as "host:8443"'),
        ('name = "north"', 'name = "south"', "each site uses the folder that was made for it"),
        ('keys = "keys"', 'keys = "kees"', "tls.key is missing: `localpower federation init`"),
        ("min_rows", "min_row", "min_row is not a key of a policy"),
    ],
)
def test_each_mistake_of_a_site_has_a_remedy(run, north, command, old, new, said):
    change(north / "policy.toml", old, new)
    status, _, err = run("site", command, north / "policy.toml")
    assert status in (1, 2)
    assert said in err


@pytest.mark.parametrize("host", ["localhost", "lead_1.example.org", "[::1]", "10.0.0.7"])
def test_a_coordinator_is_a_name_or_an_address_with_its_port(run, north, host):
    change(north / "policy.toml", 'coordinator = "127.0.0.1', f'coordinator = "{host}')
    status, out, _ = run("site", "check", north / "policy.toml")
    assert status == 0
    assert f"It connects to {host}:" in out


def test_a_coordinator_whose_name_is_not_known_is_told_as_such():
    said = []
    with grpc.secure_channel("no..where:8443", grpc.ssl_channel_credentials()) as channel:
        reason = answer_stream(channel, "no..where:8443", bytes, 1, said.append)
    assert "the name in no..where:8443 is not known here; waiting until it is" in reason
    assert said == []


@pytest.mark.parametrize("command", ["check", "join"])
def test_the_wrong_folder_and_an_expired_certificate_are_told(run, north, command, tmp_path):
    status, _, err = run("site", command, tmp_path / "policy.toml")
    assert status == 1
    assert "name the policy.toml in the folder that the coordinator gave you" in err
    expired = identity.issue(identity.authority(), "north", days=-1)
    (north / "keys" / "tls.pem").write_bytes(expired.certificate.public_bytes(Encoding.PEM))
    status, _, err = run("site", command, north)
    assert status == 1
    assert "expired on" in err
    assert "ask the coordinator for a new folder" in err


def test_the_journal_is_shown_and_verified(run, north, sites):
    status, out, _ = run("site", "journal", north / "policy.toml")
    assert status == 0
    assert "has answered and refused nothing" in out
    with lp.connect(sites.address) as engine:
        lp.pca("sites", 2, engine=engine, rng=0)
    journal = sites.folder / "north" / "journal.jsonl"
    shutil.copy(journal, north / journal.name)
    status, out, _ = run("site", "journal", north)
    lines = out.splitlines()
    assert status == 0
    assert any("answered" in line and "Sums" in line and ", masked" in line for line in lines)
    assert "lines, the hash of each is right; " in lines[-1]
    assert max(map(len, lines)) < 200
    text = journal.read_text().replace('"columns":1', '"columns":0', 1)
    (north / journal.name).write_text(text)
    status, _, err = run("site", "journal", north)
    assert status == 1
    assert "was changed after it was written" in err


def test_join_says_when_it_connects_and_what_was_run(sites):
    lp.svd("sites", 2, engine=sites.address, rng=7)
    until(lambda: sites.log("west").rstrip().endswith("waiting for the next run"), "it is told")
    assert "rng=7" in sites.log("west")
    assert f"connected to 127.0.0.1:{sites.port}" in sites.log("west")
    assert "Traceback" not in "".join(map(sites.log, NAMES))


def test_data_belong_to_the_sites_and_other_engines_need_some(run, made):
    status, _, err = run("fit", "rows.npy", "-k", 2, "--engine", made.address)
    assert (status, "leave DATA out" in err) == (2, True)
    status, _, err = run("fit", "-k", 2)
    assert (status, "DATA is missing" in err) == (2, True)
    for address in ("sites", "sites:"):
        status, _, err = run("fit", "-k", 2, "--engine", address)
        assert (status, "needs the coordinator's file" in err) == (2, True)
    status, _, err = run("fit", "-k", 2, "--engine", "sites:no/federation.toml")
    assert (status, "no/federation.toml is not there: `localpower federation init" in err) == (
        1,
        True,
    )


def test_without_the_extra_every_command_names_it(made):
    script = """
import sys
sys.modules["grpc"] = sys.modules["cryptography"] = None
from localpower.cli import main
for command in sys.argv[1:]:
    print(main(command.split("|")), file=sys.stderr)
"""
    policy = made.folder / "north" / "policy.toml"
    commands = ["federation|init|x|--site|a|--site|b", f"site|join|{policy}",
                f"site|check|{policy}", f"site|key|{policy}",
                f"fit|-k|2|--engine|{made.address}"]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script, *commands], capture_output=True, text=True,
                          env={"PYTHONPATH": SOURCE}, timeout=PATIENCE, check=False)  # fmt: skip
    said = done.stderr.splitlines()
    assert said[1::2] == ["1"] * len(commands), done.stderr
    for line in said[::2]:
        assert "pip install 'localpower[federation]'" in line


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of all rows but those of an unusual site."""
    X = with_spectrum(600, 0.5 ** np.arange(8), seed=1) + 3.0
    result = lp.pca(X, 2, rng=0)
    path = tmp_path_factory.mktemp("model") / "model"
    result.save(path)
    return X, result, path


def captured(model, rows, mean):
    """The definition, written out."""
    centred = (rows - mean) / (1.0 if model.scale is None else model.scale)
    return np.square(centred @ model.components.T).sum() / np.square(centred).sum()


def test_project_writes_scores_and_tells_a_site_that_it_is_unusual(run, model, tmp_path):
    X, result, path = model
    np.save(tmp_path / "usual.npy", X[:200])
    command = "site", "project", path, tmp_path / "usual.npy", "-o", tmp_path / "scores.npy"
    status, out, _ = run(*command)
    assert status == 0
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), result.transform(X[:200]))
    share, public = captured(result, X[:200], result.mean), result.explained_variance_ratio.sum()
    assert f"explains {share:.1%} of the variance here, and {public:.1%} of all" in out
    assert "unusual" not in out
    np.save(tmp_path / "odd.npy", with_spectrum(300, np.ones(8), seed=2) + 3.0)
    status, out, _ = run("site", "project", path, tmp_path / "odd.npy", "-o", tmp_path / "s.npy")
    assert status == 0
    assert "these rows are unusual" in out


def test_project_does_not_name_a_share_that_noise_has_hidden(run, model, tmp_path):
    X = model[0]
    privacy = lp.Privacy(1, 1e-6, 1.0, release="products")
    lp.svd(X, 2, privacy=privacy, engine="ring", workers=3, rng=0).save(tmp_path / "model")
    np.save(tmp_path / "rows.npy", X)
    command = "site", "project", tmp_path / "model", tmp_path / "rows.npy", "-o", tmp_path / "s.npy"
    status, out, _ = run(*command)
    assert status == 0
    assert out.rstrip().endswith("% of the variance here")


def test_project_reads_rows_as_a_policy_does(run, made, tmp_path):
    result = lp.pca(np.vstack(made.parts), 3, rng=0)
    result.save(tmp_path / "model")
    policy = made.folder / "west" / "policy.toml"
    status, out, _ = run("site", "project", tmp_path / "model", policy, "-o", tmp_path / "s.npy")
    assert status == 0
    assert out.startswith("700 rows on 3 components")
    np.testing.assert_allclose(np.load(tmp_path / "s.npy"), result.transform(made.parts[2]))


@pytest.mark.parametrize("scale", [None, "std"])
def test_shares_of_sites_weighted_with_their_squares_are_that_of_the_model(scale):
    X = with_spectrum(900, 0.7 ** np.arange(6), seed=3) * 5 + np.arange(6)
    X[:300] += 1.0
    result = lp.pca(X, 2, scale=scale, rng=0)
    parts = X[:300], X[300:450], X[450:]
    centred = [(part - result.mean) / (1 if scale is None else result.scale) for part in parts]
    weights = [np.square(part).sum() for part in centred]
    shares = [explained_here(result, part, Options()) for part in parts]
    whole = np.average(shares, weights=weights)
    assert whole == pytest.approx(result.explained_variance_ratio.sum(), rel=1e-10)
    assert shares == pytest.approx([captured(result, part, result.mean) for part in parts])


def test_without_a_mean_the_share_is_about_that_of_the_rows():
    X = with_spectrum(400, 0.5 ** np.arange(6), seed=4) + 100.0
    result = lp.svd(X, 2, rng=0)
    expected = captured(result, X, X.mean(axis=0))
    assert explained_here(result, X, Options()) == pytest.approx(expected, rel=1e-8)
    assert expected == pytest.approx(result.explained_variance_ratio.sum(), rel=1e-8)
    sparse = sp.random_array((300, 6), density=0.4, rng=np.random.default_rng(0)).tocsr()
    dense = sparse.toarray()
    for found in (lp.svd(sparse, 2, rng=0), lp.pca(dense, 2, rng=0)):
        mean = dense.mean(axis=0)
        share = explained_here(found, sparse, Options())
        assert share == pytest.approx(captured(found, dense, mean), rel=1e-10)
