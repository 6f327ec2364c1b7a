"""How frames get to sites and replies back; `DirectLink` has the sites in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol


class Link(ABC):
    """Brings frames to sites.

    `names` are the sites, in the order of the roster.
    """

    names: tuple[str, ...]

    @abstractmethod
    def ask(
        self, frame: bytes, sites: Sequence[str], deadline: float | None
    ) -> Iterator[tuple[str, bytes]]:
        """Bring one frame to these sites at the same time; yield (site, reply) as replies come.

        Raises `WorkerLost` or `WorkerLate` naming those that did not answer within `deadline`
        seconds, after the replies of all others.
        """

    def close(self) -> None:  # noqa: B027 (there may be nothing to do)
        """End what was begun."""


class Answers(Protocol):
    """A site: it has a name, and answers frames."""

    @property
    def name(self) -> str:
        """What the others call it."""

    def answer(self, frame: bytes) -> bytes:
        """Reply to a frame."""


class DirectLink(Link):
    """Sites in this process, for tests and for trying things out."""

    def __init__(self, agents: Iterable[Answers]) -> None:
        self.agents = {agent.name: agent for agent in agents}
        self.names = tuple(self.agents)

    def ask(
        self, frame: bytes, sites: Sequence[str], deadline: float | None
    ) -> Iterator[tuple[str, bytes]]:
        for site in sites:
            yield site, self.agents[site].answer(frame)
