//! A locked collection: found or created for a write, with its write lock held.
//!
//! Invariant: writes to a view, or to the collection that lists the views, are refused. While the
//! lock is held the collection is not dropped, and its indexes keep their positions.

use crate::op::OpCtx;
use crate::records;
use bson::{DocBuf, Val};
use catalog::{Collection, WriteLock};
use errors::{Code, Result, bail};
use std::sync::Arc;

pub(crate) struct LockedCollection {
    pub coll: Arc<Collection>,
    pub lock: WriteLock,
}

impl LockedCollection {
    /// The collection, if there is one.
    pub fn existing(ctx: &mut OpCtx, ns: &str) -> Result<Option<LockedCollection>> {
        let Some((coll, lock)) = ctx.lock(ns)? else {
            return Ok(None);
        };
        check_writable(&coll)?;
        Ok(Some(LockedCollection { coll, lock }))
    }

    /// The collection, created when missing.
    pub fn or_create(ctx: &mut OpCtx, ns: &str) -> Result<LockedCollection> {
        loop {
            if let Some(locked) = LockedCollection::existing(ctx, ns)? {
                return Ok(locked);
            }
            ctx.need_worker()?;
            check_not_list(ns)?;
            catalog::check_system_name(ns)?;
            if let Some(transaction) = &mut ctx.transaction {
                transaction.create(ns, DocBuf::new())?;
                ctx.made.push(ns.into());
                continue;
            }
            match ctx.engine.catalog.create(ns, DocBuf::new()) {
                // A transaction is about to create it: when that ends, the collection exists or the
                // name is free.
                Err(e) if e.is(Code::WriteConflict) => ctx.let_others()?,
                // Another thread may have been faster.
                made => {
                    if made?.is_some() {
                        ctx.made.push(ns.into());
                    }
                }
            }
        }
    }

    /// Decides the layout of an empty collection by the first `_id`: records under their `_id`, or
    /// under sequence numbers (see `catalog::numbers`).
    pub fn lay_out(self, ctx: &mut OpCtx, id: Val<'_>) -> Result<LockedCollection> {
        let coll = &self.coll;
        if ctx.transaction.is_some()
            || !records::comes_in_no_order(id)
            || !coll.may_be_numbered()
            || ctx.engine.store.counts(coll.tablet).0 > 0
        {
            return Ok(self);
        }
        ctx.need_worker()?;
        let LockedCollection { coll, lock } = self;
        drop(lock);
        let store = ctx.engine.store.clone();
        let none = |c: &Collection| records::none(&store.latest(), c);
        match (ctx.engine.catalog).number_records(&coll.ns, &|| ctx.check(), none) {
            // Dropped meanwhile; the next line creates it again, where either layout is right.
            Err(e) if e.is(Code::NamespaceNotFound) => {}
            done => {
                done?;
            }
        }
        LockedCollection::or_create(ctx, &coll.ns)
    }

    /// Marks fields of the index at this position as multikey in the catalog.
    pub fn mark_multikey(&mut self, ctx: &mut OpCtx, at: usize, bits: u64) -> Result<()> {
        let (coll, wait) = (&self.coll, !ctx.may_offload());
        let id = coll.indexes[at].id;
        if let Some(t) = ctx.transaction.as_mut()
            && t.created(&coll.ns).is_some()
        {
            t.mark_multikey(&coll.ns, id, bits)?;
            let marked = t.created(&coll.ns).cloned();
            self.coll = marked.unwrap_or_else(|| coll.clone());
            return Ok(());
        }
        self.coll = (ctx.engine.catalog).set_multikey(&coll.ns, id, bits, wait)?;
        Ok(())
    }
}

/// Refuses writes to views, and to the collection that lists them.
#[inline]
pub(crate) fn check_writable(coll: &Collection) -> Result<()> {
    if coll.is_view() {
        bail!(
            CommandNotSupportedOnView,
            "Namespace {} is a view, not a collection",
            coll.ns
        );
    }
    check_not_list(&coll.ns)
}

#[inline]
fn check_not_list(ns: &str) -> Result<()> {
    if ns.ends_with(".system.views") && catalog::view_definition::is_list(ns) {
        bail!(
            InvalidNamespace,
            "cannot write to {ns}: it tells of the views that there are"
        );
    }
    Ok(())
}
