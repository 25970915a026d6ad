// ---- one point ----
const REACH = 12;
let chosen = -1, last = -1;
// None before the points of the view are found.
const under = ([left, top]) => (places && places.grid ? nearest(...toUnits(left * screen.ratio, top * screen.ratio), (REACH * screen.ratio) / unit(), (2 * screen.ratio) / unit()) : -1);
// The first values of a row, a line each.
const table = data.values && new Float32Array(decoded(data.values.cells));
function valuesOf(i) {
  if (!table) return [];
  const { names, base, more } = data.values;
  // f32 has seven digits; what was subtracted on reading is exact.
  const words = (v, c) => String(Number((v + base[c]).toPrecision(base[c] ? 12 : 7)));
  const lines = names.map((name, c) => name + ': ' + words(table[i * names.length + c], c));
  return more ? [...lines, 'and ' + more + ' more'] : lines;
}
function choose(i) {
  if (i === chosen) return;
  chosen = i;
  last = i < 0 ? last : i;
  const tip = element('tip');
  tip.hidden = i < 0;
  redraw(false);
  if (i < 0) return;
  const name = data.labelled ? classes[classOf[i]].name : '';
  const place = Array.from({ length: dims }, (_, axis) => coordinate(i, axis).toPrecision(4)).join(', ');
  const [bold, lines] = [document.createElement('b'), ['row ' + i, place, ...valuesOf(i)]];
  bold.textContent = name;
  element('words').replaceChildren(bold, ...lines.map((line) => Object.assign(document.createElement('div'), { textContent: line })));
  element('said').textContent = ['row ' + i, name, place, ...valuesOf(i)].filter((text) => text).join(', ');
  element('picture').hidden = !data.sprites;
  if (data.sprites) picture(data.sprites, i, element('picture'), 112, () => chosen === i);
  const [left, top] = toScreen(i).map((pixels) => pixels / screen.ratio), box = tip.getBoundingClientRect();
  const [w, h] = [screen.width / screen.ratio, screen.height / screen.ratio];
  const [tw, th] = [Math.max(box.width, data.sprites ? 240 : 0), Math.max(box.height, data.sprites ? 130 : 0)];
  tip.style.left = Math.max(4, left + 16 + tw > w ? left - 16 - tw : left + 16) + 'px';
  tip.style.top = Math.max(4, top + 16 + th > h ? top - 16 - th : top + 16) + 'px';
}
/** Shows a row that may lie outside of the view or in a hidden class. */
function goTo(i) {
  const is = i >= 0 && i < n && Number.isInteger(i);
  element('row').setCustomValidity(is ? '' : 'rows go from 0 to ' + (n - 1));
  if (!is) return void element('row').reportValidity();
  if (!shown[classOf[i]]) show((k) => shown[k] || k === classOf[i]);
  const margin = 30 * screen.ratio, [left, top] = toScreen(i);
  if (left < margin || top < margin || left > screen.width - margin || top > screen.height - margin) {
    view.x += (screen.width / 2 - left) / screen.ratio;
    view.y += (screen.height / 2 - top) / screen.ratio;
    redraw();
  }
  choose(-1);
  choose(i);
}
/** Goes to the next or previous row that is shown, of the selection if there is one. */
function step(by) {
  for (let tries = 0, i = last; tries < n; tries++) {
    i = i < 0 ? (by > 0 ? 0 : n - 1) : (i + by + n) % n;
    if (shown[classOf[i]] && (marked[i] || !nMarked)) return goTo(i);
  }
}

