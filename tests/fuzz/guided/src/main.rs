//! The targets under libFuzzer: `FUZZ_TARGET` says which. Built and run by `scripts/fuzz.sh`.
//!
//! A finding is a panic, a failed assertion, [`CPU_SECONDS`] of processor time over one input (not of the clock: a machine that is
//! busy finds nothing by it) or [`MEMORY_BYTES`] at once.

#![no_main]

mod bounds;
#[path = "../../../../crates/oplog/tests/log/faulty_disk.rs"]
#[allow(dead_code)]
mod faulty_disk;
mod mutator;
#[path = "../../targets/bson.rs"]
mod target_bson;
#[path = "../../targets/certificates.rs"]
mod target_certificates;
#[cfg(feature = "entries")]
#[path = "../../targets/entries.rs"]
mod target_entries;
#[path = "../../targets/log.rs"]
mod target_log;
#[path = "../../targets/query.rs"]
mod target_query;
#[path = "../../targets/sasl.rs"]
mod target_sasl;
#[path = "../../targets/text.rs"]
mod target_text;
#[path = "../../targets/wire.rs"]
mod target_wire;

use libfuzzer_sys::{fuzz_crossover, fuzz_mutator, fuzz_target};
use std::sync::OnceLock;

/// Processor time that one input may take.
const CPU_SECONDS: i64 = 10;
/// Memory that one input may take, beyond the memory in use before.
const MEMORY_BYTES: usize = 512 << 20;

#[global_allocator]
static MEMORY: bounds::Counted = bounds::Counted;

struct Target {
    name: &'static str,
    run: fn(&[u8]),
    /// Its inputs are documents, which are better bent as trees than as bytes.
    documents: bool,
}

const TARGETS: &[Target] = &[
    Target {
        name: "pipelines",
        run: target_query::pipelines,
        documents: true,
    },
    Target {
        name: "shapes",
        run: target_query::shapes,
        documents: true,
    },
    Target {
        name: "expressions",
        run: target_query::expressions,
        documents: true,
    },
    Target {
        name: "updates",
        run: target_query::updates,
        documents: true,
    },
    Target {
        name: "filters",
        run: target_query::filters,
        documents: true,
    },
    Target {
        name: "projections",
        run: target_query::projections_and_index_keys,
        documents: true,
    },
    Target {
        name: "wire",
        run: target_wire::messages,
        documents: false,
    },
    Target {
        name: "sasl",
        run: target_sasl::messages,
        documents: false,
    },
    Target {
        name: "certificates",
        run: target_certificates::read,
        documents: false,
    },
    Target {
        name: "text",
        run: target_text::searches,
        documents: false,
    },
    Target {
        name: "log",
        run: target_log::recovery,
        documents: false,
    },
    Target {
        name: "bson",
        run: target_bson::bytes,
        documents: true,
    },
    Target {
        name: "keys",
        run: target_bson::keys,
        documents: false,
    },
    Target {
        name: "json",
        run: target_bson::json,
        documents: false,
    },
    #[cfg(feature = "entries")]
    Target {
        name: "entries",
        run: target_entries::entries,
        documents: false,
    },
];

fn target() -> &'static Target {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let wanted = std::env::var("FUZZ_TARGET").unwrap_or_default();
        TARGETS
            .iter()
            .find(|t| t.name == wanted)
            .unwrap_or_else(|| {
                let names: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
                eprintln!("FUZZ_TARGET is one of {}", names.join(" "));
                std::process::exit(2)
            })
    })
}

fuzz_target!(init: { target(); }, |input: &[u8]| {
    let target = target();
    bounds::watch(CPU_SECONDS, MEMORY_BYTES, || (target.run)(input));
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    match target().documents {
        true => mutator::bend(data, size, max_size, seed),
        false => libfuzzer_sys::fuzzer_mutate(data, size, max_size),
    }
});

fuzz_crossover!(|one: &[u8], other: &[u8], out: &mut [u8], seed: u32| {
    match target().documents {
        true => mutator::cross(one, other, out, seed),
        false => mutator::splice(one, other, out, seed),
    }
});
