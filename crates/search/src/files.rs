//! One index: its files, who writes them and who reads them.
//!
//! A commit is whole or not at all. It says up to which place of the log it is complete ([`Position`]), so a writer that
//! was killed goes on from there. What a reader has taken stays as it is.
//!
//! Invariant: only one [`IndexWriter`] of a folder lives at a time.

use crate::columns::Columns;
use crate::definition::{Definition, OrProblem};
use crate::directory::{self, Files};
use crate::field_graph::{FieldGraph, Grown};
use crate::lengths::{KnownLengths, LengthSum};
use crate::near::PlaceList;
use crate::packed::{PACKED, Unpacker, packed};
use crate::side_by_side::Helpers;
use crate::slots::{Slots, file_of};
use crate::synonyms::Synonyms;
use crate::terms::{DocumentTerms, Paths, kind, value_prefix};
use crate::vector::{Elements, stored_vector};
use bson::Doc;
use encryption::{DataFile, DataFiles};
use errors::{Code, Result, Stop, err};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tantivy::index::SegmentId;
use tantivy::indexer::{IndexWriterOptions, UserOperation};
use tantivy::query::RangeQuery;
use tantivy::schema::{
    BytesOptions, Field, IndexRecordOption, JsonObjectOptions, Schema, TextFieldIndexing,
    TextOptions,
};
use tantivy::tokenizer::TextAnalyzer;
use tantivy::{
    DocSet, Index, IndexReader, IndexSettings, ReloadPolicy, Searcher, TERMINATED, TantivyDocument,
    Term,
};

/// The memory of a writer's buffer in bytes: the least that the library takes.
pub const WRITER_BYTES: usize = 15 << 20;

/// The same of a writer that fills an index, where there is as much: fewer parts have to be merged later.
pub const FILLING_BYTES: usize = 48 << 20;

/// The bytes of a block of keys before its compression.
const KEY_BLOCK_BYTES: usize = 1024;

/// The version of the layout of all files: an index of another one is built anew.
const LAYOUT: u64 = 5;

/// Up to where an index is complete: an entry of the log, and its time, which tells logs apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Position {
    pub index: u64,
    pub ts: u64,
}

/// The fields of the library's schema: see [`crate::terms`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchemaFields {
    pub key: Field,
    pub words: Field,
    pub values: Field,
    pub lengths: Field,
}

/// The name of the column field of lengths.
const LENGTHS: &str = "lengths";

fn schema() -> (Schema, SchemaFields) {
    let mut b = Schema::builder();
    let words = TextFieldIndexing::default()
        .set_tokenizer(PACKED)
        .set_fieldnorms(false)
        .set_index_option(IndexRecordOption::WithFreqsAndPositions);
    let fields = SchemaFields {
        key: b.add_bytes_field("key", BytesOptions::default().set_indexed().set_stored()),
        words: b.add_text_field("words", TextOptions::default().set_indexing_options(words)),
        values: b.add_bytes_field("values", BytesOptions::default().set_indexed()),
        lengths: b.add_json_field(LENGTHS, JsonObjectOptions::default().set_fast("raw")),
    };
    (b.build(), fields)
}

/// Each result has its key read from a block that is decompressed for it, so blocks are small.
fn settings() -> IndexSettings {
    IndexSettings {
        docstore_blocksize: KEY_BLOCK_BYTES,
        ..IndexSettings::default()
    }
}

/// The name of the column of a path's lengths.
pub(crate) fn lengths_column(path: u32) -> String {
    format!("{LENGTHS}.{path}")
}

/// The name of the column of the slots of a vector field, of vectors with such elements.
pub(crate) fn slots_column(field: usize, elements: Elements) -> String {
    format!("{LENGTHS}.{}", slots_name(field, elements))
}

fn slots_name(field: usize, elements: Elements) -> String {
    let kind = match elements {
        Elements::Floats => "",
        Elements::Bytes => "i",
        Elements::Bits => "b",
    };
    format!("v{field}{kind}")
}

/// The column of what tells the elements of one document from those of others.
pub(crate) const PARENTS_COLUMN: &str = "lengths.p";

