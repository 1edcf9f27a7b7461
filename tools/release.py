"""
Make a release: version and changelog, a wheel and a source distribution in `dist/`, one commit and one tag.

    make release VERSION=0.2.0

Nothing leaves this machine: pushing the tag starts the workflow that publishes. If a step fails, nothing has changed.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["ReleaseError", "check_version", "release_changelog", "release_project"]

ROOT = Path(__file__).resolve().parent.parent
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(a|b|rc)(\d+))?")
_PROJECT_VERSION = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
_UNRELEASED = "## Unreleased\n"


class ReleaseError(Exception):
    """The release cannot be made; the message says what to do."""


def check_version(old: str, new: str) -> None:
    """
    Check that *new* is a version above *old*.

    Raises:
        ReleaseError: it is not.
    """
    keys = []
    for text in (old, new):
        parsed = _VERSION.fullmatch(text)
        if parsed is None:
            raise ReleaseError(f"{text!r} is not a version; write for example 0.2.0 or 0.2.0rc1")
        major, minor, patch, stage, number = parsed.groups()
        keys.append((int(major), int(minor), int(patch), stage or "z", int(number or 0)))
    if keys[1] <= keys[0]:
        raise ReleaseError(f"{new} is not above {old}, the version in pyproject.toml")


def release_changelog(text: str, version: str, date: datetime.date) -> str:
    """
    Return the changelog *text* in which what is unreleased becomes *version*.

    Raises:
        ReleaseError: nothing is unreleased.
    """
    before, heading, after = text.partition(_UNRELEASED)
    content = re.split(r"^## ", after, maxsplit=1, flags=re.MULTILINE)[0].strip()
    if not heading or not content:
        raise ReleaseError("CHANGELOG.md has nothing below Unreleased")
    return f"{before}{_UNRELEASED}\n## {version} – {date.isoformat()}\n{after}"


def release_project(text: str, version: str) -> str:
    """
    Return pyproject.toml with *version*.

    Raises:
        ReleaseError: it has no version, or one that is not below.
    """
    found = _PROJECT_VERSION.search(text)
    if found is None:
        raise ReleaseError("pyproject.toml has no version")
    check_version(found[1], version)
    return f"{text[: found.start(1)]}{version}{text[found.end(1) :]}"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def _build(version: str) -> list[Path]:
    """Build the source distribution, and the wheel from it: then the former is complete."""
    dist = ROOT / "dist"
    for path in dist.glob("arrow_quiver-*"):
        path.unlink()
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(ROOT)]
    if subprocess.run(command, check=False).returncode:
        raise ReleaseError("the build failed; the reason is above")
    found = sorted(dist.glob(f"arrow_quiver-{version}[.-]*"))
    if len(found) != 2:
        raise ReleaseError(f"dist/ has {len(found)} files of {version}, not a wheel and a source distribution")
    return found


def release(version: str, today: datetime.date) -> list[Path]:
    """
    Make the release; return the built files.

    Raises:
        ReleaseError: a step failed, and the files are as before.
    """
    if _git("status", "--porcelain"):
        raise ReleaseError("the work tree has changes: commit them first")
    if _git("tag", "--list", f"v{version}"):
        raise ReleaseError(f"the tag v{version} exists")
    project, changelog = ROOT / "pyproject.toml", ROOT / "CHANGELOG.md"
    before = {path: path.read_text(encoding="utf-8") for path in (project, changelog)}
    after = {
        project: release_project(before[project], version),
        changelog: release_changelog(before[changelog], version, today),
    }
    try:
        for path, text in after.items():
            path.write_text(text, encoding="utf-8")
        built = _build(version)
        _git("commit", "--quiet", "--message", f"Release {version}", "pyproject.toml", "CHANGELOG.md")
    except BaseException:
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")
        raise
    _git("tag", "--annotate", f"v{version}", "--message", f"Quiver {version}")
    return built


def main() -> int:
    """Make the release that the command line names."""
    if len(sys.argv) != 2:
        print("usage: make release VERSION=0.2.0", file=sys.stderr)
        return 2
    try:
        built = release(sys.argv[1], datetime.datetime.now(tz=datetime.UTC).date())
    except ReleaseError as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    for path in built:
        print(path.relative_to(ROOT))
    print(f"committed and tagged v{sys.argv[1]}; to publish it: git push --follow-tags")
    return 0


if __name__ == "__main__":
    sys.exit(main())
