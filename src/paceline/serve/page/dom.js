// Elements are made here, and every text becomes a text node: no string is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) throw new Error(`${name}: listeners are added with addEventListener`);
    node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

// Spaces, line ends and characters that cannot be seen, as they are shown where every token has to be seen.
export function visible(text) {
  if (text === "") return "\u2205";
  return text
    .replace(/\r?\n/g, "\u21b5")
    .replace(/\t/g, "\u21e5")
    .replace(/ /g, "\u00b7")
    .replace(/[\u0000-\u001f]/g, (one) => String.fromCharCode(0x2400 + one.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, "\ufffd");
}

export function percent(value) {
  if (value === null || value === undefined) return "\u2013";
  const shown = 100 * value;
  if (shown > 0 && shown < 0.1) return "< 0.1 %";
  return `${shown < 9.95 && shown > 0 ? shown.toFixed(1) : Math.round(shown)} %`;
}

export function rate(value) {
  return value >= 99.5 ? String(Math.round(value)) : value.toPrecision(value >= 9.95 ? 3 : 2);
}

export function milliseconds(seconds) {
  const value = 1000 * seconds;
  return `${value >= 99.5 ? Math.round(value) : value.toPrecision(2)} ms`;
}

export function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}
