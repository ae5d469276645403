//! Sources: the accesses of a plan as scans, one step at a time.
//!
//! A union's branches are sources themselves, so `source` and `union` use each other; no other two
//! files here do.

use crate::op::OpCtx;
use crate::read::index_scan::{IndexScan, RecordScan};
use crate::read::merge::Merge;
use crate::read::near_scan::NearScan;
use crate::read::sorter::Sorted;
use crate::read::step::{Current, Step, checked};
use crate::read::union::Union;
use crate::records;
use bson::{Doc, Value};
use catalog::{Collection, Index};
use errors::{Error, Result};
use planner::Access;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub(crate) enum Source {
    Eof,
    Ids { ids: Vec<Value>, at: usize },
    Records(RecordScan),
    Index(Box<IndexScan>),
    Or(Box<Union>),
    Merge(Box<Merge>),
    Near(Box<NearScan>),
    Sorted(Sorted),
}

pub(crate) fn open_source(
    coll: &Arc<Collection>,
    access: &Access,
    covered: bool,
    limit: Option<u64>,
) -> Result<Source> {
    Ok(match access {
        Access::Eof => Source::Eof,
        Access::Ids(ids) => Source::Ids {
            ids: ids.clone(),
            at: 0,
        },
        Access::Records { low, high, reverse } => {
            Source::Records(RecordScan::new(coll, low, high, *reverse))
        }
        Access::Index(a) => Source::Index(Box::new(IndexScan::new(
            index(coll, a.index)?,
            a,
            covered,
            limit,
        )?)),
        Access::Or(branches) => {
            let mut open = Vec::with_capacity(branches.len());
            for b in branches.iter() {
                open.push(open_source(coll, &b.access, false, None)?);
            }
            Source::Or(Box::new(Union::new(branches.clone(), open)))
        }
        Access::Near(a) => Source::Near(Box::new(NearScan::new(index(coll, a.index)?, a))),
        Access::Merge(branches, pattern) => {
            let mut scans = Vec::with_capacity(branches.len());
            for b in branches.iter() {
                let index = index(coll, b.access.index)?;
                scans.push(IndexScan::new(index, &b.access, false, limit)?);
            }
            let merge = Merge::new(branches.clone(), scans, pattern.clone());
            Source::Merge(Box::new(merge))
        }
    })
}

pub(crate) fn index(coll: &Collection, id: u32) -> Result<Arc<Index>> {
    let i = coll
        .index(id)
        .ok_or_else(|| Error::internal("the plan names an index that is not there"))?;
    Ok(i.clone())
}

/// Counts each index once for a plan, however often the plan reads it.
pub(crate) fn count_uses(ctx: &mut OpCtx, coll: &Collection, access: &Access) {
    match access {
        Access::Eof => {}
        Access::Records { .. } if access.is_scan() => {}
        Access::Ids(_) | Access::Records { .. } => ctx.uses(&coll.id_index_accesses),
        Access::Index(a) => {
            if let Some(i) = coll.index(a.index) {
                ctx.uses(&i.accesses);
            }
        }
        Access::Near(a) => {
            if let Some(i) = coll.index(a.index) {
                ctx.uses(&i.accesses);
            }
        }
        Access::Or(_) | Access::Merge(..) => {
            let mut seen: Vec<&Arc<AtomicU64>> = Vec::new();
            gather_uses(coll, access, &mut seen);
            seen.into_iter().for_each(|accesses| ctx.uses(accesses));
        }
    }
}

fn gather_uses<'c>(coll: &'c Collection, access: &Access, out: &mut Vec<&'c Arc<AtomicU64>>) {
    let mut add = |accesses: &'c Arc<AtomicU64>| {
        if !out.iter().any(|a| Arc::ptr_eq(a, accesses)) {
            out.push(accesses);
        }
    };
    match access {
        Access::Eof => {}
        Access::Records { .. } if access.is_scan() => {}
        Access::Ids(_) | Access::Records { .. } => add(&coll.id_index_accesses),
        Access::Index(a) => coll
            .index(a.index)
            .into_iter()
            .for_each(|i| add(&i.accesses)),
        Access::Near(a) => coll
            .index(a.index)
            .into_iter()
            .for_each(|i| add(&i.accesses)),
        Access::Merge(scans, _) => scans
            .iter()
            .filter_map(|b| coll.index(b.access.index))
            .for_each(|i| add(&i.accesses)),
        Access::Or(branches) => branches
            .iter()
            .for_each(|b| gather_uses(coll, &b.access, out)),
    }
}

/// The document of [`Current::Scanned`].
pub(crate) fn doc_of_scan(source: &Source) -> Doc<'_> {
    match source {
        Source::Records(s) => checked(s.value()),
        Source::Or(u) => u.scanned(),
        _ => unreachable!("only a scan of records holds its document itself"),
    }
}

pub(crate) fn step_source(
    source: &mut Source,
    ctx: &mut OpCtx,
    step: &mut Step,
) -> Result<Option<Current>> {
    match source {
        Source::Eof => Ok(None),
        Source::Ids { ids, at } => {
            while let Some(id) = ids.get(*at) {
                ctx.tick(1)?;
                let key = records::locate(step.view, step.coll, id.as_val())?;
                let found = match &key {
                    Some(key) => step.view.get(key)?,
                    None => None,
                };
                *at += 1;
                step.examined.keys += 1;
                if let (Some(slice), Some(key)) = (found, key) {
                    step.examined.docs += 1;
                    records::stored(step.coll, &key, &slice)?;
                    step.record_key.clear();
                    step.record_key.extend_from_slice(records::own_part(&key));
                    return Ok(Some(Current::Fetched(slice)));
                }
            }
            Ok(None)
        }
        Source::Records(scan) => {
            ctx.tick(1)?;
            let more = scan.next(step.view)?;
            step.examined.docs += scan.take_passed();
            if more {
                step.examined.docs += 1;
                records::stored(step.coll, scan.key(), scan.value())?;
                Ok(Some(Current::Scanned))
            } else {
                Ok(None)
            }
        }
        Source::Index(scan) => scan.next(ctx, step),
        Source::Or(u) => u.next(ctx, step),
        Source::Merge(m) => m.next(ctx, step),
        Source::Near(n) => n.next(ctx, step),
        Source::Sorted(s) => s.next(ctx, step),
    }
}

pub(crate) fn release_source(source: &mut Source) {
    match source {
        Source::Records(s) => s.release(),
        Source::Index(s) => s.release(),
        Source::Or(u) => u.release(),
        Source::Merge(m) => m.release(),
        Source::Sorted(s) => s.release(),
        Source::Near(n) => n.release(),
        Source::Eof | Source::Ids { .. } => {}
    }
}
