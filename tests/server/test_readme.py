"""The README's section on HTTP does what it says, run as it is printed."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from tests.server.calling import called

README = Path(__file__).parents[2] / "README.md"


def test_curl_alone_takes_a_job_through_its_life(app: Holdfast, tmp_path: Path) -> None:
    section = README.read_text(encoding="utf-8").partition("## Over HTTP")[2].partition("\n## ")[0]
    (script,) = re.findall(r"^```bash\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    with called(app) as caller:
        (tmp_path / ".curlrc").write_text(f'connect-to = "127.0.0.1:8080:127.0.0.1:{caller.base_url.port}"\n')
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "CURL_HOME": str(tmp_path), "no_proxy": "127.0.0.1"},
        )
    assert done.returncode == 0, done.stdout + done.stderr
    told = list(_values(done.stdout))
    states = [each.get("state") for each in told]
    assert states[:3] == ["queued", "dead", "queued"]
    assert sorted(map(str, states[3:])) == ["None", "running", "succeeded", "succeeded"]
    (watched,) = [each for each in told if "result" in each]
    assert (watched["result"], watched["generation"]) == ({"width": 640}, 2)
    (job,) = app.find()
    assert (job.state, job.key) == ("succeeded", "photo:7")
    assert [step.name for step in job.steps()] == ["fetch"]


def _values(text: str) -> Iterator[dict[str, Any]]:
    """Read one JSON value after the other: one `curl` may begin to tell before another has ended its line."""
    while text := text.lstrip():
        value, end = json.JSONDecoder().raw_decode(text)
        yield value
        text = text[end:]
