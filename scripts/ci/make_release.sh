#!/bin/sh
# Makes all of a release from a clean tree, and checks it: wheel and sdist, each alone in a fresh venv, the wheel under
# other Pythons, too; the site with the page that translates in a browser; the notes. All lies in
# .scratch/release/VERSION then, and the last line says how it is published.
set -eu
cd "$(dirname "$0")/../.."
[ -z "$(git status --porcelain)" ] || { echo "make release: the tree has changes that are not committed" >&2; exit 1; }
version=$(.venv/bin/python -c 'import trinity_compat; print(trinity_compat.__version__)')
out=$PWD/.scratch/release/$version
rm -rf "$out"
mkdir -p "$out"
.venv/bin/python scripts/ci/release_check.py --tag "v$version" --out "$out" --pythons 3.10 3.12 3.13 3.14
.venv/bin/python scripts/judge/try_python.py 3.14
make -s web docs
tar -C .scratch/web -czf "$out/web-page.tar.gz" site
tar -C .scratch -czf "$out/site.tar.gz" site
(cd "$out" && sha256sum -- * >SHA256SUMS)
ls -l "$out"
echo "to publish: git tag v$version && git push origin v$version (.github/workflows/release.yml hands wheel and sdist to PyPI)"
