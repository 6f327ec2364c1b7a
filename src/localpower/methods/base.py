"""What a method is: a frozen dataclass of its options, which says all that others need to know.

A new method is one file with one subclass of `Method`, and one `register`. Everything else (`svd`,
`plan`, `compare`, checkpoints, the command line, the report) reads the registry.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from localpower.core.checks import one_of, whole
from localpower.core.linalg import random_basis
from localpower.core.rounding import UNITS
from localpower.core.share import Share
from localpower.engines.base import Engine
from localpower.methods.rounding import WireRounding
from localpower.methods.state import Doubt, State

if TYPE_CHECKING:
    from localpower.methods.costs import Decay, Estimate, Problem

FIRST = 10  # components to begin with where a share is asked for, at least
FIRST_WORDS = 125_000  # entries of a first basis that may have more
EXTRA = 5  # columns beyond the rank, for the gap and for faster convergence


@dataclass(frozen=True, slots=True)
class Start:
    """What a run gives to a method.

    Attributes
    ----------
    rank, width : int
        The number of vectors that the user wants, and of columns to iterate.
    rng : numpy.random.Generator
        For the random start.
    tol : float
        The sine of the angle to reach; 0 if the run does all rounds.
    doubt : Doubt or None
        When to send probes of what may be hidden, if they are wanted.
    state : State or None
        The state to continue from: that of a checkpoint, or the basis of an earlier result.
    share : Share or None
        The share that the components must explain; `rank` is then a guess.
    """

    rank: int
    width: int
    rng: np.random.Generator
    tol: float = 0.0
    doubt: Doubt | None = None
    state: State | None = None
    share: Share | None = None

    @property
    def watched(self) -> bool:
        """Whether the run looks at exact images."""
        return self.tol > 0 or self.share is not None

    def begin(self, engine: Engine) -> State:
        """The state to go on from, or a random basis that is the same for all shards."""
        if self.state is not None:
            return self.state
        basis = random_basis(engine.columns, self.width, self.rng)
        return State(basis.astype(engine.dtype, copy=False), rank=self.rank)

    def rounding(self, wire: str, engine: Engine) -> WireRounding | None:
        """How messages are rounded to the type `wire`; None where the data have no more digits."""
        eps = float(np.finfo(engine.dtype).eps)
        if 2 * UNITS[wire] <= eps:
            return None
        return WireRounding(wire, self.rank, self.tol, eps, len(engine.rows))


def option(
    default: Any, help: str, check: Callable[[str, Any], Any], parse: Callable[[str], Any] = str
) -> Any:
    """Describe an option of a method: a field of its dataclass.

    Parameters
    ----------
    default
        The value if none is given.
    help : str
        One line for the command line and for errors.
    check : callable
        ``check(name, value)`` returns the value to keep, or raises an error with the remedy.
    parse : callable
        Turns a text, as in ``"local_power:steps=4"``, into a value.
    """
    return field(default=default, metadata={"help": help, "check": check, "parse": parse})


def choice(default: str, known: Mapping[str, Any] | tuple[str, ...], help: str) -> Any:
    """Describe an option that takes one of some names."""
    return option(default, f"{help}: {', '.join(known)}", lambda n, v: one_of(n, v, known))


def width_option() -> Any:
    """Columns that are iterated."""
    help = "number of columns to iterate, at least the rank (the rank, or 5 more)"
    return option(None, help, lambda n, v: v if v is None else whole(n, v), int)


def wire_option() -> Any:
    """What numbers are rounded to in messages, wherever that does not limit what is reached."""
    return choice("float64", tuple(UNITS), "type that messages are rounded to")


class Method(ABC):
    """A way to find the leading singular vectors; a frozen dataclass of its options.

    Attributes
    ----------
    name : str
        The short form, as ``method="local_ritz"``.
    about : str
        One line for tables and help.
    iterates : bool
        Whether it continues until something stops it.
    certifies : bool
        Whether its states always carry a certificate, tolerance or not.
    sends_probes : bool
        Whether it asks for probes of what may be hidden (`Start.doubt`).
    exact : bool
        Whether it is done after one pass, up to rounding.
    squares : bool
        Whether it sees squares of singular values only, and so half of their digits.
    forms_grams : bool
        Whether it begins with ``A_iᵀA_i`` of every shard with few columns.
    only_sums : bool
        Whether it works on engines that show only sums of replies.
    reuses : bool
        Whether it converges if products of some shards are reused from earlier rounds.
    automatic : bool
        Whether the automatic choice considers it.
    grows : bool
        Whether it can find how many components explain a share: its states can continue with more
        (`State.grown`), or it counts them itself (`Start.share`).
    state_type : type
        The class of its states, which checkpoints restore.
    planned : dict
        The options that a plan shows it with.
    compared : tuple of dict
        The options that a comparison shows it with, if no method is named.
    """

    __slots__ = ()
    about: ClassVar[str] = ""
    iterates: ClassVar[bool] = False
    certifies: ClassVar[bool] = False
    sends_probes: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    squares: ClassVar[bool] = False
    automatic: ClassVar[bool] = False
    grows: ClassVar[bool] = False
    state_type: ClassVar[type[State]] = State
    planned: ClassVar[Mapping[str, Any]] = {}
    compared: ClassVar[tuple[Mapping[str, Any], ...]] = ()

    @property
    def name(self) -> str:
        """The short form that it is registered with."""
        for name, form in REGISTRY.items():
            if form.kind is type(self) and form.fits(self):
                return name
        return type(self).__name__

    @abstractmethod
    def states(self, engine: Engine, start: Start) -> Iterator[State]:
        """Yield the state after every round."""

    def estimate(self, problem: Problem, decay: Decay) -> Estimate | None:
        """Predict what it costs; None leaves it out of plans."""
        return None

    def forms(self, rank: int) -> tuple[Method, ...]:
        """The forms of it among which a plan chooses: itself, with options that were left open."""
        return (self,)

    def workspace(self, columns: int, width: int) -> float:
        """Bytes that it holds besides the rows, at the coordinator and one worker."""
        return 6.0 * columns * width * 8

    def largest(self, columns: int, rank: int) -> int:
        """Entries of the largest matrix that it forms, where that grows faster than the columns."""
        return 0

    def widest(self, columns: int, rank: int, width: int) -> int:
        """Columns of products that it asks shards for at once, at the most."""
        return width + self.state_type.PROBES * self.sends_probes

    def first_rank(self, columns: int, limit: int) -> int:
        """How many components to begin with where a share is asked for, `limit` at the most.

        A wide start tells at once how many it takes.
        """
        return min(limit, max(FIRST, FIRST_WORDS // columns))

    def products(self, rounds: int) -> int:
        """How many local products a shard is asked for in so many rounds, if that is known."""
        return 0

    @property
    def forms_grams(self) -> bool:
        """Whether ``A_iᵀA_i`` comes first, so that reading files once may be enough."""
        return self.squares

    @property
    def only_sums(self) -> bool:
        """Whether it works where only sums of replies may be seen."""
        return False

    @property
    def reuses(self) -> bool:
        """Whether it converges with products of some shards that are turned from earlier rounds."""
        return False

    def for_sums(self) -> Method | None:
        """The form of it that works where only sums may be seen; None if there is none."""
        exact = self.options().get("wire", "float64") == "float64"  # sums are whole numbers
        return self if self.only_sums and exact else None

    @property
    def repeatable(self) -> bool:
        """Whether a later process can tell that it was given the same options."""
        return True

    @property
    def has_width(self) -> bool:
        """Whether more columns than the rank may be iterated."""
        return self.iterates or "width" in self.options()

    def columns(self, rank: int, most: int, certified: bool) -> int:
        """Columns to iterate, of data with `most`; more than the rank where that is certified."""
        given = self.options().get("width")
        if given is not None:
            return int(given)
        return min(rank + EXTRA, most) if certified or self.certifies else rank

    def check_rank(self, rank: float) -> None:
        """Refuse a width below the rank, and a share where no columns can be added."""
        width = self.options().get("width")
        if isinstance(rank, float) and not self.grows:
            raise ValueError(
                f"rank={rank!r} is a share, and method='{self.name}' takes a number of components "
                "only: give that, or take method='auto'"
            )
        if isinstance(rank, float) and width is not None:
            raise ValueError(
                f"rank={rank!r} is a share, for which columns are added as needed, and "
                f"width={width} sets their number: leave width out"
            )
        if width is not None and width < rank:
            raise ValueError(
                f"width={width} is below rank={rank}; iterate at least that many columns"
            )

    def options(self) -> dict[str, Any]:
        """All options by name."""
        return {entry.name: getattr(self, entry.name) for entry in self.fields()}

    def identity(self) -> dict[str, Any]:
        """The options in a form that can be compared with those of another process."""
        return {name: written(value) for name, value in self.options().items()}

    @classmethod
    def fields(cls) -> tuple[Field[Any], ...]:
        """The fields of its dataclass."""
        return fields(cls)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        for entry in self.fields():
            if "check" in entry.metadata:
                value = entry.metadata["check"](entry.name, getattr(self, entry.name))
                object.__setattr__(self, entry.name, value)

    def __str__(self) -> str:
        form = REGISTRY.get(self.name)
        fixed = {} if form is None else form.fixed
        parts = [
            f"{entry.name}={written(value)}"
            for entry in self.fields()
            if (value := getattr(self, entry.name)) != entry.default and entry.name not in fixed
        ]
        return f"{self.name}:{','.join(parts)}" if parts else self.name


def written(value: Any) -> str:
    """The text of an option, as `method_from` reads it; dots stand for a function."""
    if callable(value):
        return "..."
    if isinstance(value, set | frozenset | list | tuple):
        return "{" + ",".join(map(str, sorted(value))) + "}"
    return value if isinstance(value, str) else repr(value)


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A short name: the class that it stands for, and the options that it fixes."""

    kind: type[Method]
    fixed: Mapping[str, Any]

    def fits(self, method: Method) -> bool:
        """Whether a method has the options that are fixed."""
        return all(getattr(method, name) == value for name, value in self.fixed.items())

    def options(self) -> dict[str, Field[Any]]:
        """Options that may be given, by name."""
        return {entry.name: entry for entry in self.kind.fields() if entry.name not in self.fixed}

    def build(self, **options: Any) -> Method:
        """The method with these options."""
        return self.kind(**self.fixed, **options)

    def read(self, text: str) -> Method:
        """The method with options in text, as ``"steps=4,schedule=halving"``."""
        known, given = self.options(), {}
        for part in split(text, r",\s*(?=\w+\s*=)"):
            key, equals, value = part.partition("=")
            name = key.strip()
            if name not in known or not equals:
                raise ValueError(f"{part!r} is not an option of it: {_options_text(known, name)}")
            about = known[name].metadata
            try:
                given[name] = about["parse"](value.strip())
            except ValueError:
                number = about["parse"] is int
                wanted = "must be a whole number" if number else f"cannot be read: {about['help']}"
                raise ValueError(f"{part!r} {wanted}") from None
        return self.build(**given)


