"""A fit in a network of its own, in which there is nothing but loopback."""

import errno
import fcntl
import socket
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("grpc", reason="the extra 'federation' is not installed")

from helpers import projector_gap
from real_sites import NAMES, PATIENCE, SOURCE, Sites

import localpower as lp

OWN_NETWORK = (["unshare", "--net"], ["unshare", "--net", "--map-root-user"])


def own_network():
    """The command that runs another without a network; skips where none can."""
    for command in OWN_NETWORK:
        try:
            if not subprocess.run([*command, "true"], capture_output=True).returncode:
                return command
        except FileNotFoundError:
            break
    pytest.skip("a process cannot have a network namespace of its own here (unshare --net)")


def test_a_fit_of_three_sites_needs_loopback_and_nothing_else(tmp_path):
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), SOURCE]
    start = (
        f"import sys; sys.path[:0] = {paths!r}; import test_namespace as own; own.fit(sys.argv[1])"
    )
    command = [*own_network(), sys.executable, "-c", start, str(tmp_path / "federation")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.stdout == "all was said and done on loopback\n", done.stdout + done.stderr


def fit(folder):
    """Run in a namespace that is new: three sites in processes of their own, and this one."""
    raise_loopback()
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
    assert reaches("192.0.2.1") == errno.ENETUNREACH
    sites = Sites(folder)
    sites.start(*NAMES)
    seen = []
    try:
        how = {"engine": sites.address, "rng": 0, "callback": lambda *_: seen.append(listening())}
        found = lp.pca("sites", 3, **how)
    finally:
        assert set(sites.stop().values()) == {0}
    pooled = np.vstack(sites.parts)
    exact = np.linalg.svd(pooled - pooled.mean(axis=0))[2][:3].T
    assert found.converged
    assert projector_gap(found.components.T, exact) <= found.certificate.angle
    assert seen
    assert all(each == [("127.0.0.1", sites.port)] for each in seen)
    assert listening() == []
    print("all was said and done on loopback")


def raise_loopback():
    """As ``ip link set lo up`` does."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


def reaches(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return probe.connect_ex((address, 9))


def listening():
    """Whatever waits for others in this namespace, of any process."""
    every = psutil.net_connections("inet")
    return [
        (at.laddr.ip.removeprefix("::ffff:"), at.laddr.port)
        for at in every
        if at.status == "LISTEN" or (at.type == socket.SOCK_DGRAM and not at.raddr)
    ]
