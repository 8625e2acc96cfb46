"""`make lab` opens on a page that names the lessons, each a click away."""

import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from rooflab import paths
from rooflab.book import lessons
from test_explorer_browser import browser as browser


@pytest.mark.ci
def test_make_lab_opens_on_a_page_that_leads_to_every_lesson(browser, tmp_path: Path) -> None:
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
    printed = subprocess.run(
        ["make", "-n", "lab", f"PYTHON={sys.executable}"], cwd=paths.ROOT, capture_output=True, text=True
    )
    command = shlex.split(next(line for line in printed.stdout.splitlines() if "-m jupyterlab" in line))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    site = f"http://127.0.0.1:{port}"
    command += ["--no-browser", f"--port={port}", "--IdentityProvider.token="]
    kept = {name: str(tmp_path) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")}
    log = (tmp_path / "log").open("w")
    server = subprocess.Popen(command, cwd=paths.ROOT, env=os.environ | kept, stdout=log, stderr=log)
    try:
        for _ in range(240):
            try:
                urlopen(f"{site}/api")
                break
            except URLError:
                assert server.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.25)
        page = browser.new_page()
        page.goto(site)
        links = page.locator(".jp-RenderedMarkdown a")
        links.get_by_text("Bandwidth", exact=True).wait_for(timeout=60_000)
        page.wait_for_function(
            "n => document.querySelectorAll('.jp-RenderedMarkdown a[href*=ipynb]').length >= n",
            arg=len(lessons.all_lessons()),
        )
        targets = {Path(link.get_attribute("href").split("?")[0]).stem for link in links.all()}
        assert {lesson.stem for lesson in lessons.all_lessons()} <= targets
        page.close()  # a click would start a kernel, whose end the server waits for
    finally:
        server.kill()  # which has no kernels to end
        server.wait()
        log.close()
