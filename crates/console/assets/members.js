// The members of the set: who leads, who is behind, and what happened.
import { h, s, add, get, every, table, tag, time, date, millis, number, show as text, shortened, failure } from "/core.js";
import { t } from "/words.js";
import { timeline, ofLog } from "/timeline.js";

export const kind = (m) => (number(m.health) === 0 ? "bad" : m.stateStr === "PRIMARY" ? "good" : m.stateStr === "SECONDARY" || m.stateStr === "ARBITER" ? "" : "warn");

export function lag(m, primary) {
  if (!primary || m === primary || !m.optimeDate || m.stateStr === "ARBITER") return null;
  return Math.max(0, date(primary.optimeDate) - date(m.optimeDate));
}

export async function show(view) {
  const place = h("div");
  add(view.root, [h("h1", {}, t("view.members")), place]);
  view.failed = (e) => place.replaceChildren(failure(e));
  await every(view, 4, async () => {
    const answer = await get("members");
    if (view.ended) return;
    const status = answer.status;
    const primary = status.members.find((m) => m.stateStr === "PRIMARY");
    const config = new Map((answer.config?.members || []).map((m) => [number(m._id), m]));
    const own = status.members.find((m) => m.self)?.pandodb;
    const rows = status.members.map((m) => {
      const behind = lag(m, primary), c = config.get(number(m._id)) || {};
      return [
        [m.name, m.self && [" ", tag(t("members.self"))]], tag(m.stateStr, kind(m)),
        behind === null ? "–" : behind > 10000 ? tag(millis(behind), behind > 60000 ? "bad" : "warn") : millis(behind),
        m.pingMs === undefined ? "–" : millis(number(m.pingMs)), millis(number(m.uptime) * 1000),
        time(m.optimeDate), m.syncSourceHost || "–", version(m, own),
        c.priority === undefined ? "–" : `${number(c.priority)} / ${number(c.votes)}`,
        [c.hidden && tag("hidden"), number(c.secondaryDelaySecs) > 0 && tag(t("members.delayed", millis(number(c.secondaryDelaySecs) * 1000))), c.arbiterOnly && tag("arbiter"), m.lastHeartbeatMessage],
      ];
    });
    place.replaceChildren(
      h("div.card", {}, drawing(status.members, primary)),
      table(`${t("set")} ${status.set} · ${t("members.term")} ${number(status.term)}`,
        [[t("name"), "short"], [t("state")], [t("lag"), "n"], [t("members.ping"), "n"], [t("uptime"), "n"], [t("members.optime"), "short"], [t("members.source"), "short"], [t("version")], [t("members.votes"), "short"], ["", "text"]], rows),
      h("section.card", {}, h("h2", {}, t("members.events")),
        answer.elections?.length ? timeline(t("members.events"), ofLog(answer.elections, { trouble: t("time.trouble"), copies: t("time.copies"), states: t("time.states") })) : "",
        answer.elections === null ? h("p.soft", {}, t("notAllowed"))
          : answer.elections.length ? h("ol.time", {}, [...answer.elections].reverse().slice(0, 50).map((e) => h("li", {}, h("b", {}, time(e.t)), e.msg, " ", h("span.soft.small", {}, shortened(text(e.attr || {}), 200)))))
            : h("p.soft", {}, t("nothing"))),
      answer.config ? h("details.card", {}, h("summary", {}, t("members.config")), h("pre", {}, text(answer.config, 2))) : "");
  });
}

/** The release that a member runs; one that differs from this member's is marked. */
export const version = (m, own) => (m.pandodb ? tag(m.pandodb, own && m.pandodb !== own ? "warn" : "") : "–");

function drawing(members, primary) {
  const others = members.filter((m) => m !== primary);
  const row = 84, height = row * Math.max(1, others.length) + 6;
  const svg = s("svg", { viewBox: `0 0 480 ${height}`, width: "100%", role: "img", "aria-label": members.map((m) => `${m.name} ${m.stateStr}`).join(", ") });
  const node = (m, x, y) => {
    const colour = { bad: "--bad", good: "--good", warn: "--warn", "": "--s1" }[kind(m)];
    const behind = lag(m, primary);
    const box = s("rect", { x, y: y - 35, width: 190, height: 70, rx: 9, class: "node" });
    box.style.stroke = `var(${colour})`;
    const facts = [m.pandodb, behind !== null && `${t("lag")} ${millis(behind)}`].filter(Boolean).join(" · ");
    return s("g", {}, box, s("text", { x: x + 12, y: y - 14 }, shortened(m.name, 24)), s("text", { x: x + 12, y: y + 5 }, m.stateStr), s("text", { x: x + 12, y: y + 24 }, facts));
  };
  others.forEach((m, i) => {
    const y = row / 2 + row * i + 3;
    if (primary && number(m.health) !== 0) svg.append(s("line", { x1: 195, y1: height / 2, x2: 285, y2: y, class: "edge" }));
    svg.append(node(m, 285, y));
  });
  if (primary) svg.append(node(primary, 5, height / 2));
  return svg;
}
