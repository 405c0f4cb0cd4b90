"""The hub is asked where it answers; else its cache is read."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from threeml_core.foundation.hub import hub_or_cache


def test_a_hub_that_answers_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it says."""

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        close_session()
        with hub_or_cache("some/name") as offline:
            assert offline == "" and not constants.HF_HUB_OFFLINE
        server.shutdown()
    with hub_or_cache("some/name") as offline:
        assert "cannot be reached" in offline and constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
    with hub_or_cache(Path(__file__).parent) as offline:
        assert offline == "" and not constants.HF_HUB_OFFLINE, "for a folder nothing is asked"
