//! What a search has found: the best hits, and the keys of their documents.

use crate::definition::OrProblem;
use crate::explained::explained;
use crate::files::{ELEMENTS_COLUMN, IndexSnapshot, damaged};
use crate::problem::wrong;
use bson::DocBuf;
use errors::Result;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use tantivy::query::Weight;
use tantivy::schema::Value as _;
use tantivy::{DocAddress, TantivyDocument};

/// The most results of a search that says nothing of how many it wants: their scores and places stay in memory.
const MOST_FOUND: usize = 4 << 20;

/// A document that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredDocument {
    /// The key that it was put under.
    pub key: Vec<u8>,
    pub score: f32,
    /// Which of its elements was found, where these are asked for.
    pub element: Option<u64>,
    /// `{value, description, details}`, where that is asked for.
    pub details: Option<Box<DocBuf>>,
}

/// What a search has found, from the best on.
pub struct Hits {
    snapshot: IndexSnapshot,
    pub(crate) found: std::vec::IntoIter<Hit>,
    /// How many vectors were compared.
    pub compared: usize,
    /// Whether elements are found, and not documents.
    pub(crate) elements: bool,
    /// What tells how scores came about, where that is asked for.
    pub(crate) weight: Option<Box<dyn Weight>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Hit {
    pub score: f32,
    pub at: DocAddress,
}

impl Eq for Hit {}

impl PartialOrd for Hit {
    fn partial_cmp(&self, other: &Hit) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The better one is less: a heap's greatest is the one to give up first.
impl Ord for Hit {
    fn cmp(&self, other: &Hit) -> Ordering {
        other
            .score
            .total_cmp(&self.score)
            .then_with(|| self.at.cmp(&other.at))
    }
}

impl Hits {
    /// How many are left.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next one.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<ScoredDocument>> {
        let Some(hit) = self.found.next() else {
            return Ok(None);
        };
        let details = match &self.weight {
            Some(weight) => Some(Box::new(explained(
                &self.snapshot,
                weight.as_ref(),
                hit.at,
            )?)),
            None => None,
        };
        Ok(Some(ScoredDocument {
            key: key_of(&self.snapshot, hit.at)?,
            score: hit.score,
            element: match self.elements {
                true => element_of(&self.snapshot, hit.at)?,
                false => None,
            },
            details,
        }))
    }
}

/// The key that a document was put under.
pub(crate) fn key_of(snapshot: &IndexSnapshot, at: DocAddress) -> Result<Vec<u8>> {
    let doc: TantivyDocument = snapshot.searcher.doc(at).or_problem()?;
    let key = doc.get_first(snapshot.fields.key);
    let key = key.and_then(|v| v.as_bytes().map(<[u8]>::to_vec));
    key.ok_or_else(|| damaged("a document without a key"))
}

/// Which element of its document is at a place, among those of its path.
pub(crate) fn element_of(snapshot: &IndexSnapshot, at: DocAddress) -> Result<Option<u64>> {
    let reader = snapshot.searcher.segment_reader(at.segment_ord);
    let column = snapshot.columns.column(reader, ELEMENTS_COLUMN);
    let n = column.or_problem()?.and_then(|c| c.first(at.doc_id));
    Ok(n.and_then(|n| u64::try_from(n).ok()))
}

/// What tells elements of documents apart, in their order: the part of a key that is a document's own, and the element.
pub fn place(tie: &[u8], element: Option<u64>) -> Vec<u8> {
    let mut place = tie.to_vec();
    place.extend(element.into_iter().flat_map(u64::to_be_bytes));
    place
}

impl Hits {
    /// Of a heap of the best.
    pub(crate) fn of(snapshot: IndexSnapshot, best: BinaryHeap<Hit>) -> Hits {
        Hits::in_order(snapshot, best.into_sorted_vec())
    }

    pub(crate) fn in_order(snapshot: IndexSnapshot, found: Vec<Hit>) -> Hits {
        Hits {
            found: found.into_iter(),
            compared: 0,
            elements: false,
            weight: None,
            snapshot,
        }
    }
}

/// Keeps a hit among the best `limit`, or among all.
pub(crate) fn keep(best: &mut BinaryHeap<Hit>, hit: Hit, limit: Option<usize>) -> Result<()> {
    if best.len() >= MOST_FOUND && limit.is_none() {
        return Err(wrong(format!(
            "more than {MOST_FOUND} documents match: ask for fewer with a $limit behind the search"
        )));
    }
    keep_best(best, hit, limit.unwrap_or(MOST_FOUND));
    Ok(())
}

/// Keeps a hit that is among the best `most`.
pub(crate) fn keep_best(best: &mut BinaryHeap<Hit>, hit: Hit, most: usize) {
    if best.len() < most {
        best.push(hit);
    } else if let Some(mut worst) = best.peek_mut()
        && hit < *worst
    {
        *worst = hit;
    }
}
