// Is it healthy: figures of the last hour, what waits, and what should be looked at.
import { h, add, get, every, count, short, bytes, micros, millis, number, show, meter } from "/core.js";
import { t, language } from "/words.js";

const HOUR = 3600;
const percent = (n) => (Number.isFinite(n) ? count(n) + " %" : "–");

// Title, how a value is written, and the lines: name in the API, colour, factor.
const charts = [
  ["operations", count, [["query", 1], ["insert", 2], ["update", 3], ["delete", 4], ["getmore", 5], ["command", 6]]],
  ["latencyRead", micros, [["readMicrosP50", 2], ["readMicrosP95", 3], ["readMicrosP99", 4]]],
  ["latencyWrite", micros, [["writeMicrosP50", 2], ["writeMicrosP95", 3], ["writeMicrosP99", 4]]],
  ["waiting", count, [["waitingForLocks", 4], ["waitingForMemory", 3], ["waitingForEstablishment", 5]]],
  ["connections", count, [["connections", 1], ["connectionsActive", 2]]],
  ["cpu", percent, [["cpuPercent", 3]]],
  ["memory", bytes, [["cacheBytes", 1], ["dirtyBytes", 3], ["stageBytes", 5], ["residentBytes", 6]]],
  ["network", bytes, [["bytesIn", 1], ["bytesOut", 2]]],
  ["disk", bytes, [["diskFreeBytes", 2]]],
  ["reading", count, [["documentsExamined", 3], ["documentsReturned", 2], ["diskReads", 1]]],
  ["moves", count, [["moves", 3]]],
  ["lag", (n) => millis(n * 1000), [["lagSeconds", 4], ["worstLagSeconds", 3]]],
];

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function derive(series) {
  const sum = (a, b) => a.map((v, i) => (v === null || b[i] === null ? null : (v + b[i]) / 10000));
  series.cpuPercent = sum(series.cpuMicros, series.cpuSystemMicros);
  series.residentBytes = series.residentMB.map((v) => (v === null ? null : v * 1048576));
}

function clock(u, all) {
  const second = all.length > 1 && all[1] - all[0] < 60 ? "2-digit" : undefined;
  return all.map((v) => new Date(v * 1000).toLocaleTimeString(language(), { hour: "2-digit", minute: "2-digit", second, hour12: false }));
}

