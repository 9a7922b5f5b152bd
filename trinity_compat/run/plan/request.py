"""The request of a run: its configuration in full, the command line, and the overlays of both."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, copied, value_at
from trinity_compat.common.paths import from_home
from trinity_compat.common.plugin_packages import Plugin
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.plan import environment, paths, plugin_uses, profiles, run_length
from trinity_compat.run.plan.devices import gpus_here, is_elsewhere
from trinity_compat.run.plan.overlay import Overlay, apply, flash_attn_overlay
from trinity_compat.run.plan.read_settings import check_values
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.translate import verl_from_trinity
from trinity_compat.trinity.config.complete import CompletedConfig
from trinity_compat.trinity.config.read_tracking import plain, values_of, watched
from trinity_compat.verl_config.pinned import pinned_release


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The configuration and the command line of a run, taken together."""

    options: RunOptions
    device: str
    cwd: Path
    written: Tree  # the Trinity configuration, with the sets that name its paths
    full: CompletedConfig  # what trinity-rft makes of it, watched
    read: set[str]  # its paths that were read, growing as that happens
    overlays: Sequence[Overlay]  # in the order in which they act
    verl_values: Tree  # dotted veRL key → value, from the configuration and the overlays
    updates_per_step: int  # as the configuration says
    updates_source: str  # where that comes from; "" where that is obvious
    plugins_before: Sequence[Plugin] = ()  # those that the job was last started with

    @property
    def trinity(self) -> Tree:
        """The complete Trinity configuration; reading it is tracked."""
        return self.full.config

    @property
    def unread(self) -> dict[str, object]:
        """Path → value of the fields that were not read, neither at their place nor where they moved to.

        A file written by hand asks for what its interpolations come to; the values that translate wrote stay
        as they are written, as it would write them again.
        """
        by_hand = not verl_from_trinity.from_launch(self.written)
        written = environment.filled(self.written, os.environ) if by_hand else self.written
        read = self.read | {source for path, source in self.full.sources.items() if path in self.read}
        return {path: value for path, value in values_of(written).items() if path not in read}


def read_request(config: Tree, options: RunOptions, device: str, cwd: Path) -> RunRequest:
    """Complete the configuration as trinity-rft does, and lay the overlays over it. Raises UserError."""
    chosen = list(dict.fromkeys([*(["cpu"] if device == "cpu" else []), *options.profiles]))
    loaded, sets = [profiles.load(name) for name in chosen], Overlay.of_sets(options.sets)
    written = copied(config)
    for overlay in (*map(Overlay.of_profile, loaded), sets):
        apply(paths.named_by(overlay.verl) | dict(overlay.trinity), written)
    full = verl_from_trinity.completed_config(environment.filled(written, os.environ))
    if not verl_from_trinity.from_launch(full.config):
        _count_gpus(full, options, device)
        _read_template(full, cwd)
    plugins_before = plugin_uses.of_job(JobDir(paths.job_root(full.config, options, cwd)), full.config)
    check_values(full.config)
    trinity, read = watched(full.config)
    full = replace(full, config=trinity)
    updates_per_step, updates_source = verl_from_trinity.updates_per_step(trinity)
    run_length.check_limits(trinity, options.sets)
    values = plain(verl_from_trinity.verl_settings(full))
    value = _launch_value(values, verl_from_trinity.flavour_of(trinity))
    # In the order in which they apply: the device's profile, the user's profiles, --set.
    wanted = [*(Overlay.of_profile(profile, value) for profile in loaded), sets]
    # The profile that replaces flash-attn comes first, so that another profile or a --set wins over it.
    elsewhere = is_elsewhere(device, dry_run=options.dry_run)
    stand_in = [] if elsewhere else flash_attn_overlay(_laid_over(values, wanted), device)
    overlays = [*stand_in, *wanted]
    return RunRequest(
        options,
        device,
        cwd,
        written,
        full,
        read,
        overlays,
        _laid_over(values, overlays),
        updates_per_step,
        updates_source,
        plugins_before,
    )


def _count_gpus(full: CompletedConfig, options: RunOptions, device: str) -> None:
    """Fill in the GPUs and nodes that the file leaves to the machine, as trinity-rft does.

    Raises UserError where the machine has no GPU.
    """
    if full.at("cluster.gpu_per_node") is None:
        found = options.gpus or gpus_here(device)
        if not found:
            raise UserError(
                "cluster.gpu_per_node is not set, and no GPU is visible on this machine",
                hint="write it, or add --gpus N to --dry-run",
            )
        full.put("cluster.gpu_per_node", found)
    if full.at("cluster.node_num") is None:
        full.put("cluster.node_num", 1)


def _read_template(full: CompletedConfig, cwd: Path) -> None:
    """Read the chat template that the file names by its path. Raises UserError."""
    path = full.at("model.chat_template_path")
    if path is None or full.at("model.custom_chat_template") is not None:
        return
    try:
        text = (cwd / from_home(str(path))).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"model.chat_template_path={path} cannot be read ({error})") from error
    full.put("model.custom_chat_template", text, "model.chat_template_path")


def _launch_value(values: Tree, flavour: str) -> Callable[[str], object]:
    """Return a function from a veRL key to its value before the overlays: the launch's, or veRL's default."""
    given, defaults = {key.lstrip("+"): found for key, found in values.items()}, pinned_release(flavour).tree
    return lambda key: given[key] if key in given else value_at(defaults, key)


def _laid_over(values: Tree, overlays: Sequence[Overlay]) -> dict[str, object]:
    """Put the overlays' values last, so that they win and interpolations follow them."""
    out = dict(values)
    for overlay in overlays:
        for key, value in overlay.verl.items():
            out.pop(key, None)
            out[key] = value
    return out
