#!/usr/bin/env python3
"""Opens a report.html in headless Chromium and takes screenshots: three widths, light and dark, and printed (PDF).

    apt-get install chromium
    python3 -m venv venv && venv/bin/pip install playwright
    venv/bin/python dev/screenshots.py out/report.html shots

It fails if the page logs an error, asks for anything from the network, is wider than the window, shows text as
markup, or has a fault that dev/check_report.js finds. CHROMIUM names the browser (default: chromium).
"""
import os
import shutil
import sys

from playwright.sync_api import sync_playwright

check = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "check_report.js")).read()
page_path, to = os.path.abspath(sys.argv[1]), sys.argv[2]
os.makedirs(to, exist_ok=True)
browser_path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
faults = []
with sync_playwright() as p:
    browser = p.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
    for scheme in ("light", "dark"):
        for width in (360, 820, 1280):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.on("console", lambda m: m.type == "error" and faults.append("console: " + m.text))
            page.on("pageerror", lambda e: faults.append("script: " + str(e)))
            page.on("request", lambda r: r.url.startswith("file:") or faults.append("asks for " + r.url))
            page.goto("file://" + page_path)
            wide = page.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                faults.append(f"{width} pixels: the page is {wide} wide")
            if page.evaluate("document.querySelectorAll('main script, main img, main iframe').length"):
                faults.append("text became markup")
            page.screenshot(path=f"{to}/{scheme}-{width}.png", full_page=True)
            print(f"{scheme} {width}: {page.evaluate('document.documentElement.scrollHeight')} high, "
                  f"{page.evaluate('document.querySelectorAll(`section`).length')} sections, "
                  f"{page.evaluate('document.querySelectorAll(`svg`).length')} drawings")
            if scheme == "light" and width == 820:
                page.pdf(path=f"{to}/printed.pdf", format="A4", print_background=True)
            faults += page.evaluate("() => {" + check + "; return reportFaults(document); }")
            page.close()
    browser.close()
for fault in sorted(set(faults)):
    print(fault)
sys.exit(1 if faults else 0)
