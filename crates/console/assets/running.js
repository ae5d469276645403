// What runs now, and its end.
import { h, add, get, post, every, table, tag, millis, number, show as text, shortened, confirmed, say, failure, count } from "/core.js";
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
      table(answer.allUsers ? t("running.all") : t("running.own"),
        [[""], [t("time"), "n"], [t("operation"), "text"], [t("state")], [t("namespace"), "text"], [t("client")]],
        shown.map((o) => [
          o.opid !== undefined && h("button.bad", { onclick: () => kill(o), "aria-label": `${t("kill.yes")} ${o.opid}` }, t("kill.short")),
          millis(number(o.microsecs_running ?? o.transaction?.parameters?.timeOpenMicros) / 1000),
          [h("code", {}, shortened(text(command(o)), 240)), o.planSummary && [" ", tag(o.planSummary)]],
          [states(o)],
          o.ns || "–",
          [o.client || o.client_s || "–", o.appName && h("div.soft.small", {}, o.appName)],
        ]), t("running.nothing")));
  };
  await every(view, 2, ask);
}

const own = (o) => o.appName === "PandoDB console";

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
  if (o.progress) {
    const done = number(o.progress.done), total = number(o.progress.total);
    all.push(h("span", {}, `${count(done)} / ${count(total)} `, h("progress", { max: total, value: done, "aria-label": o.msg || "" })));
  }
  if (o.active === false) all.push(tag(o.type === "idleSession" ? t("state.transaction") : t("state.idle")));
  if (!all.length) all.push(tag(t("state.runs"), "good"));
  return all;
}