/// The column of which element of its document one is.
pub(crate) const ELEMENTS_COLUMN: &str = "lengths.o";
const ELEMENTS: &str = "o";

/// A state of the index, for one search.
#[derive(Clone)]
pub struct IndexSnapshot {
    pub(crate) searcher: Searcher,
    pub(crate) paths: Arc<Paths>,
    pub(crate) fields: SchemaFields,
    pub(crate) definition: Arc<Definition>,
    pub(crate) lengths: KnownLengths,
    /// No document was ever put under a greater key.
    greatest: Arc<[u8]>,
    /// The files of the vector fields, and how many slots of each are committed.
    pub(crate) vectors: Vec<Arc<DataFile>>,
    pub(crate) slots: Vec<u64>,
    pub(crate) graphs: Vec<Arc<FieldGraph>>,
    pub(crate) columns: Columns,
    /// Where the slots of segments are.
    places: Arc<Mutex<HashMap<(SegmentId, String), PlaceList>>>,
    /// Those that the search asks for, by name.
    pub(crate) synonyms: Arc<HashMap<String, Synonyms>>,
    pub position: Position,
}

impl IndexSnapshot {
    /// The same for a search that asks for synonyms.
    pub fn with_synonyms(mut self, synonyms: HashMap<String, Synonyms>) -> IndexSnapshot {
        self.synonyms = Arc::new(synonyms);
        self
    }

    /// The number of documents.
    pub fn documents(&self) -> u64 {
        if self.definition.embedded.is_empty() {
            return self.searcher.num_docs();
        }
        let term = Term::from_field_bytes(self.fields.values, &value_prefix(u32::MAX, kind::ROOT));
        let segments = self.searcher.segment_readers().iter();
        let of = segments.map(|s| roots(s, &term).unwrap_or(0));
        of.sum()
    }

    /// How long the texts of a path are, over all segments.
    pub(crate) fn length_sum(&self, path: u32) -> Result<LengthSum> {
        let mut all = LengthSum::default();
        for segment in self.searcher.segment_readers() {
            let (sum, _) = self.lengths.of(segment, path).or_problem()?;
            all.documents += sum.documents;
            all.tokens += sum.tokens;
        }
        Ok(all)
    }

    /// The slots of a vector field in a segment.
    pub(crate) fn places(
        &self,
        segment: &tantivy::SegmentReader,
        field: usize,
        elements: Elements,
    ) -> Result<PlaceList> {
        let column = slots_column(field, elements);
        let at = (segment.segment_id(), column.clone());
        if let Some(known) = self.places.lock().get(&at) {
            return Ok(known.clone());
        }
        let list = PlaceList::of(segment, &column)?;
        self.places.lock().insert(at, list.clone());
        Ok(list)
    }

    /// Forgets what is known of segments that are gone.
    fn forget_segments(&self) {
        let segments = self.searcher.segment_readers().iter();
        let there: std::collections::HashSet<SegmentId> =
            segments.map(|s| s.segment_id()).collect();
        self.lengths.retain(&there);
        self.places.lock().retain(|(id, _), _| there.contains(id));
        self.columns.retain(&there);
    }
}

/// How many documents of a segment have a term and are not deleted.
fn roots(segment: &tantivy::SegmentReader, term: &Term) -> tantivy::Result<u64> {
    let inverted = segment.inverted_index(term.field())?;
    let Some(mut postings) = inverted.read_postings(term, IndexRecordOption::Basic)? else {
        return Ok(0);
    };
    let alive = segment.alive_bitset();
    let mut count = 0;
    let mut doc = postings.doc();
    while doc != TERMINATED {
        count += u64::from(alive.is_none_or(|a| a.is_alive(doc)));
        doc = postings.advance();
    }
    Ok(count)
}

/// What a commit says of itself.
#[derive(Default)]
struct Committed {
    position: Position,
    paths: Paths,
    slots: Vec<u64>,
    /// No document was ever put under a greater key.
    greatest: Vec<u8>,
}

/// An index that is open.
pub struct SearchIndex {
    dir: PathBuf,
    data: DataFiles,
    index: Index,
    reader: IndexReader,
    fields: SchemaFields,
    definition: Arc<Definition>,
    current: Mutex<IndexSnapshot>,
}

