// The data of the page: see `Data` in page/mod.rs.
const { n, n_dims: dims, classes } = data;
const stored = new Uint16Array(decoded(data.points));
const classOf = new Uint8Array(decoded(data.class_of));
const solid = dims === 3;

// Coordinates of the layout; and centred, the longest side of the box at 1, the second one downwards.
const coordinate = (i, axis) => data.low[axis] + (stored[i * dims + axis] / 65535) * data.extent[axis];
const longest = Math.max(...data.extent) || 1;
const sides = [0, 1, 2].map((axis) => (axis < dims ? ((axis === 1 ? -1 : 1) * data.extent[axis]) / longest : 0));

// An order that mixes rows, always the same one: the last class does not cover the others, and the
// first points stand for all.
const order = Uint32Array.from({ length: n }, (_, i) => i);
for (let i = n - 1, state = 1; i > 0; i--) {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  const j = Math.floor((state / 2 ** 32) * (i + 1)), other = order[i];
  order[i] = order[j];
  order[j] = other;
}

// ---- projection ----
// Where points are seen from the middle of the plot, in its units, whatever the zoom.
const CAMERA = 2.2, NEARER = 0.8 * CAMERA;
let turn = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
let places = null;
function located() {
  if (places) return places;
  const u = new Float32Array(n), v = new Float32Array(n), depth = solid ? new Float32Array(n) : null;
  const [ax, ay, az] = sides.map((side) => side / 65535), [bx, by, bz] = sides.map((side) => side / 2), [a, b, c] = turn;
  for (let i = 0, at = 0; i < n; i++, at += dims) {
    const px = ax * stored[at] - bx, py = ay * stored[at + 1] - by;
    if (!solid) {
      u[i] = px;
      v[i] = py;
      continue;
    }
    const pz = az * stored[at + 2] - bz, z = c[0] * px + c[1] * py + c[2] * pz, near = NEARER / (CAMERA - z);
    u[i] = (a[0] * px + a[1] * py + a[2] * pz) * near;
    v[i] = (b[0] * px + b[1] * py + b[2] * pz) * near;
    depth[i] = z;
  }
  places = { u, v, depth, grid: null };
  return places;
}
function rotate(dx, dy) {
  const [cx, sx, cy, sy] = [Math.cos(dx), Math.sin(dx), Math.cos(dy), Math.sin(dy)];
  const by = [[cx, 0, sx], [-sx * sy, cy, cx * sy], [-sx * cy, -sy, cx * cy]];
  const product = by.map((row) => [0, 1, 2].map((j) => row[0] * turn[0][j] + row[1] * turn[1][j] + row[2] * turn[2][j]));
  // Many small turns add up rounding: rows are made orthonormal again.
  const length = (v) => Math.hypot(...v);
  const r0 = product[0].map((v) => v / length(product[0]));
  const dot = r0[0] * product[1][0] + r0[1] * product[1][1] + r0[2] * product[1][2];
  const raw = product[1].map((v, j) => v - dot * r0[j]), r1 = raw.map((v) => v / length(raw));
  turn = [r0, r1, [r0[1] * r1[2] - r0[2] * r1[1], r0[2] * r1[0] - r0[0] * r1[2], r0[0] * r1[1] - r0[1] * r1[0]]];
  places = null;
}
// The first `count` of the order, the farthest first, by 512 steps of depth.
const STEPS = 512, sorted = solid ? new Uint32Array(n) : order;
function byDepth(count) {
  const [x, y, z] = turn[2].map((part, axis) => (part * sides[axis]) / 65535), least = turn[2].reduce((sum, part, axis) => sum + (part * sides[axis]) / 2, 0);
  const start = new Uint32Array(STEPS + 1), steps = new Uint16Array(count);
  for (let k = 0; k < count; k++) {
    const at = 3 * order[k], depth = x * stored[at] + y * stored[at + 1] + z * stored[at + 2] - least;
    const step = Math.max(0, Math.min(STEPS - 1, ((depth + 0.9) * 284) | 0));
    steps[k] = step;
    start[step + 1]++;
  }
  for (let s = 1; s <= STEPS; s++) start[s] += start[s - 1];
  for (let k = 0; k < count; k++) sorted[start[steps[k]]++] = order[k];
}

