//! Several terms read as one: the documents that have any of them, how often, and where.

use tantivy::postings::{Postings, SegmentPostings};
use tantivy::schema::IndexRecordOption;
use tantivy::{DocId, DocSet, SegmentReader, TERMINATED, Term};

/// The postings of terms.
pub(crate) struct AnyPostings {
    all: Vec<SegmentPostings>,
    doc: DocId,
}

impl AnyPostings {
    /// `None`: the segment has none of the terms.
    pub fn of(
        reader: &SegmentReader,
        terms: &[Term],
        option: IndexRecordOption,
    ) -> tantivy::Result<Option<AnyPostings>> {
        let mut all = Vec::new();
        for term in terms {
            let inverted = reader.inverted_index(term.field())?;
            all.extend(inverted.read_postings(term, option)?);
        }
        let mut any = AnyPostings { all, doc: 0 };
        any.settle();
        Ok((!any.all.is_empty()).then_some(any))
    }

    fn settle(&mut self) -> DocId {
        let docs = self.all.iter().map(DocSet::doc);
        self.doc = docs.min().unwrap_or(TERMINATED);
        self.doc
    }

    fn here(&mut self) -> impl Iterator<Item = &mut SegmentPostings> {
        let doc = self.doc;
        self.all.iter_mut().filter(move |p| p.doc() == doc)
    }

    /// How often the document at hand has them.
    pub fn frequency(&mut self) -> u32 {
        if let [one] = &self.all[..] {
            return one.term_freq();
        }
        let each = self.here().map(|p| p.term_freq());
        each.fold(0, u32::saturating_add)
    }

    /// Where the document at hand has them, in order.
    pub fn positions(&mut self, out: &mut Vec<u32>) {
        let mut several = Vec::new();
        out.clear();
        for (n, postings) in self.here().enumerate() {
            match n {
                0 => postings.positions(out),
                _ => {
                    postings.positions(&mut several);
                    out.append(&mut several);
                }
            }
        }
        if self.all.len() > 1 {
            out.sort_unstable();
            out.dedup();
        }
    }
}

impl DocSet for AnyPostings {
    fn advance(&mut self) -> DocId {
        let doc = self.doc;
        if doc == TERMINATED {
            return doc;
        }
        // Nearly always there is one.
        if let [one] = &mut self.all[..] {
            self.doc = one.advance();
            return self.doc;
        }
        for postings in self.all.iter_mut().filter(|p| p.doc() == doc) {
            postings.advance();
        }
        self.settle()
    }

    fn seek(&mut self, target: DocId) -> DocId {
        if let [one] = &mut self.all[..] {
            if self.doc < target {
                self.doc = one.seek(target);
            }
            return self.doc;
        }
        for postings in self.all.iter_mut().filter(|p| p.doc() < target) {
            postings.seek(target);
        }
        self.settle()
    }

    fn doc(&self) -> DocId {
        self.doc
    }

    fn size_hint(&self) -> u32 {
        let sizes = self.all.iter().map(DocSet::size_hint);
        sizes.fold(0, u32::saturating_add)
    }
}
