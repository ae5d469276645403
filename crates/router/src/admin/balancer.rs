//! Commands on the balancer, which runs where the configuration set is led.

use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use bson::{Doc, DocBuf, Writer, doc};
use cluster_view::Outcome;
use cluster_view::write_concern::majority;
use mover::balancer::{has_work, range_bytes, rounds, settings, wake};
use mover::transfer::RANGE;

fn switch(router: &Router, on: bool) -> Outcome<DocBuf> {
    let mode = if on { "full" } else { "off" };
    let fields = doc! {"$set": doc! {"stopped": !on, "mode": mode}};
    let update = doc! {
        "update": "settings",
        "updates": bson::array![doc! {"q": doc! {"_id": "balancer"}, "u": fields, "upsert": true}],
        "writeConcern": majority(),
    };
    router.cluster.on_config("config", update.as_doc())?;
    wake();
    Ok(finish(Writer::new(), &[]))
}

pub(super) fn start(router: &Router, _: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    switch(router, true)
}

pub(super) fn stop(router: &Router, _: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    switch(router, false)
}

pub(super) fn status(router: &Router, _: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let mut w = Writer::new();
    w.str(
        "mode",
        match settings(&router.cluster)?.is_off {
            true => "off",
            false => "full",
        },
    );
    let moving = doc! {"kind": RANGE};
    let moving = router
        .cluster
        .read_config("migrations", moving.as_doc(), Doc::EMPTY)?;
    w.bool("inBalancerRound", !moving.is_empty());
    w.i64("numBalancerRounds", rounds());
    Ok(finish(w, &[]))
}

pub(super) fn collection_status(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.collection();
    let table = crate::admin::table_of(router, ns)?;
    let bytes = range_bytes(&router.cluster)?;
    let due = has_work(&router.cluster, &table)?;
    let mut w = Writer::new();
    w.i64("chunkSize", (bytes >> 20) as i64)
        .bool("balancerCompliant", !due);
    if due {
        w.str("firstComplianceViolation", "chunksImbalance");
    }
    Ok(finish(w, &[]))
}
