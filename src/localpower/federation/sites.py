"""The engine ``sites:federation.toml``: sites that dial in over mutual TLS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localpower.core.errors import EngineError
from localpower.federation.engine import Federation
from localpower.federation.grpc_link import GrpcLink
from localpower.federation.identity import FILE, CredentialError, FederationFile
from localpower.federation.masks import fingerprint
from localpower.progress import Progress
from localpower.worker.shard import EngineBlock, OpenBlock


class Sites(Federation):
    """A federation whose sites connect to this process.

    It listens where the coordinator's file says. A run waits until all sites of the file are there.

    Parameters
    ----------
    address
        ``"sites:"`` and the path of the file that `localpower federation init` made, or its folder.
    """

    def __init__(self, address: str) -> None:
        path = address.removeprefix("sites").removeprefix(":")
        if not path:
            raise ValueError(
                f"engine={address!r} needs the coordinator's file, as in 'sites:FOLDER/{FILE}'; "
                "`localpower federation init FOLDER --site NAME ...` makes one"
            )
        file = FederationFile.read(path)
        super().__init__(GrpcLink(file), secure=file.secure_sum)
        self._file = file

    def adopt(self, data: Any, open_block: OpenBlock) -> Sequence[EngineBlock]:
        """Open a run with the sites; what they sign must be of the keys that the file pins."""
        assert isinstance(self.link, GrpcLink)
        _await(self.link)
        blocks = super().adopt(data, open_block)
        for name, offer in self._offers.items():
            if fingerprint(offer.identity.tobytes()) != self._file.sites[name].identity:
                raise CredentialError(
                    f"{name} signs with another key than identity = in {self._file.path} pins; "
                    "write what `localpower site check` says of the key at that site there"
                )
        return blocks


def _await(link: GrpcLink) -> None:
    """Wait for all sites of the file; say who is missing, and what to do there."""
    with Progress() as display:

        def show(missing: Sequence[str]) -> None:
            display.stage(f"waiting for {', '.join(missing)}")

        missing = link.await_sites(link.file.wait, show)
    if missing:
        file = link.file
        raise EngineError(
            f"{', '.join(missing)} did not connect to {file.host}:{file.port} within "
            f"{file.wait:g} seconds; each runs localpower site join {missing[0]}/policy.toml with "
            f"its own folder. To run without a site, remove it from {file.path}, and have the "
            "others lower min_sites; to wait longer, set wait there"
        )
