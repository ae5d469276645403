//! `top`: where time went, by collection.

use crate::monitoring::latency::LatencyClass;
use crate::monitoring::metrics::{OperationKind, Usage};
use crate::request::{CommandContext, Done};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let rows = cx.app.counters.top();
    let w = &mut cx.w;
    w.open_doc("totals")
        .str("note", "all times in microseconds");
    for row in &rows {
        let of = |k: OperationKind| row.usage[k as usize];
        let total = row.usage.iter().fold(Usage::default(), |a, u| Usage {
            micros: a.micros + u.micros,
            count: a.count + u.count,
        });
        let writes = &row.latencies[LatencyClass::Writes as usize];
        let writes = Usage {
            micros: writes.micros,
            count: writes.ops,
        };
        let reads = Usage {
            micros: total.micros.saturating_sub(writes.micros),
            count: total.count.saturating_sub(writes.count),
        };
        w.open_doc(&row.ns);
        for (name, v) in [
            ("total", total),
            ("readLock", reads),
            ("writeLock", writes),
            ("queries", of(OperationKind::Query)),
            ("getmore", of(OperationKind::GetMore)),
            ("insert", of(OperationKind::Insert)),
            ("update", of(OperationKind::Update)),
            ("remove", of(OperationKind::Delete)),
            ("commands", of(OperationKind::Command)),
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
