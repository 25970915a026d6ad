// The data of the page: see `Data` in page/mod.rs.
const { n, n_dims: dims, classes } = data;
const stored = new Uint16Array(decoded(data.points));
const classOf = new Uint32Array(decoded(data.class_of));
const solid = dims === 3;

// Coordinates: those of the layout, and centred with the longest side of the box at 1.
const coordinate = (i, axis) => data.low[axis] + (stored[i * dims + axis] / 65535) * data.extent[axis];
const longest = Math.max(...data.extent) || 1;
const position = new Float32Array(n * 3);
for (let i = 0; i < n; i++) for (let axis = 0; axis < dims; axis++) {
  const centred = (coordinate(i, axis) - data.low[axis] - data.extent[axis] / 2) / longest;
  position[i * 3 + axis] = axis === 1 ? -centred : centred;
}

// Points are drawn in a shuffled order, so that the last class does not cover the others; always the same one.
const order = Uint32Array.from({ length: n }, (_, i) => i);
for (let i = n - 1, state = 1; i > 0; i--) {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  const j = Math.floor((state / 2 ** 32) * (i + 1));
  [order[i], order[j]] = [order[j], order[i]];
}

const canvas = element('plot');
const context = canvas.getContext('2d');
const screen = { width: 0, height: 0, ratio: 1, pixels: null, words: null };
const x = new Float32Array(n), y = new Float32Array(n), depth = new Float32Array(n);
const first = () => ({ x: 0, y: 0, zoom: 1, turn: [[1, 0, 0], [0, 1, 0], [0, 0, 1]] });
let view = first();
let shown = classes.map(() => true);
let chosen = -1, last = -1;
let dark = matchMedia('(prefers-color-scheme: dark)').matches;
let size = 1, opacity = 0.7, waiting = false;

// ---- projection ----
const CAMERA = 2.2;
const unit = () => 0.92 * Math.min(screen.width, screen.height) * view.zoom;
function project() {
  const scale = unit(), left = screen.width / 2 + view.x * screen.ratio, top = screen.height / 2 + view.y * screen.ratio;
  if (!solid) {
    for (let i = 0; i < n; i++) {
      x[i] = left + position[3 * i] * scale;
      y[i] = top + position[3 * i + 1] * scale;
    }
    return;
  }
  const [a, b, c] = view.turn;
  for (let i = 0; i < n; i++) {
    const px = position[3 * i], py = position[3 * i + 1], pz = position[3 * i + 2];
    const z = c[0] * px + c[1] * py + c[2] * pz, near = (0.8 * scale * CAMERA) / (CAMERA - z);
    x[i] = left + (a[0] * px + a[1] * py + a[2] * pz) * near;
    y[i] = top + (b[0] * px + b[1] * py + b[2] * pz) * near;
    depth[i] = z;
  }
}
function rotate(dx, dy) {
  const [cx, sx, cy, sy] = [Math.cos(dx), Math.sin(dx), Math.cos(dy), Math.sin(dy)];
  const by = [[cx, 0, sx], [-sx * sy, cy, cx * sy], [-sx * cy, -sy, cx * cy]];
  const product = by.map((row) => [0, 1, 2].map((j) => row[0] * view.turn[0][j] + row[1] * view.turn[1][j] + row[2] * view.turn[2][j]));
  // Many small turns add up rounding: rows are made orthonormal again.
  const length = (v) => Math.hypot(...v);
  const r0 = product[0].map((v) => v / length(product[0]));
  const dot = r0[0] * product[1][0] + r0[1] * product[1][1] + r0[2] * product[1][2];
  const raw = product[1].map((v, j) => v - dot * r0[j]), r1 = raw.map((v) => v / length(raw));
  view.turn = [r0, r1, [r0[1] * r1[2] - r0[2] * r1[1], r0[2] * r1[0] - r0[0] * r1[2], r0[0] * r1[1] - r0[1] * r1[0]]];
}

