// Runs as files: saved, opened, and exported as a page that needs no server.

import { el } from "./dom.js";
import { readRun } from "./run.js";
import { pageSource } from "./server.js";

const MOST_BYTES = 64 << 20;
const MODULES = ["dom", "run", "server", "sources", "charts", "tree", "answer", "replay", "form", "files", "main"];

function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

const nameOf = (run, ending) => `paceline-${run.created.replace(/[^0-9]/g, "").slice(0, 14)}.${ending}`;

export function saveRun(run) {
  download(nameOf(run, "json"), "application/json", JSON.stringify(run, null, 1));
}

export async function openRun(file) {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} has ${file.size} bytes; a run has at most ${MOST_BYTES}`);
  return readRun(await file.text());
}

// The modules in one, in an order in which each comes after those that it uses; their names differ by design.
function bundle(sources) {
  return sources.map((text) => text.replace(/^import [^;]*;$/gm, "").replace(/^export /gm, "")).join("\n");
}

export async function exportRun(run) {
  const [html, style, ...sources] = await Promise.all(
    ["/", "/page/page.css", ...MODULES.map((name) => `/page/${name}.js`)].map(pageSource),
  );
  const nonce = Array.from(crypto.getRandomValues(new Uint8Array(16)), (one) => one.toString(16).padStart(2, "0")).join("");
  const policy = `default-src 'none'; script-src 'nonce-${nonce}'; style-src 'nonce-${nonce}'; base-uri 'none'; form-action 'none'`;
  const data = JSON.stringify(run).replace(/</g, "\\u003c");
  // Functions as replacements, for texts may hold "$&".
  const page = html
    .replace(/<link rel="icon"[^>]*>\n/, "")
    .replace('<meta charset="utf-8">', () => `<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="${policy}">`)
    .replace(/<link rel="stylesheet"[^>]*>/, () => `<style nonce="${nonce}">\n${style}</style>`)
    .replace(/<script type="module"[^>]*><\/script>/, () => `<script type="application/json" id="run">${data}<\/script>\n<script type="module" nonce="${nonce}">\n${bundle(sources)}<\/script>`);
  download(nameOf(run, "html"), "text/html", page);
}

// The run that this page was exported with; null on a server's page.
export function embedded() {
  const data = document.getElementById("run");
  return data ? readRun(data.textContent) : null;
}
