"""What a user sees of a sweep in MLflow's pages, in a real browser."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock
from urllib.parse import quote

import pytest
from browser import CHROMIUM, DRIVER, FLAGS, LIMIT_S
from records import make_record, write_sweep
from reports import write_report
from tracking_server import mlflow_server

from sweeper.core.paths import SweepPaths
from sweeper.core.record import SCHEMA_VERSION
from sweeper.report.text.mlflow_overview import overview
from sweeper.tracking.tracker import Sent, Tracker

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("pages")]  # one server

QUICK = make_record("quick_net", speedups=(1.5, 1.6, 1.55))
SLOW = make_record("slow_net", speedups=(0.8,), mode="reduce-overhead")
BROKEN = make_record(
    "broken_net", mode="max-autotune", status="compile_error", message="no kernel for this"
)
FASTER = "metrics.speedup > 1"
AXES = ("mode", "backend", "precision", "batch_size")
PAGE = (
    "<!doctype html><p id=p>no script</p><script>document.getElementById('p').textContent = "
    "'scripts run'</script>"
)


@pytest.fixture(scope="module")
def chromium() -> None:
    """Skips where there is none, before a server starts."""
    pytest.importorskip("selenium", reason="not installed: the package selenium")
    if missing := [str(path) for path in (CHROMIUM, DRIVER) if not path.exists()]:
        pytest.skip(f"not installed: {', '.join(missing)}")


@pytest.fixture
def browser(chromium: None, tmp_path: Path) -> Iterator[Chrome]:
    """A chromium with a fresh profile; a screenshot of its last page stays in the test's folder."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, Service(str(DRIVER)))
    try:
        yield driver
        driver.save_screenshot(str(tmp_path / "last.png"))
    finally:
        driver.quit()


@pytest.fixture
def pages(link: str) -> str:
    """The address of the runs page without the state that our link brings."""
    return link.partition("?")[0]