function plot(place, lines, write) {
  const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 }, font: "11px system-ui" };
  const options = {
    width: Math.max(200, place.clientWidth), height: 170, legend: { live: true },
    // Without a pointer the legend says what is now.
    hooks: { draw: [(u) => { if (u.cursor.left < 0 || u.cursor.left === undefined) u.setLegend({ idx: u.data[0].length - 1 }); }] },
    cursor: { drag: { x: false, y: false } },
    scales: { y: { range: (u, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [{ ...axis, values: clock, space: 80 },
      { ...axis, size: 68, values: (u, all) => all.map(write === count ? short : write) }],
    series: [{ label: t("time"), value: (u, v) => (v ? new Date(v * 1000).toLocaleTimeString(language()) : "–") },
      ...lines.map(([name, colour]) => ({ label: t("series." + name), stroke: css("--s" + colour), width: 1.6, spanGaps: false, points: { show: false }, value: (u, v) => (v === null || v === undefined ? "–" : write(v)) }))],
  };
  return new uPlot(options, [[], ...lines.map(() => [])], place);
}

/** What an operator should see first; each is [kind, text, link]. */
export function notes(series, slow) {
  const last = (name) => { const all = series[name] || []; return all.length ? all[all.length - 1] : null; };
  const found = [];
  const free = last("diskFreeBytes"), total = last("diskTotalBytes");
  if (free !== null && total) {
    if (free / total < 0.05) found.push(["bad", t("note.diskFull", bytes(free), bytes(total))]);
    else if (free / total < 0.15) found.push(["warn", t("note.diskLow", bytes(free), bytes(total))]);
  }
  if (last("writesStopped")) found.push(["bad", t("note.writesStopped")]);
  if (last("backgroundErrors")) found.push(["bad", t("note.backgroundErrors"), "#log"]);
  if (last("locksAgainstWrites") > 0) found.push(["bad", t("note.locked"), "#running"]);
  if (last("delayedBytesPerSecond") || last("paceMillisPerMB")) found.push(["warn", t("note.writesSlowed")]);
  if (last("lagSeconds") > 10) found.push([last("lagSeconds") > 60 ? "bad" : "warn", t("note.lag", millis(last("lagSeconds") * 1000)), "#members"]);
  if (last("membersDown") > 0) found.push(["bad", t("note.down", count(last("membersDown"))), "#members"]);
  if (last("worstLagSeconds") > 10 && !(last("lagSeconds") > 10)) found.push([last("worstLagSeconds") > 60 ? "bad" : "warn", t("note.worstLag", millis(last("worstLagSeconds") * 1000)), "#members"]);
  if (last("waitingForLocks") > 0) found.push(["warn", t("note.locks", count(last("waitingForLocks"))), "#running"]);
  if (last("waitingForMemory") > 0) found.push(["warn", t("note.memory", count(last("waitingForMemory")))]);
  const worst = (slow?.shapes || []).find((s) => s.advice);
  if (worst) {
    const index = worst.advice ? show(worst.advice.key) : "";
    found.push(["warn", t("note.slow", worst.ns, worst.kind, millis(worst.millis / worst.count), count(worst.examinedPerReturned), index), "#slow/" + worst.id]);
  }
  return found;
}

function figures(series, status) {
  const last = (name) => { const all = series[name] || []; return all.length ? all[all.length - 1] : NaN; };
  const sum = ["insert", "query", "update", "delete", "getmore", "command"].reduce((a, n) => a + (last(n) || 0), 0);
  const used = 100 * (1 - last("diskFreeBytes") / last("diskTotalBytes"));
  const waits = (last("waitingForLocks") || 0) + (last("waitingForMemory") || 0) + (last("waitingForEstablishment") || 0);
  const lag = Math.max(last("lagSeconds") ?? NaN, last("worstLagSeconds") || 0);
  return [
    [t("figure.operations"), count(sum), ""],
    [t("figure.read"), micros(last("readMicrosP95")), ""],
    [t("figure.write"), micros(last("writeMicrosP95")), ""],
    [t("figure.connections"), count(number(status.connections?.current)), ""],
    [t("figure.waiting"), count(waits), waits > 0 ? "warn" : ""],
    [t("figure.cpu"), percent(last("cpuPercent")), ""],
    [t("figure.cache"), `${bytes(last("cacheBytes"))} / ${bytes(last("cacheMaxBytes"))}`, ""],
    [t("figure.disk"), Number.isFinite(used) ? percent(used) : "–", used > 95 ? "bad" : used > 85 ? "warn" : ""],
    [t("figure.lag"), Number.isFinite(lag) && lag !== null ? millis(lag * 1000) : "–", lag > 60 ? "bad" : lag > 10 ? "warn" : ""],
    [t("figure.uptime"), millis(number(status.uptimeMillis)), ""],
  ];
}

function waits(answer) {
  const s = answer.status;
  const rows = [
    ["waitingForLocks", s.globalLock?.currentQueue?.total], ["waitingForMemory", s.pandodb?.inFlight?.waiting],
    ["waitingForEstablishment", s.connections?.queuedForEstablishment], ["waitingForNews", s.connections?.awaitingTopologyChanges],
  ].filter(([, n]) => number(n) > 0).map(([name, n]) => h("li", {}, `${t("series." + name)}: ${count(n)} — ${t("why." + name)}`));
  const operations = (answer.waiting || []).map((o) =>
    h("li", {}, h("a", { href: "#running" }, `${o.ns} ${o.op} (${o.opid})`), ` ${millis(number(o.microsecs_running) / 1000)}`));
  return [h("h2", {}, t("waits")), h("ul", {}, rows.length + operations.length ? [...rows, ...operations] : h("li.soft", {}, t("nothingWaits")))];
}

/** Throttles that hold at this moment, and the locks against writes. */
function throttles(answer, series) {
  const p = answer.status.pandodb || {}, e = p.engine || {}, f = p.inFlight || {}, queue = number(answer.status.connections?.queuedForEstablishment);
  const slowed = (series.writesSlowedForMoves || []).at(-1);
  const all = [
    [number(p.locksAgainstWrites) > 0, t("throttle.locked", count(p.locksAgainstWrites))],
    [e.writesStopped, t("throttle.stopped")],
    [number(e.delayedBytesPerSecond) > 0, t("throttle.delayed", bytes(e.delayedBytesPerSecond))],
    [number(e.paceMillisPerMB) > 0, t("throttle.pace", count(e.paceMillisPerMB))],
    [slowed > 0, t("throttle.moves", count(slowed))],
    [number(f.waiting) > 0, t("throttle.memory", count(f.waiting), bytes(f.limitBytes))],
    [queue > 0, t("throttle.establishment", count(queue))],
  ].filter(([holds]) => holds);
  return [h("h2", {}, t("throttles")), h("ul", {}, all.length ? all.map(([, what]) => h("li", {}, what)) : h("li.soft", {}, t("throttles.none")))];
}

/** What moves between shards: of a router all of it, of others nothing. */
function moves(answer) {
  const all = answer.moves || [];
  return [h("h2", {}, t("moves")), h("ul", {}, all.length
    ? all.map((o) => h("li", {}, h("b", {}, o.ns), ` ${o.command?.fromShard ?? "?"} → ${o.command?.toShard ?? "?"} · ${millis(number(o.secs_running) * 1000)} · `, meter(o) || o.msg || ""))
    : h("li.soft", {}, t("moves.none")))];
}

export async function show_(view) {
  const said = h("ul.notes", { "aria-label": t("notes") });
  const cards = h("div.cards");
  const waiting = h("section.card"), held = h("section.card"), moving = h("section.card");
  const grid = h("div.charts");
  add(view.root, [h("h1", {}, t("view.now")), said, cards, h("div.three", {}, waiting, held, view.session.role === "router" && moving), grid]);
  let plots = null, all = { at: [], series: {} }, slow = null, turns = 0;
  view.failed = (e) => said.replaceChildren(h("li.bad", {}, e.message));
  const draw = () => {
    if (!plots) {
      const known = charts.filter(([name, , lines]) => lines.some(([n]) => all.series[n]?.some((v) => v !== null)) && (name !== "moves" || view.session.role === "router"));
      if (all.at.length < 2) return;
      plots = known.map(([name, write, lines]) => {
        const place = h("div");
        const figure = h("figure", {}, h("figcaption", {}, t("chart." + name)), place);
        grid.append(figure);
        const p = plot(place, lines, write);
        p.root.querySelector("canvas").setAttribute("role", "img");
        const watch = new ResizeObserver(() => p.setSize({ width: Math.max(200, place.clientWidth), height: 170 }));
        watch.observe(place);
        view.onEnd(() => { watch.disconnect(); p.destroy(); });
        return [p, lines, name, write];
      });
    }
    const now = all.at[all.at.length - 1] / 1000;
    for (const [p, lines, name, write] of plots) {
      p.setData([all.at.map((v) => v / 1000), ...lines.map(([n]) => all.series[n] || [])], false);
      p.batch(() => { p.setScale("x", { min: Math.max(now - HOUR, Math.min(all.at[0] / 1000, now - 60)), max: now }); });
      const last = lines.map(([n]) => { const v = all.series[n]?.at(-1); return `${t("series." + n)} ${v === null || v === undefined ? "–" : write(v)}`; });
      p.root.querySelector("canvas").setAttribute("aria-label", `${t("chart." + name)}: ${last.join(", ")}`);
    }
  };
  await every(view, 2.5, async () => {
    const answer = await get("now", { after: all.at.at(-1) || 0 });
    if (view.session.views.includes("slow") && turns++ % 4 === 0) slow = await get("slow").catch(() => null);
    if (view.ended) return;
    derive(answer.series);
    all.at = all.at.concat(answer.at).slice(-720);
    for (const [name, values] of Object.entries(answer.series)) all.series[name] = (all.series[name] || []).concat(values).slice(-720);
    const found = notes(all.series, slow);
    said.replaceChildren(...(found.length ? found : [["good", t("note.well")]]).map(([kind, text, link]) =>
      h("li." + kind, {}, text, link && [" ", h("a", { href: link }, t("look"))])));
    cards.replaceChildren(...figures(all.series, answer.status).map(([name, value, kind]) =>
      h("div.figure" + (kind ? "." + kind : ""), {}, h("span", {}, name), h("b", {}, value))));
    waiting.replaceChildren(...waits(answer));
    held.replaceChildren(...throttles(answer, all.series));
    moving.replaceChildren(...moves(answer));
    draw();
  });
}
export { show_ as show };
