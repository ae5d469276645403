//! Slow operations by their shape: what the log says of them, added up.
//!
//! A shape is that of the `queryShapeHash` which the line has, the same as explain's. Of other commands, and of what goes on
//! with a cursor, it is the command without what changes from one call to the next: values of the filter are `?`, sessions
//! and times are left out.
//!
//! Invariant: at most [`MOST`] shapes are kept, each with one example of at most a log line's length. The one that took the
//! least time in all makes room.

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

const MOST: usize = 200;
/// The log's number of a slow operation.
const SLOW_QUERY: i64 = 51803;
/// Deeper parts of a command are not told apart.
const DEEPEST: usize = 12;
/// A longer list is one shape with another long one.
const LONGEST_LIST: usize = 20;

/// Fields of commands that belong to the transport, not to the query.
const ENVELOPE: &[&str] = &[
    "lsid",
    "$clusterTime",
    "$db",
    "$readPreference",
    "txnNumber",
    "autocommit",
    "startTransaction",
    "stmtId",
    "stmtIds",
    "readConcern",
    "writeConcern",
    "maxTimeMS",
    "cursor",
    "batchSize",
    "singleBatch",
    "comment",
    "apiVersion",
    "apiStrict",
    "apiDeprecationErrors",
    "shardVersion",
    "databaseVersion",
    "mayBypassWriteBlocking",
    "$configTime",
    "$topologyTime",
    "clientOperationKey",
    "ordered",
    "runtimeConstants",
    "encryptionInformation",
];
/// Parts of commands whose values belong to the shape.
const KEPT: &[&str] = &[
    "sort",
    "projection",
    "fields",
    "hint",
    "collation",
    "key",
    "$sort",
    "$project",
    "$group",
    "$unwind",
    "$lookup",
    "let",
];

#[derive(Clone, Debug)]
pub struct SlowShape {
    pub id: String,
    /// By the command without values.
    own: String,
    /// MongoDB's `queryShapeHash`; empty where no line had one.
    hash: String,
    pub ns: String,
    pub kind: String,
    pub shape: Value,
    /// The newest command of it, as the log has it.
    pub example: Value,
    count: u64,
    millis: f64,
    longest_millis: f64,
    documents: f64,
    keys: f64,
    returned: f64,
    written: f64,
    sorts: bool,
    plan: String,
    app: String,
    first_seen: String,
    last_seen: String,
}

#[derive(Default)]
struct Kept {
    shapes: Vec<SlowShape>,
    /// Lines of the log that were read.
    seen: u64,
    /// Lines that were gone before they were read, and those that were cut off.
    not_kept: u64,
}

#[derive(Default)]
pub struct Shapes(Mutex<Kept>);

impl Shapes {
    /// Reads what the log has gained.
    pub fn read_log(&self) {
        let mut kept = self.0.lock();
        let (lines, total) = service::logging::lines_after(kept.seen);
        let gained = total.saturating_sub(kept.seen);
        kept.not_kept += gained.saturating_sub(lines.len() as u64);
        kept.seen = total;
        for line in lines.iter().filter(|l| l.contains("\"id\":51803")) {
            match serde_json::from_str(line) {
                Ok(line) => kept.add(&line),
                // The line was longer than the limit.
                Err(_) => kept.not_kept += 1,
            }
        }
    }

    pub fn json(&self) -> Value {
        let kept = self.0.lock();
        let mut shapes: Vec<&SlowShape> = kept.shapes.iter().collect();
        shapes.sort_by(|a, b| b.millis.total_cmp(&a.millis));
        let shapes: Vec<Value> = shapes.into_iter().map(SlowShape::json).collect();
        json!({"shapes": shapes, "notKept": kept.not_kept})
    }

    pub fn find(&self, id: &str) -> Option<SlowShape> {
        self.0.lock().shapes.iter().find(|s| s.id == id).cloned()
    }
}

fn text<'a>(v: &'a Value, name: &str) -> &'a str {
    v.get(name).and_then(Value::as_str).unwrap_or("")
}

fn number(v: &Value, name: &str) -> f64 {
    v.get(name).and_then(Value::as_f64).unwrap_or(0.0)
}

