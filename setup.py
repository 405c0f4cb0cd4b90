"""What pyproject.toml cannot say: the wheel carries notebooks/ and params/, and a note of its commit."""

import subprocess
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

CARRIED = {"threeml_core.notebooks": "notebooks", "threeml_core.params": "params"}


def git(*arguments: str) -> str:
    """What git says."""
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def note_commit(folder: str) -> None:
    """Write the commit of this checkout; a source distribution, which is none, has the note already."""
    if not Path(".git").exists():
        return
    try:
        commit = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!reports")
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"the commit is not noted: {error}")
        return
    Path(folder, "threeml_core", "commit.txt").write_text(f"{commit}{' changed' * bool(changed)}\n")


class BuildPy(build_py):
    """Into a wheel, but not into an editable install, which is the checkout itself."""

    def run(self) -> None:
        """See setuptools."""
        super().run()
        if not self.editable_mode:
            note_commit(self.build_lib)


class SDist(sdist):
    """Into a source distribution."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """See setuptools."""
        super().make_release_tree(base_dir, files)
        note_commit(base_dir)


setup(
    packages=[*find_packages(include=["threeml_core*"]), "threeml_core.reporting.template", *CARRIED],
    package_dir=CARRIED,
    cmdclass={"build_py": BuildPy, "sdist": SDist},
)
