"""Chromium (Debian's package), driven by Playwright, without the traffic of its own."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")


@asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        try:
            yield opened
        finally:
            await opened.close()


@asynccontextmanager
async def page_of(opened: Any, *, width: int = 1200, dark: bool = False) -> AsyncIterator[tuple[Any, list[str]]]:
    """A page, and what its console has complained of."""
    context = await opened.new_context(
        viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
    )
    page = await context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else 0)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        yield page, complaints
    finally:
        await context.close()
