// report_page.h: the page that report_html.h fills: style and script of a report, without anything from elsewhere. Its
// data stands between report_page_head and report_page_tail as JSON in a script element, which the script draws.
//
// The script puts text into the page only as text, never as markup. Colours are variables of the style, so that light,
// dark and printed pages are the same drawing.
#pragma once
#include "report.h"

static const char report_page_head[] = R"page(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>train_gpt_fsdp</title>
<style>
:root { --page: #f6f7f9; --card: #fff; --text: #1b1f24; --soft: #5b6470; --line: #dfe3e8; --grid: #eceff2;
  --c0: #2166c4; --c1: #d9662b; --c2: #23865c; --c3: #8a4bbd; --c4: #a67c00; --c5: #c13a4b;
  --k0: #7aa7e0; --k1: #e5a06f; --k2: #71bb95; --k3: #b592d6; --k4: #d8bd62; --k5: #db8791; --k6: #b9c0c8; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171b; --card: #1d2126; --text: #e4e7eb; --soft: #9aa4b0; --line: #333a42; --grid: #2a3037;
    --c0: #6aa5f2; --c1: #f0935c; --c2: #56bd8e; --c3: #bd8bea; --c4: #d9b443; --c5: #ee7484;
    --k0: #3f6ea8; --k1: #a9683a; --k2: #3c8361; --k3: #7a5a9b; --k4: #8f7a2e; --k5: #9e4f59; --k6: #59616b; } }
@media print {
  :root { --page: #fff; --card: #fff; --text: #000; --soft: #444; --line: #bbb; --grid: #ddd;
    --c0: #2166c4; --c1: #d9662b; --c2: #23865c; --c3: #8a4bbd; --c4: #a67c00; --c5: #c13a4b;
    --k0: #7aa7e0; --k1: #e5a06f; --k2: #71bb95; --k3: #b592d6; --k4: #d8bd62; --k5: #db8791; --k6: #b9c0c8; }
  .charts > div, tr, svg { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 20px 16px 40px; }
h1 { font-size: 1.35rem; margin: 0 0 2px; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 0 0 10px; }
h3 { font-size: .95rem; margin: 0 0 4px; font-weight: 600; }
p { margin: 6px 0; } .soft { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px;
  margin: 14px 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(112px, 1fr)); gap: 10px; margin: 14px 0; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 8px 12px; }
.tiles b { display: block; font-size: 1.2rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.warn { color: var(--c5); }
.tiles span { color: var(--soft); font-size: .82rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 18px 22px; }
.charts > div { min-width: 0; }
svg { display: block; width: 100%; height: auto; font: 11px system-ui, sans-serif; touch-action: pan-y; }
svg text { fill: var(--soft); } svg text.on { fill: var(--text); pointer-events: none; }
.key { display: flex; flex-wrap: wrap; gap: 3px 14px; font-size: .84rem; color: var(--soft); margin: 4px 0 8px; }
.key i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 5px; }
.key i.dashed { width: 18px; height: 0; border-top: 2px dashed; border-radius: 0; vertical-align: middle; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 12px 3px 0; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
.wrap td.text { white-space: normal; overflow-wrap: anywhere; max-width: 460px; }
pre { margin: 6px 0; white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.45 ui-monospace, monospace; }
details summary { cursor: pointer; color: var(--soft); margin: 8px 0; }
#tip { position: fixed; pointer-events: none; background: var(--text); color: var(--page); padding: 4px 8px;
  border-radius: 5px; font-size: .82rem; max-width: 280px; display: none; z-index: 2; white-space: pre-line; }
@media (max-width: 480px) { th, td { padding-right: 8px; } section { padding: 12px; } table { font-size: .82rem; } }
@media print { #tip { display: none; } .charts { grid-template-columns: 1fr 1fr; } }
</style>
</head>
<body>
<main id="main"><noscript><p>This page is drawn by its own script, and scripts are off here. The numbers are in
metrics.jsonl.</p></noscript></main>
<div id="tip"></div>
<script type="application/json" id="data">
)page";

static const char report_page_tail[] = R"page(
</script>
<script>
'use strict';
const D = JSON.parse(document.getElementById('data').textContent), R = D.runs, many = R.length > 1;
const main = document.getElementById('main'), tip = document.getElementById('tip');
const colour = i => 'var(--c' + i % 6 + ')';
const paler = c => 'color-mix(in srgb, ' + c + ' 55%, var(--text))';

// ---- elements: text goes in as text only
function add(node, children) {
  for (const c of children.flat(9)) if (c != null) node.append(c.nodeType ? c : String(c));
  return node;
}
function put(node, attributes, children) {
  for (const k in attributes || {}) if (attributes[k] != null) node.setAttribute(k, attributes[k]);
  return add(node, children);
}
const el = (tag, a, ...c) => put(document.createElement(tag), a, c);
const sv = (tag, a, ...c) => put(document.createElementNS('http://www.w3.org/2000/svg', tag), a, c);
function table(head, rows, text, wraps) {
  const cell = (t, x, i) => el(t, (text || [0]).includes(i) ? {class: 'text'} : null, x);
  return el('div', {class: wraps ? 'scroll wrap' : 'scroll'}, el('table', null,
    el('thead', null, el('tr', null, head.map((x, i) => cell('th', x, i)))),
    el('tbody', null, rows.map(r => el('tr', null, r.map((x, i) => cell('td', x, i)))))));
}
const key = names => el('div', {class: 'key'}, names.map(n => el('span', null,
  el('i', n[2] ? {class: 'dashed', style: 'color:' + n[1]} : {style: 'background:' + n[1]}), n[0])));
function section(title, ...children) { main.append(el('section', null, el('h2', null, title), children)); }

// ---- numbers
const power = x => x.toExponential(2).replace(/\.?0+e/, 'e');
const digits = (x, n) => x == null ? '-' : Math.abs(x) >= 1e7 ? power(x) : Number(x.toPrecision(n)).toString();
const finite = (x, n) => x == null ? 'not finite' : digits(x, n);
function short(x) {
  if (x == null) return '-';
  const a = Math.abs(x);
  if (a >= 1e12) return power(x);
  if (a >= 1e9) return digits(x / 1e9, 3) + ' G';
  if (a >= 1e6) return digits(x / 1e6, 3) + ' M';
  if (a >= 1e4) return digits(x / 1e3, 3) + ' k';
  return a && a < 1e-3 ? power(x) : digits(x, 4);
}
function bytes(n) {
  for (const u of [['GiB', 30], ['MiB', 20], ['KiB', 10]]) if (n >= 2 ** u[1]) return digits(n / 2 ** u[1], 3) + ' ' +
    u[0];
  return n + ' bytes';
}
function seconds(s) {
  return s < 120 ? digits(s, 3) + ' s' : s < 7200 ? digits(s / 60, 3) + ' min' : digits(s / 3600, 3) + ' h';
}
// About n round numbers from a to b.
function ticks(a, b, n) {
  if (!(b > a)) return [a];
  const raw = (b - a) / n, power = 10 ** Math.floor(Math.log10(raw)), m = raw / power;
  const step = power * (m > 5 ? 10 : m > 2 ? 5 : m > 1 ? 2 : 1), list = [];
  for (let x = Math.ceil(a / step); x * step <= b + step * 1e-6; x++) list.push(x * step);
  return list;
}

// ---- what the pointer is at
function show(event, text) {
  tip.textContent = text;
  tip.style.display = text ? 'block' : 'none';
  const w = tip.offsetWidth, x = event.clientX + 14;
  tip.style.left = Math.max(4, x + w > innerWidth - 4 ? event.clientX - w - 14 : x) + 'px';
  tip.style.top = Math.max(4, Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 4)) + 'px';
}
const hide = () => { tip.style.display = 'none'; };

// ---- charts: lines of [step, mean, least, most], the latter two where they differ; dots of [step, value]
// A label's characters are 7 wide at most; all charts of the page span the same steps.
const drawn = [], margin = labels => 14 + 7 * Math.max(...labels.map(t => t.length));
const made = R.flatMap(r => (r.step ? [r.first, r.step] : []).concat(r.evals.map(e => e.step)));
const x0 = Math.min(...made), x1 = Math.max(...made, x0 + 1);
// The parts of a line between which steps have no finite value.
const parts = l => l.points.reduce((a, p, i) => {
  if (i && (l.dots || p[0] - l.points[i - 1][0] <= l.stride)) a[a.length - 1].push(p); else a.push([p]);
  return a;
}, []);
function draw(box, make) {
  const again = () => { box.replaceChildren(make(Math.max(280, box.clientWidth || 520))); };
  drawn.push(again);
  again();
}
function chart(title, lines, options) {
  const all = lines.filter(l => l.points.length);
  if (!all.length) return null;
  const box = el('div'), o = options || {};
  const low = Math.min(...all.flatMap(l => l.points.map(p => p[2] ?? p[1])));
  const high = Math.max(...all.flatMap(l => l.points.map(p => p[3] ?? p[1])));
  const y0 = o.zero ? 0 : low, y1 = high - y0 > 1e-9 * Math.abs(y0) ? high : y0 + (Math.abs(y0) || 1) * .1;
  const rows = ticks(y0, y1, 5);                 // of a range above rounding: below it they would never end
  draw(box, W => {
    const H = 210, L = Math.max(52, margin(rows.map(short))), B = 24, T = 8;
    const X = x => L + (x - x0) / (x1 - x0) * (W - L - 10);
    const Y = y => H - B - (y - y0) / (y1 - y0) * (H - B - T);
    const s = sv('svg', {viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': title});
    for (const y of rows)
      add(s, [sv('line', {x1: L, x2: W - 10, y1: Y(y), y2: Y(y), stroke: 'var(--grid)'}),
              sv('text', {x: L - 6, y: Y(y) + 4, 'text-anchor': 'end'}, short(y))]);
    for (const x of ticks(x0, x1, W < 400 ? 3 : 6))
      if (x === Math.round(x)) add(s, [sv('text', {x: Math.min(X(x), W - 3.5 * short(x).length), y: H - 8,
        'text-anchor': 'middle'}, short(x))]);
    for (const l of all) {
      const to = (p, y) => X(p[0]).toFixed(1) + ' ' + Y(y).toFixed(1);
      const up = p => to(p, p[3] ?? p[1]), down = p => to(p, p[2] ?? p[1]), mean = p => to(p, p[1]);
      if (!l.dots && l.points.some(p => p[3] > p[2]))
        s.append(sv('path', {d: parts(l).map(p => 'M' + p.map(up).concat(p.slice().reverse().map(down)).join('L') +
          'Z').join(''), fill: l.colour, opacity: .18}));
      s.append(sv('path', {d: parts(l).map(p => 'M' + mean(p[0]) + 'L' + p.map(mean).join('L')).join(''), fill: 'none',
                           stroke: l.colour, 'stroke-width': l.dots ? 1.2 : 1.6, 'stroke-linecap': 'round',
                           'stroke-dasharray': l.dots ? '4 3' : null, 'stroke-linejoin': 'round'}));
      if (l.dots || l.points.length === 1)
        for (const p of l.points) s.append(sv('circle', {cx: X(p[0]), cy: Y(p[1]), r: 3, fill: l.colour}));
    }
    const cross = sv('line', {y1: T, y2: H - B, stroke: 'var(--soft)', opacity: 0});
    s.append(cross);
    s.addEventListener('pointermove', e => {
      const at = s.getBoundingClientRect(), share = ((e.clientX - at.left) / at.width * W - L) / (W - L - 10);
      const x = x0 + share * (x1 - x0);
      const near = l => l.points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
      const step = near(all[0])[0];
      cross.setAttribute('opacity', .6);
      for (const k of ['x1', 'x2']) cross.setAttribute(k, X(step));
      show(e, 'step ' + step + '\n' + all.map(l => l.name + ': ' + digits(near(l)[1], 5)).join('\n'));
    });
    s.addEventListener('pointerleave', () => { cross.setAttribute('opacity', 0); hide(); });
    return s;
  });
  return el('div', null, el('h3', null, title), box,
    all.length > 1 ? key(all.map(l => [l.name, l.colour, l.dots])) : null);
}
const series = (name, of) => R.map((r, i) => ({name: many ? r.name : of || name, colour: colour(i),
                                               stride: r.stride, points: r.series[name]}));

// ---- memory of a step: time to the right, addresses up
const kinds = {parameters: 0, gradients: 1, optimizer: 2, activations: 3, buffers: 4, 'gradients of activations': 5};
const fill = k => 'var(--k' + (k in kinds ? kinds[k] : 6) + ')';
const stageName = s => s ? 'block ' + (s - 1) : 'outside the blocks';
function buffersKind(name) {
  if (/^(gather|weights)/.test(name)) return 'parameters';
  if (/^(staging|sum of)/.test(name)) return 'buffers';
  return /^gradient (slot|shard)/.test(name) ? 'gradients' : /^d(?!ata)/.test(name) && name !== 'dropout' ?
    'gradients of activations' : 'activations';
}
function turnsOf(m, s, X, top, H) {
  m.turns.forEach((t, i) => {
    const width = X(i + 1 < m.turns.length ? m.turns[i + 1][1] : m.time) - X(t[1]);
    add(s, [sv('line', {x1: X(t[1]), x2: X(t[1]), y1: top, y2: H, stroke: 'var(--soft)', 'stroke-dasharray': '2 3'}),
            width > 4 + 7 * t[0].length ? sv('text', {x: X(t[1]) + 4, y: top - 4}, t[0]) : null]);
  });
}
const bytesOf = m => m.lines.reduce((a, l) => a + l[2], 0);
const stageLabels = m => Array.from({length: 1 + Math.max(...m.schedule.map(x => x[0]))}, (x, g) => g ?
  'block ' + (g - 1) : 'root');
const total = Math.max(...R.map(r => r.run.memory_map ? bytesOf(r.run.memory_map) : 0));   // all runs to one scale
const unit = total < 2 ** 31 ? [' MiB', 2 ** 20] : [' GiB', 2 ** 30], heights = ticks(0, total / unit[1], 5);
const mapMargin = m => Math.max(58, margin(stageLabels(m).concat(heights.map(b => short(b) + unit[0]))));
function memoryMap(m) {
  const box = el('div');
  draw(box, W => {
    const H = Math.min(460, Math.max(300, W * .5)), L = mapMargin(m), T = 18, B = 8;
    const X = t => L + t / m.time * (W - L - 8), Y = b => H - B - b / total * (H - B - T);
    const s = sv('svg', {viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': 'memory of a rank over a step'});
    const rect = (x, w, low, size, kind, text, faint) => {
      const r = sv('rect', {x: x, y: Y(low + size), width: Math.max(.6, w), fill: fill(kind), opacity: faint ? .28 : 1,
                            height: Math.max(.4, Y(low) - Y(low + size)), stroke: 'var(--card)', 'stroke-width': .5});
      r.addEventListener('pointermove', e => show(e, text));
      r.addEventListener('pointerleave', hide);
      s.append(r);
    };
    for (const b of heights)
      add(s, [sv('text', {x: L - 6, y: Y(b * unit[1]) + 4, 'text-anchor': 'end'}, short(b) + unit[0])]);
    const names = [];
    let low = 0;
    for (const l of m.lines) {
      rect(X(0), X(m.time) - X(0), low, l[2], l[1], l[0] + '\n' + bytes(l[2]), l[3] >= 0);
      for (const b of m.buffers) if (l[3] === b[2]) for (const t of b[5])
        rect(X(t[0]), X(t[1]) - X(t[0]), low + b[3], b[4], buffersKind(b[0]),
             b[0] + (b[1] < 0 ? '' : /slot/.test(b[0]) ? ' ' + b[1] : /shard/.test(b[0]) ? ', ' + stageName(b[1]) :
               ', block ' + b[1]) + '\n' + bytes(b[4]));
      if (Y(low) - Y(low + l[2]) > 13)
        names.push(sv('text', {class: 'on', x: X(0) + 5, y: Y(low + l[2]) + 11.5},
          l[0].replace(/^host: |, shared$/g, '')));
      low += l[2];
    }
    add(s, names);
    turnsOf(m, s, X, T, H - B);
    return s;
  });
  return box;
}
function schedule(m) {
  const labels = stageLabels(m), stages = labels.length, box = el('div');
  const of = {gather: 'var(--k4)', weights: 'var(--k0)', reduction: 'var(--k1)'};
  draw(box, W => {
    const row = Math.max(5, Math.min(18, 260 / stages)), L = mapMargin(m), T = 18, H = T + row * stages + 4;
    const X = t => L + t / m.time * (W - L - 8), s = sv('svg', {viewBox: `0 0 ${W} ${H}`, role: 'img',
      'aria-label': 'schedule of a step'});
    for (let g = 0; g < stages; g++)
      if (row > 10 || g % Math.ceil(12 / row) === 0)
        s.append(sv('text', {x: L - 6, y: T + row * g + row / 2 + 4, 'text-anchor': 'end'}, labels[g]));
    for (const x of m.schedule) {
      const r = sv('rect', {x: X(x[2]), y: T + row * x[0] + 1, width: Math.max(1, X(x[3]) - X(x[2])),
                            height: Math.max(1, row - 2), fill: of[x[1]], rx: 1.5});
      const words = {gather: 'is gathered', weights: 'weights whole and read', reduction: 'gradients are reduced'};
      r.addEventListener('pointermove', e => show(e, stageName(x[0]) + '\n' + words[x[1]]));
      r.addEventListener('pointerleave', hide);
      s.append(r);
    }
    turnsOf(m, s, X, T, H);
    return s;
  });
  return el('div', null, el('h3', null, 'Schedule'), box, key([['gather in flight', of.gather],
    ['weights whole and read', of.weights], ['reduction in flight', of.reduction]]));
}

// ---- the page
// Of the last steps; null: their values are not finite.
const last = (r, name) => { const p = r.series[name].at(-1); return p && p[0] + r.stride > r.step ? p[1] : null; };
const evalsOf = (r, split) => r.evals.filter(e => e.split === split);
const lossOf = e => e.length ? finite(e[e.length - 1].loss, 5) : '-';
const lastLoss = r => r.step ? finite(last(r, 'loss'), 5) : '-';
const sound = r => !r.not_finite && r.evals.every(e => e.loss != null);
function leftOut(r) {
  return r.skipped ? r.skipped + ' of ' + (r.step - r.first + 1) + ' steps left out: ' + (r.not_finite ? r.not_finite +
    ' not finite' : '') + (r.not_finite && r.skipped > r.not_finite ? ', ' : '') + (r.skipped > r.not_finite ?
    r.skipped - r.not_finite + ' overflows of fp16' : '') : null;
}
function state(r) {
  const end = !r.end ? 'no end was written: it runs, or was killed' : {done: sound(r) ? 'ended as it should' : 'ended',
    signal: 'ended by a signal', saved: 'ended by a signal, saved', 'not finite': 'ended: the loss was not finite'
  }[r.end.reason] || 'ended: ' + r.end.reason;
  return [end, r.skipped ? '; ' : '', r.skipped ? el('b', sound(r) ? null : {class: 'warn'}, leftOut(r)) : ''];
}
document.title = R.map(r => r.name).join(', ') + ' - train_gpt_fsdp';
main.append(el('h1', null, many ? R.length + ' runs' : R[0].name), el('p', {class: 'soft'},
  many ? R.map(r => r.name).join(', ') : [state(R[0]), '. ', R[0].run.parameters.toLocaleString('en') +
    ' parameters, ' + R[0].run.ranks + (R[0].run.ranks > 1 ? ' ranks' : ' rank') + ' on ' + R[0].run.device + ', ' +
    R[0].run.corpus]));
if (!many) {
  const r = R[0], tile = (name, value) => value == null ? null : el('div', null, el('b', null, value),
    el('span', null, name));
  const trains = r.run.memory_map;
  main.append(el('div', {class: 'tiles'}, tile('step of ' + r.run.steps, trains ? r.step : null),
    tile('steps left out', r.skipped || null), tile('loss', trains ? lastLoss(r) : null),
    tile('validation loss', lossOf(evalsOf(r, 'valid'))),
    tile('tokens/s', trains ? short(last(r, 'tokens_per_s')) : null),
    tile('memory of a rank', trains ? bytes(bytesOf(trains)) : null),
    r.end ? tile('time', seconds(r.end.ms / 1e3)) : null));
} else
  section('Side by side', table(['run', 'step', 'loss', 'valid', 'test', 'tokens/s', 'parameters', 'ranks', 'state'],
    R.map(r => [r.name, r.step, lastLoss(r), lossOf(evalsOf(r, 'valid')), lossOf(evalsOf(r, 'test')),
      short(last(r, 'tokens_per_s')), short(r.run.parameters), r.run.ranks, state(r)]), [0, 8]));
if (R.some(r => r.step)) section('Training', el('div', {class: 'charts'},
  chart('Loss', series('loss', 'training').concat(R.map((r, i) => ({name: (many ? r.name + ', ' : '') + 'validation',
    colour: many ? paler(colour(i)) : colour(1), dots: true,
    points: evalsOf(r, 'valid').filter(e => e.loss != null).map(e => [e.step, e.loss])})))),
  chart('Learning rate', series('lr')), chart('Gradient norm', series('grad_norm')),
  chart('Tokens per second', series('tokens_per_s'), {zero: true})));
for (const r of R) if (r.layers.length) {       // units from the first to the last, the rest apart
  const shade = (u, i) => u.unit === 'root' ? 'var(--text)' :
    'color-mix(in srgb, var(--c1) ' + Math.round(100 * i / Math.max(1, r.layers.length - 1)) + '%, var(--c0))';
  const lines = of => r.layers.map((u, i) => ({name: u.unit, colour: shade(u, i), stride: r.stride,
    points: u[of]}));
  section('Norms of each unit' + (many ? ' of ' + r.name : ''), r.units > r.layers.length ? el('p', {class: 'soft'},
    r.layers.length + ' of ' + r.units + ' units; metrics.jsonl has all.') : null, el('div', {class: 'charts'},
    chart('Gradient norm', lines('grad_norm')), chart('Update ratio: change over weights', lines('update_ratio'))));
}
if (R.some(r => r.evals.length))
  section('Evaluations', table([many ? 'run' : 'split', many ? 'split' : 'step', many ? 'step' : 'loss',
    many ? 'loss' : 'perplexity', many ? 'perplexity' : 'accuracy'].concat(many ? ['accuracy'] : []),
    R.flatMap(r => r.evals.slice(many ? -2 : -12).map(e => (many ? [r.name] : []).concat([e.split, e.step,
      finite(e.loss, 6), digits(e.perplexity, 5), digits(100 * e.accuracy, 4) + ' %'])))));
for (const r of R) {
  const m = r.run.memory_map, of = many ? ' of ' + r.name : '';
  if (!m) continue;
  section('Memory and schedule of a step' + of, el('p', {class: 'soft'}, 'Rank 0, as the dry run placed it: time to ' +
    'the right, addresses up; ' + r.run.sharding + '.'), memoryMap(m), key(Object.keys(kinds).map(k => [k, fill(k)])
    .concat([['other', fill('')]])), schedule(m));
  section('Units' + of, table(['unit', 'alike', 'tensors', 'parameters', 'trained', 'whole', 'of a rank'],
    r.run.unit_table.map(u => [u.first + (u.alike > 1 ? ' .. ' + u.last : ''), u.alike, u.tensors,
      u.parameters.toLocaleString('en'), u.trained.toLocaleString('en'), bytes(u.whole_bytes), bytes(u.rank_bytes)])));
}
for (const r of R) if (r.trace)
  section('Exposed communication' + (many ? ' of ' + r.name : ''), el('p', null, digits(r.trace.exposed_ms, 4) +
    ' ms of a step of ' + digits(r.trace.step_ms, 4) + ' ms, ' + digits(r.trace.exposed_percent, 3) + ' %; steps ' +
    r.trace.first_step + ' to ' + r.trace.last_step + ' in ' + r.trace.file), table(['stage', 'gathers', 'waits',
    'sums', 'of a step'], r.trace.stages.map(s => [stageName(s.stage), digits(s.gather_ms, 3) + ' ms',
      digits(s.wait_ms, 3) + ' ms', digits(s.sums_ms, 3) + ' ms', digits(s.percent, 3) + ' %']).concat(
      [['exchange of losses', 'exchange_ms'], ['barrier', 'barrier_ms'], ['sums of replicas', 'sums_of_replicas_ms'],
       ['messages between ops', 'messages_ms']].map(x => [x[0], '', digits(r.trace[x[1]], 3) + ' ms', '',
         digits(100 * r.trace[x[1]] / r.trace.step_ms, 3) + ' %']))));
for (const r of R) if (r.sample)
  section('Sample' + (many ? ' of ' + r.name : ''), el('pre', null, r.sample));
const names = [...new Set(R.flatMap(r => Object.keys(r.run.config)))];
const value = (r, n) => n in r.run.config ? String(r.run.config[n]) : '-';
const rows = list => list.map(n => [n].concat(R.map(r => value(r, n))));
const texts = [0].concat(R.map((r, i) => i + 1));
const differ = names.filter(n => new Set(R.map(r => value(r, n))).size > 1);
section('Configuration', many ? [el('h3', null, 'Options that differ'), table(['option'].concat(R.map(r => r.name)),
  rows(differ), texts, true)] : null, el('details', null, el('summary', null, 'all options'),
  table(['option'].concat(R.map(r => many ? r.name : 'value')), rows(names), texts, true)));
section('Repeat', R.map(r => r.options ? [el('pre', null, r.repeat), el('details', null, el('summary', null,
  'options.txt' + (many ? ' of ' + r.name : '')), el('pre', null, r.options))] : null),
  el('p', {class: 'soft'}, 'Written by train_gpt_fsdp ' + D.version + '. ' + R.map(r => (many ? r.name + ': ' : '') +
    'version ' + r.run.version + ', build ' + r.run.build).join('; ') + '.'));
let width = innerWidth;
drawn.forEach(f => f());                         // once more: only now the boxes have their widths
addEventListener('resize', () => { if (innerWidth !== width) { width = innerWidth; drawn.forEach(f => f()); } });
addEventListener('beforeprint', () => document.querySelectorAll('details').forEach(d => { d.open = true; }));
// While the run writes, look again now and then; the reader stays where he is.
if (!many && !R[0].end && Date.now() / 1e3 - D.written < 600) setTimeout(() => location.reload(), 20000);
</script>
</body>
</html>
)page";
