//! How far a move has come, and when it ends if it goes on as it does.
//!
//! ```text
//! progress: {phase: "copy" | "catchUp", copiedDocuments, copiedBytes, approxDocumentsToCopy?, approxBytesToCopy?,
//!            backlogDocuments, workShare, seconds, remainingSeconds?, estimatedEnd?}
//! ```

use bson::{DocBuf, Value, Writer};
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CopyProgress {
    /// All documents were copied once: changes since then follow.
    pub catches_up: bool,
    /// Documents put at recipients, some more than once.
    pub documents: u64,
    pub bytes: u64,
    /// How much there was to copy when it began, about: documents and bytes.
    pub to_copy: Option<(u64, u64)>,
    /// Documents that were touched since they were copied, as far as is known.
    pub backlog: u64,
    /// Of the time the part in which the mover works, and does not rest.
    pub share: f64,
    pub since: Duration,
}

impl CopyProgress {
    pub fn phase(&self) -> &'static str {
        if self.catches_up { "catchUp" } else { "copy" }
    }

    /// Documents that are still to be put; `None` where it is not known how many there are.
    pub fn left(&self) -> Option<u64> {
        if self.catches_up {
            return Some(self.backlog);
        }
        let (documents, _) = self.to_copy?;
        Some(documents.saturating_sub(self.documents) + self.backlog)
    }

    /// Bytes that are still to be put, by the mean size of the documents so far.
    pub fn left_bytes(&self) -> Option<u64> {
        let left = u128::from(self.left()?);
        let bytes = left * u128::from(self.bytes) / u128::from(self.documents.max(1));
        Some(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// How long it takes still, at the rate that it had on the whole.
    pub fn remaining(&self) -> Option<Duration> {
        if self.documents == 0 {
            return None;
        }
        let each = self.since.as_secs_f64() / self.documents as f64;
        Duration::try_from_secs_f64(each * self.left()? as f64).ok()
    }

    pub fn to_doc(&self, now_millis: i64) -> DocBuf {
        let whole = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let mut w = Writer::new();
        w.str("phase", self.phase())
            .i64("copiedDocuments", whole(self.documents))
            .i64("copiedBytes", whole(self.bytes));
        if let Some((documents, bytes)) = self.to_copy {
            w.i64("approxDocumentsToCopy", whole(documents))
                .i64("approxBytesToCopy", whole(bytes));
        }
        w.i64("backlogDocuments", whole(self.backlog))
            .f64("workShare", self.share)
            .i64("seconds", whole(self.since.as_secs()));
        if let Some(remaining) = self.remaining() {
            let millis = i64::try_from(remaining.as_millis()).unwrap_or(i64::MAX);
            w.i64("remainingSeconds", whole(remaining.as_secs()));
            w.value(
                "estimatedEnd",
                Value::date(now_millis.saturating_add(millis)),
            );
        }
        w.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::Val;

    fn copying() -> CopyProgress {
        CopyProgress {
            documents: 100,
            bytes: 5000,
            to_copy: Some((400, 20_000)),
            share: 0.25,
            since: Duration::from_secs(10),
            ..CopyProgress::default()
        }
    }

    #[test]
    fn the_end_is_as_far_as_the_rate_says() {
        let copy = copying();
        assert_eq!((copy.left(), copy.left_bytes()), (Some(300), Some(15_000)));
        assert_eq!(copy.remaining(), Some(Duration::from_secs(30)));
        let touched = CopyProgress {
            backlog: 50,
            ..copy
        };
        assert_eq!(touched.remaining(), Some(Duration::from_secs(35)));
        // All was copied once, and some of it again.
        let later = CopyProgress {
            catches_up: true,
            documents: 500,
            backlog: 20,
            ..copy
        };
        assert_eq!(later.left(), Some(20));
        assert_eq!(later.remaining(), Some(Duration::from_millis(400)));
        // More was copied than there was in the beginning.
        let more = CopyProgress {
            documents: 500,
            ..copy
        };
        assert_eq!(
            (more.left(), more.remaining()),
            (Some(0), Some(Duration::ZERO))
        );
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let unknown = CopyProgress {
            to_copy: None,
            ..copying()
        };
        assert_eq!((unknown.left(), unknown.remaining()), (None, None));
        let told = unknown.to_doc(0);
        for name in ["approxDocumentsToCopy", "remainingSeconds", "estimatedEnd"] {
            assert!(!told.as_doc().contains(name), "{name}");
        }
        assert_eq!(
            CopyProgress {
                documents: 0,
                ..copying()
            }
            .remaining(),
            None
        );
        let told = copying().to_doc(1000);
        let number = |name: &str| told.get(name).and_then(Val::to_i64_exact);
        assert_eq!(number("approxBytesToCopy"), Some(20_000));
        assert_eq!(number("remainingSeconds"), Some(30));
        assert_eq!(
            told.get("estimatedEnd").map(|v| v.to_value()),
            Some(Value::date(31_000))
        );
    }
}
