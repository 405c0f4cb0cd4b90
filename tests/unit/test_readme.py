"""The README's code runs as it stands there; its last lines compare with what training computes."""

from __future__ import annotations

import re

from threeml_core.foundation.files import PROJECT_ROOT


def test_the_idea_in_twelve_lines() -> None:
    text = (PROJECT_ROOT / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0]
    names: dict = {}
    exec(code, names)
    assert "assert torch.allclose" in code and names["model"].mask_embedding.grad.abs().sum() > 0
    for name, shape in re.findall(r"(?m)^(\w+)(?:, \w+)? = .*  # (\([\d, ]+\))", code):
        assert str(tuple(names[name].shape)) == shape, name
