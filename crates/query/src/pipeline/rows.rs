//! Stages that make documents: `$documents`, and those that tell about the server or a collection.

use super::options::{options, required, string, wrong_type};
use super::search::SYNONYMS;
use super::stage_memory::hold;
use super::{IdleVisitor, Namespace, PipelineHost, Share, Source};
use crate::expr::{EvalCtx, Expression, Vars};
use bson::{Doc, DocBuf, Val, Value, tag};
use errors::{Result, bail};
use std::sync::Arc;

/// What a stage wants to know; [`PipelineHost::rows`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsKind {
    CollStats,
    IndexStats,
    CurrentOp,
    ListSessions,
    ListLocalSessions,
    PlanCacheStats,
    QuerySettings,
    ListClusterCatalog,
    ListSearchIndexes,
    /// Nothing is collected of queries, so there is nothing to tell.
    QueryStats,
    SampledQueries,
}

#[derive(Clone, Debug)]
pub struct RowsStage {
    pub kind: RowsKind,
    pub ns: Namespace,
    /// The stage's options, checked.
    pub spec: DocBuf,
}

impl RowsStage {
    pub(super) fn parse(
        name: &str,
        kind: RowsKind,
        spec: Val<'_>,
        ns: Namespace,
    ) -> Result<RowsStage> {
        let d = match (kind, spec.as_doc()) {
            (RowsKind::IndexStats, Some(d)) if d.is_empty() => d,
            (RowsKind::IndexStats, _) => bail!(
                28803,
                "The $indexStats stage specification must be an empty object"
            ),
            (RowsKind::CollStats, None) => bail!(
                5447000,
                "$collStats must take a nested object but found: {name}: {spec}"
            ),
            (RowsKind::PlanCacheStats, Some(d)) => {
                check_plan_cache_stats(d)?;
                d
            }
            (RowsKind::ListClusterCatalog, Some(d)) => {
                for e in d {
                    if !matches!(e.name, "shards" | "balancingConfiguration") {
                        bail!(40415, "BSON field '{name}.{}' is an unknown field.", e.name);
                    }
                    if e.val.as_bool().is_none() {
                        return Err(wrong_type(name, e.name, e.val, "bool").into());
                    }
                }
                d
            }
            (RowsKind::ListClusterCatalog, None) => bail!(
                9621302,
                "The $listClusterCatalog stage specification must be an object, but found: {}",
                spec.type_name()
            ),
            (RowsKind::QuerySettings, Some(d)) => {
                check_query_settings(d)?;
                d
            }
            (RowsKind::QuerySettings, None) => bail!(
                7746800,
                "$querySettings stage expects a document as argument, but found: {}",
                spec.type_name()
            ),
            (RowsKind::CurrentOp, Some(d)) => {
                check_current_op(d)?;
                d
            }
            (RowsKind::ListSearchIndexes, Some(d)) => {
                check_list_search_indexes(name, d)?;
                d
            }
            (RowsKind::ListSessions | RowsKind::ListLocalSessions, Some(d)) => {
                check_list_sessions(name, d)?;
                d
            }
            (RowsKind::CurrentOp | RowsKind::ListSessions | RowsKind::ListLocalSessions, None) => {
                bail!(
                    TypeMismatch,
                    "{name} options must be specified in an object, but found: {}",
                    spec.type_name()
                )
            }
            (_, Some(d)) => d,
            (_, None) => bail!(
                FailedToParse,
                "{name} options must be specified in an object, but found: {}",
                spec.type_name()
            ),
        };
        if kind == RowsKind::CollStats {
            check_coll_stats(d)?;
        }
        Ok(RowsStage {
            kind,
            ns,
            spec: d.to_buf(),
        })
    }
}

/// `{}`, `{name: <string>}` or `{id: <string>}`.
fn check_list_search_indexes(name: &str, d: Doc<'_>) -> Result<()> {
    // A router adds what it has read of synonym mappings.
    let is_sent = |name: &str, v: Val<'_>| name == SYNONYMS && v.as_doc().is_some();
    for e in d.iter().filter(|e| !is_sent(e.name, e.val)) {
        if !matches!(e.name, "name" | "id") {
            bail!(40415, "BSON field '{name}.{}' is an unknown field.", e.name);
        }
        if e.val.as_str().is_none() {
            return Err(wrong_type(name, e.name, e.val, "string").into());
        }
    }
    if d.contains("name") && d.contains("id") {
        bail!(
            InvalidOptions,
            "Cannot set both 'name' and 'id' for $listSearchIndexes."
        );
    }
    Ok(())
}