impl SearchIndex {
    /// Opens the index of a folder, or makes one. `None` for its position: it has no commit, and is to be filled. What
    /// is damaged, or of another definition (`stamp`), is thrown away. Reads all of its files, which are of `data`.
    pub fn open(
        dir: &Path,
        definition: Arc<Definition>,
        stamp: &str,
        data: &DataFiles,
    ) -> Result<(Arc<SearchIndex>, Option<Position>)> {
        match Self::open_existing(dir, &definition, stamp, data) {
            Ok(Some(index)) => {
                let position = index.snapshot().position;
                return Ok((index, Some(position)));
            }
            Err(e) if !e.is(Code::DataCorruptionDetected) => return Err(e),
            Ok(None) | Err(_) => {}
        }
        if dir.exists() {
            std::fs::remove_dir_all(dir).or_problem()?;
        }
        std::fs::create_dir_all(dir).or_problem()?;
        let (schema, fields) = schema();
        let index = Index::create(Files::open(dir, data)?, schema, settings()).or_problem()?;
        let slots = vec![0; definition.vectors.len()];
        let made = Self::over(
            (dir, data),
            index,
            fields,
            definition,
            Committed {
                slots,
                ..Committed::default()
            },
        )?;
        Ok((made, None))
    }

    fn open_existing(
        dir: &Path,
        definition: &Arc<Definition>,
        stamp: &str,
        data: &DataFiles,
    ) -> Result<Option<Arc<SearchIndex>>> {
        let Some((index, fields, committed)) = Self::existing(dir, stamp, data) else {
            return Ok(None);
        };
        // The library takes for granted that its files are whole.
        directory::check(dir, data, &index)?;
        check_vectors(dir, data, definition, &committed.slots)?;
        Self::over((dir, data), index, fields, definition.clone(), committed).map(Some)
    }

    /// What the last commit of a folder says, if it is of that definition.
    fn existing(
        dir: &Path,
        stamp: &str,
        data: &DataFiles,
    ) -> Option<(Index, SchemaFields, Committed)> {
        let index = Index::open(Files::open(dir, data).ok()?).ok()?;
        let (schema, fields) = schema();
        if index.schema() != schema {
            return None;
        }
        let said: Value = serde_json::from_str(&index.load_metas().ok()?.payload?).ok()?;
        if said.get("layout")?.as_u64()? != LAYOUT || said.get("stamp")?.as_str()? != stamp {
            return None;
        }
        let position = Position {
            index: said.get("index")?.as_u64()?,
            ts: said.get("ts")?.as_u64()?,
        };
        let names = said.get("paths")?.as_array()?.iter();
        let names: Option<Vec<String>> = names.map(|n| Some(n.as_str()?.to_string())).collect();
        let paths = Paths::of(names?);
        let slots = said.get("slots")?.as_array()?.iter().map(Value::as_u64);
        let committed = Committed {
            greatest: serde_json::from_value(said.get("greatest")?.clone()).ok()?,
            position,
            paths,
            slots: slots.collect::<Option<Vec<u64>>>()?,
        };
        Some((index, fields, committed))
    }

    fn over(
        (dir, data): (&Path, &DataFiles),
        index: Index,
        fields: SchemaFields,
        definition: Arc<Definition>,
        committed: Committed,
    ) -> Result<Arc<SearchIndex>> {
        let unpacker = TextAnalyzer::builder(Unpacker::default()).build();
        index.tokenizers().register(PACKED, unpacker);
        let (mut vectors, mut graphs) = (Vec::new(), Vec::new());
        for (n, field) in definition.vectors.iter().enumerate() {
            let path = file_of(dir, n);
            let count = committed.slots.get(n).copied().unwrap_or(0);
            // What was not committed is cut off.
            let slots = Slots::open(&path, data, field.dimensions, count)?;
            vectors.push(slots.file().clone());
            graphs.push(Arc::new(FieldGraph::new(dir, data, n, field)));
        }
        let reader = index
            .reader_builder()
            .reload_policy(ReloadPolicy::Manual)
            .try_into()
            .or_problem()?;
        let columns = Columns::default();
        let current = IndexSnapshot {
            searcher: IndexReader::searcher(&reader),
            paths: Arc::new(committed.paths),
            greatest: committed.greatest.into(),
            fields,
            definition: definition.clone(),
            vectors,
            slots: committed.slots,
            graphs,
            lengths: KnownLengths::new(&columns),
            columns,
            places: Arc::default(),
            synonyms: Arc::default(),
            position: committed.position,
        };
        Ok(Arc::new(SearchIndex {
            dir: dir.to_path_buf(),
            data: data.clone(),
            index,
            reader,
            fields,
            definition,
            current: Mutex::new(current),
        }))
    }

