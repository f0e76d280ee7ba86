"""What runs the code of cells: IPython's shell, or a small one of our own."""

from __future__ import annotations

import ast
import builtins
import collections
import linecache
import re
import traceback
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    Show = Callable[[dict[str, Any], bool], None]

IMAGES = ("image/png", "image/jpeg")
TEXTS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "application/json": "_repr_json_",
}
_CELLS_KEPT = 200
_CO_COROUTINE = 0x80  # of inspect, whose import takes as long as the start of an interpreter
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def repr_of(value: object) -> str:
    """Return the repr of a value, or why there is none."""
    try:
        return str.__str__(repr(value))
    except Exception as error:  # any class can define it
        return f"<{type(value).__name__}, whose repr() raised {type(error).__name__}>"


def bundle_of(value: object) -> dict[str, Any]:
    """Return what a value can be shown as, by media type."""
    bundle: dict[str, Any] = {"text/plain": repr_of(value)}
    methods = {"image/png": "_repr_png_", "image/jpeg": "_repr_jpeg_", **TEXTS}
    for media_type, name in methods.items():
        method = getattr(type(value), name, None)
        if method is None:
            continue
        try:
            shown = method(value)
        except Exception:  # it has its repr
            continue
        bundle[media_type] = shown[0] if isinstance(shown, tuple) else shown
    return bundle


class PlainShell:
    """Runs cells in one namespace: statements, then the value of a last expression is shown."""

    def __init__(self, namespace: dict[str, Any], show: Show) -> None:
        self._namespace = namespace
        self._show = show
        self._names: collections.deque[str] = collections.deque()
        self._loop: AbstractEventLoop | None = None
        self.count = 0
        builtins.display = self._display  # type: ignore[attr-defined]

    def run(self, code: str) -> BaseException | None:
        """Run a cell; return what it raised."""
        self.count += 1
        name = f"<cell {self.count}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        self._names.append(name)
        if len(self._names) > _CELLS_KEPT:
            linecache.cache.pop(self._names.popleft(), None)
        try:
            self._run(ast.parse(code, name), name)
        except BaseException as error:  # sys.exit() and interrupts end the cell, not the interpreter
            return error
        return None

    def _run(self, tree: ast.Module, name: str) -> None:
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._evaluate(tree, name, "exec")
        if isinstance(last, ast.Expr):
            value = self._evaluate(ast.Expression(last.value), name, "eval")
            if value is not None:
                self._namespace["_"] = value
                self._show(bundle_of(value), True)

    def _evaluate(self, tree: Any, name: str, mode: str) -> Any:
        compiled = compile(tree, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        value = eval(compiled, self._namespace)  # noqa: S307 - that is what it is for
        if not compiled.co_flags & _CO_COROUTINE:
            return value
        if self._loop is None:
            import asyncio  # takes as long as the start of the interpreter

            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(value)

    def _display(self, *values: object) -> None:
        for value in values:
            self._show(bundle_of(value), False)

    def traceback_of(self, error: BaseException) -> str:
        """Return the traceback, from the cell on."""
        trace = error.__traceback__
        while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
            trace = trace.tb_next
        return "".join(traceback.format_exception(type(error), error, trace))


class IPythonShell:
    """Runs cells in IPython's shell: with its magics, `!commands`, and displays of any kind."""

    def __init__(self, module: types.ModuleType, show: Show) -> None:
        import tempfile

        # Not in every image, and its classes cannot be named before it is imported.
        from IPython.core.displayhook import DisplayHook  # type: ignore[import-not-found,unused-ignore]
        from IPython.core.displaypub import DisplayPublisher  # type: ignore[import-not-found,unused-ignore]
        from IPython.core.interactiveshell import InteractiveShell  # type: ignore[import-not-found,unused-ignore]
        from traitlets.config import Config  # type: ignore[import-not-found,unused-ignore]

        class Hook(DisplayHook):  # type: ignore[misc,unused-ignore]
            def write_output_prompt(self) -> None: ...
            def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:  # noqa: ARG002
                show(format_dict, True)

            def finish_displayhook(self) -> None: ...

        class Publisher(DisplayPublisher):  # type: ignore[misc,unused-ignore]
            def publish(self, data: dict[str, Any], *_: Any, **__: Any) -> None:
                show(data, False)

            def clear_output(self, *_: Any, **__: Any) -> None: ...

        class Shell(InteractiveShell):  # type: ignore[misc,unused-ignore]
            displayhook_class = Hook
            display_pub_class = Publisher
            shown_traceback = ""

            def _showtraceback(self, _etype: Any, _evalue: Any, stb: list[str]) -> None:
                self.shown_traceback = "\n".join(stb)

            def ask_exit(self) -> None: ...

        config = Config()
        config.InteractiveShell.colors = "nocolor"
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        # Not in HOME, which code may not be able to write.
        self._shell = Shell.instance(config=config, user_module=module, ipython_dir=tempfile.mkdtemp(prefix="ipython-"))

    @property
    def count(self) -> int:
        return int(self._shell.execution_count) - 1

    def run(self, code: str) -> BaseException | None:
        """Run a cell; return what it raised."""
        self._shell.shown_traceback = ""
        result = self._shell.run_cell(code, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        return error if isinstance(error, BaseException) else None

    def traceback_of(self, error: BaseException) -> str:
        shown = _ESCAPES.sub("", self._shell.shown_traceback)
        return shown or "".join(traceback.format_exception(type(error), error, None))
