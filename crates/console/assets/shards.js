// A cluster: shards, who has which chunks, moves.
import { h, add, get, table, tag, time, count, number, millis, show as text, shortened, failure } from "/core.js";
import { t } from "/words.js";
import { timeline, ofChanges } from "/timeline.js";
import { kind, lag, version } from "/members.js";

export async function show(view) {
  const answer = await get("shards");
  const id = (u) => JSON.stringify(u);
  const names = answer.shards.map((x) => x._id);
  const byCollection = new Map();
  for (const c of answer.chunks || []) {
    const key = id(c._id.uuid);
    if (!byCollection.has(key)) byCollection.set(key, new Map());
    byCollection.get(key).set(c._id.shard, number(c.chunks));
  }
  const most = (all) => Math.max(1, ...all);
  const collections = answer.collections.filter((c) => !c.dropped && c.key).map((c) => {
    const chunks = byCollection.get(id(c.uuid)) || new Map();
    const numbers = names.map((n) => chunks.get(n) || 0);
    return [c._id, h("code", {}, text(c.key)), c.noBalance ? tag(t("shards.notBalanced"), "warn") : "",
      h("div.bars", {}, names.map((n, i) => [h("span", {}, n), bar(numbers[i] / most(numbers)), h("span", {}, count(numbers[i]))]))];
  });
  const balancer = answer.balancer && [answer.balancer.mode === "off" ? tag(t("shards.balancerOff"), "warn") : tag(t("shards.balancerOn"), "good"), answer.balancer.inBalancerRound && tag(t("shards.moves"), "warn")];
  const members = h("div", {}, h("p.soft", {}, t("loads")));
  get("shards/members").then((a) => members.replaceChildren(ofMembers(a.shards)), (e) => members.replaceChildren(failure(e)));
  add(view.root, [
    h("h1", {}, t("view.shards"), " ", balancer),
    table(t("view.shards"), [[t("name"), "short"], [t("shards.hosts"), "text"], [t("state")], [t("databases"), "text"]],
      answer.shards.map((x) => [x._id, x.host, [number(x.state) === 1 ? tag("1", "good") : tag(String(x.state)), x.draining && tag(t("shards.draining"), "warn")],
        answer.databases.filter((d) => d.primary === x._id).map((d) => d._id).join(", ")])),
    members,
    table(t("shards.chunks"), [[t("name"), "text"], [t("key"), "text"], [""], [t("shards.byShard"), "text"]], collections),
    h("section.card", {}, h("h2", {}, t("shards.events")),
      answer.events?.length ? timeline(t("shards.events"), ofChanges(answer.events)) : null,
      answer.events?.length ? h("ol.time", {}, answer.events.map((e) => h("li", {}, h("b", {}, time(e.time)), e.what, " ", e.ns, " ", h("span.soft.small", {}, shortened(text(e.details || {}), 200)))))
        : h("p.soft", {}, answer.events ? t("nothing") : t("notAllowed"))),
    answer.routers && table(t("shards.routers"), [[t("name"), "short"], [t("version")], [t("shards.ping"), "short"]], answer.routers.map((r) => [r._id, r.pandodb || r.mongoVersion, time(r.ping)])),
  ]);
}

/** Each member of each shard: its state, how far it is behind, its release. */
function ofMembers(shards) {
  const all = shards.flatMap((x) => (x.members || []).map((m) => [x, m]));
  const own = all.find(([, m]) => m.stateStr === "PRIMARY")?.[1].pandodb;
  const rows = shards.flatMap((x) => {
    const primary = (x.members || []).find((m) => m.stateStr === "PRIMARY");
    if (!x.members) return [[x._id, "–", tag(t("shards.silent"), "bad"), "–", "–", x.error || ""]];
    return x.members.map((m) => {
      const behind = lag(m, primary);
      return [x._id, m.name, tag(m.stateStr, kind(m)), behind === null ? "–" : behind > 10000 ? tag(millis(behind), behind > 60000 ? "bad" : "warn") : millis(behind), version(m, own), m.lastHeartbeatMessage || ""];
    });
  });
  return table(t("shards.members"), [[t("shard"), "short"], [t("name"), "short"], [t("state")], [t("lag"), "n"], [t("version")], ["", "text"]], rows);
}

function bar(share) {
  const i = h("i");
  i.style.width = `${share * 100}%`;
  return h("div.meter", { "aria-hidden": "true" }, i);
}
