"""A real browser for tests of pages: what it complains about, what sticks out, what is faint.

Debian's Chromium is driven by Playwright, which brings no browser of its own. Where either is
missing, tests skip and say so.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WIDTHS = 375, 1440
OWN = ("file:", "data:", "blob:", "about:")


@contextmanager
def browser():
    """Start Chromium; use one for a whole module."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pages are not tested"
    )
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("there is no Chromium (apt-get install chromium): pages are not tested")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=list(SWITCHES))
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def opened(chromium, path, width=1440, height=900, dark=False, **options):
    """Open a local file; yields Playwright's page, with the `problems` that come up in it."""
    scheme = "dark" if dark else "light"
    context = chromium.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, **options
    )
    try:
        page = context.new_page()
        problems = page.problems = []

        def said(message):
            if message.type in ("error", "warning"):
                problems.append(f"console {message.type}: {message.text}")

        def asked(request):
            if not request.url.startswith(OWN):
                problems.append(f"asked for {request.url}")

        page.on("console", said)
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("request", asked)
        page.on("requestfailed", lambda r: problems.append(f"failed: {r.url} ({r.failure})"))
        page.goto(Path(path).resolve().as_uri())
        yield page
    finally:
        context.close()


def overflowing(page):
    """Name elements that stick out of the window sideways, and SVG text that is cut off."""
    return page.evaluate(OVERFLOWING)


def faint(page, ratio=4.5, large=3.0):
    """Name visible text with less contrast than WCAG AA asks for."""
    size = page.viewport_size
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": size["width"], "height": max(int(height), 1)})
    try:
        return page.evaluate(FAINT, [ratio, large])
    finally:
        page.set_viewport_size(size)


def overlapping(page, within="svg", texts="text"):
    """Name pairs of texts in one picture that lie on each other."""
    return page.evaluate(OVERLAPPING, [within, texts])


def faults(chromium, path, widths=WIDTHS, labels=("svg", "text")):
    """All that is wrong with a page: at every width, in light and dark.

    `labels` are pictures and texts in them, which must not lie on each other.
    """
    found = []
    with opened(chromium, path, widths[0]) as page:
        for width in widths:
            page.set_viewport_size({"width": width, "height": 900})
            wrong = overflowing(page) + overlapping(page, *labels)
            found += [f"{width} pixels: {fault}" for fault in wrong]
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                found += [f"{width} pixels, {scheme}: {fault}" for fault in faint(page)]
        return page.problems + found


def screenshot(chromium, path, to, width=1440, dark=False):
    """Take a picture of the whole page."""
    with opened(chromium, path, width, dark=dark) as page:
        page.screenshot(path=to, full_page=True)


NAME = """
const name = (e, text = '') => {
  const kind = typeof e.className === 'string' ? e.className : e.getAttribute('class') || '';
  const id = e.id ? '#' + e.id : '';
  const said = (text || e.textContent || '').trim().replace(/\\s+/g, ' ').slice(0, 40);
  const first = kind ? '.' + kind.trim().split(/\\s+/)[0] : '';
  return `<${e.tagName.toLowerCase()}${id}${first}> ${said}`;
};
const shown = e => e.checkVisibility({ opacityProperty: true, visibilityProperty: true });
"""

OVERFLOWING = (
    "() => {"
    + NAME
    + """
  const width = document.documentElement.clientWidth, found = [];
  const held = e => {
    for (let a = e; a && a !== document.body; a = a.parentElement) {
      const s = getComputedStyle(a);
      if (s.position === 'fixed' || (a !== e && s.overflowX !== 'visible')) return true;
    }
    return false;
  };
  if (document.documentElement.scrollWidth > width)
    found.push(`the page is ${document.documentElement.scrollWidth} wide in ${width} pixels`);
  for (const e of document.body.querySelectorAll('*')) {
    const r = e.getBoundingClientRect();
    if (r.width < 2 || r.height < 2 || !shown(e)) continue;
    if ((r.right > width + 1 || r.left < -1) && !held(e))
      found.push(`${name(e)} from ${Math.round(r.left)} to ${Math.round(r.right)}`);
    const svg = e.tagName.toLowerCase() === 'text' && e.ownerSVGElement;
    if (svg) {
      const s = svg.getBoundingClientRect();
      const across = r.left < s.left - 1 || r.right > s.right + 1;
      if (across || r.top < s.top - 1 || r.bottom > s.bottom + 1)
        found.push(`${name(e)} is cut off by its picture`);
    }
  }
  return found;
}"""
)