// ---- points near a place, and inside of an outline ----
/** Points by cells of a grid: those of a cell are `items` from `start[cell]` to `start[cell + 1]`. */
function grid() {
  const at = located();
  if (at.grid) return at.grid;
  const { u, v } = at;
  let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
  for (let i = 0; i < n; i++) {
    if (u[i] < left) left = u[i];
    if (u[i] > right) right = u[i];
    if (v[i] < top) top = v[i];
    if (v[i] > bottom) bottom = v[i];
  }
  // About four points a cell where they lie evenly.
  const side = Math.max(1, Math.min(1024, Math.round(Math.sqrt(n) / 2)));
  const [perColumn, perRow] = [right - left, bottom - top].map((length) => (length > 0 ? side / length : 0));
  const column = (x) => Math.max(0, Math.min(side - 1, Math.floor((x - left) * perColumn)));
  const row = (y) => Math.max(0, Math.min(side - 1, Math.floor((y - top) * perRow)));
  const cells = new Uint32Array(n), start = new Uint32Array(side * side + 1), items = new Uint32Array(n);
  for (let i = 0; i < n; i++) {
    // As `row` and `column`, of what is in the box.
    const cell = Math.min(side - 1, ((v[i] - top) * perRow) | 0) * side + Math.min(side - 1, ((u[i] - left) * perColumn) | 0);
    cells[i] = cell;
    start[cell]++;
  }
  for (let c = 1; c <= side * side; c++) start[c] += start[c - 1];
  for (let i = n - 1; i >= 0; i--) items[--start[cells[i]]] = i;
  at.grid = { side, column, row, start, items, area: ((right - left) * (bottom - top)) / (side * side) };
  return at.grid;
}
/** Points a square unit where they are densest, but for few cells; 0 before the grid is made. */
function crowd() {
  if (!(places && places.grid)) return 0;
  const { side, start, area } = places.grid, most = 4096, counts = new Uint32Array(most + 1);
  if (places.grid.crowd !== undefined) return places.grid.crowd;
  for (let c = 0; c < side * side; c++) counts[Math.min(most, start[c + 1] - start[c])]++;
  let beyond = 0.002 * (side * side - counts[0]), count = most;
  while (count > 1 && (beyond -= counts[count]) >= 0) count--;
  places.grid.crowd = area > 0 ? count / area : 0;
  return places.grid.crowd;
}
/** The nearest shown point within `reach`, or -1; of equals in space, to `tie`, the one in front. */
function nearest(x, y, reach, tie) {
  const { u, v, depth } = located(), { side, column, row, start, items } = grid();
  let best = -1, least = reach * reach;
  for (let r = row(y - reach); r <= row(y + reach); r++) {
    const end = start[r * side + column(x + reach) + 1];
    for (let k = start[r * side + column(x - reach)]; k < end; k++) {
      const i = items[k], away = (u[i] - x) ** 2 + (v[i] - y) ** 2;
      const is = away < least || (solid && best >= 0 && away < least + tie * tie && depth[i] > depth[best]);
      if (is && shown[classOf[i]]) [best, least] = [i, Math.min(away, least)];
    }
  }
  return best;
}
/** Calls `each` with the points inside of an outline, by the even-odd rule. */
function inside(outline, each) {
  const { u, v } = located(), { side, column, row, start, items } = grid();
  const [xs, ys] = [outline.map(([x]) => x), outline.map(([, y]) => y)];
  const ends = (of, values) => [Math.min, Math.max].map((end) => of(values.reduce((a, b) => end(a, b))));
  const [[left, right], [top, bottom]] = [ends(column, xs), ends(row, ys)];
  const edges = Array.from({ length: side }, () => []);
  outline.forEach(([x0, y0], k) => {
    const [x1, y1] = outline[(k + 1) % outline.length];
    for (let r = row(Math.min(y0, y1)); r <= row(Math.max(y0, y1)); r++) edges[r].push(x0, y0, x1, y1);
  });
  // A point looks at the edges in its row of cells; where none is in its cell, one looks for all.
  for (let r = top; r <= bottom; r++) {
    const here = Float64Array.from(edges[r]), has = new Uint8Array(side);
    for (let e = 0; e < here.length; e += 4) has.fill(1, column(Math.min(here[e], here[e + 2])), column(Math.max(here[e], here[e + 2])) + 1);
    for (let c = left; c <= right; c++) {
      let odd = false;
      for (let k = start[r * side + c], end = start[r * side + c + 1], first = k; k < end; k++) {
        const i = items[k];
        if (k === first || has[c]) odd = isOdd(here, u[i], v[i]);
        if (odd) each(i);
      }
    }
  }
}
/** Whether a ray from a place crosses an odd number of edges. */
function isOdd(edges, x, y) {
  let odd = false;
  for (let e = 0; e < edges.length; e += 4) {
    const y0 = edges[e + 1], y1 = edges[e + 3];
    if (y0 > y !== y1 > y && x < edges[e] + ((y - y0) * (edges[e + 2] - edges[e])) / (y1 - y0)) odd = !odd;
  }
  return odd;
}