/// `{}` or `{allHosts: <bool>}`; there is one host.
fn check_plan_cache_stats(d: Doc<'_>) -> Result<()> {
    let mut given = d.iter();
    let Some(e) = given.next() else {
        return Ok(());
    };
    if e.name != "allHosts" || given.next().is_some() {
        bail!(
            FailedToParse,
            "$planCacheStats parameters object may contain only 'allHosts' field. Found: {d}"
        );
    }
    match e.val.as_bool() {
        Some(false) => Ok(()),
        Some(true) => bail!(
            4503200,
            "$planCacheStats stage supports allHosts parameter only for sharded clusters"
        ),
        None => bail!(
            13111,
            "wrong type for field (allHosts): {}",
            e.val.type_name()
        ),
    }
}

/// The options of `$currentOp`: booleans, and null is none.
fn check_current_op(d: Doc<'_>) -> Result<()> {
    const STAGE: &str = "$currentOp";
    for e in d.iter() {
        match e.name {
            "allUsers" | "idleConnections" | "idleCursors" | "idleSessions" | "localOps"
            | "targetAllNodes" | "truncateOps" | "backtrace" => {}
            name => bail!(40415, "BSON field '{STAGE}.{name}' is an unknown field."),
        }
        let Some(on) = e.val.as_bool() else {
            return Err(wrong_type(STAGE, e.name, e.val, "bool").into());
        };
        if on && e.name == "targetAllNodes" {
            bail!(
                FailedToParse,
                "The {STAGE} stage's 'targetAllNodes' is only for sharded clusters"
            );
        }
    }
    Ok(())
}

fn check_query_settings(d: Doc<'_>) -> Result<()> {
    const STAGE: &str = "$querySettings";
    for e in d.iter() {
        if e.name != "showDebugQueryShape" {
            bail!(
                40415,
                "BSON field '{STAGE}.{}' is an unknown field.",
                e.name
            );
        }
        if e.val.as_bool().is_none() {
            return Err(wrong_type(STAGE, e.name, e.val, "bool").into());
        }
    }
    Ok(())
}

/// The options of `$listSessions` and `$listLocalSessions`: all sessions, or those of some users.
fn check_list_sessions(stage: &str, d: Doc<'_>) -> Result<()> {
    let [users, all] = options(stage, d, ["users", "allUsers"])?;
    let all = match all {
        None => false,
        Some(v) => match v.as_bool() {
            Some(b) => b,
            None => return Err(wrong_type(stage, "allUsers", v, "bool").into()),
        },
    };
    let mut named = false;
    if let Some(users) = users {
        let Some(list) = users.as_array() else {
            return Err(wrong_type(stage, "users", users, "array").into());
        };
        for v in list.values().filter(|v| v.tag != tag::NULL) {
            let within = format!("{stage}.users");
            let Some(user) = v.as_doc() else {
                return Err(wrong_type(stage, "users", v, "object").into());
            };
            let [user, db] = options(&within, user, ["user", "db"])?;
            string(&within, "user", required(&within, "user", user)?)?;
            string(&within, "db", required(&within, "db", db)?)?;
            named = true;
        }
    }
    if named && all {
        bail!(
            UnsupportedFormat,
            "{stage} may not specify {{allUsers:true}} and {{users:[...]}} at the same time"
        );
    }
    Ok(())
}

