"""report.html in a real browser: every figure drawn, tables that sort and filter, nothing loaded,
nothing run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser import CHROMIUM, DRIVER, FLAGS, LIMIT_S
from records import make_process, make_record, write_sweep
from reports import write_report

from sweeper.analysis.flags import FLAGS as MEANINGS
from sweeper.core.record import PerArm, Record
from sweeper.report.columns.formats import sentence

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("pages")]

HOSTILE = "<img src=x onerror=alert(1)></script>"
FIGURES = {
    "forest", "families", "ladder", "backends", "batch-sizes", "total-time",
}  # fmt: skip
WIDE, NARROW = 1400, 390


def records() -> list[Record]:
    """Trials for every figure: two precisions, modes, backends and batch sizes, some that
    failed.
    """
    made = [
        make_record("resnet50", precision, (speedup, speedup * 1.01), mode=mode)
        for precision, speedup in (("amp", 2.0), ("fp32", 1.5))
        for mode in ("default", "reduce-overhead")
    ]
    made += [
        make_record("resnet50", batch_size=64, speedups=(2.5,)),
        make_record("slow", speedups=(0.8,)),
    ]
    made += [
        make_record("resnet50", backend="aot_eager", speedups=(1.0,)),
        make_record("vit", family="vit", speedups=(2.0, 2.02)),
    ]
    # with the trial as built: a ladder
    made += [make_record("vit", family="vit", optimizer_impl="fused")]
    made += [
        make_record(HOSTILE, speedups=(3.0,)),
        make_record("lost", status="oom", message=f"no memory {HOSTILE}"),
    ]
    return [_with_all(record) if record.processes else record for record in made]


def _with_all(record: Record) -> Record:
    known = {
        "memory_bytes": PerArm(3e9, 2e9),
        "host_step_s": PerArm(0.01, 0.005),
        "device_step_s": PerArm(0.02, 0.01),
    }
    processes = (replace(process, **known) for process in record.processes)
    return replace(record, processes=tuple(processes))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a page."""
    sweep = write_sweep(tmp_path_factory.mktemp("page"), records())
    write_report([sweep], sweep / "report")
    return (sweep / "report" / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A chromium that writes down what its console says and what it asks the network for."""
    pytest.importorskip("selenium", reason="not installed: the package selenium")
    if missing := [str(path) for path in (CHROMIUM, DRIVER) if not path.exists()]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


def look(browser: Chrome, address: str, width: int = WIDE, scheme: str = "light") -> None:
    """Open the page in a window of `width` pixels, tall enough to see all of it, and wait until it
    is drawn.
    """
    scheme_of_system = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme_of_system)
    size = {"width": width, "height": 9000, "deviceScaleFactor": 1, "mobile": width < WIDE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for log in ("browser", "performance"):
        browser.get_log(log)  # forget what came before
    browser.get(address)
    wait_until(
        browser, "[...document.querySelectorAll('.figure')].every((figure) => figure.dataset.drawn)"
    )


def wait_until(browser: Chrome, script: str) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, LIMIT_S).until(
        lambda driver: driver.execute_script(f"return {script}"), f"never: {script}"
    )


def cells(browser: Chrome, column: str, table: str = "speedups") -> list[str]:
    """What a column of a table shows, from top to bottom."""
    script = """
        const table = document.querySelector(`section[data-table=${arguments[0]}]`);
        const heads = [...table.querySelectorAll('th')].map((head) => head.innerText.trim());
        const at = heads.findIndex((head) =>
            head.replace(/\\s+/g, ' ').replace(/ [↑↓]$/, '') === arguments[1]);
        return [...table.querySelectorAll('tr.row')].map((row) =>
            row.children[at].innerText.trim());
    """
    found: list[str] = browser.execute_script(script, table, column)
    return found


def find(browser: Chrome, selector: str) -> Any:
    from selenium.webdriver.common.by import By

    return browser.find_element(By.CSS_SELECTOR, selector)


def head(browser: Chrome, title: str) -> Any:
    from selenium.webdriver.common.by import By

    return browser.find_element(
        By.XPATH, f"//section[@id='speedups']//th/button[normalize-space()='{title}']"
    )


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (WIDE, "light"),
        (NARROW, "dark"),
        pytest.param(WIDE, "dark", marks=pytest.mark.slow),
        pytest.param(NARROW, "light", marks=pytest.mark.slow),
    ],
)
def test_every_figure_is_drawn_and_the_page_does_not_scroll_sideways(
    browser: Chrome, report: str, width: int, scheme: str
) -> None:
    look(browser, report, width, scheme)
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('.figure[data-drawn]')].map((f) => f.dataset.figure)"
    )
    assert set(drawn) == FIGURES
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []
    light = (
        browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    assert light == (scheme == "light")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_squares_of_the_legend_look_like_their_bars_and_unlike_each_other(
    browser: Chrome, report: str, scheme: str
) -> None:
    look(browser, report, scheme=scheme)
    script = """
        const look = (node) => {
            const style = getComputedStyle(node);
            const id = style.fill.match(/^url\\("#(.*)"\\)$/)?.[1]; // hatched
            const line = id && document.getElementById(id).querySelector('path');
            const names = ['d', 'stroke', 'opacity'];
            return (line ? names.map((name) => line.getAttribute(name))
                : [style.fill, style.fillOpacity]).join(' ');
        };
        const figure = document.querySelector('[data-figure=families]');
        const paths = '.legend .traces .legendpoints path';
        const squares = [...figure.querySelectorAll(paths)].map(look);
        const drawn = [...figure.querySelectorAll('.barlayer .trace.bars')];
        const bars = drawn.map((trace) => look(trace.querySelector('path')));
        const texts = [...figure.querySelectorAll('.legendtext')].map((item) => item.textContent);
        return [squares, bars, texts];
    """
    squares, bars, names = browser.execute_script(script)
    assert squares == bars
    assert len(set(squares)) == len(squares) == len(names) > 2
    assert {
        name.partition(",")[0]
        for name, square in zip(names, squares, strict=True)
        if square.endswith("0.5")
    } == {"fp32"}


def test_an_interval_that_is_not_known_is_not_drawn_as_one_of_no_width(
    browser: Chrome, report: str
) -> None:
    look(browser, report)
    script = """
        const drawn = [...document.querySelectorAll('[data-figure=families] .trace.bars')];
        const count = (trace, selector) => trace.querySelectorAll(selector).length;
        return drawn.map((trace) => [count(trace, '.yerror'), count(trace, '.point > path')]);
    """
    counts = browser.execute_script(script)
    assert any(0 < whiskers < bars for whiskers, bars in counts), counts


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_nothing_moves_while_figures_are_drawn(browser: Chrome, report: str, width: int) -> None:
    look(browser, report, width)
    script = """
        const [done, moved] = [arguments[0], []];
        const tops = ({ sources }) => sources.map(({ node, previousRect, currentRect }) =>
            `${node.id || node.className}: ${previousRect.top} to ${currentRect.top}`);
        new PerformanceObserver((list) => moved.push(...list.getEntries().map(tops)))
            .observe({ type: 'layout-shift', buffered: true });
        setTimeout(done, 100, moved);
    """
    # the first is the tables' rows, before any figure
    assert browser.execute_async_script(script)[1:] == []


def test_nothing_is_asked_of_the_network(browser: Chrome, report: str) -> None:
    look(browser, report)
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        item["params"]["request"]["url"]
        for item in events
        if item["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert [url for url in asked if url.startswith("file:")] == [report]
    assert (
        browser.execute_script(
            "return performance.getEntriesByType('resource').map((item) => item.name)"
        )
        == []
    )


def test_the_policy_stops_a_request_and_a_foreign_script(browser: Chrome, report: str) -> None:
    look(browser, report)
    script = """
        const tag = document.createElement('script');
        tag.textContent = 'window.foreign = true';
        document.body.append(tag);
        const done = arguments[0];
        fetch('http://127.0.0.1:9/').then(() => done('sent'), () => done('stopped'));
    """
    assert browser.execute_async_script(script) == "stopped"
    assert browser.execute_script("return window.foreign === undefined")
    messages = [entry["message"] for entry in browser.get_log("browser")]
    assert all("Content Security Policy" in message for message in messages)
    assert len(messages) >= 2


def test_a_hostile_name_is_text_everywhere(browser: Chrome, report: str) -> None:
    look(browser, report)
    assert browser.execute_script("return document.images.length") == 0
    assert HOSTILE in cells(browser, "model")
    ticks = browser.execute_script(
        "return [...document.querySelectorAll('[data-figure=forest] .ytick')].map((t) => "
        "t.textContent)"
    )
    assert any(tick.startswith("<img src=x onerror=alert(1)>") for tick in ticks)
    assert "no memory " + HOSTILE in cells(browser, "message", "failures")


def test_a_click_on_a_head_sorts_numbers_with_missing_last(browser: Chrome, report: str) -> None:
    look(browser, report)
    head(browser, "speedup").click()
    down = cells(browser, "speedup")
    assert (down[0], down[-2:]) == ("3.00", ["0.80", ""])
    assert find(browser, "#speedups th[aria-sort]").get_attribute("aria-sort") == "descending"
    head(browser, "speedup").click()
    up = cells(browser, "speedup")
    assert (up[0], up[-2:]) == ("0.80", ["3.00", ""])


def test_heads_and_rows_answer_to_the_keyboard(browser: Chrome, report: str) -> None:
    from selenium.webdriver.common.keys import Keys

    look(browser, report)
    head(browser, "model").send_keys(Keys.ENTER)
    assert cells(browser, "model") == sorted(cells(browser, "model"), key=str.lower)
    opener = find(browser, "#speedups .open")
    opener.send_keys(Keys.SPACE)
    assert opener.get_attribute("aria-expanded") == "true"
    assert find(browser, "#speedups .details").is_displayed()
    opener.send_keys(Keys.SPACE)
    assert (
        browser.execute_script("return document.querySelectorAll('#speedups .details').length") == 0
    )


def test_box_and_lists_filter_the_rows(browser: Chrome, report: str) -> None:
    from selenium.webdriver.support.select import Select

    look(browser, report)
    find(browser, "#speedups input").send_keys("resnet50 default")
    assert set(cells(browser, "model")) == {"resnet50"}
    assert set(cells(browser, "mode")) == {"default"}
    Select(find(browser, "#speedups [data-filter=precision]")).select_by_visible_text("fp32")
    assert cells(browser, "precision") == ["fp32"]
    assert find(browser, "#speedups .count").text == "1 of 11"
    find(browser, "#speedups input").clear()
    find(browser, "#speedups input").send_keys("alert(1) oom")
    Select(find(browser, "#speedups [data-filter=precision]")).select_by_visible_text("all")
    assert cells(browser, "status") == ["oom"]


def test_links_of_a_row_lead_to_its_files(browser: Chrome, report: str) -> None:
    look(browser, report)
    find(browser, "#failures .open").click()
    for selector in ("#failures .details a", "#speedups .row td:last-child a"):
        addresses = browser.execute_script(
            f"return [...document.querySelectorAll('{selector}')].map((a) => a.href)"
        )
        assert addresses
        assert all(Path(address.removeprefix("file://")).exists() for address in addresses)


def test_the_switch_turns_the_page_and_its_figures_dark(browser: Chrome, report: str) -> None:
    look(browser, report)
    colour = "getComputedStyle(document.querySelector('[data-figure=forest] .ytick text')).fill"
    before = browser.execute_script(f"return {colour}")
    find(browser, "#theme").click()
    wait_until(browser, f"{colour} !== '{before}'")
    assert (
        browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        != "rgb(255, 255, 255)"
    )
    assert find(browser, "#theme").text == "Light"


def test_another_trial_is_drawn_when_chosen(browser: Chrome, report: str) -> None:
    from selenium.webdriver.support.select import Select

    look(browser, report)
    choice = Select(find(browser, "[data-figure=total-time] select"))
    names = [option.text for option in choice.options]
    assert names[-1] == "slow amp default inductor 32: never"
    choice.select_by_index(len(names) - 1)
    legend = "document.querySelector('[data-figure=total-time] .legend').textContent"
    wait_until(browser, f"!{legend}.includes('break-even')")


def test_on_paper_every_row_is_there(browser: Chrome, tmp_path: Path) -> None:
    # without figures, which take seconds to draw
    sweep = write_sweep(tmp_path, [make_record(f"m{i}", status="oom") for i in range(230)])
    write_report([sweep], sweep / "report")
    look(browser, (sweep / "report" / "report.html").as_uri(), scheme="dark")
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert len(cells(browser, "model")) == 230
    assert (
        browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert (
        browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        != "rgb(255, 255, 255)"
    )


def test_figures_of_processes_that_differ_are_drawn(browser: Chrome, tmp_path: Path) -> None:
    """Whiskers, ranges and several processes at once."""
    waits = [
        replace(make_process(speedup, index=i), device_step_s=PerArm(1e-3, 1e-3))
        for i, speedup in enumerate((3.0, 3.3))
    ]
    made = [
        replace(make_record("waits"), processes=tuple(waits)),
        make_record(speedups=(2.0, 2.1, 2.2)),
    ]
    sweep = write_sweep(tmp_path, made)
    write_report([sweep], sweep / "report")
    look(browser, (sweep / "report" / "report.html").as_uri())
    wait_until(
        browser, "document.querySelectorAll('[data-figure=forest] path.xerror').length === 2"
    )
    assert browser.get_log("browser") == []


def test_sort_filters_and_open_rows_are_in_the_address(browser: Chrome, report: str) -> None:
    from selenium.webdriver.support.select import Select

    look(browser, report)
    head(browser, "speedup").click()
    find(browser, "#speedups input").send_keys("resnet50 & default")
    find(browser, "#speedups input").clear()
    find(browser, "#speedups input").send_keys("resnet50")
    Select(find(browser, "#speedups [data-filter=precision]")).select_by_visible_text("fp32")
    find(browser, "#failures .open").click()
    find(browser, "#speedups .open").click()
    find(browser, "#contents a[href='#speedups']").click()
    wait_until(browser, "location.hash.startsWith('#speedups&')")
    address, shown = browser.current_url, cells(browser, "speedup")
    assert shown == sorted(shown, reverse=True)
    look(browser, "about:blank")
    look(browser, address)
    assert cells(browser, "speedup") == shown
    assert set(cells(browser, "precision")) == {"fp32"}
    assert find(browser, "#speedups input").get_attribute("value") == "resnet50"
    assert find(browser, "#speedups th[aria-sort]").get_attribute("aria-sort") == "descending"
    open_rows = (
        "[...document.querySelectorAll('.open[aria-expanded=true]')].map((item) => "
        "item.closest('section').id)"
    )
    assert browser.execute_script(f"return {open_rows}") == ["failures", "speedups"]
    assert browser.execute_script("return document.querySelectorAll('.details').length") == 2
    find(browser, "#failures .open").click()
    assert "failures.open" not in browser.current_url
    assert browser.get_log("browser") == []


def test_an_address_that_asks_for_what_is_not_there_shows_everything(
    browser: Chrome, report: str
) -> None:
    look(
        browser,
        f"{report}#nowhere&speedups.sort=-colour&speedups.mode=none&speedups.open=x&other.q=y&=&%",
    )
    assert find(browser, "#speedups .count").text == "11 of 11"
    assert browser.get_log("browser") == []


def test_flags_say_what_they_mean_and_lead_to_the_legend(browser: Chrome, tmp_path: Path) -> None:
    flags = ("compile_contended", "throttled")
    sweep = write_sweep(tmp_path, [make_record("a", flags=flags), make_record("b", status="oom")])
    write_report([sweep], sweep / "report")
    look(browser, (sweep / "report" / "report.html").as_uri())
    link = find(browser, "#speedups td a.term.doubt")
    meaning = MEANINGS["throttled"]
    assert (link.text, link.get_attribute("title")) == (
        "throttled",
        f"{sentence(meaning.says)} {meaning.todo}",
    )
    link.click()
    wait_until(browser, "location.hash === '#term-throttled'")
    assert find(browser, "#term-throttled").is_displayed()
    assert find(browser, "#failures td.not-ok a.term").text == "oom"
    assert not find(browser, "#term-compile_contended").is_displayed()
    find(browser, "#speedups .row:nth-child(1) .open").click()
    find(browser, "#speedups .details a.housekeeping").click()
    assert find(browser, "#term-compile_contended").is_displayed()


def test_words_of_the_verdict_lead_to_the_legend(browser: Chrome, tmp_path: Path) -> None:
    records = [make_record(name, speedups=[2.0], flags=("single_process",)) for name in "ab"]
    sweep = write_sweep(tmp_path, [*records, make_record("c", status="oom")])
    write_report([sweep], sweep / "report")
    look(browser, (sweep / "report" / "report.html").as_uri())
    links = (
        "[...document.querySelectorAll('.verdict a')].map((link) => link.textContent + "
        "link.getAttribute('href'))"
    )
    assert browser.execute_script(f"return {links}") == [
        "one process#term-single_process",
        "oom#term-oom",
        "What failed, and why#failures",
    ]
    find(browser, ".verdict a").click()
    assert find(browser, "#term-single_process").is_displayed()  # of the folded housekeeping flags


def test_on_a_phone_each_speedup_is_in_sight_beside_the_name_of_its_trial(
    browser: Chrome, report: str
) -> None:
    look(browser, report, NARROW)
    script = """
        const all = [...document.querySelectorAll(`#${arguments[0]} th`)];
        const heads = all.filter((item) => item.offsetWidth);
        const head = heads.find((item) => item.innerText.trim().startsWith('speedup'));
        return head.getBoundingClientRect().right;
    """
    for table in ("recommendations", "speedups"):
        assert browser.execute_script(script, table) <= NARROW, table
    about = browser.execute_script("return document.querySelector('#failures tr.row td').innerText")
    assert "oom" in about
    assert "batch 32" in about
    assert browser.execute_script("return document.documentElement.scrollWidth") <= NARROW