// ---- a selection ----
/** Says and shows how many rows are in the selection. */
function select() {
  nMarked = 0;
  for (let i = 0; i < n; i++) nMarked += marked[i];
  element('selected').textContent = nMarked ? `${nMarked.toLocaleString('en')} of ${n.toLocaleString('en')} rows` : 'no rows';
  for (const id of ['download', 'clear']) element(id).disabled = !nMarked;
  mark();
}
function clear() {
  marked.fill(0);
  select();
}
/** Takes what the outline holds in place of the selection, or adds it to this, or removes it. */
function takeOutline(adds, removes) {
  if (!adds && !removes) marked.fill(0);
  if (outline.length > 2) inside(outline.map((at) => toUnits(...at)), (i) => { if (shown[classOf[i]]) marked[i] = removes ? 0 : 1; });
  outline = [];
  select();
}
/** Selects the rows of the class that is called so, else of those whose names hold the text. */
function selectLabel(text) {
  const wanted = text.trim().toLowerCase(), names = classes.map(({ name }) => name.toLowerCase());
  const are = names.map((name) => name === wanted), found = are.includes(true) ? are : names.map((name) => name.includes(wanted));
  const is = wanted === '' || found.includes(true);
  element('label').setCustomValidity(is ? '' : 'no label has this in its name');
  if (!is) return void element('label').reportValidity();
  for (let i = 0; i < n; i++) marked[i] = wanted !== '' && found[classOf[i]] ? 1 : 0;
  if (wanted) show((k) => shown[k] || found[k]);
  select();
}
/** Saves the numbers of the rows in the selection, a line each. */
function download() {
  const lines = ['row'], link = document.createElement('a');
  for (let i = 0; i < n; i++) if (marked[i]) lines.push(i);
  link.href = URL.createObjectURL(new Blob([lines.join('\n'), '\n'], { type: 'text/csv' }));
  link.download = 'rows.csv';
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
let lasso = false;
function useLasso(is) {
  lasso = is;
  outline = [];
  element('lasso').setAttribute('aria-pressed', String(is));
  plot.classList.toggle('lasso', is);
  redraw(false);
}

// ---- moving ----
function zoomAt(factor, left, top) {
  const zoom = Math.max(0.2, Math.min(400, view.zoom * factor)), by = zoom / view.zoom;
  view.x = (view.x - left) * by + left;
  view.y = (view.y - top) * by + top;
  view.zoom = zoom;
  choose(-1);
  redrawMoving();
}
function move(dx, dy, pan) {
  if (solid && !pan) rotate(dx * 0.008, dy * 0.008);
  else [view.x, view.y] = [view.x + dx, view.y + dy];
  choose(-1);
  redrawMoving();
}
function reset() {
  view = first();
  [turn, places] = [[[1, 0, 0], [0, 1, 0], [0, 0, 1]], solid ? null : places];
  choose(-1);
  redraw();
}
const down = new Map();
const within = (event) => {
  const box = plot.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
const toPixels = (event) => within(event).map((at) => at * screen.ratio);
const fromMiddle = ([left, top]) => [left - screen.width / screen.ratio / 2, top - screen.height / screen.ratio / 2];
plot.addEventListener('pointerdown', (event) => {
  plot.setPointerCapture(event.pointerId);
  down.set(event.pointerId, within(event));
  if (lasso && down.size === 1) {
    choose(-1);
    outline = [toPixels(event)];
  } else outline = [];
});
plot.addEventListener('pointermove', (event) => {
  const now = within(event), was = down.get(event.pointerId);
  if (!was) {
    choose(under(now));
    return;
  }
  if (outline.length) {
    const at = toPixels(event), before = outline.at(-1);
    if (Math.hypot(at[0] - before[0], at[1] - before[1]) > 2 * screen.ratio) outline.push(at);
    redraw(false);
    return;
  }
  const [dx, dy] = [now[0] - was[0], now[1] - was[1]];
  if (down.size === 1 && (dx || dy)) move(dx, dy, event.shiftKey || event.buttons === 4);
  if (down.size === 2) {
    const [other] = [...down].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    const apart = (a) => Math.max(1, Math.hypot(a[0] - other[0], a[1] - other[1]));
    move(dx / 2, dy / 2, true);
    zoomAt(apart(now) / apart(was), ...fromMiddle([(now[0] + other[0]) / 2, (now[1] + other[1]) / 2]));
  }
  down.set(event.pointerId, now);
});
for (const end of ['pointerup', 'pointercancel']) plot.addEventListener(end, (event) => {
  down.delete(event.pointerId);
  if (outline.length && end === 'pointerup') takeOutline(event.shiftKey, event.altKey);
  else if (end === 'pointerup' && event.pointerType === 'touch' && down.size === 0) choose(under(within(event)));
  outline = [];
});
plot.addEventListener('pointerleave', () => choose(-1));
plot.addEventListener('wheel', (event) => {
  event.preventDefault();
  const lines = event.deltaMode === 1 ? 16 : 1;
  zoomAt(Math.exp(-event.deltaY * lines * 0.0016), ...fromMiddle(within(event)));
}, { passive: false });
plot.addEventListener('dblclick', reset);
const KEYS = {
  ArrowLeft: (pan) => move(40, 0, pan), ArrowRight: (pan) => move(-40, 0, pan), ArrowUp: (pan) => move(0, 40, pan),
  ArrowDown: (pan) => move(0, -40, pan), '+': () => zoomAt(1.25, 0, 0), '=': () => zoomAt(1.25, 0, 0), '-': () => zoomAt(0.8, 0, 0),
  0: reset, Home: reset, n: () => step(1), p: () => step(-1), l: () => useLasso(!lasso),
  Escape: () => { choose(-1); useLasso(false); clear(); },
};
plot.addEventListener('keydown', (event) => {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act(event.shiftKey);
});

// ---- beside the plot ----
function show(which) {
  shown = classes.map((_, k) => which(k));
  document.querySelectorAll('#legend button').forEach((button, k) => button.setAttribute('aria-pressed', String(shown[k])));
  choose(-1);
  paint();
}
/** Builds the legend: a click hides or shows a class, with Shift it shows this class alone. */
function legend() {
  for (const id of ['classes', 'search']) element(id).hidden = !data.labelled;
  classes.forEach(({ name, count }, k) => {
    const button = document.createElement('button'), mark = document.createElement('i');
    const [text, number] = [document.createElement('span'), document.createElement('small')];
    [text.textContent, number.textContent, button.title] = [name, count.toLocaleString('en'), 'Shift-click: this class alone'];
    button.append(mark, text, number);
    button.setAttribute('aria-pressed', 'true');
    button.addEventListener('click', (event) => show((other) => (event.shiftKey ? other === k : shown[other] !== (other === k))));
    element('legend').append(button);
    element('labels').append(Object.assign(document.createElement('option'), { value: name }));
  });
}
function theme() {
  document.documentElement.classList.toggle('dark', dark);
  document.querySelectorAll('#legend i').forEach((mark, k) => { mark.style.background = `rgb(${colourOf(k).join()})`; });
  paint();
}
paragraphs('help', [
  solid ? 'Drag: rotate. Shift and drag, or two fingers: move.' : 'Drag: move.', 'Wheel or pinch: zoom. Double click: reset.',
  `Keys on the plot: arrows ${solid ? 'rotate (with Shift: move)' : 'move'}, + and - zoom, 0 resets, n and p go to the next and previous row, of the selection if there is one.`,
  'Lasso (key l): drag around points; with Shift it adds to the selection, with Alt it takes away. Escape ends it.', ...data.notes,
]);
element('row').max = n - 1;
element('row').addEventListener('change', (event) => goTo(event.target.valueAsNumber));
element('opacity').value = opacity;
element('size').addEventListener('input', (event) => { size = event.target.valueAsNumber; redraw(); });
element('opacity').addEventListener('input', (event) => { opacity = event.target.valueAsNumber; redraw(); });
element('label').addEventListener('change', (event) => selectLabel(event.target.value));
element('lasso').addEventListener('click', () => useLasso(!lasso));
element('clear').addEventListener('click', clear);
element('download').addEventListener('click', download);
element('reset').addEventListener('click', reset);
element('theme').addEventListener('click', () => { dark = !dark; theme(); });
element('all').addEventListener('click', () => show(() => true));
element('none').addEventListener('click', () => show(() => false));
legend();
setUp();
theme();
select();
new ResizeObserver(resize).observe(plot);
