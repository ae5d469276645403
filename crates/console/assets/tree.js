// An explain as a tree of stages, the last to run on top.
import { h, add, count, millis, number, show, shortened } from "/core.js";
import { t } from "/words.js";

const PARTS = ["inputStage", "outerStage", "innerStage", "thenStage", "elseStage", "queryPlan"];

/** The root of each plan that an explain has, with the title of where it ran. */
export function plans(explain) {
  if (explain.stages) return [["", pipeline(explain.stages)]];
  if (explain.shards && !Array.isArray(explain.shards)) {
    return Object.entries(explain.shards).flatMap(([name, part]) => plans(part).map(([w, p]) => [w ? `${name} ${w}` : name, p]));
  }
  const ran = explain.executionStats?.executionStages;
  const plan = ran && (ran.stage || ran.shards) ? ran : explain.queryPlanner?.winningPlan;
  if (!plan) return [];
  return [["", plan]];
}

// Stages of a pipeline: each reads the one before it.
function pipeline(stages) {
  let below = null;
  for (const stage of stages) {
    const name = Object.keys(stage).find((n) => n.startsWith("$")) || "?";
    const numbers = { nReturned: stage.nReturned, executionTimeMillisEstimate: stage.executionTimeMillisEstimate };
    if (name === "$cursor") below = { stage: name, inputStages: plans(stage.$cursor).map(([, p]) => p), ...numbers };
    else below = { stage: name, spec: stage[name], inputStages: below ? [below] : [], ...numbers };
  }
  return below || { stage: "?" };
}

function children(p) {
  const all = PARTS.map((n) => p[n]).filter((c) => c && typeof c === "object");
  for (const c of p.inputStages || []) all.push(c);
  for (const c of p.shards || []) all.push({ stage: "SHARD", shardName: c.shardName, inputStage: c.winningPlan || c.executionStages, nReturned: c.nReturned });
  return all;
}

function stageName(p) { return p.stage || (p.queryPlan ? "PLAN" : p.shards ? "SHARDS" : "?"); }

function box(p) {
  const name = stageName(p);
  const kind = name === "COLLSCAN" ? "bad" : name === "SORT" ? "warn" : "";
  const facts = [];
  if (p.shardName) facts.push(p.shardName);
  if (p.indexName) facts.push(`${p.indexName} ${show(p.keyPattern)}`);
  const n = (label, v, w = count) => { if (v !== undefined && v !== null) facts.push(`${t(label)} ${w(v)}`); };
  n("tree.returned", p.nReturned);
  n("tree.documents", p.docsExamined);
  n("tree.keys", p.keysExamined);
  n("tree.time", p.executionTimeMillisEstimate, (v) => millis(number(v)));
  const more = {};
  for (const f of ["filter", "indexBounds", "sortPattern", "limitAmount", "skipAmount", "transformBy", "spec", "direction"]) if (p[f] !== undefined) more[f] = p[f];
  const details = Object.keys(more).length > 0 && h("details", {}, h("summary", {}, h("span.soft.small", {}, shortened(show(more), 140))), h("pre", {}, show(more, 2)));
  return h("div.stage" + (kind ? "." + kind : ""), {}, h("b", {}, name), " ", h("span.soft", {}, facts.join(" · ")),
    kind === "bad" && h("div.small", {}, t("tree.scan")), kind === "warn" && h("div.small", {}, t("tree.sort")), details);
}

function branch(p, depth) {
  const below = depth < 60 ? children(p) : [];
  return h("li", {}, box(p), below.length > 0 && h("ul", {}, below.map((c) => branch(c, depth + 1))));
}

export function tree(explain) {
  const all = plans(explain || {});
  if (!all.length) return h("pre", {}, show(explain, 2));
  const out = h("div");
  for (const [where, plan] of all) add(out, [where && h("h3", {}, where), h("ul.tree", { "aria-label": t("tree") }, branch(plan, 0))]);
  const stats = explain.executionStats;
  if (stats) out.prepend(h("p", {}, t("tree.sum", count(stats.nReturned), count(stats.totalKeysExamined), count(stats.totalDocsExamined), millis(number(stats.executionTimeMillis)))));
  if (explain.queryShapeHash) out.append(h("p.soft.small", {}, "queryShapeHash ", h("code", {}, explain.queryShapeHash)));
  out.append(h("details", {}, h("summary", {}, t("tree.raw")), h("pre", {}, show(explain, 2))));
  return out;
}
