// Which operations take the time, and the index that would serve them.
import { h, add, get, post, count, millis, show as text, shortened, time, tag, failure } from "/core.js";
import { t } from "/words.js";
import { tree } from "/tree.js";

export async function show(view) {
  const answer = await get("slow");
  const total = answer.shapes.reduce((a, s) => a + s.millis, 0) || 1;
  add(view.root, [
    h("h1", {}, t("view.slow")),
    h("p.soft", {}, t("slow.about", answer.slowMillis === undefined ? "–" : String(answer.slowMillis)), " ",
      answer.notKept > 0 && t("slow.notKept", count(answer.notKept)), " ",
      h("button", { onclick: () => { view.root.replaceChildren(); show(view).catch((e) => view.root.replaceChildren(failure(e))); } }, t("again"))),
    answer.shapes.length ? answer.shapes.map((s) => shape(s, s.millis / total, view)) : h("p.card.soft", {}, t("slow.nothing")),
  ]);
  const asked = view.rest[0] && view.root.querySelector(`details[data-id="${CSS.escape(view.rest[0])}"]`);
  if (asked) { asked.open = true; asked.scrollIntoView(); }
}

function shape(s, share, view) {
  const body = h("div");
  const examined = s.examinedPerReturned >= 100 ? "bad" : s.examinedPerReturned >= 10 ? "warn" : "";
  const box = h("details.card.shape", {
    "data-id": s.id,
    ontoggle: () => { if (box.open && !body.firstChild) more(s, body); },
  },
  h("summary", {}, h("span", {}, h("b", {}, s.ns), " ", tag(s.kind), " ", h("code", {}, shortened(text(s.shape), 200))),
    h("b", {}, millis(s.millis))),
  h("div.meter", { role: "img", "aria-label": t("slow.share", String(Math.round(share * 100))) }, bar(share)),
  body);
  // What is shown before it is opened stands beside the summary: why it is slow.
  box.firstChild.append(h("span", {},
    h("span.numbers", {},
      h("span", {}, h("b", {}, count(s.count)), " ", t("slow.times")),
      h("span", {}, t("slow.each"), " ", h("b", {}, millis(s.millis / s.count))),
      h("span", {}, t("slow.longest"), " ", h("b", {}, millis(s.longestMillis))),
      h("span", {}, tag(t("slow.examined", count(s.examinedPerReturned)), examined)),
      s.plan && tag(s.plan, s.plan.includes("COLLSCAN") ? "bad" : ""),
      s.sortsInMemory && tag(t("slow.sorts"), "warn"),
      h("span", {}, t("slow.last"), " ", time(s.lastSeen))),
    s.advice && h("span", {}, advice(s))));
  return box;
}

function bar(share) {
  const i = h("i");
  i.style.width = `${Math.max(1, share * 100)}%`;
  return i;
}

function advice(s) {
  const a = s.advice;
  const parts = [t("advice." + a.reason, count(s.documentsExamined / s.count), count((s.returned + s.written) / s.count))];
  if (a.equality.length) parts.push(t("advice.equality", a.equality.join(", ")));
  if (a.sort.length) parts.push(t("advice.order", a.sort.join(", ")));
  if (a.range.length) parts.push(t("advice.range", a.range.join(", ")));
  return [tag(t("advice"), "good"), " ", h("code", {}, text(a.key)), " ", h("span.small", {}, parts.join(" "))];
}

async function more(s, body) {
  body.replaceChildren(h("p.soft", {}, t("loads")));
  const collection = s.ns.slice(s.ns.indexOf(".") + 1);
  try {
    const answer = await post("slow/plan", { id: s.id });
    const out = [];
    if (s.advice) {
      const has = (answer.indexes || []).find((i) => starts(i.key, s.advice.key));
      out.push(h("h3", {}, t("advice.title")));
      out.push(has ? h("p", {}, tag(t("advice.exists"), "warn"), " ", h("code", {}, has.name))
        : h("pre", {}, `db.getCollection(${JSON.stringify(collection)}).createIndex(${text(s.advice.key)})`));
    }
    out.push(h("h3", {}, t("slow.example")), h("pre", {}, text(s.example, 2)));
    out.push(h("h3", {}, t("slow.plan")));
    if (answer.explain) out.push(tree(answer.explain));
    else out.push(h("p.soft", {}, answer.explainError || t("slow.noPlan")));
    if (answer.indexes) out.push(h("h3", {}, t("indexes")), h("ul", {}, answer.indexes.map((i) => h("li", {}, h("code", {}, `${i.name} ${text(i.key)}`)))));
    body.replaceChildren();
    add(body, out);
  } catch (e) {
    body.replaceChildren(failure(e));
  }
}

function starts(key, wanted) {
  const a = Object.entries(key), b = Object.entries(wanted);
  return a.length >= b.length && b.every(([n, v], i) => a[i][0] === n && Number(a[i][1]) === v);
}
