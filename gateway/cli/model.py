"""`airlock model`: find out what a model's endpoint can do, and which settings it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from gateway.cli.command import CONFIG, Cli, Commands
from gateway.cli.printable import Rows, one_line
from gateway.cli.terminal import SlowWork, fail, out
from gateway.errors import Misconfigured

if TYPE_CHECKING:
    from agent.models.model_check import ModelReport
    from agent.models.openai_model import OpenAIModel
    from agent.models.settings import RequestSettings
    from gateway.config.config import Config
    from gateway.config.model_settings import OneModelSettings

app = Commands(help="Models: what an endpoint can do, and which settings it needs.")

_STYLES = {"yes": "green", "no": "yellow", "unknown": "dim"}
# Longer than a small question needs, shorter than a person waits for a silent endpoint.
_PATIENCE_S = {"idle_timeout_s": 60.0, "timeout_s": 120.0}


def configured(config: Config) -> Iterator[OneModelSettings]:
    """Yield each model of a configuration once. Raises Misconfigured for one without a key."""
    seen = set()
    for tenant in config.tenants:
        usual = config.model_of(tenant)
        for name, agent in config.agents_of(tenant).items():
            for model in agent.within(usual).models(usual, name):
                identity = (model.resolved_base_url(), model.resolved_name(), model.api)
                if identity not in seen:
                    seen.add(identity)
                    yield model


async def checked(
    model: OneModelSettings, *, short: bool = False, on_answer: Callable[[str], None] = lambda _: None
) -> ModelReport:
    """Ask a model's endpoint what it can do. Raises Misconfigured for a model without a key."""
    from agent.models.model_check import ModelCheck
    from agent.models.openai_model import OpenAIModel

    key, connection = model.resolved_api_key(), model.connection()
    waits_s = {name: min(getattr(connection, name), _PATIENCE_S[name]) for name in _PATIENCE_S}
    connection = replace(connection, **waits_s)

    def open_model(stream: bool, settings: RequestSettings) -> OpenAIModel:
        known: dict[str, Any] = {"base_url": model.resolved_base_url(), "api_key": key, "connection": connection}
        return OpenAIModel(model.resolved_name(), stream=stream, settings=settings, prices=model.prices(), **known)

    check = ModelCheck(open_model, model.request_settings(), stream=model.stream, on_answer=on_answer)
    return await check.run(short=short)


@app.command()
async def check(
    cli: Cli,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the model; default: each in the file.")] = "",
    *,
    config: Annotated[Path, typer.Option(help="Configuration file with the model.")] = CONFIG,
    base_url: Annotated[str, typer.Option(help="Check the model NAME at this endpoint, without a file.")] = "",
    api_key_env: Annotated[str, typer.Option(help="With --base-url: the variable with the key, if any.")] = "",
    short: Annotated[bool, typer.Option("--short", help="Check only if it answers, streams, calls tools.")] = False,
) -> None:
    """Send an endpoint a few small requests; print what it can do and the settings to paste.

    Exits with 1 if a model does not answer.
    """
    documents = []
    for model in _named(name, config, base_url, api_key_env):
        shown = f"{model.resolved_name()} at {model.resolved_base_url() or 'https://api.openai.com/v1'}"
        with SlowWork(f"asking {shown}") as work:
            report = await checked(model, short=short, on_answer=work.at)
        documents.append(
            {
                "model": model.resolved_name(),
                "base_url": model.resolved_base_url(),
                "problem": report.problem,
                "findings": [vars(finding) for finding in report.findings],
                "settings": report.settings,
            }
        )
        if not cli.as_json:
            _show(shown, model, report)
    cli.show(documents, bad_news=any(document["problem"] for document in documents))


def _named(name: str, config: Path, base_url: str, api_key_env: str) -> list[OneModelSettings]:
    from gateway.config.config import Config
    from gateway.config.model_settings import OneModelSettings

    if base_url:
        if not name:
            fail("--base-url needs the NAME of a model there")
        return [OneModelSettings(name=name, base_url=base_url, api_key_env=api_key_env or None)]
    models = [model for model in configured(Config.load(config)) if name in ("", model.resolved_name())]
    if not models:
        raise Misconfigured(f"{config} has no model {name!r}: name one that it has, or give --base-url")
    return models


def _show(shown: str, model: OneModelSettings, report: ModelReport) -> None:
    out.print(Text(one_line(shown), style="bold"))
    if report.problem:
        out.print(Text(f"  it does not answer: {report.problem}", style="red"))
        return
    rows = [
        (one.question, Text(one.answer, style=_STYLES[one.answer]), one_line(one.detail)) for one in report.findings
    ]
    out.print(Rows(("question", "answer", "seen"), rows))
    new = {name: value for name, value in report.settings.items() if getattr(model, name) != value}
    if not new:
        out.print("no setting needs to change")
        return
    out.print("settings for airlock.yaml:\n\nmodel:")
    for name, value in new.items():
        out.print(f"  {name}: {str(value).lower() if isinstance(value, bool) else value}")
