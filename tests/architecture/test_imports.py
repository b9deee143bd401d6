"""What a program has to load: no more than it uses, because every process of a web server pays for it."""

import subprocess
import sys

import pytest

ENQUEUES = "app = holdfast.Holdfast('memory://'); app.job(name='noop')(lambda: None).enqueue(); app.close()"


@pytest.mark.parametrize("then", ["", ENQUEUES])
def test_a_program_that_does_not_work_loads_no_worker_and_no_http_client(then: str) -> None:
    code = f"import sys, holdfast; {then}\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = set(done.stdout.split())
    assert "holdfast.app" in loaded
    unwanted = {"holdfast.runtime.worker", "holdfast.runtime.executor", "holdfast.runtime.relay", "http.client"}
    assert not loaded & unwanted
