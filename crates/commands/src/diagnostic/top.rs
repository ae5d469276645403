//! `top`: where time went, by collection.

use crate::cx::{Cx, Done};
use crate::metrics::{Kind, Usage};
use errors::Result;

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    let rows = cx.app.counters.top();
    let w = &mut cx.w;
    w.open_doc("totals")
        .str("note", "all times in microseconds");
    for (ns, u) in &rows {
        let of = |k: Kind| u[k as usize];
        let sum = |kinds: &[Kind]| {
            kinds.iter().fold(Usage::default(), |a, k| Usage {
                micros: a.micros + of(*k).micros,
                count: a.count + of(*k).count,
            })
        };
        let reads = sum(&[Kind::Query, Kind::GetMore, Kind::Command]);
        let writes = sum(&[Kind::Insert, Kind::Update, Kind::Delete]);
        let total = Usage {
            micros: reads.micros + writes.micros,
            count: reads.count + writes.count,
        };
        w.open_doc(ns);
        for (name, v) in [
            ("total", total),
            ("readLock", reads),
            ("writeLock", writes),
            ("queries", of(Kind::Query)),
            ("getmore", of(Kind::GetMore)),
            ("insert", of(Kind::Insert)),
            ("update", of(Kind::Update)),
            ("remove", of(Kind::Delete)),
            ("commands", of(Kind::Command)),
        ] {
            w.open_doc(name)
                .int("time", v.micros as i64)
                .int("count", v.count as i64)
                .close();
        }
        w.close();
    }
    w.close();
    Ok(Done::Reply)
}
