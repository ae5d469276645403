//! A query's results as a cursor gives them: skip, limit and projection over [`Rows`].

use crate::op::OpCtx;
use crate::read::{Examined, ReadRequest, Rows};
use bson::{Doc, Writer};
use catalog::Collection;
use errors::{Result, bail};
use planner::{Hint, Plan};
use query::expr::Vars;
use query::filter::Filter;
use query::projection::Projection;
use query::sort::SortPattern;
use std::sync::Arc;

/// A parsed find. Owned, so that a cursor can keep what it needs.
pub struct FindRequest<'a> {
    pub filter: Filter,
    pub sort: Option<SortPattern>,
    pub projection: Option<Projection>,
    pub skip: u64,
    pub limit: Option<u64>,
    pub hint: Option<Hint>,
    pub min: Option<Doc<'a>>,
    pub max: Option<Doc<'a>>,
    pub vars: Arc<Vars>,
    pub show_record_id: bool,
    pub return_key: bool,
}

impl FindRequest<'_> {
    pub fn new(filter: Filter) -> FindRequest<'static> {
        FindRequest {
            filter,
            sort: None,
            projection: None,
            skip: 0,
            limit: None,
            hint: None,
            min: None,
            max: None,
            vars: Arc::default(),
            show_record_id: false,
            return_key: false,
        }
    }
}

/// An open query. Send and owned: it lives in the cursor registry between batches.
pub struct FindCursor {
    rows: Rows,
    filter: Filter,
    projection: Option<Projection>,
    vars: Arc<Vars>,
    skip: u64,
    left: Option<u64>,
    /// `rows` stands on a result that did not fit into the last batch.
    pending: bool,
    scratch: Vec<u8>,
    pub returned: u64,
}

impl FindCursor {
    /// Plans and opens; `None` when there is no such collection.
    pub fn open(ctx: &mut OpCtx, ns: &str, req: FindRequest) -> Result<Option<FindCursor>> {
        // One record by its key needs no snapshot.
        let (view, coll) = match planner::id_lookup(&req.filter) {
            Some(_) if req.hint.is_none() && req.min.is_none() && req.max.is_none() => {
                (ctx.latest(), ctx.engine.catalog.get(ns))
            }
            _ => ctx.view(ns),
        };
        let Some(coll) = coll else { return Ok(None) };
        if coll.is_view() {
            bail!(
                CommandNotSupportedOnView,
                "Namespace {ns} is a view, not a collection"
            );
        }
        FindCursor::over(ctx, view, coll, req).map(Some)
    }

    pub fn over(
        ctx: &mut OpCtx,
        view: storage::View,
        coll: Arc<Collection>,
        req: FindRequest,
    ) -> Result<FindCursor> {
        let read = ReadRequest {
            filter: &req.filter,
            sort: req.sort.as_ref(),
            projection: req.projection.as_ref(),
            limit: req.limit.map(|l| l.saturating_add(req.skip)),
            hint: req.hint.clone(),
            min: req.min,
            max: req.max,
            vars: req.filter.has_expr().then(|| req.vars.clone()),
        };
        let rows = Rows::open(ctx, view, coll, &read)?;
        Ok(FindCursor {
            rows,
            filter: req.filter,
            projection: req.projection,
            vars: req.vars,
            skip: req.skip,
            left: req.limit,
            pending: false,
            scratch: Vec::new(),
            returned: 0,
        })
    }

    pub fn collection(&self) -> &Arc<Collection> {
        &self.rows.coll
    }

    pub fn plan(&self) -> &Plan {
        &self.rows.plan
    }

    pub fn examined(&self) -> Examined {
        self.rows.examined
    }

    /// What a blocking sort held at most (bytes) and how many rows it took in.
    pub fn sorted(&self) -> (usize, u64) {
        (self.rows.sort_bytes, self.rows.sort_rows)
    }

    /// To the next result; `false` at the end.
    pub fn next(&mut self, ctx: &mut OpCtx) -> Result<bool> {
        if self.pending {
            self.pending = false;
            return Ok(true);
        }
        if self.left == Some(0) {
            return Ok(false);
        }
        if self.skip > 0 {
            let n = std::mem::take(&mut self.skip);
            self.rows.skip(ctx, n)?;
        }
        if !self.rows.next(ctx)? {
            return Ok(false);
        }
        if let Some(l) = &mut self.left {
            *l -= 1;
        }
        Ok(true)
    }

    /// The current result, projected.
    pub fn doc(&mut self) -> Result<Doc<'_>> {
        let Some(p) = &self.projection else {
            return Ok(self.rows.doc());
        };
        let doc = self.rows.doc();
        let matched = if p.needs_match_index() {
            self.filter.first_matched_index(doc, &self.vars)?.flatten()
        } else {
            None
        };
        self.scratch.clear();
        p.apply(doc, matched, &self.vars, &mut self.scratch)?;
        Ok(Doc::new(&self.scratch).unwrap_or(Doc::EMPTY))
    }

    /// From here on what is not in the cache is read from the disk: for a cursor that was opened on an event loop and goes on
    /// on a worker.
    pub(crate) fn read_anywhere(&mut self) {
        if self.rows.is_cached_only() {
            self.release();
        }
    }

    /// Keeps the projection only where an index covers it: elsewhere it would cost more than it saves.
    pub(crate) fn drop_projection_unless_covered(&mut self) {
        if !self.rows.plan.covered {
            self.projection = None;
        }
    }

    /// Computes what [`FindCursor::projected`] shows, after a step.
    pub(crate) fn project(&mut self) -> Result<()> {
        if self.projection.is_some() {
            self.doc()?;
        }
        Ok(())
    }

    /// The current result as [`FindCursor::project`] left it.
    pub(crate) fn projected(&self) -> Doc<'_> {
        match self.projection {
            None => self.rows.doc(),
            Some(_) => Doc::new(&self.scratch).unwrap_or(Doc::EMPTY),
        }
    }

    /// Appends results to the open array of `w`: at most `max_docs`, and no more than fit into `max_bytes` (but always one).
    /// `true`: there are no more.
    pub fn fill(
        &mut self,
        ctx: &mut OpCtx,
        w: &mut Writer,
        max_docs: u64,
        max_bytes: usize,
    ) -> Result<bool> {
        let mut n = 0;
        let start = w.len();
        while n < max_docs {
            if !self.next(ctx)? {
                return Ok(true);
            }
            let doc = self.doc()?;
            if n > 0 && w.len() - start + doc.len() + 16 > max_bytes {
                self.pending = true;
                return Ok(false);
            }
            w.push(doc.as_val());
            n += 1;
            self.returned += 1;
        }
        // Only a limit tells that nothing is left without looking.
        Ok(self.left == Some(0) && !self.pending)
    }

    /// Between batches: keeps the snapshot and the place, lets go of all else. The next batch reads from the disk if need be
    /// (a batch cannot be started over, so it must not be handed to a worker half-way).
    pub fn release(&mut self) {
        if self.pending {
            // The pending document may lie in a scan: keep a copy by standing on it as a built one.
            self.rows.keep_current();
        }
        self.rows.read_all(true);
    }
}
