"""The browser that tests look at pages with."""

from __future__ import annotations

from pathlib import Path

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")


FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--window-size=1600,1000",
)  # fmt: skip


LIMIT_S = 60
