"""Bundle CodeMirror 6, the studio's editor, as one file of trinity_compat/web/assets/vendor.

It needs node and npm: python scripts/site/make_codemirror.py. Each package is pinned here. codemirror.json
records them with their licences and the digest of the bundle, which tests/studio/test_codemirror.py checks.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parents[2] / "trinity_compat" / "web" / "assets" / "vendor"
BUNDLE = "codemirror.iife.min.js"
PACKAGES = {
    "@codemirror/autocomplete": "6.20.4",
    "@codemirror/commands": "6.11.1",
    "@codemirror/lang-yaml": "6.1.3",
    "@codemirror/language": "6.13.1",
    "@codemirror/legacy-modes": "6.5.5",
    "@codemirror/lint": "6.9.8",
    "@codemirror/merge": "6.12.3",
    "@codemirror/search": "6.7.2",
    "@codemirror/state": "6.7.6",
    "@codemirror/streamparser": "6.0.0",
    "@codemirror/view": "6.43.15",
    "@lezer/common": "1.5.5",
    "@lezer/highlight": "1.2.5",
    "@lezer/lr": "1.4.12",
    "@lezer/yaml": "1.0.4",
    "@marijn/find-cluster-break": "1.0.4",
    "crelt": "1.0.7",
    "style-mod": "4.1.5",
    "w3c-keyname": "2.2.8",
}
ESBUILD = "0.28.2"
ENTRY = """
export {EditorState, Compartment, StateEffect, StateField, RangeSetBuilder} from "@codemirror/state"
export {EditorView, Decoration, keymap, lineNumbers, drawSelection, highlightActiveLine,
  highlightActiveLineGutter, hoverTooltip, placeholder} from "@codemirror/view"
export {defaultKeymap, history, historyKeymap} from "@codemirror/commands"
export {search, searchKeymap, highlightSelectionMatches} from "@codemirror/search"
export {StreamLanguage, HighlightStyle, syntaxHighlighting, bracketMatching} from "@codemirror/language"
export {autocompletion, completionKeymap} from "@codemirror/autocomplete"
export {linter, setDiagnostics, lintGutter, lintKeymap, forEachDiagnostic} from "@codemirror/lint"
export {yaml} from "@codemirror/lang-yaml"
export {shell} from "@codemirror/legacy-modes/mode/shell"
export {unifiedMergeView} from "@codemirror/merge"
export {tags} from "@lezer/highlight"
"""


def main() -> None:
    """Install the packages in a temporary folder, bundle them, and write the files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "package.json").write_text(json.dumps({"dependencies": {**PACKAGES, "esbuild": ESBUILD}}))
        (folder / "entry.js").write_text(ENTRY)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund"], cwd=folder, check=True)
        bundler = folder / "node_modules" / "esbuild" / "bin" / "esbuild"
        options = [
            "--bundle",
            "--minify",
            "--format=iife",
            "--global-name=CodeMirror",
            "--legal-comments=none",
        ]
        words = [str(bundler), "entry.js", *options, "--target=es2022", f"--outfile={BUNDLE}"]
        subprocess.run(words, cwd=folder, check=True)
        installed = {
            path.parent.relative_to(folder / "node_modules").as_posix() for path in _manifests(folder)
        }
        if installed != set(PACKAGES):
            raise SystemExit(f"not pinned or not installed: {sorted(installed ^ set(PACKAGES))}")
        bundle = (folder / BUNDLE).read_bytes()
        notices = {each: _licence(folder / "node_modules" / each) for each in PACKAGES}
        record = {
            "sha256": hashlib.sha256(bundle).hexdigest(),
            "esbuild": ESBUILD,
            "packages": {
                each: {"version": version, "licence": notices[each][0]} for each, version in PACKAGES.items()
            },
        }
    (VENDOR / BUNDLE).write_bytes(bundle)
    (VENDOR / "codemirror.json").write_text(json.dumps(record, indent=1) + "\n")
    texts: dict[str, list[str]] = {}
    for each, (_, text) in notices.items():
        texts.setdefault(text, []).append(each)
    parts = [f"{', '.join(names)}\n\n{text}" for text, names in texts.items()]
    (VENDOR / "codemirror.LICENSE").write_text(f"\n\n{'-' * 78}\n\n".join(parts) + "\n")


def _manifests(folder: Path) -> list[Path]:
    """Return package.json of each installed package but the bundler's."""
    found = [*folder.glob("node_modules/[!@]*/package.json"), *folder.glob("node_modules/@*/*/package.json")]
    return [path for path in found if "esbuild" not in path.parent.as_posix().removeprefix(folder.as_posix())]


def _licence(package: Path) -> tuple[str, str]:
    """Return a package's licence and its text."""
    name = json.loads((package / "package.json").read_text())["license"]
    return name, next(package.glob("LICENSE*")).read_text().strip()


if __name__ == "__main__":
    main()