// ---- drawing ----
// The farthest first, by 512 steps of depth.
function byDepth() {
  const start = new Uint32Array(514), sorted = new Uint32Array(n);
  const step = (i) => Math.max(0, Math.min(511, Math.floor((depth[i] + 0.9) * 284)));
  for (let i = 0; i < n; i++) start[step(i) + 1]++;
  for (let s = 1; s < 513; s++) start[s] += start[s - 1];
  for (let k = 0; k < n; k++) sorted[start[step(order[k])]++] = order[k];
  return sorted;
}
// The pixels that a disc covers and how much of each, for centres at quarters of a pixel.
function discs(radius) {
  const reach = Math.ceil(radius + 1), masks = [];
  for (let q = 0; q < 16; q++) {
    const dx = [], dy = [], alpha = [];
    for (let row = -reach; row <= reach; row++) for (let column = -reach; column <= reach; column++) {
      const covered = Math.min(1, radius + 0.5 - Math.hypot(column - (q % 4) / 4, row - Math.floor(q / 4) / 4));
      if (covered <= 0) continue;
      dx.push(column);
      dy.push(row);
      alpha.push(covered);
    }
    masks.push({ dx: Int32Array.from(dx), dy: Int32Array.from(dy), alpha: Float32Array.from(alpha) });
  }
  return { reach, masks };
}
function colourOf(k) {
  const rgb = classes[k].colour, light = 0.3 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2];
  return dark && light < 90 ? rgb.map((v) => 255 - Math.round((255 - v) * 0.45)) : rgb;
}
function draw() {
  waiting = false;
  if (!screen.pixels) return;
  project();
  const back = dark ? [20, 21, 26] : [255, 255, 255];
  screen.words.fill((255 << 24) | (back[2] << 16) | (back[1] << 8) | back[0]);
  const room = Math.sqrt((screen.width * screen.height) / Math.max(n, 1)) * 0.2;
  const radius = size * Math.max(1.1 * screen.ratio, Math.min(4.5 * screen.ratio, room)) * Math.min(3, Math.max(0.7, view.zoom ** 0.35));
  const { reach, masks } = discs(radius), { width, height } = screen, pixels = new Uint8Array(screen.pixels.data.buffer);
  const colours = classes.map((_, k) => colourOf(k));
  const sequence = solid ? byDepth() : order, stride = moving ? Math.ceil(n / MOST_MOVING) : 1;
  for (let s = 0; s < n; s += stride) {
    const i = sequence[s], k = classOf[i];
    if (!shown[k]) continue;
    const left = Math.floor(x[i]), top = Math.floor(y[i]);
    if (left < -reach || top < -reach || left >= width + reach || top >= height + reach) continue;
    const { dx, dy, alpha } = masks[Math.floor((y[i] - top) * 4) * 4 + Math.floor((x[i] - left) * 4)];
    const [r, g, b] = colours[k], strength = solid ? opacity * Math.max(0.25, Math.min(1, 0.7 + depth[i] * 0.7)) : opacity;
    for (let p = 0; p < dx.length; p++) {
      const column = left + dx[p], row = top + dy[p];
      if (column < 0 || column >= width || row < 0 || row >= height) continue;
      const at = 4 * (row * width + column), a = alpha[p] * strength;
      pixels[at] += Math.round((r - pixels[at]) * a);
      pixels[at + 1] += Math.round((g - pixels[at + 1]) * a);
      pixels[at + 2] += Math.round((b - pixels[at + 2]) * a);
    }
  }
  context.putImageData(screen.pixels, 0, 0);
  if (chosen >= 0) ring(chosen, radius);
}
function ring(i, radius) {
  context.lineWidth = 2 * screen.ratio;
  context.strokeStyle = dark ? '#ffffff' : '#000000';
  context.beginPath();
  context.arc(x[i], y[i], radius + 3 * screen.ratio, 0, 2 * Math.PI);
  context.stroke();
}
function redraw() {
  if (!waiting) requestAnimationFrame(draw);
  waiting = true;
}
// Of very many points some are left out as long as the plot moves.
const MOST_MOVING = 150000;
let moving = 0;
function redrawMoving() {
  clearTimeout(moving);
  moving = setTimeout(() => { moving = 0; redraw(); }, 250);
  redraw();
}
function resize() {
  const box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  const [width, height] = [Math.max(1, Math.round(box.width * ratio)), Math.max(1, Math.round(box.height * ratio))];
  [canvas.width, canvas.height] = [width, height];
  const pixels = context.createImageData(width, height);
  Object.assign(screen, { width, height, ratio, pixels, words: new Uint32Array(pixels.data.buffer) });
  redraw();
}