impl Kept {
    fn add(&mut self, line: &Value) {
        let attr = &line["attr"];
        if line["id"].as_i64() != Some(SLOW_QUERY) {
            return;
        }
        let command = match attr.get("originatingCommand") {
            Some(first) => first,
            None => &attr["command"],
        };
        let Value::Object(fields) = command else {
            return;
        };
        // A command of the database itself has no plan, and no index would help it.
        let ns = text(attr, "ns");
        let shape = shape_of(fields);
        let kind = match text(attr, "type") {
            "command" | "" => fields.keys().next().map_or("command", String::as_str),
            written => written,
        };
        let (own, hash) = (id(ns, kind, &shape), text(attr, "queryShapeHash"));
        let same = |s: &SlowShape| match s.hash.is_empty() || hash.is_empty() {
            true => s.own == own,
            false => s.hash == hash,
        };
        let at = match self.shapes.iter().position(same) {
            Some(at) => at,
            None => {
                self.make_room();
                let id = if hash.is_empty() { own.as_str() } else { hash };
                self.shapes
                    .push(SlowShape::new(id.into(), own, ns, kind, shape));
                self.shapes.len() - 1
            }
        };
        if let Some(shape) = self.shapes.get_mut(at) {
            if shape.hash.is_empty() {
                shape.hash = hash.into();
            }
            shape.count(line, attr, fields);
        }
    }

    fn make_room(&mut self) {
        if self.shapes.len() < MOST {
            return;
        }
        let all = self.shapes.iter().enumerate();
        let least = all.min_by(|(_, a), (_, b)| a.millis.total_cmp(&b.millis));
        if let Some((at, _)) = least {
            self.shapes.swap_remove(at);
        }
        assert!(self.shapes.len() < MOST, "shapes are bounded");
    }
}

impl SlowShape {
    fn new(id: String, own: String, ns: &str, kind: &str, shape: Value) -> SlowShape {
        SlowShape {
            id,
            own,
            hash: String::new(),
            ns: ns.into(),
            kind: kind.into(),
            shape,
            example: Value::Null,
            count: 0,
            millis: 0.0,
            longest_millis: 0.0,
            documents: 0.0,
            keys: 0.0,
            returned: 0.0,
            written: 0.0,
            sorts: false,
            plan: String::new(),
            app: String::new(),
            first_seen: String::new(),
            last_seen: String::new(),
        }
    }

    fn count(&mut self, line: &Value, attr: &Value, fields: &Map<String, Value>) {
        let millis = number(attr, "durationMillis");
        self.count += 1;
        self.millis += millis;
        self.longest_millis = self.longest_millis.max(millis);
        self.documents += number(attr, "docsExamined");
        self.keys += number(attr, "keysExamined");
        self.returned += number(attr, "nreturned");
        self.written +=
            number(attr, "nMatched") + number(attr, "ndeleted") + number(attr, "ninserted");
        self.sorts |= attr.get("hasSortStage").and_then(Value::as_bool) == Some(true);
        for (field, name) in [(&mut self.plan, "planSummary"), (&mut self.app, "appName")] {
            let said = text(attr, name);
            if !said.is_empty() {
                *field = said.into();
            }
        }
        let asked = fields
            .iter()
            .filter(|(n, _)| !ENVELOPE.contains(&n.as_str()));
        self.example = asked.map(|(n, v)| (n.clone(), v.clone())).collect();
        let at = text(&line["t"], "$date");
        if self.first_seen.is_empty() {
            self.first_seen = at.into();
        }
        self.last_seen = at.into();
    }

    pub fn json(&self) -> Value {
        let useful = (self.returned + self.written).max(1.0);
        let advice = crate::advice::of(self);
        json!({
            "id": self.id, "queryShapeHash": (!self.hash.is_empty()).then_some(&self.hash), "ns": self.ns, "kind": self.kind, "shape": self.shape, "example": self.example,
            "count": self.count, "millis": self.millis, "longestMillis": self.longest_millis,
            "documentsExamined": self.documents, "keysExamined": self.keys, "returned": self.returned,
            "written": self.written, "examinedPerReturned": self.documents.max(self.keys) / useful,
            "sortsInMemory": self.sorts, "plan": self.plan, "appName": self.app,
            "firstSeen": self.first_seen, "lastSeen": self.last_seen, "advice": advice,
        })
    }

    /// Whether it read much more than it gave.
    pub fn reads_in_vain(&self) -> bool {
        let each = self.documents.max(self.keys) / self.count.max(1) as f64;
        each >= 100.0 && self.documents.max(self.keys) >= 10.0 * (self.returned + self.written)
    }

    pub fn scans(&self) -> bool {
        self.plan.contains("COLLSCAN")
    }

    pub fn sorts_in_memory(&self) -> bool {
        self.sorts
    }
}

fn id(ns: &str, kind: &str, shape: &Value) -> String {
    let digest = Sha256::digest(format!("{ns}\0{kind}\0{shape}").as_bytes());
    digest.iter().take(12).map(|b| format!("{b:02x}")).collect()
}

/// A command without its values.
pub fn shape_of(fields: &Map<String, Value>) -> Value {
    let asked = fields
        .iter()
        .filter(|(n, _)| !ENVELOPE.contains(&n.as_str()));
    let part = |(i, (name, value)): (usize, (&String, &Value))| {
        // The first field names the command and its collection.
        let kept = i == 0 || KEPT.contains(&name.as_str());
        let value = if kept {
            value.clone()
        } else {
            without_values(value, DEEPEST)
        };
        (name.clone(), value)
    };
    asked.enumerate().map(part).collect()
}

