// ---- drawing, by WebGL 2 ----
const plot = element('plot'), over = element('over'), pen = over.getContext('2d');
const screen = { width: 0, height: 0, ratio: 1 };
const first = () => ({ x: 0, y: 0, zoom: 1 });
let view = first();
let shown = classes.map(() => true);
// Rows of the selection.
const marked = new Uint8Array(n);
let nMarked = 0, outline = [];
let dark = matchMedia('(prefers-color-scheme: dark)').matches;
const MANY = 200000;
let size = 1, opacity = 0.7;
// Pixels a unit, and the middle of the layout on the screen.
const unit = () => 0.92 * Math.min(screen.width, screen.height) * view.zoom;
const middle = () => [screen.width / 2 + view.x * screen.ratio, screen.height / 2 + view.y * screen.ratio];
const toUnits = (left, top) => [(left - middle()[0]) / unit(), (top - middle()[1]) / unit()];
const toScreen = (i) => [middle()[0] + located().u[i] * unit(), middle()[1] + located().v[i] * unit()];
function radius() {
  const { width, height, ratio } = screen, room = Math.sqrt((width * height) / Math.max(n, 1)) * 0.2;
  const least = (n > MANY ? 0.75 : 1.1) * ratio;
  return Math.min(30, size * Math.max(least, Math.min(4.5 * ratio, room)) * Math.min(3, Math.max(0.7, view.zoom ** 0.35)));
}
function colourOf(k) {
  const rgb = classes[k].colour, light = 0.3 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2];
  return dark && light < 90 ? rgb.map((v) => 255 - Math.round((255 - v) * 0.45)) : rgb;
}

