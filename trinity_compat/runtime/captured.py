"""Gives a caught launch its line numbers, and turns it into a Trinity YAML by translate's own pipeline."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from trinity_compat.errors import UserError
from trinity_compat.launch import Launch, read_argv, read_script
from trinity_compat.runtime.intercept import Invocation
from trinity_compat.runtime.overlay import is_trinity_only
from trinity_compat.runtime.plan import Options
from trinity_compat.runtime.session import Request
from trinity_compat.runtime.source import Source
from trinity_compat.translate.model import Translation
from trinity_compat.translate.options import Options as TranslateOptions
from trinity_compat.translate.pipeline import translate_launch
from trinity_compat.translate.symbols import resolved_launch


def source_of(found: Invocation, request: Request, options: Options) -> tuple[Source, Options]:
    """Translate what was caught. ``--set`` in veRL's spelling joins the launch's own words, so that
    everything derived from it follows; the options that come back hold the rest."""
    words = [text for text in options.sets if not is_trinity_only(text)]
    launch = launch_of(replace(found, arguments=(*found.arguments, *words)), request)
    environ = {**request.environ, **os.environ}
    command = f"trinity-compat translate --resolve {request.script}"
    translation, text = translate_launch(
        launch, TranslateOptions(resolve=True, environ=environ, command=command)
    )
    rest = tuple(item for item in options.sets if item not in words)
    source = Source(translation.config, text, _record(launch, request), _audit(translation))
    return source, replace(options, sets=rest)


def launch_of(found: Invocation, request: Request) -> Launch:
    """The launch with the script's line numbers where reading the script gives the very same words,
    else the words alone."""
    for environ in ({}, request.environ):
        for launch in _static_launches(request, environ):
            if _same(launch, found, request.environ):
                return launch
    return read_argv(["python3", "-m", found.module, *found.arguments]).launches[0]


def _same(launch: Launch, found: Invocation, environ: Mapping[str, str]) -> bool:
    try:
        words = resolved_launch(launch, environ).arguments
    except UserError:
        return False
    return launch.module == found.module and tuple(word.text for word in words) == found.arguments


def _static_launches(request: Request, environ: Mapping[str, str]) -> Sequence[Launch]:
    try:
        return read_script(request.script, cwd=request.cwd, env=environ, args=request.arguments).launches
    except UserError:
        return ()


def _record(launch: Launch, request: Request) -> dict[str, Any]:
    """The launch as it was made, for config/launch.json. The environment's values stay out of it."""
    return {
        "script": request.script,
        "script_arguments": list(request.arguments),
        "module": launch.module,
        "where": str(launch.where),
        "arguments": [{"text": word.text, "where": str(word.where)} for word in launch.arguments],
        "exported": sorted(launch.env),
        "wrapper": list(launch.wrapper),
        "cwd": os.getcwd(),
    }


def _audit(translation: Translation) -> str:
    findings = [asdict(finding) | {"where": str(finding.where or "")} for finding in translation.findings]
    warnings = [asdict(warning) | {"where": str(warning.where or "")} for warning in translation.warnings]
    return json.dumps({"findings": findings, "warnings": warnings}, indent=1, default=str) + "\n"