def _options_text(known: Mapping[str, Field[Any]], name: str) -> str:
    """The options that there are, and the methods that have the one that is not among them."""
    own = f"take some of {', '.join(known)}" if known else "it takes none"
    others = [each for each, form in REGISTRY.items() if name in form.options()]
    return f"{own}; {name} is one of {', '.join(others)}" if others and name not in known else own


REGISTRY: dict[str, Form] = {}


def register(name: str, kind: type[Method], /, **fixed: Any) -> None:
    """Make a method known by a short name, to `svd`, `plan`, `compare` and the command line.

    Parameters
    ----------
    name : str
        The short form; its options follow in text as ``"name:steps=4"``.
    kind : type
        A subclass of `Method`, a frozen dataclass whose fields are made by `option`.
    **fixed
        Options that the short form stands for, which cannot be given with it.
    """
    if not name.isidentifier():
        raise ValueError(f"name={name!r} must be a word of letters, digits and underscores")
    REGISTRY[name] = Form(kind, fixed)


def method_from(given: Any, argument: str = "method") -> Method:
    """Make a method of a text such as ``"local_power:steps=4"``; one that is made already stays."""
    if isinstance(given, Method):
        return given
    if not isinstance(given, str):
        raise TypeError(
            f"{argument}={given!r} must be a name such as 'auto', or a method such as "
            "localpower.LocalPower()"
        )
    name, _, rest = given.strip().partition(":")
    if name not in REGISTRY:
        raise ValueError(
            f"{argument}={given!r} is not known: take one of {', '.join(REGISTRY)}, with options "
            "if wanted, as in 'name:option=value,option=value'"
        )
    try:
        return REGISTRY[name].read(rest)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}={given!r}: {error}") from None