const VERTEX = `#version 300 es
precision highp float;
in vec3 place;
in uint kind, mark;
uniform sampler2D palette;
uniform vec3 sides;
uniform mat3 turn;
uniform vec2 middle, half_screen;
uniform float unit, radius, opacity, faint;
uniform bool solid;
flat out vec4 colour;
void main() {
  vec3 at = turn * ((place - .5) * sides);
  float near = solid ? ${NEARER} / (${CAMERA} - at.z) : 1.;
  vec2 on_screen = (middle + at.xy * near * unit) / half_screen - 1.;
  vec4 of_class = texelFetch(palette, ivec2(kind, 0), 0);
  float fog = solid ? clamp(.7 + .7 * at.z, .25, 1.) : 1.;
  colour = vec4(of_class.rgb, opacity * fog * (mark == 0u ? faint : 1.));
  gl_Position = of_class.a > 0. ? vec4(on_screen.x, -on_screen.y, 0., 1.) : vec4(2., 2., 2., 1.);
  gl_PointSize = 2. * radius + 2.;
}`;
const FRAGMENT = `#version 300 es
precision highp float;
uniform float radius;
uniform bool sums;
flat in vec4 colour;
out vec4 drawn;
void main() {
  float away = length((gl_PointCoord - .5) * (2. * radius + 2.));
  float alpha = colour.a * clamp(radius + .5 - away, 0., 1.);
  if (alpha <= 0.) discard;
  drawn = vec4((sums ? pow(colour.rgb, vec3(2.2)) : colour.rgb) * alpha, alpha);
}`;
// Of very many points of the plane what lies in a pixel is summed before it is coloured: classes mix
// by counts, and colours are stronger the more points there are, as in scatter/density.rs.
const MANY_IN_ALL = 100000;
const WHOLE = `#version 300 es
void main() { gl_Position = vec4(gl_VertexID == 1 ? 3. : -1., gl_VertexID == 2 ? 3. : -1., 0., 1.); }`;
const TONE = `#version 300 es
precision highp float;
uniform sampler2D summed;
uniform float high, single;
uniform vec3 back;
uniform bool dark;
out vec4 drawn;
const float FULL = .75;
void main() {
  vec4 sum = texelFetch(summed, ivec2(gl_FragCoord.xy), 0);
  vec3 colour = pow(sum.rgb / max(sum.a, 1e-6), vec3(1. / 2.2));
  float t = FULL * single * min(sum.a, 1.);
  if (sum.a > 1.) t = min(1., t + (1. - t) * log(sum.a) / log(high));
  vec3 most = dark ? mix(colour, vec3(1.), .6) : .45 * colour;
  drawn = vec4(t <= FULL ? mix(back, colour, t / FULL) : mix(colour, most, (t - FULL) / (1. - FULL)), 1.);
}`;
let gl = null, marks = null, points = null, tone = null, sums = null;
/** A program with the places of its uniforms, by name. */
function program(vertex, fragment) {
  const made = gl.createProgram();
  for (const [kind, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    gl.attachShader(made, shader);
  }
  ['place', 'kind', 'mark'].forEach((name, at) => gl.bindAttribLocation(made, at, name));
  gl.linkProgram(made);
  const names = Array.from({ length: gl.getProgramParameter(made, gl.ACTIVE_UNIFORMS) }, (_, k) => gl.getActiveUniform(made, k).name);
  return { made, ...Object.fromEntries(names.map((name) => [name, gl.getUniformLocation(made, name)])) };
}
/** A texture of its own unit, without filters. */
function texture(unit) {
  gl.activeTexture(gl.TEXTURE0 + unit);
  gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
  for (const filter of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, filter, gl.NEAREST);
}
/** What sums are drawn to, as large as the screen. */
function sumsOf({ width, height }) {
  if (sums && sums.width === width && sums.height === height) return sums.frame;
  if (sums) gl.deleteFramebuffer(sums.frame);
  sums = { width, height, frame: gl.createFramebuffer() };
  gl.activeTexture(gl.TEXTURE1);
  gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA16F, width, height, 0, gl.RGBA, gl.HALF_FLOAT, null);
  gl.bindFramebuffer(gl.FRAMEBUFFER, sums.frame);
  gl.framebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, gl.getParameter(gl.TEXTURE_BINDING_2D), 0);
  gl.activeTexture(gl.TEXTURE0);
  return sums.frame;
}
function buffer(target, values) {
  const made = gl.createBuffer();
  gl.bindBuffer(target, made);
  gl.bufferData(target, values, gl.DYNAMIC_DRAW);
  return made;
}
/** Makes what is drawn with; again after the browser has lost it. */
function setUp() {
  gl = plot.getContext('webgl2', { alpha: false, antialias: false, depth: false });
  element('missing').hidden = Boolean(gl);
  if (!gl) return;
  const sumsUp = !solid && n >= MANY_IN_ALL && (gl.getExtension('EXT_color_buffer_float') || gl.getExtension('EXT_color_buffer_half_float'));
  [points, tone, sums] = [program(VERTEX, FRAGMENT), sumsUp ? program(WHOLE, TONE) : null, null];
  if (tone) {
    gl.useProgram(tone.made);
    gl.uniform1i(tone.summed, 1);
    texture(1);
  }
  gl.useProgram(points.made);
  buffer(gl.ARRAY_BUFFER, stored);
  gl.vertexAttribPointer(0, dims, gl.UNSIGNED_SHORT, true, 0, 0);
  buffer(gl.ARRAY_BUFFER, classOf);
  gl.vertexAttribIPointer(1, 1, gl.UNSIGNED_BYTE, 0, 0);
  marks = buffer(gl.ARRAY_BUFFER, marked);
  gl.vertexAttribIPointer(2, 1, gl.UNSIGNED_BYTE, 0, 0);
  for (const at of [0, 1, 2]) gl.enableVertexAttribArray(at);
  buffer(gl.ELEMENT_ARRAY_BUFFER, order);
  texture(0);
  gl.uniform3fv(points.sides, sides);
  gl.uniform1i(points.solid, Number(solid));
  gl.uniform1i(points.sums, Number(Boolean(tone)));
  gl.blendFunc(gl.ONE, tone ? gl.ONE : gl.ONE_MINUS_SRC_ALPHA);
  [inDepth, underway] = [null, { fence: null }];
  paint();
}
plot.addEventListener('webglcontextlost', (event) => {
  event.preventDefault();
  gl = null;
});
plot.addEventListener('webglcontextrestored', setUp);

