"""A finished pre-training to the Hugging Face hub: `threeml push <run> <owner/name>`."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import build_hf_headers, get_session, validate_repo_id
from huggingface_hub.utils import logging as hub_logging

from threeml_core.config import StudyConfig
from threeml_core.foundation.errors import CheckpointError, HubError, ParameterError, StudyError
from threeml_core.foundation.files import atomic_folder, find_path, project_path, refuse_locked
from threeml_core.foundation.hub import hub_or_cache
from threeml_core.foundation.log import Log, print_line
from threeml_core.runs.record import RunRecord, load_records, read_record, run_folder
from threeml_core.training.checkpoint import CHECKPOINTS
from threeml_core.training.model_card import hub_card

Files = dict[str, Path | bytes]
"""Path in the repository -> a file, or what is in it."""


def push(config: StudyConfig, log: Log = print_line) -> None:
    """Push `pushed_run` to `push_to_hub`, or write what would be pushed into `dry_run`; again: what is missing there.

    `main` gets the end of the run, a branch `step-<N>` each checkpoint (`checkpoint_steps`), before `main`.

    Raises:
        CheckpointError: no such finished run.
        DamagedFileError: a file of it is not what was written.
        HubError: the hub cannot be asked, or refuses; what was uploaded before stays.
        ParameterError: a name that the hub does not take, or a dry run into a folder that is there.
    """
    repo = _checked_name(config.push_to_hub)
    folder = _find_run(config)
    record = read_record(folder, check_hashes=True)
    if record.stage != "pretrain" or record.failure:
        raise CheckpointError(f"{folder} has no model to push: expected a pre-training that ended well")
    revisions = revisions_of(folder, record, repo, config.hub_root)
    if config.dry_run is not None:
        return _write(revisions, config.dry_run, log)
    token = _checked_token(repo)
    with _one_line(repo, token):
        api = HfApi(token=token)
        repo = api.create_repo(repo, private=config.hub_private_repo or None, exist_ok=True).repo_id
        _refuse_another_run(api, repo, record.run_id, token)
        for revision, files in revisions.items():
            if revision != constants.DEFAULT_REVISION:
                api.create_branch(repo, branch=revision, exist_ok=True)
            operations = [CommitOperationAdd(path, content) for path, content in files.items()]
            message = f"{record.run_id}, {revision}"
            api.create_commit(repo, operations, commit_message=message, revision=revision)
            log(f"{revision}: {len(files)} files are in {constants.ENDPOINT}/{repo}/tree/{revision}")


def check_push(config: StudyConfig) -> None:
    """Refuse, before hours of training, a name that the hub does not take, no token, and a hub that cannot be asked.

    Raises:
        HubError: see `push`.
        ParameterError: see `push`.
    """
    repo = _checked_name(config.push_to_hub)
    if config.dry_run is not None:
        _new_folder(config.dry_run)
        return
    token = _checked_token(repo)
    with _one_line(repo, token):
        HfApi(token=token).whoami()


def revisions_of(folder: Path, record: RunRecord, repo: str, root: str) -> dict[str, Files]:
    """What each revision holds, `main` last: `root` ("encoder" or "model") at its root, the other one in a folder."""
    steps = sorted(int(path.name.removeprefix("step-")) for path in folder.glob(f"{CHECKPOINTS}/step-*"))
    places = {f"step-{step}": folder / CHECKPOINTS / f"step-{step}" for step in steps}
    places[constants.DEFAULT_REVISION] = folder
    probed = load_records(folder.parents[1], "probe")
    probes = [p for p in probed if p.data.get("run") == record.run_id and not p.data["is_random"]][-1:]
    card = (folder / "encoder" / "README.md").read_text(encoding="utf-8")
    revisions: dict[str, Files] = {}
    for revision, place in places.items():
        files: Files = {}
        for part in ("encoder", "model"):
            for path in sorted((place / part).rglob("*")):
                name = path.relative_to(place / part).as_posix()
                if path.is_file() and name != "README.md":
                    files[name if part == root else f"{part}/{name}"] = path
        # transformers looks for a model's code at the root, also of a model in a folder
        files |= (code := {path.name: path for path in (place / "model").glob("*.py")})
        files["README.md"] = hub_card(card, record, probes, repo, root, revision, portable=bool(code)).encode()
        revisions[revision] = files
    return revisions


def _checked_name(repo: str | None) -> str:
    if repo is None:
        raise ParameterError("push_to_hub is missing: give the repository, `threeml push <run> <owner/name>`")
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ParameterError(
            f"push_to_hub={repo!r}: {' '.join(str(error).split())[:200]}; expected owner/name"
        ) from None
    return repo


def _find_run(config: StudyConfig) -> Path:
    name = config.pushed_run
    if name is None:
        raise ParameterError("pushed_run is missing: give the run, `threeml push <run> <owner/name>`")
    folder = refuse_locked(run_folder(config.runs_dir, "pretrain", name))
    folder = folder if folder.is_dir() else find_path(name).resolve()
    if not (folder / "record.json").is_file():
        known = sorted(p.parent.name for p in (project_path(config.runs_dir) / "pretrain").glob("*/record.json"))
        hint = f"that is {folder.parent}" if (folder.parent / "record.json").is_file() else ""
        raise CheckpointError(
            f"pushed_run: {name} is no finished run; expected the id or folder of a pre-training run: "
            f"{hint or 'there are ' + (', '.join(known) or 'none')}"
        )
    return folder


def _new_folder(where: str) -> Path:
    folder = project_path(where)
    if folder.exists():
        raise ParameterError(f"dry_run={where}: it is there already; expected a new folder")
    return folder


def _write(revisions: dict[str, Files], where: str, log: Log) -> None:
    """A dry run: a folder for each revision."""
    target = _new_folder(where)
    with atomic_folder(target) as temporary:
        for revision, files in revisions.items():
            for name, content in files.items():
                path = temporary / revision / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content) if isinstance(content, bytes) else shutil.copyfile(content, path)
    log(f"nothing is pushed; {', '.join(revisions)} would be as in {target}")


def _checked_token(repo: str) -> str:
    if constants.HF_HUB_OFFLINE:
        raise HubError(f"{repo}: HF_HUB_OFFLINE is set, so the hub is not asked; unset it, or give dry_run a folder")
    token = get_token()
    if not token:
        raise HubError(
            f"{repo}: no token; make one with write access at {constants.ENDPOINT}/settings/tokens, then "
            "`hf auth login`, or set HF_TOKEN"
        )
    with hub_or_cache(repo) as reason:
        if reason:
            raise HubError(f"{repo}: {reason}; run the same command again with a network, or give dry_run a folder")
    return token


def _refuse_another_run(api: HfApi, repo: str, run: str, token: str) -> None:
    """Refuse a repository that holds something else than this run."""
    there = set(api.list_repo_files(repo)) - {".gitattributes"}
    card = ""
    if "README.md" in there:
        url = f"{constants.ENDPOINT}/{repo}/resolve/{constants.DEFAULT_REVISION}/README.md"
        card = get_session().get(url, headers=build_hf_headers(token=token)).text
    if there and run not in card:
        raise HubError(
            f"{repo} is taken: it holds {len(there)} files that are not of run {run}; take another name, or delete it "
            "on the hub"
        )


@contextlib.contextmanager
def _one_line(repo: str, token: str) -> Iterator[None]:
    """Turn the errors of the hub's client into a `HubError` of one line without the token; nothing else is logged."""
    verbosity = hub_logging.get_verbosity()
    hub_logging.set_verbosity_error()
    try:
        yield
    except StudyError:  # SIGTERM's too
        raise
    except Exception as error:  # the hub's and its clients' errors have no common base
        raise HubError(f"{repo}: {_reason(error)}".replace(token, "<token>")) from None
    finally:
        hub_logging.set_verbosity(verbosity)


def _reason(error: BaseException) -> str:
    """What happened and what to do, from the first answer of the hub among an error's causes, or the last cause."""
    cause: BaseException | None = error
    while cause is not None:
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if status == 401:
            return "the hub does not know this token; `hf auth login` with one that has write access, or set HF_TOKEN"
        if status == 403:
            return "this token may not write there; take a repository of your own, or a token with write access"
        if status is not None:
            return f"the hub refused ({status}: {' '.join(str(cause).split())[:200]}); run the same command again"
        error, cause = cause, cause.__cause__
    said = " ".join(str(error).split())[:200]
    return f"the push stopped ({type(error).__name__}: {said}); the same command goes on with what is missing"