def methods_from(given: Any) -> dict[str, Method]:
    """Methods by the texts that were given: one text with commas, or several texts or methods.

    A mapping has names of its own for them; in it, options may stand in a mapping, too.
    """
    if isinstance(given, Mapping) and given:
        named = {str(name): _method_of(name, how) for name, how in given.items()}
        return {name: method_from(how, f"methods[{name!r}]") for name, how in named.items()}
    if isinstance(given, str):
        given = split(given, r",(?!\s*\w+\s*=)")
    if isinstance(given, Method):
        given = [given]
    try:
        every = list(given)
    except TypeError:
        raise TypeError(
            f"methods={given!r} must be names, as '{','.join([*REGISTRY][:2])}', or a list"
        ) from None
    if not every:
        raise ValueError("methods is empty: name at least one method")
    return {
        each.strip() if isinstance(each, str) else str(each): method_from(each, "methods")
        for each in every
    }


def _method_of(name: str, how: Any) -> Any:
    """A method whose options stand in a mapping as text, as ``{"method": "dpi", "width": 9}``."""
    if not isinstance(how, Mapping):
        return how
    options = {key: written(value) for key, value in how.items() if key != "method"}
    method = how.get("method")
    if not isinstance(method, str):
        fitting = [each for each, form in REGISTRY.items() if {*options} <= {*form.options()}]
        remedy = {name: {"method": (fitting or [*REGISTRY])[0], **how}}
        raise ValueError(
            f"methods[{name!r}]={how!r} does not say which method: write methods={remedy!r}"
        )
    text = ",".join(f"{key}={value}" for key, value in options.items())
    return f"{method}{',' if ':' in method else ':'}{text}" if text else method


def split(text: str, pattern: str) -> list[str]:
    """Split a text at commas that the pattern finds; none of those within braces is one."""
    return [part.strip() for part in re.split(pattern + r"(?![^{]*\})", text) if part.strip()]
