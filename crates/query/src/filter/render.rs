//! A filter back as a document, in the form in which MongoDB's explain prints a parsed query.

use super::{Node, Test};
use bson::{DocBuf, Val, Value, Writer, tag};

pub(super) fn render(node: &Node) -> DocBuf {
    let mut w = Writer::new();
    write(node, &mut w);
    w.finish()
}

fn list(w: &mut Writer, name: &str, children: &[Node]) {
    w.open_array(name);
    for c in children {
        w.open_doc("");
        write(c, w);
        w.close();
    }
    w.close();
}

fn write(node: &Node, w: &mut Writer) {
    match node {
        Node::Const(true) => {}
        Node::Const(false) => {
            w.i32("$alwaysFalse", 1);
        }
        Node::And(c) => list(w, "$and", c),
        Node::Or(c) => list(w, "$or", c),
        Node::Nor(c) => list(w, "$nor", c),
        Node::Not(n) => match &**n {
            Node::Pred { path, test } => {
                w.open_doc(path.as_str()).open_doc("$not");
                write_test(test, w);
                w.close().close();
            }
            // Negated operators of one field: `{a: {$not: {$gt: 1, $lt: 5}}}`.
            Node::And(c) if same_path(c).is_some() => {
                w.open_doc(same_path(c).unwrap_or("")).open_doc("$not");
                for n in c {
                    if let Node::Pred { test, .. } = n {
                        write_test(test, w);
                    }
                }
                w.close().close();
            }
            n => {
                w.open_array("$nor").open_doc("");
                write(n, w);
                w.close().close();
            }
        },
        Node::Pred { path, test } => {
            w.open_doc(path.as_str());
            write_test(test, w);
            w.close();
        }
        Node::Expr(e) => match e.as_where() {
            Some(code) => {
                let bytes = Value::str_from_bytes(code.as_bytes());
                let bytes = bytes.as_val().bytes;
                w.val(
                    "$where",
                    Val {
                        tag: tag::CODE,
                        bytes,
                    },
                );
            }
            None => {
                w.value("$expr", e.to_value());
            }
        },
        Node::Sample(rate) => {
            w.f64("$sampleRate", *rate);
        }
        Node::Text(t) => {
            w.doc("$text", t.search.to_doc().as_doc());
        }
        Node::Schema(s) => {
            w.doc("$jsonSchema", s.source().as_doc());
        }
    }
}

fn same_path(nodes: &[Node]) -> Option<&str> {
    let mut path = None;
    for n in nodes {
        match n {
            Node::Pred { path: p, .. } if path.is_none_or(|q| q == p.as_str()) => {
                path = Some(p.as_str())
            }
            _ => return None,
        }
    }
    path
}

fn write_test(test: &Test, w: &mut Writer) {
    match test {
        Test::Eq(v) => w.val("$eq", v.as_val()),
        Test::Lt(v) => w.val("$lt", v.as_val()),
        Test::Lte(v) => w.val("$lte", v.as_val()),
        Test::Gt(v) => w.val("$gt", v.as_val()),
        Test::Gte(v) => w.val("$gte", v.as_val()),
        Test::In(l) => {
            w.open_array("$in");
            for v in &l.values {
                w.push(v.as_val());
            }
            for r in &l.regexes {
                w.push_value(r.to_value());
            }
            w.close()
        }
        Test::Exists => w.bool("$exists", true),
        Test::Type(t) => w.value("$type", t.to_value()),
        Test::Regex(r) => {
            w.str("$regex", r.pattern());
            if !r.options().is_empty() {
                w.str("$options", r.options());
            }
            w
        }
        Test::Mod { divisor, remainder } => w
            .open_array("$mod")
            .push_value(*divisor)
            .push_value(*remainder)
            .close(),
        Test::Size(n) => w.int("$size", *n),
        Test::ElemMatchObject(n) => {
            w.open_doc("$elemMatch");
            write(n, w);
            w.close()
        }
        Test::ElemMatchValue(n) => {
            w.open_doc("$elemMatch");
            write_value(n, w);
            w.close()
        }
        Test::Bits { test, mask } => w.value(test.name(), mask.to_value()),
        Test::Geo(g) => w.extend(g.source()),
        Test::Near(n) => w.extend(n.source()),
        Test::Collated(c) => {
            write_test(&c.source, w);
            w
        }
    };
}

/// Operators on a value itself, without a field name.
fn write_value(node: &Node, w: &mut Writer) {
    match node {
        Node::And(c) => c.iter().for_each(|n| write_value(n, w)),
        Node::Pred { test, .. } => write_test(test, w),
        Node::Not(n) => {
            w.open_doc("$not");
            write_value(n, w);
            w.close();
        }
        n => write(n, w),
    }
}