    pub fn definition(&self) -> &Arc<Definition> {
        &self.definition
    }

    /// The state of the last commit.
    pub fn snapshot(&self) -> IndexSnapshot {
        self.current.lock().clone()
    }

    /// Fails with `DataCorruptionDetected` where its files are not as they were written. Reads all of them.
    pub fn check(&self) -> Result<()> {
        directory::check(&self.dir, &self.data, &self.index)?;
        let slots = self.snapshot().slots;
        check_vectors(&self.dir, &self.data, &self.definition, &slots)
    }

    /// Puts vectors of the last commit into graphs, until `until`, which searches walk from then on. `holds`: whether
    /// they may have so many bytes of memory in all. Called by one thread at a time.
    pub fn grow_graphs(
        &self,
        until: Instant,
        mut holds: impl FnMut(usize) -> bool,
        helpers: Helpers<'_>,
    ) -> Result<Grown> {
        let snapshot = self.snapshot();
        let mut all = Grown::Whole;
        for (n, graph) in snapshot.graphs.iter().enumerate() {
            let others = snapshot.graphs.iter().enumerate().filter(|(m, _)| *m != n);
            let others: usize = others.map(|(_, g)| g.memory_bytes()).sum();
            let slots = snapshot.slots.get(n).copied().unwrap_or(0);
            let Some(file) = snapshot.vectors.get(n) else {
                continue;
            };
            let mut holds = |bytes: usize| holds(others + bytes);
            match graph.grow((file, slots), until, &mut holds, helpers)? {
                Grown::Whole => {}
                other => all = other,
            }
        }
        Ok(all)
    }

    /// Writes graphs that have grown much since that was done. What was not written is built again from the vectors.
    pub fn save_graphs(&self) -> Result<()> {
        let snapshot = self.snapshot();
        snapshot.graphs.iter().try_for_each(|graph| graph.save())
    }

    /// How many vectors of the last commit are to be in graphs.
    pub fn for_graphs(&self) -> u64 {
        let snapshot = self.snapshot();
        let slots = snapshot.graphs.iter().zip(&snapshot.slots);
        slots.map(|(graph, slots)| graph.wanted(*slots)).sum()
    }

    /// How many vectors are in graphs.
    pub fn in_graphs(&self) -> u64 {
        let snapshot = self.snapshot();
        snapshot.graphs.iter().map(|g| g.slots()).sum()
    }

    /// The bytes of its files.
    pub fn bytes(&self) -> u64 {
        let files = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        files.filter_map(|f| Some(f.metadata().ok()?.len())).sum()
    }

    /// The one writer, with the least buffer.
    pub fn writer(self: &Arc<SearchIndex>, stamp: &str) -> Result<IndexWriter> {
        self.writer_with(stamp, (WRITER_BYTES, 1))
    }

    /// The one writer, with buffers of `bytes` in all, of so many threads: of several the documents come in no order. What
    /// one before it has left is removed.
    pub fn writer_with(
        self: &Arc<SearchIndex>,
        stamp: &str,
        (bytes, threads): (usize, usize),
    ) -> Result<IndexWriter> {
        let options = IndexWriterOptions::builder()
            .num_worker_threads(threads)
            .num_merge_threads(1)
            .memory_budget_per_thread(bytes / threads.max(1))
            .build();
        let current = self.snapshot();
        directory::clean(&self.dir, &self.index)?;
        let inner = self.index.writer_with_options(options).or_problem()?;
        let mut slots = Vec::new();
        for (n, field) in self.definition.vectors.iter().enumerate() {
            let count = current.slots.get(n).copied().unwrap_or(0);
            let path = file_of(&self.dir, n);
            slots.push(Slots::open(&path, &self.data, field.dimensions, count)?);
        }
        // What a writer has left uncommitted may have led to new files.
        let vectors = slots.iter().map(|s| s.file().clone()).collect();
        self.current.lock().vectors = vectors;
        Ok(IndexWriter {
            inner,
            slots,
            paths: Paths::clone(&current.paths),
            greatest: current.greatest.to_vec(),
            index: self.clone(),
            stamp: stamp.to_string(),
        })
    }
}

