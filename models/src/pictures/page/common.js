'use strict';
// What all pages have: their data, pictures of rows, figures and paragraphs.
const data = JSON.parse(document.getElementById('data').textContent);
const element = (id) => document.getElementById(id);
/** The bytes of base64. */
function decoded(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text).buffer;
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes.buffer;
}
const atlases = [];
/** Paints picture `i` of `sprites` about `side` pixels high and wide, if it is still wanted once it is decoded. */
function picture(sprites, i, target, side, isWanted) {
  const which = Math.floor(i / sprites.per_atlas), at = i % sprites.per_atlas;
  if (!atlases[which]) {
    atlases[which] = new Image();
    atlases[which].src = 'data:image/png;base64,' + sprites.atlases[which];
  }
  const { width, height, columns } = sprites, zoom = Math.max(1, Math.round(side / Math.max(width, height)));
  const paint = () => {
    if (!isWanted()) return;
    [target.width, target.height] = [width, height];
    target.style.width = width * zoom + 'px';
    target.style.height = height * zoom + 'px';
    const [left, top] = [1 + (at % columns) * (width + 1), 1 + Math.floor(at / columns) * (height + 1)];
    target.getContext('2d').drawImage(atlases[which], left, top, width, height, 0, 0, width, height);
  };
  atlases[which].decode().then(paint, () => {});
}
function paragraphs(id, lines) {
  element(id).append(...lines.map((line) => Object.assign(document.createElement('p'), { textContent: line })));
}
for (const [name, value] of data.figures) {
  const [item, bold] = [document.createElement('span'), document.createElement('b')];
  bold.textContent = value;
  item.append(name + ' ', bold);
  element('figures').append(item);
}