fn without_values(value: &Value, depth: usize) -> Value {
    match value {
        _ if depth == 0 => Value::from("…"),
        Value::Object(o) if o.len() == 1 && is_literal(o) => Value::from("?"),
        Value::Object(o) => o
            .iter()
            .map(|(n, v)| match n.as_str() {
                n if KEPT.contains(&n) => (n.to_string(), v.clone()),
                "$in" | "$nin" | "$all" => (n.clone(), Value::from("[?]")),
                _ => (n.clone(), without_values(v, depth - 1)),
            })
            .collect(),
        Value::Array(a) if a.iter().all(|v| !v.is_object() && !v.is_array()) => Value::from("[?]"),
        Value::Array(a) => a
            .iter()
            .take(LONGEST_LIST)
            .map(|v| without_values(v, depth - 1))
            .collect(),
        _ => Value::from("?"),
    }
}

/// A value that Extended JSON writes as an object.
fn is_literal(o: &Map<String, Value>) -> bool {
    let name = o.keys().next().map_or("", String::as_str);
    matches!(
        name,
        "$oid"
            | "$date"
            | "$numberLong"
            | "$numberDecimal"
            | "$numberDouble"
            | "$numberInt"
            | "$binary"
            | "$timestamp"
            | "$uuid"
            | "$regularExpression"
            | "$minKey"
            | "$maxKey"
            | "$undefined"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(value: i64, millis: i64) -> Value {
        json!({"t": {"$date": "2026-01-01T00:00:00Z"}, "id": 51803, "attr": {
            "type": "command", "ns": "shop.orders", "planSummary": "COLLSCAN", "docsExamined": 1000, "keysExamined": 0,
            "nreturned": 2, "hasSortStage": true, "durationMillis": millis,
            "command": {"find": "orders", "filter": {"a": value, "b": {"$gt": {"$date": "2026-01-01T00:00:00Z"}}},
                "sort": {"c": -1}, "limit": value, "lsid": {"id": 1}},
        }})
    }

    #[test]
    fn operations_of_one_shape_are_added_up() {
        let mut kept = Kept::default();
        kept.add(&line(1, 100));
        kept.add(&line(2, 300));
        let mut other = line(1, 5);
        other["attr"]["command"]["sort"] = json!({"c": 1});
        kept.add(&other);
        assert_eq!(kept.shapes.len(), 2);
        let shapes = Shapes(Mutex::new(kept)).json();
        let first = &shapes["shapes"][0];
        assert_eq!(
            (&first["count"], &first["millis"]),
            (&json!(2), &json!(400.0))
        );
        assert_eq!(first["examinedPerReturned"], json!(500.0));
        assert_eq!(
            first["shape"],
            json!({"find": "orders", "filter": {"a": "?", "b": {"$gt": "?"}}, "sort": {"c": -1}, "limit": "?"})
        );
        assert_eq!(first["example"]["filter"]["a"], json!(2));
        assert_eq!(first["example"]["lsid"], Value::Null);
    }

    #[test]
    fn the_hash_of_the_query_shape_decides_where_there_is_one() {
        let mut kept = Kept::default();
        let hashed = |value: i64, hash: &str| {
            let mut l = line(value, 1);
            l["attr"]["queryShapeHash"] = json!(hash);
            l
        };
        // What goes on with a cursor has none.
        for l in [hashed(1, "A"), hashed(2, "B"), hashed(3, "A"), line(4, 1)] {
            kept.add(&l);
        }
        let told: Vec<_> = kept.shapes.iter().map(|s| (&*s.id, s.count)).collect();
        assert_eq!(told, [("A", 3), ("B", 1)]);
    }

    #[test]
    fn the_shapes_are_bounded_and_the_cheapest_makes_room() {
        let mut kept = Kept::default();
        for n in 0..MOST as i64 + 50 {
            let mut l = line(1, n);
            l["attr"]["ns"] = json!(format!("shop.c{n}"));
            kept.add(&l);
        }
        assert_eq!(kept.shapes.len(), MOST);
        assert!(kept.shapes.iter().all(|s| s.millis >= 50.0));
    }

    #[test]
    fn odd_lines_change_nothing() {
        let mut kept = Kept::default();
        for odd in [
            json!({}),
            json!({"id": 51803}),
            json!({"id": 51803, "attr": {"command": 7}}),
            json!(3),
        ] {
            kept.add(&odd);
        }
        let mut deep = json!(1);
        for _ in 0..100 {
            deep = json!({"a": deep});
        }
        kept.add(&json!({"id": 51803, "attr": {"command": {"find": "c", "filter": deep}}}));
        assert_eq!(kept.shapes.len(), 1);
    }
}
