"""Parameters of what goes to the Hugging Face hub. The token is no parameter: no record may hold it."""

from __future__ import annotations

import dataclasses

from threeml_core.parameters.parameter import one_of, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubParameters:
    """The Hugging Face hub."""

    STAGES = "push"

    pushed_run: str | None = setting(None, "finished pre-training that is pushed, its id or run folder", none="no run")
    push_to_hub: str | None = setting(
        None, "repository that gets the run, owner/name; of pretrain: when it ends", none="nothing", also="pretrain"
    )
    hub_private_repo: bool = setting(False, "make the repository, if it is new, private", also="pretrain")
    hub_root: str = setting(
        "encoder",
        "what from_pretrained(push_to_hub) loads; the other one lies in a folder of its name",
        one_of(("encoder", "model")),
        also="pretrain",
    )
    dry_run: str | None = setting(
        None, "new folder that gets what would be pushed, a folder for each revision", none="push", also="pretrain"
    )
