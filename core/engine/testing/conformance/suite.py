"""What a conformance suite is: checks that say what they ask, and a way to run them.

A check is a method whose name begins with `test_`, so pytest runs it as it is; its docstring is
what the contract asks. `run_checks` runs a suite without pytest.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, TypeVar

from engine.plugin import Plugin
from engine.registry import Registry

_CHECK = "_conformance_check"
SuiteT = TypeVar("SuiteT", bound="Suite")


class ContractError(AssertionError):
    """A plugin doesn't keep the contract; the text says what is asked and what was found."""


def ask(held: object, found: str) -> None:
    """Go on if something held.

    Raises:
        ContractError: it didn't.
    """
    if not held:
        raise ContractError(found)


@dataclass(frozen=True)
class Check:
    """What is known of a check.

    Attributes:
        contract: what the contract asks.
        quick: whether it is part of `engine plugins check`.
        needs: says why a suite's plugin is not concerned; empty when it is.
    """

    contract: str
    quick: bool
    needs: Callable[[Any], str] | None


def check(
    *, quick: bool = False, needs: Callable[[Any], str] | None = None
) -> Callable[[Callable[[SuiteT], None]], Callable[[SuiteT], None]]:
    """Decorate a method as a check, whose failures repeat its docstring.

    Args:
        quick: it is part of `engine plugins check`.
        needs: `(suite class) -> reason` not to run it; empty to run it.
    """

    def decorate(method: Callable[[SuiteT], None]) -> Callable[[SuiteT], None]:
        contract = " ".join((inspect.getdoc(method) or "").split())

        @wraps(method)
        def run(self: SuiteT) -> None:
            asked = f"{self.label()}: the contract asks: {contract}"
            try:
                method(self)
            except ContractError as error:
                raise ContractError(f"{asked}\nfound: {error}") from error.__cause__
            except Exception as error:
                error.add_note(asked)
                raise

        setattr(run, _CHECK, Check(contract, quick, needs))
        return run

    return decorate


class Suite:
    """Checks of one plugin.

    Attributes:
        KIND: the kind of plugin that it checks.
        strategy: the plugin's registered name (`name` or `distribution:name`), or its class.
        options: the plugin's options; its defaults otherwise.
        expected_failures: checks that the plugin is known to fail, with the reason. One that
            passes after all is a failure, so that the list stays true.
    """

    KIND: ClassVar[str] = ""
    strategy: ClassVar[str | type[Plugin]] = ""
    options: ClassVar[Mapping[str, Any]] = {}
    expected_failures: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for name, value in vars(cls).items():
            inherited = getattr(super(cls, cls), name, None)
            if hasattr(inherited, _CHECK) and not hasattr(value, _CHECK):
                raise TypeError(
                    f"{cls.__name__} replaces the check {name}; a check that a plugin can't pass "
                    "belongs in `expected_failures`, with its reason"
                )

    @classmethod
    def label(cls) -> str:
        """Return what the plugin is called in messages."""
        name = cls.strategy if isinstance(cls.strategy, str) else cls.strategy.__name__
        return f"{cls.KIND}/{name}"

    @classmethod
    def plugin(cls) -> Any:
        """Return the plugin's class.

        Raises:
            PluginError: it isn't installed, or is broken.
        """
        if not isinstance(cls.strategy, str):
            return cls.strategy
        if cls.__dict__.get("_loaded") is None:
            cls._loaded = Registry().load(cls.KIND, cls.strategy)
        return cls._loaded

    _loaded: ClassVar[Any] = None

    @classmethod
    def make(cls) -> Any:
        """Return a new instance with the suite's options."""
        plugin = cls.plugin()
        return plugin(plugin.OPTIONS(**cls.options))

    @classmethod
    def checks(cls) -> dict[str, Check]:
        """Return the checks by the name of their method, in the order of definition."""
        found = {}
        for base in reversed(cls.__mro__):
            for name in vars(base):
                known = getattr(getattr(cls, name, None), _CHECK, None)
                if known is not None:
                    found[name] = known
        return found

    @classmethod
    def why_skipped(cls, name: str) -> str:
        """Say why a check doesn't concern the plugin; empty when it does."""
        known = cls.checks().get(name)
        if known is None or known.needs is None:
            return ""
        return known.needs(cls)

    @classmethod
    def expectation(cls, name: str) -> str:
        """Return why a check is expected to fail; empty when it must pass."""
        return cls.expected_failures.get(name) or cls.expected_failures.get(
            name.removeprefix("test_"), ""
        )

    @classmethod
    def check_expectations(cls) -> None:
        """Refuse an expected failure of a check that doesn't exist, or without a reason.

        Raises:
            ValueError: names it.
        """
        known = {name.removeprefix("test_") for name in cls.checks()}
        for name, reason in cls.expected_failures.items():
            if name.removeprefix("test_") not in known:
                raise ValueError(
                    f"{cls.__name__}.expected_failures names {name!r}, which is no check; the "
                    f"checks are {', '.join(sorted(known))}"
                )
            if not reason.strip():
                raise ValueError(f"{cls.__name__}.expected_failures[{name!r}] gives no reason")


@dataclass(frozen=True)
class Outcome:
    """What became of one check.

    Attributes:
        name: of the check, without `test_`.
        contract: what it asks.
        state: `passed`, `failed`, `skipped` or `expected` (a failure that was).
        detail: why.
    """

    name: str
    contract: str
    state: str
    detail: str = ""


def run_checks(
    suite: type[Suite], *, quick: bool = False, names: Iterable[str] | None = None
) -> list[Outcome]:
    """Run a suite's checks in this process.

    Args:
        suite: the class.
        quick: only those of the quick part.
        names: only these, with or without `test_`; all by default.

    Raises:
        ValueError: a name is no check.
    """
    suite.check_expectations()
    checks = suite.checks()
    wanted = None if names is None else {f"test_{name.removeprefix('test_')}" for name in names}
    if wanted is not None and (unknown := wanted - checks.keys()):
        raise ValueError(f"{min(unknown)} is no check of {suite.__name__}")
    return [
        _run(suite, name, known)
        for name, known in checks.items()
        if (wanted is None or name in wanted) and (known.quick or not quick)
    ]


def _run(suite: type[Suite], name: str, known: Check) -> Outcome:
    plain = name.removeprefix("test_")
    if reason := suite.why_skipped(name):
        return Outcome(plain, known.contract, "skipped", reason)
    expected = suite.expectation(name)
    try:
        getattr(suite(), name)()
    # A plugin may fail in any way; the outcome tells.
    except Exception as error:  # noqa: BLE001 - contained, see above
        notes = "\n".join(getattr(error, "__notes__", ()))
        detail = str(error) if isinstance(error, ContractError) else f"{error!r}\n{notes}"
        return Outcome(plain, known.contract, "expected" if expected else "failed", detail)
    if expected:
        return Outcome(
            plain, known.contract, "failed", f"it passes, but is expected to fail: {expected}"
        )
    return Outcome(plain, known.contract, "passed")