/** Tells the plot of colours and of which classes are shown. */
function paint() {
  const palette = new Uint8Array(4 * 256);
  classes.forEach((_, k) => palette.set([...colourOf(k), shown[k] ? 255 : 0], 4 * k));
  if (gl) gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, 256, 1, 0, gl.RGBA, gl.UNSIGNED_BYTE, palette);
  redraw();
}
/** Tells the plot of the selection. */
function mark() {
  if (gl) {
    gl.bindBuffer(gl.ARRAY_BUFFER, marks);
    gl.bufferSubData(gl.ARRAY_BUFFER, 0, marked);
  }
  redraw();
}
// Some points are left out as long as the plot moves, so that the others are drawn in time.
const SLOW_MS = 40, FAST_MS = 24, FEWEST = 50000;
let most = n, moving = 0, waiting = false, stale = true, inDepth = null, underway = { fence: null };
/** Whether the points of the last frame are drawn: frames that queue would make the next one late. */
function isDrawn(now) {
  const { fence, at, count } = underway;
  if (!fence) return true;
  if (gl.getSyncParameter(fence, gl.SYNC_STATUS) !== gl.SIGNALED) return false;
  gl.deleteSync(fence);
  underway = { fence: null };
  if (now - at > SLOW_MS) most = Math.max(Math.min(n, FEWEST), Math.round((count * SLOW_MS) / (now - at)));
  if (now - at < FAST_MS) most = Math.min(n, Math.max(most, Math.round(count * 1.2)));
  return true;
}
function draw(now) {
  waiting = false;
  ring();
  if (!gl || !stale || !screen.width) return;
  if (!isDrawn(now)) return redraw();
  stale = false;
  const { width, height } = screen, count = moving ? most : n, back = (dark ? [20, 21, 26] : [255, 255, 255]).map((v) => v / 255);
  if (solid && !(inDepth && inDepth.turn === turn && inDepth.count === count)) {
    byDepth(count);
    gl.bufferSubData(gl.ELEMENT_ARRAY_BUFFER, 0, sorted, 0, count);
    inDepth = { turn, count };
  }
  gl.useProgram(points.made);
  gl.bindFramebuffer(gl.FRAMEBUFFER, tone ? sumsOf(screen) : null);
  gl.viewport(0, 0, width, height);
  gl.clearColor(...(tone ? [0, 0, 0, 0] : [...back, 1]));
  gl.clear(gl.COLOR_BUFFER_BIT);
  gl.enable(gl.BLEND);
  gl.uniformMatrix3fv(points.turn, true, turn.flat());
  gl.uniform2fv(points.middle, middle());
  gl.uniform2f(points.half_screen, width / 2, height / 2);
  gl.uniform1f(points.unit, unit());
  gl.uniform1f(points.radius, radius());
  gl.uniform1f(points.opacity, tone ? 1 : opacity);
  gl.uniform1f(points.faint, nMarked ? (tone ? 0.04 : 0.12) : 1);
  gl.drawElements(gl.POINTS, count, gl.UNSIGNED_INT, 0);
  if (tone) colourSums(count, back);
  underway = { fence: gl.fenceSync(gl.SYNC_GPU_COMMANDS_COMPLETE, 0), at: now, count };
  gl.flush();
  if (!moving) lookAhead();
}
/** Colours what was summed of so many points. */
function colourSums(count, back) {
  // Discs over a pixel where points are densest; where none are dense, two do not look like many.
  const high = Math.max(8, (crowd() * Math.PI * (radius() + 0.25) ** 2 * count) / n / unit() ** 2);
  gl.bindFramebuffer(gl.FRAMEBUFFER, null);
  gl.disable(gl.BLEND);
  gl.useProgram(tone.made);
  gl.uniform1f(tone.high, high);
  gl.uniform1f(tone.single, opacity / (1 + 0.15 * Math.log2(high / 8)));
  gl.uniform3fv(tone.back, back);
  gl.uniform1i(tone.dark, Number(dark));
  gl.drawArrays(gl.TRIANGLES, 0, 3);
}
/** Finds what the pointer needs before it comes, in pieces that hold nothing up. */
let ahead = 0;
function lookAhead() {
  clearTimeout(ahead);
  if (!(places && places.grid)) ahead = setTimeout(() => { located(); ahead = setTimeout(() => { grid(); if (tone) redraw(); }, 20); }, 20);
}
/** Draws what lies over the points: the outline of a lasso, and a ring about the chosen one. */
function ring() {
  over.hidden = chosen < 0 && !outline.length;
  pen.clearRect(0, 0, over.width, over.height);
  pen.lineWidth = 2 * screen.ratio;
  pen.strokeStyle = dark ? '#ffffff' : '#000000';
  pen.fillStyle = dark ? 'rgba(255, 255, 255, .1)' : 'rgba(0, 0, 0, .08)';
  pen.beginPath();
  if (chosen >= 0) pen.arc(...toScreen(chosen), radius() + 3 * screen.ratio, 0, 2 * Math.PI);
  pen.stroke();
  pen.beginPath();
  outline.forEach(([x, y]) => pen.lineTo(x, y));
  pen.closePath();
  pen.fill('evenodd');
  pen.stroke();
}
/** Draws in the next frame: all, or what lies over the points alone. */
function redraw(points = true) {
  stale ||= points;
  if (!waiting) requestAnimationFrame(draw);
  waiting = true;
}
function redrawMoving() {
  clearTimeout(moving);
  moving = setTimeout(() => { moving = 0; redraw(); }, 250);
  redraw();
}
function resize() {
  const box = plot.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  const [width, height] = [Math.max(1, Math.round(box.width * ratio)), Math.max(1, Math.round(box.height * ratio))];
  for (const canvas of [plot, over]) [canvas.width, canvas.height] = [width, height];
  Object.assign(screen, { width, height, ratio });
  redraw();
}
