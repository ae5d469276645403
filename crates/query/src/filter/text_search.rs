//! `$text` in a filter: parsed without knowing an index, then bound to that of the collection.
//!
//! Invariant: a filter that tests documents is bound. There is one `$text` at most, under nothing but
//! `$and` and `$or`.

use super::{Filter, Node};
use errors::{Result, bail};
use std::sync::Arc;
use text::{Matcher, TextExpression, TextIndex};

/// `$text`
#[derive(Clone, Debug)]
pub struct TextSearch {
    pub search: TextExpression,
    /// Of the collection's text index.
    pub matcher: Option<Matcher>,
}

impl Filter {
    /// Its `$text`, wherever that is.
    pub fn text(&self) -> Option<&Arc<TextSearch>> {
        self.has_text.then(|| find(&self.root)).flatten()
    }

    /// The same with its `$text` for this index.
    pub fn bind_text(&self, index: &Arc<TextIndex>) -> Result<Filter> {
        Ok(Filter::from_node(bind(&self.root, index)?))
    }
}

impl Node {
    /// The `$text` in it.
    pub fn text(&self) -> Option<&Arc<TextSearch>> {
        find(self)
    }
}

fn find(node: &Node) -> Option<&Arc<TextSearch>> {
    match node {
        Node::Text(t) => Some(t),
        Node::And(c) | Node::Or(c) => c.iter().find_map(find),
        _ => None,
    }
}

fn bind(node: &Node, index: &Arc<TextIndex>) -> Result<Node> {
    let all = |c: &[Node]| c.iter().map(|n| bind(n, index)).collect::<Result<_>>();
    Ok(match node {
        Node::Text(t) => Node::Text(Arc::new(TextSearch {
            matcher: Some(Matcher::new(&t.search, index.clone())?),
            search: t.search.clone(),
        })),
        Node::And(c) => Node::And(all(c)?),
        Node::Or(c) => Node::Or(all(c)?),
        n => n.clone(),
    })
}

/// Refuses what cannot hold a `$text`, and a second one.
pub(super) fn check(root: &Node) -> Result<()> {
    let mut n = 0;
    root.any(&mut |node| {
        n += usize::from(matches!(node, Node::Text(_)));
        false
    });
    if n > 1 {
        bail!(BadValue, "Too many text expressions");
    }
    if n == 1 && find(root).is_none() {
        bail!(BadValue, "text expression not allowed in nor");
    }
    Ok(())
}
