// Draws a report from the data in the page. All text of the run is written as text (textContent, or escaped for plotly.js); nothing is fetched.
'use strict';
(async () => {
const $ = id => document.getElementById(id);
const FIRST = 25, MORE = 200, LINES = 4000, CELLS = 200, TICKS = 12, BINS = 24, LEAST_EFFECT = 1.0005, SWATCHES = ['#16324f', '#2a7f9e', '#8cc0a8', '#e3c567', '#f3ead2', '#b5651d', '#6b4c7a', '#d0d0d0'];  // as in analysis/plots.py
const HATCHES = ['', '/', '', '.', 'x', '\\', '-', '+'];
const MARKS = ['circle', 'square', 'diamond', 'triangle-up', 'x', 'cross'];
window.addEventListener('error', event => showFault(event.message));
window.addEventListener('unhandledrejection', event => showFault(String(event.reason)));
function showFault(text) { $('fault').textContent = `This page cannot be drawn whole: ${text}`; $('fault').hidden = false; }

// ---- data
const facts = JSON.parse($('data-facts').textContent);
const unpacked = async id => {
  const bytes = Uint8Array.from(atob($(id).textContent), c => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).arrayBuffer();
};
if (!('DecompressionStream' in window)) { showFault('this browser lacks DecompressionStream; take one of 2023 or newer'); return; }
const buffer = await unpacked('data-columns');
const details = JSON.parse(new TextDecoder().decode(await unpacked('data-details')));
const ARRAYS = {f4: Float32Array, u1: Uint8Array, u2: Uint16Array, i4: Int32Array};
const columns = Object.fromEntries(facts.columns.map(c => [c.name, {...c, values: new ARRAYS[c.kind](buffer, c.at, c.length)}]));
const [row, schedule, feasible, front, machine] = ['row', 'schedule', 'feasible', 'front', 'machine'].map(name => columns[name].values);
const count = row.length, several = schedule.some(s => s > 0);
const metrics = facts.columns.filter(c => c.group === 'metric').map(c => c.name);
const objectives = facts.objectives.map(o => o.name);
const highest = Object.fromEntries(facts.objectives.map(o => [o.name, o.max]));
const point = i => several ? `${machine[row[i]]}.${schedule[i]}` : `${machine[row[i]]}`;
// value of a column at point i: texts (parameters) are stored per machine, numbers per point
const at = (name, i) => columns[name].choices.length ? columns[name].values[row[i]] : columns[name].values[i];

// ---- numbers and text
function number(v) {
  if (v === null || !isFinite(v)) return '';
  if (v === Math.round(v) && Math.abs(v) < 1e6) return String(v);
  const short = Number(v.toPrecision(4));
  return short === 0 || (Math.abs(short) >= 1e-4 && Math.abs(short) < 1e7) ? String(short) : v.toPrecision(4);
}
function unit(name, v) {  // divisor and name of the unit for a value of this size
  const steps = columns[name].units, size = Math.abs(v);
  if (!steps.length) return [1, ''];
  return [...steps].reverse().find(step => size >= step[0]) || steps[0];
}
function shown(name, i) {
  const c = columns[name], v = at(name, i);
  if (c.choices.length) return c.choices[v];
  const [by, word] = unit(name, v);
  return word === '%' ? `${number(Number((100 * v).toPrecision(3)))} %` : `${number(v / by)} ${word}`.trim();
}
const plain = text => String(text).replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');  // plotly.js reads a little HTML
function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
function table(id, heads, rows) {
  const head = element('tr');
  heads.forEach(([text, kind]) => head.append(element('th', text, {scope: 'col', class: kind})));
  $(id).tHead.replaceChildren(head);
  $(id).tBodies[0].replaceChildren(...rows.map(cells => {
    const line = element('tr');
    cells.forEach((cell, k) => { const td = element('td', cell instanceof Node ? undefined : cell, {class: heads[k][1]}); if (cell instanceof Node) td.append(cell); line.append(td); });
    return line;
  }));
}
const list = (id, pairs) => $(id).replaceChildren(...pairs.flatMap(([key, value]) => [element('dt', key), element('dd', value)]));
function options(id, names, chosen, extra = []) {
  $(id).replaceChildren(...[...extra, ...names.map(name => [name, columns[name].label])].map(([value, label]) => element('option', label, {value})));
  $(id).value = chosen;
}

// ---- looks
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const gl = (() => { const c = document.createElement('canvas'); return Boolean(c.getContext('webgl')); })();
const SCATTER = gl ? 'scattergl' : 'scatter';
function plotLayout(more = {}) {
  const axis = {gridcolor: css('--rule'), zerolinecolor: css('--rule'), linecolor: css('--dim'), automargin: true};
  const {xaxis, yaxis, ...rest} = more;
  return {paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', font: {color: css('--ink'), size: 12, family: 'system-ui, sans-serif'},
    margin: {l: 60, r: 16, t: 12, b: 48}, modebar: {bgcolor: 'rgba(0,0,0,0)', color: css('--dim'), activecolor: css('--accent')}, hoverlabel: {align: 'left'}, legend: {orientation: 'h', y: 1.02, yanchor: 'bottom', x: 0},
    xaxis: {...axis, ...xaxis}, yaxis: {...axis, ...yaxis}, ...rest};
}
const CONFIG = {responsive: true, displayModeBar: false, plotlyServerURL: ''};
const narrow = () => window.innerWidth < 600;
const TOOLS = () => narrow() ? CONFIG : {...CONFIG, displayModeBar: true, displaylogo: false, modeBarButtonsToRemove: ['toImage', 'autoScale2d']};
const SCALES = {light: ['#d9b23c', '#7fae86', '#2a7f9e', '#16324f'], dark: ['#f3e3a1', '#a8d8b9', '#5fb3c9', '#4a7fd0']};
const shades = () => SCALES[document.documentElement.dataset.theme].map((colour, k, all) => [k / (all.length - 1), colour]);
const drawn = [];  // what is drawn again in other colours
const draw = make => { drawn.push(make); make(); };
function axisOf(name, indices) {  // plotly.js axis of a column, the divisor of its values, whether it is logarithmic
  const c = columns[name];
  if (c.choices.length) return {by: 1, axis: {title: {text: plain(c.label)}, tickvals: c.choices.map((_, k) => k), ticktext: c.choices.map(plain)}};
  let low = Infinity, high = -Infinity;
  for (const i of indices) { const v = c.values[i]; if (isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); } }
  const [by, word] = unit(name, high), isLog = low > 0 && high > 8 * low;
  const share = word === '%', factor = share ? 0.01 : by;
  return {by: factor, low, high, isLog, axis: {title: {text: plain(word ? `${c.label} (${word})` : c.label)}, type: isLog ? 'log' : 'linear', exponentformat: 'none', hoverformat: '.4~g'}};
}

// ---- filters: choices by parameter, brushes of the parallel coordinates, a box in the scatter
const feasiblePoints = [];
for (let i = 0; i < count; i++) if (feasible[i]) feasiblePoints.push(i);
const unticked = Object.fromEntries(facts.parameters.map(name => [name, new Set()]));
let brushes = {}, boxed = null, passing = feasiblePoints;
function filtered() {
  const off = facts.parameters.filter(name => unticked[name].size), brushed = Object.entries(brushes);
  passing = feasiblePoints.filter(i => off.every(name => !unticked[name].has(at(name, i))) && (!boxed || boxed.has(i))
    && brushed.every(([name, ranges]) => { const v = onLine(name, i); return ranges.some(([a, b]) => v >= a && v <= b); }));
  const best = passing.filter(i => front[i]).length;
  $('count').textContent = `${passing.length} of ${feasiblePoints.length} feasible points pass, ${best} of them on the front of ${objectives.length} objectives.`;
}
function refresh(lines = true) { filtered(); scatter(); rows(); if (lines) parallel(); keepState(); }

// ---- the filters in the address: a link, or the page loaded anew, shows the same
function keepState() {
  const off = Object.fromEntries(facts.parameters.filter(name => unticked[name].size).map(name => [name, [...unticked[name]]]));
  const state = {x: $('x').value, y: $('y').value, colour: $('colour').value, only: $('only').checked, off, brushes};
  history.replaceState(null, '', `#?${encodeURIComponent(JSON.stringify(state))}`);
}
function restoreState() {
  if (!location.hash.startsWith('#?')) return;
  let state;
  try { state = JSON.parse(decodeURIComponent(location.hash.slice(2))); } catch { return; }
  for (const id of ['x', 'y', 'colour']) if ([...$(id).options].some(o => o.value === state[id])) $(id).value = state[id];
  $('only').checked = Boolean(state.only);
  for (const name of facts.parameters) for (const k of Object(state.off)[name] || []) unticked[name].add(k);
  brushes = Object.fromEntries(Object.entries(Object(state.brushes)).filter(([name, ranges]) => columns[name] && Array.isArray(ranges)));
  showTicks();
}
function showTicks() { facts.parameters.forEach((name, n) => document.querySelectorAll(`#boxes fieldset:nth-child(${n + 1}) input`).forEach((box, k) => { box.checked = !unticked[name].has(k); })); }

// ---- the scatter
function stairs(x, y, indices) {  // of two columns, the non-dominated points
  const sign = name => highest[name] ? -1 : 1, [a, b] = [sign(x), sign(y)], order = [...indices].sort((i, j) => a * (at(x, i) - at(x, j)) || b * (at(y, i) - at(y, j)));
  let best = Infinity;
  return order.filter(i => b * at(y, i) < best && ((best = b * at(y, i)), true));
}
function curves(x) {  // of machines on the front with several schedules: these from the left, then a gap
  const schedules = new Map();
  for (const i of passing) schedules.get(row[i])?.push(i) ?? schedules.set(row[i], [i]);
  const shown = [...schedules.values()].filter(own => own.length > 1 && own.some(i => front[i])).slice(0, LINES);
  return [shown.length, shown.flatMap(own => [...own.sort((i, j) => at(x, i) - at(x, j)), null])];
}
let axisX, axisY, drawing = 0;
function scatter() {
  const [x, y, colour] = ['x', 'y', 'colour'].map(id => $(id).value);
  [axisX, axisY] = [axisOf(x, feasiblePoints), axisOf(y, feasiblePoints)];
  const inside = new Set(passing), outside = passing.length === feasiblePoints.length ? [] : feasiblePoints.filter(i => !inside.has(i));
  const trace = (indices, marker, name) => ({type: SCATTER, mode: 'markers', name, x: indices.map(i => at(x, i) / axisX.by), y: indices.map(i => at(y, i) / axisY.by),
    customdata: indices, marker, text: indices.map(i => `machine ${point(i)}`), hovertemplate: `%{text}<br>${plain(columns[x].label)} %{x}<br>${plain(columns[y].label)} %{y}<extra></extra>`});
  const others = passing.filter(i => !front[i]), best = passing.filter(i => front[i]);
  const traces = [trace(outside, {size: 4, color: css('--faint'), opacity: 0.35}, `filtered out (${outside.length})`),
    trace(others, {size: count > 20000 ? 3 : 6, opacity: 0.8, ...colours(colour, others), line: {color: css('--dim'), width: count > 20000 ? 0 : 0.5}}, `feasible (${others.length})`),
    trace(best, {size: 10, line: {color: css('--ink'), width: 1.5}, ...colours(colour, best)}, `front of ${objectives.length} (${best.length})`)];
  const [machines, curve] = curves(x);
  if (machines) traces.push({type: 'scatter', mode: 'lines', name: `schedules of one machine (${machines} machines)`, x: curve.map(i => i === null ? null : at(x, i) / axisX.by),
    y: curve.map(i => i === null ? null : at(y, i) / axisY.by), line: {color: css('--dim'), width: 1}, hoverinfo: 'skip'});
  if (objectives.includes(x) && objectives.includes(y) && x !== y) {
    const step = stairs(x, y, passing);
    traces.push({type: 'scatter', mode: 'lines', name: 'front of these two', x: step.map(i => at(x, i) / axisX.by), y: step.map(i => at(y, i) / axisY.by),
      line: {shape: 'hv', color: css('--ink'), width: 1.2}, hoverinfo: 'skip'});
  }
  facts.others.filter(o => o.front[x] && o.front[y]).forEach((o, k) => traces.push({type: 'scatter', mode: 'markers', name: plain(`front of ${o.name} (${o.front[x].length})`),
    x: o.front[x].map(v => v / axisX.by), y: o.front[y].map(v => v / axisY.by), marker: {symbol: `${MARKS[1 + k % 5]}-open`, size: 10, color: SWATCHES[4 + k % 2], line: {width: 2}}}));
  drawing += 1;  // what is drawn anew says that its selection is gone
  Plotly.react('scatter', traces, plotLayout({xaxis: axisX.axis, yaxis: axisY.axis, dragmode: 'select', uirevision: `${x} ${y}`, selections: [], selectionrevision: performance.now(),
    coloraxis: colourAxis(colour), margin: {l: 60, r: 16, t: 12, b: narrow() ? 96 : 48}}), TOOLS()).then(() => { drawing -= 1; });
}
function colours(name, indices) {
  return name ? {color: indices.map(i => scaled(name, i)), coloraxis: 'coloraxis'} : {color: css('--accent')};
}
const logarithmic = name => !columns[name].choices.length && axisOf(name, feasiblePoints).isLog;
// value as it is drawn: its logarithm where the column spans much
const scaled = (name, i) => logarithmicOf[name] ? Math.log10(at(name, i)) : at(name, i);
const logarithmicOf = {};
for (const name of metrics) logarithmicOf[name] = logarithmic(name);
function colourAxis(name) {
  if (!name) return {showscale: false};
  const c = columns[name], bar = {title: {text: plain(c.label), side: 'right'}, thickness: 12, len: 0.9, ...(narrow() ? {orientation: 'h', y: -0.32, yanchor: 'top', title: {text: plain(c.label), side: 'bottom'}, tickfont: {size: 9}} : {})};
  if (c.choices.length) return {colorscale: shades(), cmin: 0, cmax: Math.max(1, c.choices.length - 1), colorbar: {...bar, tickvals: c.choices.map((_, k) => k), ticktext: c.choices.map(plain)}};
  return {colorscale: shades(), colorbar: {...bar, ...ticks(name)}};
}
function ticks(name) {  // of a column that may be drawn as logarithms
  const {low, high, isLog} = axisOf(name, feasiblePoints), many = 5;
  const values = Array.from({length: many}, (_, k) => isLog ? low * (high / low) ** (k / (many - 1)) : low + (high - low) * k / (many - 1));
  return {tickvals: isLog ? values.map(Math.log10) : values, ticktext: values.map(v => { const [by, word] = unit(name, v); return word === '%' ? `${number(Number((100 * v).toPrecision(2)))} %` : `${number(Number((v / by).toPrecision(3)))} ${word}`; })};
}

// ---- parallel coordinates
const HALO = () => Array(6).fill(`0 0 3px ${css('--paper')}`).join(', ');  // around numbers that stand on lines
const onLine = (name, i) => scaled(name, i);
let dimensions = [], listening = false;
function parallel() {
  const best = passing.filter(i => front[i]), others = passing.filter(i => !front[i]), step = Math.max(1, Math.ceil(others.length / LINES));
  const lines = [...others.filter((_, k) => k % step === 0), ...best];
  $('thinned').textContent = step > 1 ? `Lines: the front and every ${step}th of the other points; filters hold for all points.` : '';
  dimensions = [...facts.parameters.filter(name => columns[name].choices.length > 1), ...new Set([...objectives])];
  const colour = $('colour').value || objectives[0];
  const traces = [{type: 'parcoords', labelfont: {color: css('--ink'), size: 12}, tickfont: {color: css('--ink'), size: 11, weight: 600, shadow: HALO()}, rangefont: {color: 'rgba(0,0,0,0)', size: 1},
    line: {color: lines.map(i => scaled(colour, i)), colorscale: shades()},
    dimensions: dimensions.map(name => {
      const c = columns[name];
      const last = c.choices.length - 1, steps = Math.min(last, TICKS - 1), few = last < 0 ? [] : Array.from({length: steps + 1}, (_, k) => Math.round(k * last / (steps || 1)));
      const base = c.choices.length ? {tickvals: few, ticktext: few.map(k => c.choices[k]), range: [0, Math.max(1, c.choices.length - 1)]} : {...ticks(name), range: (r => [r[0], r[r.length - 1]])(ticks(name).tickvals)};
      return {label: c.label, values: lines.map(i => onLine(name, i)), constraintrange: brushes[name], ...base};
    })}];
  Plotly.react('lines', traces, plotLayout({margin: {l: 70, r: 70, t: 48, b: 20}}), CONFIG);
  if (!listening) { listening = true; $('lines').on('plotly_restyle', brushed); }
}
function brushed() {
  brushes = {};
  $('lines').data[0].dimensions.forEach((d, k) => { const r = d.constraintrange; if (r && r.length) brushes[dimensions[k]] = Array.isArray(r[0]) ? r : [r]; });
  refresh(false);
}

// ---- the table and its filters
let rowLimit = FIRST;  // rows that the table shows at most
function rows() {
  const x = $('x').value, sign = highest[x] ? -1 : 1, chosen = $('only').checked ? passing.filter(i => front[i]) : [...passing];
  chosen.sort((i, j) => sign * (at(x, i) - at(x, j)));
  const names = [...objectives, ...facts.parameters];
  table('points', [['machine', ''], ...names.map(name => [columns[name].label, columns[name].choices.length ? '' : 'number']), ['gap to bound', 'number']],
    chosen.slice(0, rowLimit).map(i => {
      const open = element('button', point(i), {type: 'button', 'aria-label': `explain machine ${point(i)}`});
      open.addEventListener('click', () => explain(i, open));
      return [open, ...names.map(name => shown(name, i)), shown('gap_to_bound', i)];
    }));
  $('more').hidden = chosen.length <= rowLimit;
}
for (const name of facts.parameters) {
  const set = element('fieldset');
  set.append(element('legend', columns[name].label), ...columns[name].choices.map((text, k) => {
    const label = element('label'), box = element('input', undefined, {type: 'checkbox'});
    box.checked = true;
    box.addEventListener('change', () => { unticked[name][box.checked ? 'delete' : 'add'](k); refresh(); });
    label.append(box, ` ${text}`);
    return label;
  }));
  $('boxes').append(set);
}
$('more').addEventListener('click', () => { rowLimit += MORE; rows(); });
$('only').addEventListener('change', () => { rows(); keepState(); });
$('clear').addEventListener('click', () => {
  for (const name of facts.parameters) unticked[name].clear();
  showTicks();
  brushes = {}; boxed = null; refresh();
});

// ---- the drawer
let opener = null, firstPoints = null;
const parameterKey = i => facts.parameters.map(name => at(name, i)).join(',');
function pointsByParameters() {  // first schedule of each machine, by its parameters
  if (!firstPoints) { firstPoints = new Map(); for (let i = 0; i < count; i++) if (schedule[i] === 0) firstPoints.set(parameterKey(i), i); }
  return firstPoints;
}
function explain(i, from) {
  opener = from || opener;
  $('drawer').hidden = false;
  $('drawer-title').textContent = `Machine ${point(i)}${front[i] ? ', on the front' : ''}`;
  list('drawer-facts', [...facts.parameters, ...metrics].map(name => [columns[name].label, shown(name, i)]));
  const own = details.points[`${machine[row[i]]}.${schedule[i]}`];
  $('explained').hidden = !own;
  $('unexplained').textContent = own ? '' : `Not among the points whose mappings this file holds: dse show ${facts.path} ${point(i)} explains it.`;
  if (own) mapping(own);
  neighbours(i);
  $('drawer').scrollTop = 0;
  $('drawer').focus();
}
function total(parts) { const all = {}; for (const one of parts) for (const [key, v] of Object.entries(one)) all[key] = (all[key] || 0) + v; return all; }
const bare = key => key.replace(' (bottleneck)', '');
function mapping(own) {
  const parts = [...new Set(own.flatMap(w => [...Object.keys(w.energy), ...Object.keys(w.latency)].map(bare)))];  // in the order of the machine
  const last = SWATCHES.length - 1, shade = key => key === 'static' ? last : Math.max(0, parts.filter(one => one !== 'static').indexOf(bare(key))) % last;
  const bars = (parts, name, axis) => Object.entries(total(parts)).sort((a, b) => b[1] - a[1]).map(([key, v]) => {
    const [by, word] = unit(name, Object.values(total(parts)).reduce((a, b) => a + b, 0));
    return {type: 'bar', orientation: 'h', x: [v / by], y: [name === 'energy_pj' ? `energy (${word})` : `latency (${word})`], name: plain(key), xaxis: axis,
      yaxis: axis === 'x' ? 'y' : 'y2', marker: {color: SWATCHES[shade(key)], line: {color: css('--ink'), width: 0.5},
        pattern: {shape: HATCHES[shade(key)], fgcolor: css('--paper'), fillmode: 'overlay', size: 5}},
      hovertemplate: `${plain(key)}: %{x:.4~g} ${word}<extra></extra>`};
  });
  Plotly.react('breakdown', [...bars(own.map(w => w.energy), 'energy_pj', 'x'), ...bars(own.map(w => w.latency), 'latency_ns', 'x2')],
    plotLayout({barmode: 'stack', grid: {rows: 2, columns: 1, pattern: 'independent'}, margin: {l: 90, r: 8, t: 8, b: 24}, showlegend: true,
      legend: {orientation: 'h', y: -0.15, yanchor: 'top', traceorder: 'normal', font: {size: 10}}, xaxis2: {gridcolor: css('--rule')}, yaxis2: {}}), CONFIG);
  const dots = own.flatMap(w => w.roofline.dots), roof = own[0].roofline, xs = [...dots.map(d => d[1]), roof.peak / roof.gb_s].filter(isFinite);
  const [low, high] = [Math.min(...xs) / 3, Math.max(...xs) * 3], corner = Math.min(Math.max(roof.peak / roof.gb_s, low), high), bottlenecks = [...new Set(dots.map(d => d[4]))];
  Plotly.react('roofline', [{type: 'scatter', mode: 'lines', name: plain(`${roof.level} ${number(roof.gb_s)} GB/s`), x: [low, corner, high], y: [low, corner, high].map(v => Math.min(roof.peak, v * roof.gb_s)), line: {color: css('--ink')}, hoverinfo: 'skip'},
    ...bottlenecks.map((component, k) => { const mine = dots.filter(d => d[4] === component); return {type: 'scatter', mode: 'markers', name: plain(`bottleneck ${component}`), x: mine.map(d => d[1]), y: mine.map(d => d[2]),
      text: mine.map(d => plain(d[0])), marker: {symbol: MARKS[k % MARKS.length], size: mine.map(d => 7 + 30 * Math.sqrt(d[3])), color: SWATCHES[shade(component)], line: {color: css('--ink'), width: 1}},
      hovertemplate: '%{text}<br>%{x:.3~g} MAC/B<br>%{y:.3~g} GMAC/s<extra></extra>'}; })],
  plotLayout({xaxis: {type: 'log', title: {text: [`operational intensity (MAC/B of ${roof.level})`, ...own.map(w => w.roofline.not_drawn)].filter(Boolean).map(plain).join('<br>')}}, yaxis: {type: 'log', title: {text: 'GMAC/s'}}}), CONFIG);
  const einsums = own.flatMap(w => w.einsums.map(e => [own.length > 1 ? `${w.name}: ${e[0]}` : e[0], ...e.slice(1)]));
  const size = (name, v) => { const [by, word] = unit(name, v); return `${number(v / by)} ${word}`; }, sum = einsums.reduce((n, e) => n + e[2], 0) || 1;
  table('layers', [['einsum', ''], ['occurrences', 'number'], ['energy', 'number'], ['share', 'number'], ['latency', 'number'], ['bottleneck', '']],
    einsums.map((e, k) => {
      const open = element('button', e[0], {type: 'button'});
      open.addEventListener('click', () => { $('einsum').value = k; nest(); $('nest').scrollIntoView({block: 'nearest'}); });
      return [open, e[1], size('energy_pj', e[2]), `${(100 * e[2] / sum).toFixed(1)} %`, size('latency_ns', e[3]), e[4]];
    }));
  $('einsum').replaceChildren(...einsums.map((e, k) => element('option', `${e[0]}${e[1] > 1 ? ` x ${e[1]}` : ''}, bottleneck ${e[4]}`, {value: k})));
  const nest = () => { $('nest').textContent = details.nests[einsums[$('einsum').value][5]]; };
  $('einsum').onchange = nest;
  nest();
}
function neighbours(i) {
  const own = facts.parameters.map(name => at(name, i)), found = [];
  facts.parameters.forEach((name, k) => columns[name].choices.forEach((text, value) => {
    if (value === own[k] || (facts.orders[k] && Math.abs(value - own[k]) > 1)) return;
    const other = pointsByParameters().get(own.map((v, j) => j === k ? value : v).join(','));
    let cell = 'not among the points';
    if (other !== undefined) { cell = element('button', point(other), {type: 'button'}); cell.addEventListener('click', () => explain(other)); }
    found.push([columns[name].label, `${columns[name].choices[own[k]]} → ${text}`, cell, ...objectives.map(o => {
      const [a, b] = [at(o, i), other === undefined ? NaN : at(o, other)];
      return isFinite(b) && a ? `${b >= a ? '+' : ''}${(100 * (b / a - 1)).toFixed(1)} %` : '';
    })]);
  }));
  table('neighbours', [['parameter', ''], ['step', ''], ['machine', ''], ...objectives.map(o => [columns[o].label, 'number'])], found);
}
function close() { $('drawer').hidden = true; if (opener && opener.isConnected) opener.focus(); }
$('close').addEventListener('click', close);
document.addEventListener('keydown', event => { if (event.key === 'Escape' && !$('drawer').hidden) close(); });

// ---- the other sections
function effects() {
  for (const o of objectives) {  // all places first: they share the width
    const own = facts.effects[o], id = `effects-${o}`;
    if (!$(id)) $('effects').append(element('div', undefined, {id, class: 'plot', role: 'img', 'aria-label': `Effects on ${columns[o].label}: ${own.rows.map(r => `${columns[r.parameter].label} ${r.value} ${number(r.factor)}`).join('; ')}`}));
  }
  for (const o of objectives) {
    const own = facts.effects[o], id = `effects-${o}`;
    const order = [...own.order].reverse();
    const [least, most] = [Math.min, Math.max].map(end => end(1, ...own.rows.map(r => r.factor))), isLog = most > 2 * least;
    const range = isLog ? [Math.log10(least), Math.log10(most)] : [least, most], side = 0.1 * (range[1] - range[0]) || 0.1, [from, to] = [range[0] - side, range[1] + side];
    const traces = order.map(name => { const mine = own.rows.filter(r => r.parameter === name);
      const ends = [Math.min, Math.max].map(end => { const all = mine.map(r => r.factor); return all.indexOf(end(...all)); }), [lowest, highest] = ends.map(k => mine[k].factor);
      const beside = (up, factor) => { const at = ((isLog ? Math.log10(factor) : factor) - from) / (to - from); return `${up} ${at < 0.2 ? 'right' : at > 0.8 ? 'left' : 'center'}`; };  // text to the right of its place begins there
      return {type: 'scatter', mode: 'lines+markers+text', x: mine.map(r => r.factor), y: mine.map(() => plain(columns[name].label)), hovertext: mine.map(r => plain(r.value)),
        text: mine.map((r, k) => highest > LEAST_EFFECT * lowest && ends.includes(k) ? plain(r.value) : ''), textposition: mine.map((r, k) => beside(k === ends[0] ? 'bottom' : 'top', r.factor)), textfont: {size: 10}, cliponaxis: false,
        marker: {color: css('--accent'), size: 8}, line: {color: css('--dim')}, hovertemplate: '%{hovertext}: times %{x:.4~g}<extra></extra>'}; });
    Plotly.react(id, traces, plotLayout({showlegend: false, title: {text: plain(`${columns[o].label}: ${Math.round(100 * own.explained)} % explained`), font: {size: 13}}, margin: {l: 90, r: 12, t: 36, b: 44},
      xaxis: {type: isLog ? 'log' : 'linear', range: [from, to], title: {text: 'times its mean'}, ...(isLog ? {tickvals: [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20], ticktext: ['0.05', '0.1', '0.2', '0.5', '1', '2', '5', '10', '20']} : {})}, yaxis: {type: 'category'}}), CONFIG);
  }
  if (!objectives.some(o => facts.effects[o].rows.length)) $('effects').replaceChildren(element('p', 'No parameter varies among the feasible points.'));
}
function binned(c) {  // the values that machines have; many are put together
  const used = [...new Set(c.values)].sort((a, b) => a - b), step = Math.ceil(used.length / BINS), bin = new Map(used.map((v, k) => [v, Math.floor(k / step)]));
  const choices = used.filter((_, k) => k % step === 0).map((v, k) => { const last = used[Math.min((k + 1) * step, used.length) - 1]; return v === last ? c.choices[v] : `${c.choices[v]} to ${c.choices[last]}`; });
  return {choices, values: c.values.map(v => bin.get(v)), label: c.label};
}
function map() {
  const state = columns.state.values, x = $('map-x').value, y = $('map-y').value;
  const [cx, cy] = [binned(columns[x]), y ? binned(columns[y]) : {choices: ['all'], values: new Uint8Array(state.length), label: ''}];
  const all = cy.choices.map(() => cx.choices.map(() => 0)), bad = cy.choices.map(() => cx.choices.map(() => 0));
  for (let m = 0; m < state.length; m++) { all[cy.values[m]][cx.values[m]]++; if (state[m]) bad[cy.values[m]][cx.values[m]]++; }
  const z = bad.map((line, r) => line.map((n, c) => all[r][c] ? 100 * n / all[r][c] : null));
  Plotly.react('map', [{type: 'heatmap', z, x: cx.choices.map(plain), y: cy.choices.map(plain), zmin: 0, zmax: 100, colorscale: [[0, css('--panel')], [1, css('--mark')]], xgap: 2, ygap: 2,
    text: bad.map((line, r) => line.map((n, c) => all[r][c] ? `${n} of ${all[r][c]}` : '')), texttemplate: cx.choices.length * cy.choices.length <= CELLS ? '%{text}' : '', hovertemplate: '%{x}, %{y}: %{text} without a feasible point<extra></extra>',
    colorbar: {title: {text: '%', side: 'right'}, thickness: 12}}], plotLayout({xaxis: {type: 'category', title: {text: plain(cx.label)}}, yaxis: {type: 'category', title: {text: plain(cy.label)}}}), CONFIG);
}
function volume() {
  const p = facts.progress[Number($('course').value)], shades = {ok: '#8cc0a8', infeasible: '#16324f', pruned: '#e3c567', error: '#b5651d'};
  const traces = [{type: 'scatter', mode: 'lines', name: 'hypervolume', x: [0, ...p.volume.map(v => v[0])], y: [0, ...p.volume.map(v => 100 * v[1])], line: {shape: 'hv', color: css('--ink')}}];
  for (const [state, shade] of Object.entries(shades)) if (p.states[state]) traces.push({type: 'scatter', mode: 'lines', stackgroup: 'one', fillpattern: {shape: {ok: '', infeasible: '/', pruned: '.', error: 'x'}[state]}, name: state, x: [0, ...p.done], y: [0, ...p.states[state]], xaxis: 'x', yaxis: 'y2', line: {color: shade, width: 1}});
  Plotly.react('volume', traces, plotLayout({xaxis: {anchor: 'y2', title: {text: plain(p.axis)}}, yaxis: {domain: [0.42, 1], title: {text: 'hypervolume (%)'}, range: [0, 104]},
    yaxis2: {domain: [0, 0.32], title: {text: 'machines'}, gridcolor: css('--rule'), automargin: true}}), CONFIG);
}
function writeRunFacts() {
  $('summary').textContent = `${facts.said.find(f => f[0] === 'done')[1]} of ${facts.said.find(f => f[0] === 'space')[1]}; ${facts.said.find(f => f[0] === 'best')[1]}`;
  list('said', facts.said);
  $('study').textContent = facts.study;
  const bytes = v => v === null ? '' : `${v} B`;
  table('reasons', [['state', ''], ['level', ''], ['einsum', ''], ['machines', 'number'], ['needs at least', 'number'], ['has at most', 'number'], ['for example', 'text']],
    facts.reasons.map(r => [r.status, r.level, r.einsum, r.machines, bytes(r.need_bytes), bytes(r.have_bytes), r.reason]));
  $('reasons').hidden = !facts.reasons.length;
  table('missed', [['constraint', ''], ['points that break it', 'number']], facts.missed.map(m => [m.constraint, m.points]));
  $('missed').hidden = !facts.missed.length;
}

// ---- begin
function theme(name) {
  document.documentElement.dataset.theme = name;
  $('theme').textContent = name === 'dark' ? 'Light' : 'Dark';
  $('theme').setAttribute('aria-pressed', String(name === 'dark'));
}
const prefersDark = window.matchMedia('(prefers-color-scheme: dark)');
theme(prefersDark.matches ? 'dark' : 'light');
const redraw = name => { theme(name); drawn.forEach(make => make()); };
prefersDark.addEventListener('change', event => redraw(event.matches ? 'dark' : 'light'));
$('theme').addEventListener('click', () => redraw(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'));
let themeBefore = null;
async function preparePrint() {  // light, and as wide as a sheet; WebGL draws a moment later
  if (themeBefore) return;
  themeBefore = document.documentElement.dataset.theme;
  document.body.dataset.printing = 'yes';
  redraw('light');
  await Promise.all([...document.querySelectorAll('main .js-plotly-plot')].map(plot => Plotly.Plots.resize(plot)));
  await new Promise(done => setTimeout(done, 300));
}
async function endPrint() {
  if (!themeBefore) return;
  delete document.body.dataset.printing;
  redraw(themeBefore);
  themeBefore = null;
  await Promise.all([...document.querySelectorAll('main .js-plotly-plot')].map(plot => Plotly.Plots.resize(plot)));
}
window.addEventListener('beforeprint', preparePrint);
window.addEventListener('afterprint', endPrint);
$('print').addEventListener('click', async () => { await preparePrint(); window.print(); });

writeRunFacts();
const axes = [...objectives, ...metrics.filter(name => !objectives.includes(name)), ...facts.parameters];
if (feasiblePoints.length) {
  options('x', axes, objectives[0]);
  options('y', axes, objectives[1] || metrics.find(name => name !== objectives[0]));
  options('colour', axes, objectives[2] || '', [['', 'none']]);
  restoreState();
  filtered();
  draw(scatter); draw(parallel); rows(); draw(effects);
  for (const id of ['x', 'y', 'colour']) $(id).addEventListener('change', () => { boxed = null; refresh(id === 'colour'); });
  $('scatter').on('plotly_click', event => { const i = event.points[0].customdata; if (i !== undefined) explain(i); });
  $('scatter').on('plotly_selected', event => { if (drawing) return; boxed = event && event.points.length ? new Set(event.points.map(p => p.customdata)) : null; refresh(); });
  $('scatter').on('plotly_deselect', () => { if (boxed && !drawing) { boxed = null; refresh(); } });
} else {
  for (const one of document.querySelectorAll('#front > :not(h2):not(#count)')) one.hidden = true;
  $('count').textContent = 'No feasible point.';
}
const varied = facts.parameters.filter(name => columns[name].choices.length > 1);
if (varied.length && columns.state.values.some(state => state)) {
  options('map-x', varied, varied[0]);
  options('map-y', varied, varied[1] || '', [['', 'all']]);
  draw(map);
  for (const id of ['map-x', 'map-y']) $(id).addEventListener('change', map);
} else $('limits').hidden = document.querySelector('nav a[href="#limits"]').hidden = !facts.reasons.length && !facts.missed.length;
if (!$('map-x').options.length) $('map').hidden = $('map-x').closest('.controls').hidden = true;
facts.progress.forEach((one, k) => $('course').append(element('option', one.axis, {value: k})));
$('course').value = facts.progress.findLastIndex((one, k) => !k || one.done.length > 4);  // over time, where that shows more than a few commits
draw(volume);
$('course').addEventListener('change', volume);
document.querySelectorAll('nav a').forEach(link => link.addEventListener('click', event => {  // the address keeps the filters
  event.preventDefault();
  document.querySelector(link.getAttribute('href')).scrollIntoView();
}));
document.body.dataset.ready = 'yes';
})();