@pytest.fixture(scope="module")
def link(chromium: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The link to a sweep with a fast, a slow and a failed trial, in MLflow's server on its
    store. Their modes differ.
    """
    folder = tmp_path_factory.mktemp("pages")
    with mock.patch.dict(os.environ), contextlib.chdir(folder):
        write_sweep(folder / "runs", [QUICK, SLOW, BROKEN])
        tracker = Tracker(None, "night")
        assert tracker.catch_up() == Sent(3, 0)
        sweep = SweepPaths.of("night")
        report = write_report([sweep.folder], sweep.report)
        page = sweep.report / "report.html"
        if page not in report.paths:
            page.write_text(PAGE)
        tracker.log_overview(overview(report))
        tracker.log_report([*(path for path in report.paths if path != page), page])
        tracker.finish()
        with mlflow_server(folder / "server", tracker.uri) as server:
            yield f"{server.uri}{tracker.page}"


def wait_for(browser: Chrome, *texts: str, gone: str = "\0") -> None:
    """Until the page shows all of `texts`, and not `gone`."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    def shown(driver: Chrome) -> bool:
        page = driver.find_element(By.TAG_NAME, "body").text
        return gone not in page and all(text in page for text in texts)

    WebDriverWait(browser, LIMIT_S, ignored_exceptions=_passing()).until(
        shown, f"not shown: {texts}, or shown: {gone}"
    )


def click(browser: Chrome, xpath: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    def clicked(driver: Chrome) -> bool:
        driver.find_element(By.XPATH, xpath).click()
        return True

    WebDriverWait(browser, LIMIT_S, ignored_exceptions=_passing()).until(
        clicked, f"cannot click {xpath}"
    )


def wait_until(browser: Chrome, found: Callable[[Chrome], object]) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, LIMIT_S, ignored_exceptions=_passing()).until(found)


def _passing() -> tuple[type[Exception], ...]:
    """What a page that is still being built answers with."""
    from selenium.common.exceptions import (
        ElementClickInterceptedException,
        ElementNotInteractableException,
        NoSuchElementException,
        StaleElementReferenceException,
    )

    return (
        ElementClickInterceptedException,
        ElementNotInteractableException,
        NoSuchElementException,
        StaleElementReferenceException,
    )


def points_drawn(browser: Chrome) -> list[int]:
    """How many points each chart has that is on the screen."""
    from selenium.webdriver.common.by import By

    charts = browser.find_elements(By.CSS_SELECTOR, ".js-plotly-plot")
    return [
        len(chart.find_elements(By.CSS_SELECTOR, ".scatterlayer .points path")) for chart in charts
    ]


def expand_sweep(browser: Chrome) -> None:
    """The little plus in the cell with the sweep's name."""
    click(browser, "//div[@role='gridcell'][.//a[normalize-space()='night']]//button")


def test_link_opens_speedup_and_status_of_every_trial(browser: Chrome, link: str) -> None:
    browser.set_window_size(3000, 1000)  # the table has only the columns that are in sight
    browser.get(link)
    wait_for(browser, "night", QUICK.label, SLOW.label, BROKEN.label)
    wait_for(browser, "speedup", "1.549", "flags", "status", BROKEN.status)
    wait_for(browser, *AXES, QUICK.trial.mode, SLOW.trial.mode, BROKEN.trial.mode, "inductor")
    wait_for(browser, "answer", "compile default: 1.55x", "sure", "true", "false")


@pytest.mark.slow
def test_sweep_opens_to_its_trials(browser: Chrome, pages: str) -> None:
    browser.get(pages)
    wait_for(browser, "night", "4 matching runs", gone=QUICK.label)
    expand_sweep(browser)
    wait_for(browser, "night", QUICK.label, SLOW.label, BROKEN.label)


@pytest.mark.slow
def test_search_box_keeps_the_trials_that_gained(browser: Chrome, pages: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.get(pages)
    wait_for(browser, "night", "4 matching runs")
    expand_sweep(browser)
    wait_for(browser, SLOW.label)
    browser.find_element(By.CSS_SELECTOR, "[data-testid=search-box]").send_keys(FASTER, Keys.ENTER)
    wait_for(browser, "night", QUICK.label, "2 matching runs", gone=SLOW.label)
    wait_for(browser, "night", QUICK.label, gone=BROKEN.label)


@pytest.mark.slow
def test_link_with_a_filter_shows_the_trials_that_gained(browser: Chrome, pages: str) -> None:
    browser.get(f"{pages}?searchFilter={quote(FASTER)}")
    wait_for(browser, "night", "2 matching runs")
    expand_sweep(browser)
    wait_for(browser, "night", QUICK.label, gone=SLOW.label)


@pytest.mark.slow
def test_page_of_a_trial_shows_metrics_params_tags_and_its_sweep(
    browser: Chrome, pages: str
) -> None:
    browser.get(f"{pages}?searchFilter={quote(FASTER)}")
    wait_for(browser, "night", "2 matching runs")
    expand_sweep(browser)
    click(browser, f"//a[normalize-space()='{QUICK.label}']")
    wait_for(
        browser,
        "speedup\n1.549",
        "eager_step_s\n0.02",
        "version.torch\n2.13.0",
        "trial_id\n: " + QUICK.trial_id,
    )
    wait_for(browser, "Parent run\nnight", "Status\nFinished")
    browser.get(f"{browser.current_url.partition('?')[0]}/artifacts")
    click(browser, "//*[normalize-space(text())='record.json']")
    wait_for(browser, f'"schema_version": {SCHEMA_VERSION}')


@pytest.mark.slow
def test_page_of_a_trial_draws_its_rounds(browser: Chrome, pages: str) -> None:
    browser.get(pages)
    wait_for(browser, "night", "4 matching runs")
    expand_sweep(browser)
    click(browser, f"//a[normalize-space()='{QUICK.label}']")
    wait_for(browser, "speedup 1.55 [1.43, 1.68] over 3 processes", "round_speedup\n1.55")
    browser.get(f"{browser.current_url.partition('?')[0]}/model-metrics")
    wait_for(browser, "compiled_step_ms", "eager_step_ms")
    drawn = len(QUICK.processes) * len(QUICK.processes[0].rounds)
    wait_until(browser, lambda driver: drawn in points_drawn(driver))


@pytest.mark.slow
def test_page_of_a_sweep_shows_key_figures_description_and_report(
    browser: Chrome, pages: str
) -> None:
    from selenium.webdriver.common.by import By

    browser.get(pages)
    click(browser, "//a[normalize-space()='night']")
    wait_for(
        browser,
        "In AMP: compile 1 of 2 (1 sure), median 1.55x, pays back after ",
        " steps; stay eager with 1 (none sure).",
        "1 of 3 trials failed: 1 compile_error.",
    )
    browser.get(f"{browser.current_url.partition('?')[0]}/artifacts/report")
    wait_for(browser, "report.md", "speedups.csv", "summary.csv", "failures.csv", "report.html")
    click(browser, "//*[normalize-space(text())='report.html']")
    wait_until(browser, lambda driver: driver.find_element(By.TAG_NAME, "iframe").is_displayed())
    browser.switch_to.frame(browser.find_element(By.TAG_NAME, "iframe"))
    wait_until(browser, lambda driver: driver.find_element(By.TAG_NAME, "body").text.strip())
    assert "no script" not in browser.find_element(By.TAG_NAME, "body").text


@pytest.mark.slow
def test_runs_page_draws_key_figures_as_charts(browser: Chrome, pages: str) -> None:
    browser.get(f"{pages}?compareRunsMode=CHART")
    wait_for(browser, "night", "geomean_amp", "pass_rate")


@pytest.mark.slow
def test_page_of_a_failed_trial_says_why(browser: Chrome, pages: str) -> None:
    browser.get(pages)
    wait_for(browser, "night", "4 matching runs")
    expand_sweep(browser)
    click(browser, f"//a[normalize-space()='{BROKEN.label}']")
    wait_for(browser, "Status\nFailed", "compiling: no kernel for this", "status\n: compile_error")
