"""Checks hooks when an agent is made, not when a call should have been blocked."""

from __future__ import annotations

import inspect

from agent.hooks.hook import Hook

RINGS = ("around_inference", "around_tool_use")
# A method with such a prefix that is not a point is misspelled: it would never be called.
_LIKE_A_POINT = ("before_", "after_", "around_", "on_", "execution_", "should_")


def overrides(hook: Hook, method: str) -> bool:
    """Return whether a hook overrides the method of a point."""
    return getattr(getattr(hook, method), "__func__", None) is not getattr(Hook, method)


def check_hook(hook: Hook, points: tuple[str, ...]) -> None:
    """Raise TypeError or ValueError for a hook that could not work; says how to fix it."""
    if isinstance(hook, type):
        raise TypeError(f"{hook.__name__} is a class: give a hook made of it, as in {hook.__name__}()")
    if not isinstance(hook, Hook):
        raise TypeError(f"{hook!r} is no hook: derive its class from agent.hooks.hook.Hook")
    name = type(hook).__name__
    known = (*points, *RINGS)
    mine = [point for point in known if overrides(hook, point)]
    for method in dir(type(hook)):
        if (
            method.startswith(_LIKE_A_POINT)
            and method not in known
            and inspect.iscoroutinefunction(getattr(type(hook), method, None))
        ):
            raise ValueError(
                f"{name}.{method} is no point and would never be called; the points are {', '.join(known)}"
            )
    if not mine:
        raise ValueError(f"{name} overrides no point and would do nothing; the points are {', '.join(known)}")
    if inspect.iscoroutinefunction(hook.matches):
        raise TypeError(f"{name}.matches is a coroutine, which counts as true whatever it returns: write `def matches`")
    for point in mine:
        method_itself = getattr(hook, point)
        if inspect.isfunction(getattr(method_itself, "__func__", None)) and not inspect.iscoroutinefunction(
            method_itself
        ):
            raise TypeError(f"{name}.{point} is a plain function: write `async def {point}`")
    if type(hook.timeout_s) not in (int, float) or hook.timeout_s < 0:
        raise TypeError(f"{name}.timeout_s is {hook.timeout_s!r}: a number of seconds is expected")
    if type(hook.priority) not in (int, float):
        raise TypeError(f"{name}.priority is {hook.priority!r}: a number is expected")
