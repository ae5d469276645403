//! The event loops with the null service: `null PORT [REPLY_BYTES] [LOOPS]`. What a request costs
//! here beyond what it costs the laboratory's null server is the loops' own work.

use std::sync::Arc;

use bson::doc;
use server::{Limits, listen, null::Null, serve};
use service::Control;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |a| a.parse());
    let (port, bytes, loops) = (number(0, 27017)?, number(1, 1000)?, number(2, 0)?);
    let batch = doc! { "firstBatch": bson::array![doc! { "_id": 1, "field0": "x".repeat(bytes).as_str() }], "id": 0i64, "ns": "a.b" };
    let reply = doc! { "cursor": batch, "ok": 1.0 };
    let listeners = listen(&["127.0.0.1".into()], u16::try_from(port)?, None)?;
    println!("listening on {:?}", listeners.addresses());
    let limits = Limits {
        loops,
        quiet: true,
        ..Limits::default()
    };
    serve(
        listeners,
        Arc::new(Null::new(reply.into_vec())),
        Arc::new(Control::default()),
        limits,
    )?;
    Ok(())
}
