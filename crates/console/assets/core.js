// What all views stand on: elements, the API, numbers and times. Text never becomes markup: there is no innerHTML here.
import { t, language } from "/words.js";

/** An element: h("td.n", {title: "x"}, "text", other). */
export function h(kind, attributes, ...children) {
  const [tag, ...classes] = kind.split(".");
  const e = document.createElement(tag);
  if (classes.length) e.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") e[name] = value;
    else e.setAttribute(name, value === true ? "" : value);
  }
  add(e, children);
  return e;
}

export function add(e, children) {
  for (const c of children.flat(9)) if (c !== null && c !== undefined && c !== false) e.append(c);
  return e;
}

const SVG = "http://www.w3.org/2000/svg";
export function s(tag, attributes, ...children) {
  const e = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) e.setAttribute(name, value);
  return add(e, children);
}

/** What the API refused, or that it is not there. */
export class Refused extends Error {
  constructor(status, body) {
    super(body?.error?.message || t("unreachable"));
    this.status = status;
    this.body = body;
  }
}

async function call(path, options) {
  let response;
  try {
    response = await fetch("/api/1/" + path, { credentials: "same-origin", redirect: "error", ...options });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Refused(0, null);
  }
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  if (response.status === 401 && path !== "login" && path !== "session") location.reload();
  throw new Refused(response.status, body);
}

export const get = (path, parameters, signal) =>
  call(path + (parameters ? "?" + new URLSearchParams(parameters) : ""), { signal });

export const post = (path, body, signal) =>
  call(path, {
    method: "POST", signal, body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", "X-Pando-Console": "1" },
  });

// Extended JSON's numbers and dates, as the API gives them.
export function number(v) {
  if (typeof v === "number") return v;
  if (v && typeof v === "object") return Number(v.$numberLong ?? v.$numberDouble ?? v.$numberDecimal ?? v.$numberInt ?? NaN);
  return v === null || v === undefined ? NaN : Number(v);
}
export function date(v) {
  const d = v && typeof v === "object" ? v.$date : v;
  return new Date(d && typeof d === "object" ? number(d) : d);
}

export function count(n) {
  n = number(n);
  return Number.isFinite(n) ? n.toLocaleString(language(), { maximumFractionDigits: Math.abs(n) < 10 ? 1 : 0 }) : "–";
}
/** As short as an axis needs it. */
export function short(n) {
  return Number.isFinite(n) ? n.toLocaleString(language(), { notation: "compact", maximumFractionDigits: 1 }) : "–";
}
export function bytes(n) {
  n = number(n);
  if (!Number.isFinite(n)) return "–";
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let i = 0;
  while (Math.abs(n) >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return n.toLocaleString(language(), { maximumFractionDigits: n < 10 && i ? 1 : 0 }) + " " + units[i];
}
export function micros(n) {
  n = number(n);
  if (!Number.isFinite(n)) return "–";
  if (n < 1000) return Math.round(n) + " µs";
  return millis(n / 1000);
}
export function millis(n) {
  n = number(n);
  if (!Number.isFinite(n)) return "–";
  if (n < 1000) return n.toLocaleString(language(), { maximumFractionDigits: n < 10 ? 1 : 0 }) + " ms";
  const s = n / 1000;
  if (s < 120) return s.toLocaleString(language(), { maximumFractionDigits: s < 10 ? 1 : 0 }) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  if (s < 172800) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " d";
}
export function time(v) {
  const d = date(v);
  return isNaN(d) ? "–" : d.toLocaleString(language(), { dateStyle: "short", timeStyle: "medium" });
}

/** A value for people: Extended JSON, with the plain form of what is common. */
export function show(v, indent) {
  return JSON.stringify(plain(v), null, indent);
}
function plain(v) {
  if (Array.isArray(v)) return v.map(plain);
  if (v && typeof v === "object") {
    const names = Object.keys(v);
    if (names.length === 1) {
      if (typeof v.$oid === "string") return `ObjectId(${v.$oid})`;
      if (names[0] === "$date") { const d = date(v); return isNaN(d) ? v : `ISODate(${d.toISOString()})`; }
      if (typeof v.$numberLong === "string") return Number.isSafeInteger(Number(v.$numberLong)) ? Number(v.$numberLong) : v;
    }
    // A name like __proto__ stays a name.
    return Object.fromEntries(names.map((n) => [n, plain(v[n])]));
  }
  return v;
}
export const shortened = (text, most = 160) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

/** How far an operation is: done and all of it, of an index build or of a move; null where it does not say. */
export function progress(o) {
  const p = o.progress;
  if (!p) return null;
  const done = number(p.done ?? p.copiedDocuments), total = number(p.total ?? p.approxDocumentsToCopy);
  return Number.isFinite(done) ? { done, total: total > 0 ? Math.max(done, total) : null } : null;
}
export function meter(o) {
  const p = progress(o);
  return p && h("span", {}, o.msg && [o.msg.split(":")[0], " "], `${count(p.done)} / ${p.total === null ? "?" : count(p.total)} `,
    p.total !== null && h("progress", { max: p.total, value: p.done, "aria-label": o.msg || t("progress") }));
}

/** A table that scrolls by itself: columns are [title, class], rows are lists of cells. `kind` stack: on a phone the cells of a
    row stand below each other. */
export function table(caption, columns, rows, empty, kind) {
  return h("div.wide" + (kind ? "." + kind : ""), { tabindex: 0, role: "region", "aria-label": caption },
    h("table", {},
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, columns.map(([title, kind]) => h("th" + (kind ? "." + kind : ""), { scope: "col" }, title)))),
      h("tbody", {}, rows.length
        ? rows.map((cells) => h("tr", {}, cells.map((c, i) => h("td" + (columns[i]?.[1] ? "." + columns[i][1] : ""), {}, c))))
        : h("tr", {}, h("td.soft", { colspan: columns.length }, empty || t("nothing"))))));
}

export const tag = (text, kind) => h("span.tag" + (kind ? "." + kind : ""), {}, text);
export const failure = (e) => h("p.card", { role: "alert" }, tag(t("refused"), "bad"), " ", e.message);

/** Asks again and again while the view is shown and the page is seen; one question at a time. */
export function every(view, seconds, ask) {
  let timer;
  const turn = async () => {
    if (!document.hidden) await ask().catch((e) => { if (e.name !== "AbortError") view.failed?.(e); });
    if (!view.ended) timer = setTimeout(turn, seconds * 1000);
  };
  view.onEnd(() => clearTimeout(timer));
  return turn();
}

export function say(text) {
  document.getElementById("live").textContent = text;
}

/** Asks, and gives whether the answer was yes. */
export function confirmed(title, text, yes) {
  return new Promise((resolve) => {
    const close = (answer) => { dialog.close(); dialog.remove(); resolve(answer); };
    const dialog = h("dialog", { "aria-labelledby": "asked", oncancel: () => close(false) },
      h("h2", { id: "asked" }, title), text,
      h("div.row", {}, h("button", { onclick: () => close(false), autofocus: true }, t("cancel")),
        h("button.bad", { onclick: () => close(true) }, yes)));
    document.body.append(dialog);
    dialog.showModal();
  });
}