fn check_coll_stats(d: Doc<'_>) -> Result<()> {
    const STAGE: &str = "$collStats";
    const LATENCY: &str = "$collStats.latencyStats";
    const STORAGE: &str = "$collStats.storageStats";
    let mut seen: Vec<&str> = Vec::new();
    for e in d {
        let known = [
            "latencyStats",
            "storageStats",
            "count",
            "queryExecStats",
            "operationStats",
        ];
        if !known.contains(&e.name) {
            bail!(
                40415,
                "BSON field '{STAGE}.{}' is an unknown field.",
                e.name
            );
        }
        // Null counts as left out, beside another of the name too.
        if e.val.tag == tag::NULL {
            continue;
        }
        if seen.contains(&e.name) {
            bail!(
                40413,
                "BSON field '{STAGE}.{}' is a duplicate field",
                e.name
            );
        }
        seen.push(e.name);
        let Some(inner) = e.val.as_doc() else {
            return Err(wrong_type(STAGE, e.name, e.val, "object").into());
        };
        match e.name {
            "latencyStats" => {
                options(LATENCY, inner, ["histograms"])?;
                if let Some(h) = inner.get("histograms").filter(|h| h.as_bool().is_none()) {
                    return Err(wrong_type(LATENCY, "histograms", h, "bool").into());
                }
            }
            "storageStats" => {
                // Other names are for later versions, and none is refused.
                let scale = inner.get("scale").filter(|v| !v.is_nullish());
                if let Some(s) = scale {
                    if !s.is_number() {
                        let numbers = "[long, int, decimal, double']";
                        return Err(wrong_type(STORAGE, "scale", s, numbers).into());
                    }
                    if s.to_i64_truncated().unwrap_or(0) < 1 {
                        bail!(
                            BadValue,
                            "BSON field 'scale' value must be >= 1, actual value '{}'",
                            s.to_i64_truncated().unwrap_or(0)
                        );
                    }
                }
            }
            name if !inner.is_empty() => bail!(
                31170,
                "{name} argument to $collStats must be an empty object, but got: {inner} of type object"
            ),
            _ => {}
        }
    }
    Ok(())
}

pub(super) struct Run {
    stage: Arc<RowsStage>,
    rows: Option<std::vec::IntoIter<DocBuf>>,
    current: DocBuf,
}

impl Run {
    pub fn new(stage: Arc<RowsStage>) -> Run {
        Run {
            stage,
            rows: None,
            current: DocBuf::new(),
        }
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        let rows = match &mut self.rows {
            Some(r) => r,
            None => {
                let rows = host.rows(&self.stage)?;
                self.rows.insert(rows.into_iter())
            }
        };
        match rows.next() {
            Some(d) => {
                self.current = d;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn doc(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        super::show_doc(&mut self.current, wanted, to)
    }
}

/// `$documents`: an expression that gives an array of documents.
pub(super) struct Documents {
    expression: Arc<Expression>,
    vars: Arc<Vars>,
    /// The array, once it is made, and where in it the rest begins.
    array: Option<Value>,
    offset: usize,
    share: Share,
    current: DocBuf,
}

impl Documents {
    pub fn new(expression: Arc<Expression>, vars: Arc<Vars>) -> Documents {
        Documents {
            expression,
            vars,
            array: None,
            offset: 0,
            share: Share::default(),
            current: DocBuf::new(),
        }
    }

    fn evaluate(&self) -> Result<Value> {
        let v = self
            .expression
            .evaluate(&EvalCtx::new(Doc::EMPTY, &self.vars))?;
        let v = v.or_null();
        if v.tag != tag::ARRAY {
            bail!(
                5858203,
                "an array is expected as the input to $documents, but got: {}",
                v.type_name()
            );
        }
        let items = v.as_array().unwrap_or(Doc::EMPTY);
        if let Some(i) = items.values().find(|i| i.as_doc().is_none()) {
            bail!(
                40228,
                "'newRoot' expression must evaluate to an object, but resulting value was: {i}. Type of resulting \
                 value: '{}'.",
                i.type_name()
            );
        }
        Ok(v.to_value())
    }
}

impl Source for Documents {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        host.check()?;
        let array = match &self.array {
            Some(array) => array,
            None => {
                self.share = host.share();
                self.offset = 4;
                self.array.insert(self.evaluate()?)
            }
        };
        let bytes = array.as_val().bytes;
        hold(&mut self.share, bytes.len(), host, "$documents")?;
        let end = bytes.len().saturating_sub(1);
        let mut rest = bson::Iter::over(bytes.get(self.offset..end).unwrap_or(&[]));
        match rest.next_raw().and_then(|(_, v)| v.as_doc()) {
            Some(d) => {
                self.current = d.to_buf();
                self.offset = end - rest.rest().len();
                Ok(true)
            }
            None => {
                self.array = Some(Value::NULL);
                self.share.release();
                Ok(false)
            }
        }
    }

    fn doc(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        super::show_doc(&mut self.current, wanted, to)
    }
}
