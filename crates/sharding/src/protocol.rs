//! Which versions of what routers and shards say to each other a program speaks. A router says it in
//! the `hello` by which it looks at servers, and they say it in the reply.
//!
//! ```text
//! {hello: 1, …, pandoCluster: {min, max}}      → {…, pandoCluster: {min, max}}
//! ```
//!
//! Invariant: two programs that speak no common version send each other no commands.

use bson::{Doc, DocBuf, Val, doc};
use std::ops::RangeInclusive;

/// The field of `hello`.
pub const FIELD: &str = "pandoCluster";

/// A release speaks its own version and that of the release before.
const SPOKEN: RangeInclusive<i64> = 1..=1;

/// What this program speaks.
pub fn spoken() -> DocBuf {
    doc! {"min": *SPOKEN.start(), "max": *SPOKEN.end()}
}

/// Why `who`, which speaks `theirs`, cannot be spoken with; `None` where it can.
pub fn disagreement(who: &str, theirs: Option<Doc<'_>>) -> Option<String> {
    let end = |name: &str| theirs?.get(name).and_then(Val::to_i64_exact);
    let (Some(min), Some(max)) = (end("min"), end("max")) else {
        return Some(format!(
            "{who} does not say which version of the cluster's protocol it speaks: it is no server of PandoDB, or one of another release"
        ));
    };
    let common = min <= *SPOKEN.end() && max >= *SPOKEN.start();
    (!common).then(|| {
        let (ours_min, ours_max) = SPOKEN.into_inner();
        format!(
            "{who} speaks versions {min} to {max} of the cluster's protocol and this server {ours_min} to {ours_max}: bring both to the same release"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_version_is_enough() {
        let says = |d: DocBuf| disagreement("s0", Some(d.as_doc()));
        assert_eq!(says(spoken()), None);
        assert_eq!(says(doc! {"min": 0, "max": 1}), None);
        assert_eq!(says(doc! {"min": 1, "max": 5}), None);
        let newer = says(doc! {"min": 2, "max": 3}).unwrap();
        assert!(newer.contains("s0 speaks versions 2 to 3") && newer.contains("same release"));
        assert!(says(doc! {"min": "x"}).unwrap().contains("does not say"));
        assert!(disagreement("s0", None).is_some());
    }
}