// ---- one point ----
const REACH = 12;
function nearest(left, top) {
  let best = -1, least = (REACH * screen.ratio) ** 2;
  for (let i = 0; i < n; i++) {
    if (!shown[classOf[i]]) continue;
    const away = (x[i] - left) ** 2 + (y[i] - top) ** 2;
    // Of equals in space the one in front.
    if (away < least || (solid && best >= 0 && away < least + 4 && depth[i] > depth[best])) [best, least] = [i, Math.min(away, least)];
  }
  return best;
}
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
  redraw();
  if (i < 0) return;
  const name = data.labelled ? classes[classOf[i]].name : '';
  const place = Array.from({ length: dims }, (_, axis) => coordinate(i, axis).toPrecision(4)).join(', ');
  const [bold, lines] = [document.createElement('b'), ['row ' + i, place, ...valuesOf(i)]];
  bold.textContent = name;
  element('words').replaceChildren(bold, ...lines.map((line) => Object.assign(document.createElement('div'), { textContent: line })));
  element('said').textContent = ['row ' + i, name, place, ...valuesOf(i)].filter((text) => text).join(', ');
  element('picture').hidden = !data.sprites;
  if (data.sprites) picture(data.sprites, i, element('picture'), 112, () => chosen === i);
  const [left, top] = [x[i] / screen.ratio, y[i] / screen.ratio], box = tip.getBoundingClientRect();
  const [w, h] = [screen.width / screen.ratio, screen.height / screen.ratio];
  const [tw, th] = [Math.max(box.width, data.sprites ? 240 : 0), Math.max(box.height, data.sprites ? 130 : 0)];
  tip.style.left = Math.max(4, left + 16 + tw > w ? left - 16 - tw : left + 16) + 'px';
  tip.style.top = Math.max(4, top + 16 + th > h ? top - 16 - th : top + 16) + 'px';
}
/** Shows a row that may lie outside of the view or in a hidden class. */
function goTo(i) {
  if (!(i >= 0 && i < n)) return;
  if (!shown[classOf[i]]) show((k) => shown[k] || k === classOf[i]);
  project();
  const margin = 30 * screen.ratio;
  if (x[i] < margin || y[i] < margin || x[i] > screen.width - margin || y[i] > screen.height - margin) {
    view.x += (screen.width / 2 - x[i]) / screen.ratio;
    view.y += (screen.height / 2 - y[i]) / screen.ratio;
    project();
  }
  choose(-1);
  choose(i);
}
function step(by) {
  for (let tries = 0, i = last; tries < n; tries++) {
    i = i < 0 ? (by > 0 ? 0 : n - 1) : (i + by + n) % n;
    if (shown[classOf[i]]) return goTo(i);
  }
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
  choose(-1);
  redraw();
}
const down = new Map();
const inside = (event) => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
const fromMiddle = ([left, top]) => [left - screen.width / screen.ratio / 2, top - screen.height / screen.ratio / 2];
canvas.addEventListener('pointerdown', (event) => {
  canvas.setPointerCapture(event.pointerId);
  down.set(event.pointerId, inside(event));
});
canvas.addEventListener('pointermove', (event) => {
  const now = inside(event), was = down.get(event.pointerId);
  if (!was) {
    choose(nearest(now[0] * screen.ratio, now[1] * screen.ratio));
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
for (const end of ['pointerup', 'pointercancel']) canvas.addEventListener(end, (event) => {
  down.delete(event.pointerId);
  if (end === 'pointerup' && event.pointerType === 'touch' && down.size === 0) {
    const [left, top] = inside(event);
    choose(nearest(left * screen.ratio, top * screen.ratio));
  }
});
canvas.addEventListener('pointerleave', () => choose(-1));
canvas.addEventListener('wheel', (event) => {
  event.preventDefault();
  const lines = event.deltaMode === 1 ? 16 : 1;
  zoomAt(Math.exp(-event.deltaY * lines * 0.0016), ...fromMiddle(inside(event)));
}, { passive: false });
canvas.addEventListener('dblclick', reset);
const KEYS = {
  ArrowLeft: (pan) => move(40, 0, pan), ArrowRight: (pan) => move(-40, 0, pan), ArrowUp: (pan) => move(0, 40, pan),
  ArrowDown: (pan) => move(0, -40, pan), '+': () => zoomAt(1.25, 0, 0), '=': () => zoomAt(1.25, 0, 0), '-': () => zoomAt(0.8, 0, 0),
  0: reset, Home: reset, n: () => step(1), p: () => step(-1), Escape: () => choose(-1),
};
canvas.addEventListener('keydown', (event) => {
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
  redraw();
}
/** Builds the legend: a click hides or shows a class, with Shift it shows this class alone. */
function legend() {
  element('classes').hidden = !data.labelled;
  classes.forEach(({ name, count }, k) => {
    const button = document.createElement('button'), mark = document.createElement('i');
    const [text, number] = [document.createElement('span'), document.createElement('small')];
    [text.textContent, number.textContent, button.title] = [name, count.toLocaleString('en'), 'Shift-click: this class alone'];
    button.append(mark, text, number);
    button.setAttribute('aria-pressed', 'true');
    button.addEventListener('click', (event) => show((other) => (event.shiftKey ? other === k : shown[other] !== (other === k))));
    element('legend').append(button);
  });
}
function theme() {
  document.documentElement.classList.toggle('dark', dark);
  document.querySelectorAll('#legend i').forEach((mark, k) => { mark.style.background = `rgb(${colourOf(k).join()})`; });
  redraw();
}
paragraphs('help', [
  solid ? 'Drag: rotate. Shift and drag, or two fingers: move.' : 'Drag: move.', 'Wheel or pinch: zoom. Double click: reset.',
  `Keys on the plot: arrows ${solid ? 'rotate (with Shift: move)' : 'move'}, + and - zoom, 0 resets, n and p go to the next and previous row.`,
  ...data.notes,
]);
element('row').max = n - 1;
element('row').addEventListener('change', (event) => goTo(event.target.valueAsNumber));
element('size').addEventListener('input', (event) => { size = event.target.valueAsNumber; redraw(); });
element('opacity').addEventListener('input', (event) => { opacity = event.target.valueAsNumber; redraw(); });
element('reset').addEventListener('click', reset);
element('theme').addEventListener('click', () => { dark = !dark; theme(); });
element('all').addEventListener('click', () => show(() => true));
element('none').addEventListener('click', () => show(() => false));
legend();
theme();
new ResizeObserver(resize).observe(canvas);