fn check_vectors(
    dir: &Path,
    data: &DataFiles,
    definition: &Definition,
    slots: &[u64],
) -> Result<()> {
    for (n, field) in definition.vectors.iter().enumerate() {
        let count = slots.get(n).copied().unwrap_or(0);
        if count > 0 {
            crate::slots::check(&file_of(dir, n), data, field.dimensions, count)?;
        }
    }
    Ok(())
}

/// Changes an index; what it does is seen after a commit.
pub struct IndexWriter {
    index: Arc<SearchIndex>,
    inner: tantivy::IndexWriter,
    slots: Vec<Slots>,
    paths: Paths,
    greatest: Vec<u8>,
    stamp: String,
}

impl IndexWriter {
    /// The document under `key` is this one from now on.
    pub fn put(&mut self, key: &[u8], doc: Doc<'_>) -> Result<()> {
        // The library looks for each deleted key in all of its segments: not for one that cannot be there.
        match key > self.greatest.as_slice() {
            true => self.greatest = key.to_vec(),
            false => self.delete(key),
        }
        let definition = self.index.definition.clone();
        let Some(root) = &definition.nested_root else {
            return self.put_one(key, doc, &definition, None);
        };
        let mut parent = None;
        for element in crate::nested::elements(doc, root) {
            errors::operation::step()?;
            let first = self.slots.iter().map(Slots::count).sum();
            let of = *parent.get_or_insert(first);
            self.put_one(key, element.as_doc(), &definition, Some(of))?;
        }
        Ok(())
    }

    fn put_one(
        &mut self,
        key: &[u8],
        doc: Doc<'_>,
        definition: &Definition,
        parent: Option<u64>,
    ) -> Result<()> {
        let (mut terms, elements) = DocumentTerms::of(definition, doc, &mut self.paths);
        let mut columns: Vec<(String, u64)> = Vec::new();
        for (n, field) in definition.vectors.iter().enumerate() {
            match (stored_vector(field, doc), self.slots.get_mut(n)) {
                (Ok(Some((vector, elements))), Some(file)) => {
                    columns.push((slots_name(n, elements), file.push(&vector)?));
                }
                (Err(unfit), _) => terms.lacks(unfit, &field.path),
                _ => {}
            }
        }
        if columns.is_empty() && parent.is_some() && !terms.lacks_any() {
            return Ok(());
        }
        columns.extend(parent.map(|p| ("p".to_string(), p)));
        let whole = self.document(key, terms, columns);
        if elements.is_empty() {
            self.inner.add_document(whole).or_problem()?;
            return Ok(());
        }
        // In one step, so that they lie side by side.
        let number = |n: u64| vec![(ELEMENTS.to_string(), n)];
        let elements = elements.into_iter();
        let elements = elements.map(|e| self.document(key, e.terms, number(e.number)));
        let all: Vec<_> = elements.chain([whole]).map(UserOperation::Add).collect();
        self.inner.run(all).or_problem()?;
        Ok(())
    }

    /// There is none under `key` from now on.
    pub fn delete(&mut self, key: &[u8]) {
        let term = Term::from_field_bytes(self.index.fields.key, key);
        self.inner.delete_term(term);
    }

    /// There is none under the keys from `low` on and below `high`.
    pub fn delete_range(&mut self, low: &[u8], high: &[u8]) -> Result<()> {
        let term = |key: &[u8]| Term::from_field_bytes(self.index.fields.key, key);
        let range = RangeQuery::new(Bound::Included(term(low)), Bound::Excluded(term(high)));
        self.inner.delete_query(Box::new(range)).or_problem()?;
        Ok(())
    }

