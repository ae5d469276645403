// What runs now, and its end.
import { h, add, get, post, every, table, tag, millis, number, show as text, shortened, confirmed, say, failure, count, meter } from "/core.js";
import { t } from "/words.js";

export async function show(view) {
  const place = h("div");
  const said = h("div", { role: "alert" });
  const all = h("input", { type: "checkbox" });
  const paused = h("input", { type: "checkbox" });
  add(view.root, [h("h1", {}, t("view.running")),
    h("div.row", {}, h("label", {}, all, " ", t("running.idle")), h("label", {}, paused, " ", t("pause"))), said, place]);
  view.failed = (e) => place.replaceChildren(failure(e));

  const kill = async (o) => {
    const asked = h("p", {}, t("kill.text", String(o.opid), millis(number(o.microsecs_running) / 1000), o.ns || ""), h("pre", {}, shortened(text(command(o), 2), 1500)));
    if (!(await confirmed(t("kill.title"), asked, t("kill.yes")))) return;
    try {
      await post("kill", { opid: o.opid });
      say(t("kill.done"));
      said.replaceChildren(h("p", {}, t("kill.done")));
      await ask();
    } catch (e) {
      said.replaceChildren(failure(e));
    }
  };
  const ask = async () => {
    const answer = await get("running");
    if (view.ended || paused.checked) return;
    const shown = answer.operations.filter((o) => all.checked || (o.active !== false && !own(o) && !watches(o)));
    place.replaceChildren(
      ...(answer.locksAgainstWrites > 0 ? [h("p.card", { role: "status" }, tag(t("running.locked"), "bad"), " ", t("running.lockedWhy", count(answer.locksAgainstWrites)))] : []),
      table(answer.allUsers ? t("running.all") : t("running.own"),
        [[""], [t("time"), "n"], [t("operation"), "text"], [t("plan")], [t("state")], [t("locks")], [t("namespace"), "text"], [t("client")]],
        shown.map((o) => [
          o.opid !== undefined && h("button.bad", { onclick: () => kill(o), "aria-label": `${t("kill.yes")} ${o.opid}` }, t("kill.short")),
          millis(number(o.microsecs_running ?? o.transaction?.timeOpenMicros ?? o.transaction?.parameters?.timeOpenMicros ?? (o.secs_running === undefined ? NaN : number(o.secs_running) * 1e6)) / 1000),
          h("code", {}, shortened(text(command(o)), 240)),
          o.planSummary ? h("span.plan", {}, tag(shortened(o.planSummary, 80), o.planSummary.includes("COLLSCAN") ? "bad" : "")) : "–",
          [states(o)], locks(o),
          o.ns || "–",
          [o.client || o.client_s || "–", o.appName && h("div.soft.small", {}, o.appName)],
        ]), t("running.nothing")));
  };
  await every(view, 2, ask);
}

/** What the page itself has asked, also by a router of its shards. */
const own = (o) => o.appName === "PandoDB console" || Boolean(o.command?.pipeline?.[0]?.$currentOp);

/** A driver that waits for news of the topology. */
const watches = (o) => ["hello", "isMaster", "ismaster"].some((n) => n in (o.command || {})) && "maxAwaitTimeMS" in o.command;

function command(o) {
  const c = { ...(o.command || {}) };
  for (const n of ["lsid", "$clusterTime", "$db", "$readPreference"]) delete c[n];
  return c;
}

function states(o) {
  const all = [];
  if (o.killPending) all.push(tag(t("state.killed"), "bad"));
  if (o.waitingForLock) all.push(tag(t("state.waits"), "warn"));
  if (o.progress) all.push(meter(o));
  if (o.active === false) all.push(tag(o.type === "idleSession" ? t("state.transaction") : t("state.idle")));
  if (!all.length) all.push(tag(t("state.runs"), "good"));
  return all;
}

/** What it holds, or counts as holding, and what it waits for. */
function locks(o) {
  if (o.waitingForLock) return tag(t("locks.waits"), "warn");
  if (o.type === "idleSession") return t("locks.documents", count(o.transaction?.operations));
  const modes = Object.entries(o.locks || {});
  return modes.length ? h("span.soft.small", {}, t(modes[0][1] === "w" ? "locks.write" : "locks.read", modes.map(([n]) => n).join(", "))) : "–";
}
