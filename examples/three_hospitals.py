"""Three hospitals fit one PCA, and keep their rows: real processes, TLS, secure sums.

python examples/three_hospitals.py [picture]
"""

import csv
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer

import localpower as lp

SITES = "north", "south", "west"
KINDS = "csv", "npy", "tsv"
LOCALPOWER = [sys.executable, "-m", "localpower"]


def run(*command):
    """Run a command as it stands on the page, and show it."""
    print("$ localpower", *command)
    subprocess.run([*LOCALPOWER, *command], check=True, stdout=subprocess.DEVNULL)


def deal(rows, names):
    """Give each hospital patients of its own, in unequal numbers and in files of its own kind."""
    order = np.random.default_rng(0).permutation(len(rows))
    for site, kind, part in zip(SITES, KINDS, np.split(rows[order], [130, 300]), strict=True):
        path = Path("federation", site, f"patients.{kind}")
        if kind == "npy":
            np.save(path, part)
        else:
            with path.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.writer(stream, delimiter="\t" if kind == "tsv" else ",")
                writer.writerows([names, *part.tolist()])
        policy = path.with_name("policy.toml")
        text = policy.read_text(encoding="utf-8")
        policy.write_text(text.replace('data = ""', f'data = "{path.name}"'), encoding="utf-8")
        print(f"{site}: {len(part)} patients in {path.name}")


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fit(rows):
    """Have the hospitals join, fit, and compare with what pooled rows would have given."""
    joined = [
        subprocess.Popen(
            [*LOCALPOWER, "site", "join", f"federation/{site}/policy.toml", "--once"],
            stdout=subprocess.DEVNULL,
        )
        for site in SITES
    ]
    try:
        result = lp.pca(
            "sites", 2, engine="sites:federation/federation.toml", tol=1e-8, scale="std", rng=0
        )
    except BaseException:
        for site in joined:
            site.terminate()
        raise
    finally:
        for site in joined:
            site.wait(60)
    pooled = lp.pca(rows, 2, tol=1e-8, scale="std", rng=0)
    angle = lp.subspace_distance(pooled.components.T, result.components.T)
    card = result.run["federation"]
    print(f"{card['questions']} questions, {card['bytes_up']} bytes from all hospitals together")
    print(f"secure sum {card['secure_sum']}")
    print(f"certified angle {result.certificate.angle:.0e}, off the pooled rows by {angle:.0e}")
    result.save("model")


def draw(path):
    """Each hospital projects its own patients; only for this picture the scores are together."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    for site in SITES:
        policy, scores = f"federation/{site}/policy.toml", f"federation/{site}/scores.npy"
        run("site", "project", "model", policy, "-o", scores)
        first, second = np.load(scores).T[:2]
        axes.scatter(first, second, s=12, label=site, alpha=0.7)
    axes.set(xlabel="first component", ylabel="second component", title="patients of three sites")
    axes.legend()
    figure.savefig(path, dpi=120)


def main(path):
    """Do it all in a temporary folder; only the picture stays."""
    import os

    path.parent.mkdir(parents=True, exist_ok=True)
    path = path.resolve()
    data = load_breast_cancer()
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            sites = [part for site in SITES for part in ("--site", site)]
            run("federation", "init", "federation", *sites, "--port", str(free_port()))
            deal(data.data, [str(name) for name in data.feature_names])
            fit(data.data)
            draw(path)
        finally:
            os.chdir(here)
    print(f"-> {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/three_hospitals.png"))