FAINT = (
    "([ratio, large]) => {"
    + NAME
    + """
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 1;
  const paint = canvas.getContext('2d', { willReadFrequently: true }), known = {};
  const rgba = colour => {
    if (!(colour in known)) {
      paint.clearRect(0, 0, 1, 1);
      paint.fillStyle = colour;
      paint.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = paint.getImageData(0, 0, 1, 1).data;
      known[colour] = [r, g, b, a / 255];
    }
    return known[colour];
  };
  const over = (top, below) => {
    const a = top[3] + below[3] * (1 - top[3]);
    const mix = i => a && (top[i] * top[3] + below[i] * below[3] * (1 - top[3])) / a;
    return [mix(0), mix(1), mix(2), a];
  };
  const light = c => [0, 1, 2].map(i => c[i] / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (a, b) => {
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const svg = e => e.namespaceURI === 'http://www.w3.org/2000/svg';
  const opacity = e => {
    let o = 1;
    for (let a = e; a; a = a.parentElement) o *= parseFloat(getComputedStyle(a).opacity);
    return o;
  };
  const layer = e => {
    const s = getComputedStyle(e);
    if (!svg(e) || e.tagName === 'svg') {
      if (s.backgroundImage !== 'none') return null;
      return rgba(s.backgroundColor);
    }
    const open = ['g', 'text', 'tspan', 'line'].includes(e.tagName);
    if (open || s.fill === 'none') return [0, 0, 0, 0];
    if (s.fill.startsWith('url')) return null;
    const [r, g, b, a] = rgba(s.fill);
    return [r, g, b, a * parseFloat(s.fillOpacity) * opacity(e)];
  };
  const ancestors = e => {
    const found = [];
    for (let a = e; a; a = a.parentElement) found.push(a);
    return found;
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const e = node.parentElement;
    if (!node.data.trim() || e.closest('script, style, noscript, title, :disabled') || !shown(e))
      continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const r = range.getBoundingClientRect();
    if (r.width < 2 || r.height < 2) continue;
    const x = r.left + r.width / 2, y = r.top + r.height / 2;
    const stack = document.elementsFromPoint(x, y);
    const at = stack.indexOf(e);
    let below = [0, 0, 0, 0], unknown = false;
    for (const a of at < 0 ? ancestors(e) : stack.slice(at)) {
      const colour = layer(a);
      if (colour === null) { unknown = true; break; }
      below = over(below, colour);
      if (below[3] > 0.999) break;
    }
    if (unknown) continue;
    const page = matchMedia('(prefers-color-scheme: dark)').matches &&
      getComputedStyle(document.documentElement).colorScheme.includes('dark') ? 18 : 255;
    below = over(below, [page, page, page, 1]);
    const s = getComputedStyle(e);
    const [red, green, blue, a] = rgba(svg(e) ? s.fill : s.color);
    const ink = over([red, green, blue, a * opacity(e)], below);
    const px = parseFloat(s.fontSize), bold = parseInt(s.fontWeight) >= 700;
    const least = px >= 24 || (bold && px >= 18.66) ? large : ratio;
    const is = contrast(ink, below);
    if (is < least - 0.005) found.push(`contrast ${is.toFixed(2)} of ${name(e, node.data)}`);
  }
  return found;
}"""
)

OVERLAPPING = (
    "([within, kind]) => {"
    + NAME
    + """
  const found = [];
  for (const picture of document.querySelectorAll(within)) {
    const texts = [...picture.querySelectorAll(kind)].filter(shown)
      .map(e => [e, e.getBoundingClientRect()]).filter(([, r]) => r.width > 1);
    texts.forEach(([a, r], i) => texts.slice(i + 1).forEach(([b, q]) => {
      const across = Math.min(r.right, q.right) - Math.max(r.left, q.left);
      const up = Math.min(r.bottom, q.bottom) - Math.max(r.top, q.top);
      if (across > 1 && up > 3) found.push(`${name(a)} lies on ${name(b)}`);
    }));
  }
  return found;
}"""
)
