// check_report.js: whether a report.html is drawn as it should be: no NaN, paths and labels inside their drawing,
// charts over the same steps, no colour twice in a legend.
//
//   node dev/check_report.js PAGE...       without a browser, at four widths; prints what a reader reads, and faults
//   as a last script of a copy of PAGE     in a browser: the faults stand in an element with id="faults"
//
// Without a browser the page's script draws into the small document below, where a character is 7 pixels wide, as in a
// wide font.
'use strict';

function reportFaults(document) {
  const faults = [], wrong = /NaN|undefined|Infinity|\[object/, svgs = [...document.querySelectorAll('svg')];
  const main = document.getElementById('main'), tip = document.getElementById('tip');
  const look = (what, text) => { if (wrong.test(text)) faults.push(what + ' is ' + String(text).slice(0, 200)); };
  function walk(node, inside) {
    if (!node.tagName) return look('a text of ' + inside, node.textContent);
    if (/^(script|style|pre)$/i.test(node.tagName)) return;      // texts of the run's own
    for (const a of node.attributes) look(a.name + ' of ' + node.tagName, a.value);
    for (const c of node.childNodes) walk(c, node.tagName);
  }
  function points(svg, e) {
    const v = k => Number(e.getAttribute(k) || 0), t = e.tagName.toLowerCase();
    if (t === 'rect') return [[v('x'), v('y')], [v('x') + v('width'), v('y') + v('height')]];
    if (t === 'line') return [[v('x1'), v('y1')], [v('x2'), v('y2')]];
    if (t === 'circle') return [[v('cx'), v('cy')]];
    if (t === 'text') { const b = e.getBBox(); return [[b.x, b.y], [b.x + b.width, b.y + b.height]]; }
    const d = e.getAttribute('d');
    if (!/^(M[-\d.]+ [-\d.]+(L[-\d.]+ [-\d.]+)+Z?)+$/.test(d)) faults.push('a path is ' + d.slice(0, 200));
    return (d.match(/[-\d.]+ [-\d.]+/g) || []).map(p => p.split(' ').map(Number));
  }
  walk(document.documentElement, 'page');
  look('the title', document.title);
  for (const svg of svgs) {
    const [, , W, H] = svg.getAttribute('viewBox').split(' ').map(Number), name = svg.getAttribute('aria-label');
    for (const e of svg.querySelectorAll('rect, line, circle, text, path'))
      for (const [x, y] of points(svg, e))
        if (!(x > -1 && x < W + 1 && y > -1 && y < H + 1))
          faults.push(`${name}: ${e.tagName} "${e.textContent}" is cut off at ${x}, ${y} of ${W}, ${H}`);
    const at = svg.getBoundingClientRect();
    for (const e of [svg, ...svg.querySelectorAll('rect')]) for (let x = 0; x <= 1; x += e === svg ? .05 : 2) {
      const where = {clientX: at.left + x * at.width, clientY: at.top + 5};
      e.dispatchEvent(typeof PointerEvent === 'function' ? new PointerEvent('pointermove', where) :
        Object.assign({type: 'pointermove'}, where));
      look('a hint of ' + name, tip.textContent);
    }
  }
  const valid = JSON.parse(document.getElementById('data').textContent).runs.flatMap(r => r.evals).filter(e =>
    e.split === 'valid' && e.loss != null);
  if (!valid.length && [...document.querySelectorAll('path')].some(p => p.getAttribute('stroke-dasharray')))
    faults.push('a line of evaluations none of which has a loss');
  const steps = [...document.querySelectorAll('.charts svg')].map(s => [...s.querySelectorAll('text')].filter(t =>
    t.getAttribute('text-anchor') === 'middle').map(t => t.textContent).join(' '));
  if (new Set(steps).size > 1) faults.push('charts span other steps: ' + steps.join(' | '));
  for (const k of document.querySelectorAll('.key')) {
    const colours = [...k.querySelectorAll('i')].map(i => i.getAttribute('style').replace(/^[^:]*:/, ''));
    if (new Set(colours).size < colours.length) faults.push('one colour for two in ' + k.textContent + ': ' + colours);
  }
  for (const b of document.querySelectorAll('.tiles b'))
    if (b.scrollWidth > b.clientWidth || b.textContent.length > 10)
      faults.push('a tile is too narrow for ' + b.textContent);
  if ([...main.querySelectorAll('h2')].map(h => h.textContent).pop() !== 'Repeat') faults.push('it ends too early');
  return [...new Set(faults)];
}

// ---- a document without a browser -----------------------------------------------------------------------------------
// Only what the page's script and the checks use.
function standIn(data, width) {
  class Node {
    constructor(tag, text) {
      Object.assign(this, {tagName: tag, text, childNodes: [], given: {}, heard: {}, style: {}});
    }
    get nodeType() { return this.tagName ? 1 : 3; }
    get attributes() { return Object.keys(this.given).map(k => ({name: k, value: this.given[k]})); }
    get textContent() { return this.tagName ? this.childNodes.map(c => c.textContent).join('') : this.text; }
    set textContent(t) { this.childNodes = [new Node(null, String(t))]; }
    get clientWidth() { return width; }
    get scrollWidth() { return 0; }
    get offsetWidth() { return 100; }
    get offsetHeight() { return 20; }
    getBoundingClientRect() { return {left: 0, top: 0, width, height: 200}; }
    getBBox() {
      const w = 7 * this.textContent.length, x = Number(this.given.x), y = Number(this.given.y);
      return {x: x - ({middle: w / 2, end: w}[this.given['text-anchor']] || 0), y: y - 10, width: w, height: 13};
    }
    setAttribute(k, v) { this.given[k] = String(v); }
    getAttribute(k) { return k in this.given ? this.given[k] : null; }
    append(...all) { this.childNodes.push(...all.map(c => c instanceof Node ? c : new Node(null, String(c)))); }
    replaceChildren(...all) { this.childNodes = []; this.append(...all); }
    addEventListener(kind, f) { (this.heard[kind] = this.heard[kind] || []).push(f); }
    dispatchEvent(e) { for (const f of this.heard[e.type] || []) f(e); }
    is(one) {
      const m = one.match(/^(\w*)(?:\.(\w+))?$/);
      return this.tagName && (!m[1] || this.tagName === m[1]) && (!m[2] || this.given.class === m[2]);
    }
    querySelectorAll(list) {                     // "a, b" and "a b"
      const found = [], ways = list.split(', ').map(w => w.split(' '));
      (function go(n, above) {
        for (const c of n.childNodes) {
          if (ways.some(w => c.is(w[w.length - 1]) && (w.length < 2 || above.some(a => a.is(w[0]))))) found.push(c);
          go(c, above.concat([c]));
        }
      })(this, []);
      return found;
    }
  }
  const page = new Node('html'), byId = {};
  const known = {main: 'main', tip: 'div', data: 'script'};
  for (const id in known) page.append(byId[id] = new Node(known[id]));
  byId.data.textContent = data;
  return {documentElement: page, title: '', getElementById: id => byId[id], createElement: tag => new Node(tag),
          createElementNS: (of, tag) => new Node(tag), querySelectorAll: list => page.querySelectorAll(list)};
}
function checkFile(path) {
  const text = require('fs').readFileSync(path, 'utf8');
  const [, data, script] = text.match(/id="data">([^]*?)<\/script>\s*<script>([^]*?)<\/script>/);
  const faults = [];
  const draws = new Function('document', 'innerWidth', 'innerHeight', 'addEventListener', 'setTimeout', script);
  let read;
  for (const width of [280, 360, 520, 1080]) {
    const document = standIn(data, width);
    draws(document, width, 900, () => {}, () => {});
    faults.push(...reportFaults(document).map(f => path + ', ' + width + ' wide: ' + f));
    read = document.getElementById('main').childNodes.map(c => c.textContent).join('\n');
  }
  console.log(read);
  return faults;
}
if (typeof window === 'object') {
  const pre = document.createElement('pre');
  pre.id = 'faults';
  pre.textContent = 'faults: ' + (reportFaults(document).join('; ') || 'none');
  document.body.append(pre);
} else {
  const faults = process.argv.slice(2).flatMap(checkFile);
  console.log('faults: ' + (faults.join('\n  ') || 'none'));
  process.exitCode = faults.length ? 1 : 0;
}
