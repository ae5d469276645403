// What happened when: a row for each kind, a dot for what is over at once, a bar for what lasted.
import { h, s, time, date, show as text, shortened } from "/core.js";
import { language } from "/words.js";

const WIDTH = 900, LEFT = 170, ROW = 30, MOST_ROWS = 10;

/** `events` are {from, to, row, kind, title}: milliseconds since 1970, a word for the row, a colour's name. */
export function timeline(name, events) {
  const known = events.filter((e) => Number.isFinite(e.from));
  if (!known.length) return null;
  const rows = [...new Set(known.map((e) => e.row))].slice(0, MOST_ROWS);
  const shown = known.filter((e) => rows.includes(e.row));
  const first = Math.min(...shown.map((e) => e.from));
  const last = Math.max(Date.now(), ...shown.map((e) => e.to ?? e.from));
  const span = Math.max(last - first, 60_000);
  const x = (at) => LEFT + ((at - first) / span) * (WIDTH - LEFT - 20);
  const height = rows.length * ROW + 34;
  const svg = s("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `${name}: ${shown.length}`, class: "timeline" });
  for (let i = 0; i <= 4; i++) {
    const at = first + (span * i) / 4;
    svg.append(s("line", { x1: x(at), y1: 4, x2: x(at), y2: height - 26, class: "edge" }),
      s("text", { x: x(at), y: height - 8, "text-anchor": i === 0 ? "start" : i === 4 ? "end" : "middle" }, clock(at, span)));
  }
  rows.forEach((row, i) => svg.append(s("text", { x: 4, y: i * ROW + 24 }, shortened(row, 24))));
  for (const e of shown) {
    const y = rows.indexOf(e.row) * ROW + 20;
    const end = e.to === undefined ? e.from : e.to;
    const mark = end - e.from > 0
      ? s("rect", { x: x(e.from), y: y - 6, width: Math.max(6, x(end) - x(e.from)), height: 12, rx: 4 })
      : s("circle", { cx: x(e.from), cy: y, r: 6 });
    mark.style.fill = `var(--${e.kind})`;
    mark.append(s("title", {}, `${time(e.from)} ${e.title}`));
    svg.append(mark);
  }
  return h("div.wide.drawn", { tabindex: 0, role: "region", "aria-label": name }, svg);
}

function clock(at, span) {
  const d = new Date(at);
  return span > 36 * 3600_000 ? d.toLocaleDateString(language(), { month: "short", day: "numeric" })
    : d.toLocaleTimeString(language(), { hour: "2-digit", minute: "2-digit", second: span < 600_000 ? "2-digit" : undefined, hour12: false });
}

/** What a log says of elections, states and copies. */
export const ofLog = (lines, words) => lines.map((e) => ({
  from: +date(e.t),
  row: "EFW".includes(e.s || "?") ? words.trouble : /sync|cop(y|ies|ied)/i.test(e.msg) ? words.copies : words.states,
  kind: "EF".includes(e.s || "?") ? "bad" : e.s === "W" ? "warn" : e.attr?.newState === "PRIMARY" || /primary complete/.test(e.msg) ? "good" : "s1",
  title: `${e.msg} ${shortened(text(e.attr || {}), 120)}`,
}));

/** What the cluster's change log says: the beginning and the end of a move are one bar. */
export function ofChanges(changes) {
  const out = [], open = new Map();
  for (const e of [...changes].sort((a, b) => date(a.time) - date(b.time))) {
    const [what, part] = e.what.split(".");
    const at = +date(e.time), key = `${what} ${e.ns} ${text(e.details?.min)}`;
    const made = { from: at, row: e.ns || what, kind: /error|fail|abort/i.test(e.what) ? "bad" : part ? "s3" : "s1", title: `${e.what} ${shortened(text(e.details || {}), 120)}` };
    if (part === "start") open.set(key, made);
    else if (part && open.has(key)) {
      const begun = open.get(key);
      open.delete(key);
      // Shorter than can be seen is a dot.
      Object.assign(begun, { to: at, kind: made.kind === "bad" ? "bad" : "good", title: made.title });
      continue;
    }
    out.push(made);
  }
  return out;
}
