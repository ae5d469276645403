// What the server has said.
import { h, add, get, table, tag, time, date, millis, show as text, shortened, count } from "/core.js";
import { t } from "/words.js";

const severity = { F: "bad", E: "bad", W: "warn", I: "" };

export async function show(view) {
  const answer = await get("log");
  const level = h("select", { "aria-label": t("log.level") }, h("option", { value: "EFW" }, t("log.warnings")), h("option", { value: "" }, t("log.all")));
  const component = h("select", { "aria-label": t("log.component") }, h("option", { value: "" }, t("log.components")),
    [...new Set(answer.lines.map((l) => l.c).filter(Boolean))].sort().map((c) => h("option", { value: c }, c)));
  const search = h("input", { type: "search", "aria-label": t("log.search"), placeholder: t("log.search") });
  const place = h("div");
  const lines = (all) => all.map((l) => [time(l.t), tag(l.s || "?", severity[l.s]), l.c || "", [l.msg, l.attr && h("div.soft.small.mono", {}, shortened(text(l.attr), 500))]]);
  const columns = [[t("time"), "short"], [t("log.level")], [t("log.component")], [t("log.message"), "text"]];
  const draw = () => {
    const wanted = search.value.toLowerCase();
    const chosen = answer.lines.filter((l) => (!level.value || level.value.includes(l.s)) && (!component.value || l.c === component.value) && (!wanted || JSON.stringify(l).toLowerCase().includes(wanted)));
    place.replaceChildren(table(`${t("view.log")} (${count(chosen.length)} / ${count(answer.lines.length)})`, columns, lines(chosen.reverse().slice(0, 400)), null, "stack"));
  };
  for (const e of [level, component, search]) e.addEventListener("input", draw);
  const days = answer.certificate && Math.floor((date(answer.certificate) - Date.now()) / 86400000);
  add(view.root, [
    h("h1", {}, t("view.log")),
    backup(answer.backup),
    answer.certificate ? h("p", {}, t("log.certificate", String(days)), " ", tag(time(answer.certificate), days < 30 ? "bad" : "good")) : h("p.soft", {}, t("log.noCertificate")),
    table(t("log.start"), columns, lines(answer.startupWarnings), t("log.noWarnings"), "stack"),
    h("details", {}, h("summary", {}, t("log.startLines", count(answer.start.length))), table(t("log.startLines", count(answer.start.length)), columns, lines(answer.start), null, "stack")),
    h("div.row", {}, level, component, search), place,
  ]);
  if (!answer.lines.some((l) => "EFW".includes(l.s || "?"))) level.value = "";
  draw();
}

/** How old the last backup is that the server was told of. */
function backup(b) {
  if (!b?.known) return h("p.soft", {}, t("backup.notAllowed"));
  if (!b.at) return h("p", {}, tag(t("backup.none"), "warn"), " ", t("backup.how"));
  const age = Math.max(0, Date.now() - date(b.at));
  const days = age / 86400000;
  return h("p", {}, t("backup.age"), " ", tag(millis(age), days > 7 ? "bad" : days > 1.5 ? "warn" : "good"), " ", time(b.at), b.to && [" ", h("code", {}, b.to)], b.backup && [" ", h("span.soft.small", {}, b.backup)]);
}
