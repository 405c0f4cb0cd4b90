"""The study's notebooks: where they lie, and a copy of them for a folder of one's own."""

from __future__ import annotations

import shlex
from pathlib import Path

from threeml_core.foundation.errors import ParameterError, StudyError
from threeml_core.foundation.files import CARRIED, INSTALLED, PROJECT_ROOT, atomic_file, explain_path

NOTEBOOKS = CARRIED / "notebooks"

_USAGE = "threeml notebooks copy FOLDER [--overwrite]"


def copy_notebooks(folder: Path, overwrite: bool = False) -> list[Path]:
    """Copy all notebooks into a folder, which may hold other files; their paths there.

    Args:
        folder: is made if it is not there.
        overwrite: whether notebooks of these names that are there and differ are replaced.

    Raises:
        StudyError: such notebooks are there, or the folder cannot be written; nothing is copied then. Or the disk is
            full; the notebooks that are there then are whole.
    """
    contents = {folder / path.name: path.read_bytes() for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    with explain_path(folder):
        there = {path for path in contents if path.exists()}
        differ = [path.name for path in there if not path.is_file() or path.read_bytes() != contents[path]]
        folder.mkdir(parents=True, exist_ok=True)
    if differ and not overwrite:
        raise StudyError(
            f"{folder} holds {len(differ)} notebooks of yours that would be overwritten, such as {min(differ)}; give "
            "another folder, or --overwrite"
        )
    for path, content in contents.items():
        if path.name in differ or path not in there:
            with explain_path(path), atomic_file(path) as temporary:
                temporary.write_bytes(content)
    return list(contents)


def notebooks_command(arguments: list[str]) -> str:
    """What `threeml notebooks` does with these arguments, and says then.

    Raises:
        StudyError: see `copy_notebooks`.
        ParameterError: other arguments.
    """
    folders = [part for part in arguments[1:] if part != "--overwrite"]
    if not arguments or {"-h", "--help"} & {*arguments}:
        return f"usage: {_USAGE}\n\nCopy the study's notebooks; with --overwrite also over those that are there."
    if arguments[0] != "copy" or len(folders) != 1 or folders[0].startswith("-"):
        raise ParameterError(f"unknown arguments {shlex.join(arguments)!r}: expected {_USAGE}")
    copied = copy_notebooks(Path(folders[0]), "--overwrite" in arguments)
    run = next(path for path in copied if path.stem == "02_pretrain")
    where = "the folder in which it is run" if INSTALLED else PROJECT_ROOT
    return (
        f"{len(copied)} notebooks are in {folders[0]}. Open them in JupyterLab, or run one, such as\n"
        f"    papermill {shlex.quote(str(run))} out.ipynb -p mask_rate 0.5\n"
        f"Runs and reports go below {where}."
    )