    /// There is none at all.
    pub fn clear(&mut self) -> Result<()> {
        self.inner.delete_all_documents().or_problem()?;
        Ok(())
    }

    fn document(
        &self,
        key: &[u8],
        terms: DocumentTerms,
        numbers: Vec<(String, u64)>,
    ) -> TantivyDocument {
        let fields = self.index.fields;
        let mut doc = TantivyDocument::new();
        doc.add_bytes(fields.key, key);
        for value in &terms.values {
            doc.add_bytes(fields.values, value);
        }
        if !terms.words.is_empty() {
            doc.add_text(fields.words, packed(terms.words));
        }
        let lengths = terms.lengths.iter();
        let lengths = lengths.map(|(path, n)| (path.to_string(), i64::from(*n).into()));
        let numbers = numbers.into_iter();
        let numbers = numbers.map(|(name, n)| (name, i64::try_from(n).unwrap_or(i64::MAX).into()));
        let columns: std::collections::BTreeMap<_, _> = lengths.chain(numbers).collect();
        if !columns.is_empty() {
            doc.add_object(fields.lengths, columns);
        }
        doc
    }

    /// Makes what was done durable, and visible to searches that take a snapshot from now on.
    pub fn commit(&mut self, position: Position) -> Result<()> {
        let payload = json!({
            "layout": LAYOUT,
            "stamp": self.stamp,
            "index": position.index,
            "ts": position.ts,
            "paths": self.paths.names(),
            "slots": self.slots.iter().map(Slots::count).collect::<Vec<u64>>(),
            "greatest": self.greatest,
        });
        for file in &mut self.slots {
            file.sync()?;
        }
        let mut prepared = self.inner.prepare_commit().or_problem()?;
        prepared.set_payload(&payload.to_string());
        prepared.commit().or_problem()?;
        self.index.reader.reload().or_problem()?;
        let mut current = self.index.current.lock();
        if current.paths.names().len() != self.paths.names().len() {
            current.paths = Arc::new(self.paths.clone());
        }
        current.searcher = self.index.reader.searcher();
        current.position = position;
        current.greatest = self.greatest.as_slice().into();
        current.slots = self.slots.iter().map(Slots::count).collect();
        current.forget_segments();
        Ok(())
    }

    /// Ends the writer; what was not committed is gone.
    pub fn close(self) -> Result<()> {
        self.inner.wait_merging_threads().or_problem()
    }
}

/// The index says what its writer never wrote.
pub(crate) fn damaged(what: &str) -> Stop {
    err!(DataCorruptionDetected, "a search index is damaged: {what}").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Kind;

    /// Commits the present state as one of another layout.
    fn call_it(dir: &Path, layout: u64) {
        let data = DataFiles::default();
        let index = Index::open(Files::open(dir, &data).unwrap()).unwrap();
        let payload = index.load_metas().unwrap().payload.unwrap();
        let mut said: Value = serde_json::from_str(&payload).unwrap();
        said["layout"] = layout.into();
        let mut writer: tantivy::IndexWriter = index.writer(WRITER_BYTES).unwrap();
        let mut prepared = writer.prepare_commit().unwrap();
        prepared.set_payload(&said.to_string());
        prepared.commit().unwrap();
    }

    #[test]
    fn an_index_of_an_older_layout_is_built_anew() {
        let dir = tempfile::tempdir().unwrap();
        let definition = bson::json::parse(r#"{"mappings": {"dynamic": true}}"#).unwrap();
        let definition = Definition::parse(Kind::Search, definition.as_doc()).unwrap();
        let definition = Arc::new(definition);
        let open = || {
            let data = DataFiles::default();
            SearchIndex::open(dir.path(), definition.clone(), "1", &data).unwrap()
        };
        let at = Position { index: 7, ts: 70 };
        let (index, _) = open();
        let mut writer = index.writer("1").unwrap();
        writer.commit(at).unwrap();
        writer.close().unwrap();
        drop(index);
        call_it(dir.path(), LAYOUT);
        assert_eq!(open().1, Some(at));
        call_it(dir.path(), LAYOUT - 1);
        assert_eq!(open().1, None);
    }
}
