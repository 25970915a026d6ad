// The data of the page: see `Data` in latents/mod.rs.
const { latents, rows } = data;
const placeOf = new Map(latents.map(({ number }, place) => [number, place]));
const STEP = 200;
let order = [], shown = 0, chosen = -1;
let dark = matchMedia('(prefers-color-scheme: dark)').matches;
const made = (name, text, more) => Object.assign(document.createElement(name), { textContent: text }, more);
const share = (density) => (density > 0 ? (100 * density).toPrecision(3) + ' %' : 'never');
const least = Math.log10(1 / Math.max(2, data.n_rows));
// The length of a bar: the logarithm of a density between that of one row and that of all.
const bar = (density) => (density > 0 ? Math.max(2, 100 * (1 - Math.log10(density) / least)) : 0);

// ---- the list ----
function button(place) {
  const { number, density } = latents[place], item = made('li', ''), line = made('button', '');
  const strip = made('i', '');
  strip.style.width = bar(density) + '%';
  line.append(made('span', String(number)), strip, made('small', share(density)));
  line.dataset.number = number;
  line.setAttribute('aria-current', String(place === chosen));
  line.addEventListener('click', () => choose(place));
  item.append(line);
  return item;
}
function more() {
  element('list').append(...order.slice(shown, shown + STEP).map(button));
  shown = Math.min(order.length, shown + STEP);
  element('more').hidden = shown >= order.length;
}
function sort(by) {
  const keys = { most: (a, b) => latents[b].density - latents[a].density, least: (a, b) => latents[a].density - latents[b].density };
  const byNumber = (a, b) => latents[a].number - latents[b].number;
  order = latents.map((_, place) => place).sort((a, b) => (keys[by] ? keys[by](a, b) : 0) || byNumber(a, b));
  shown = 0;
  element('list').replaceChildren();
  more();
}

// ---- one latent ----
function row([at, value]) {
  const item = made('li', '');
  if (data.sprites) {
    const target = made('canvas', '');
    item.append(target);
    picture(data.sprites, at, target, 84, () => true);
  }
  if (data.texts) item.append(made('p', data.texts[at]));
  item.append(made('small', `${Number(value.toPrecision(4))} in row ${rows[at]}`));
  return item;
}
function neighbour([number, cosine]) {
  const to = made('button', number + ' ');
  to.append(made('small', cosine.toFixed(3)));
  to.disabled = !placeOf.has(number);
  to.addEventListener('click', () => goTo(number));
  return to;
}
function choose(place) {
  chosen = place;
  const { number, density, uses, neighbours, top } = latents[place];
  element('name').textContent = 'latent ' + number;
  element('density').textContent = uses ? `active in ${share(density)} of rows, ${uses.toLocaleString('en')} of them` : 'active in no row';
  element('nearest').hidden = neighbours.length === 0;
  element('neighbours').replaceChildren(...neighbours.map(neighbour));
  element('largest').hidden = top.length === 0;
  element('rows').replaceChildren(...top.map(row));
  document.querySelectorAll('#list button').forEach((line) => line.setAttribute('aria-current', String(line.dataset.number === String(number))));
  element('said').textContent = element('name').textContent + ', ' + element('density').textContent;
  element('number').value = number;
}
/** Shows a latent by its number, and its place in the list. */
function goTo(number) {
  const place = placeOf.get(number);
  element('number').setCustomValidity(place === undefined ? 'no such latent on this page' : '');
  element('number').reportValidity();
  if (place === undefined) return;
  while (shown <= order.indexOf(place)) more();
  choose(place);
  const line = document.querySelector(`#list button[data-number="${number}"]`);
  if (line) line.scrollIntoView({ block: 'nearest' });
}
function step(by) {
  const at = order.indexOf(chosen) + by;
  if (at >= 0 && at < order.length) goTo(latents[order[at]].number);
}

// ---- the page ----
function theme() {
  document.documentElement.classList.toggle('dark', dark);
}
paragraphs('help', ['Keys: n and p go to the next and previous latent of the list.', ...data.notes]);
element('number').addEventListener('change', (event) => goTo(event.target.valueAsNumber));
element('order').addEventListener('change', (event) => sort(event.target.value));
element('more').addEventListener('click', more);
element('theme').addEventListener('click', () => { dark = !dark; theme(); });
document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || ['INPUT', 'SELECT'].includes(event.target.tagName)) return;
  if (event.key === 'n') step(1);
  if (event.key === 'p') step(-1);
});
theme();
sort('most');
if (order.length) choose(order[0]);
