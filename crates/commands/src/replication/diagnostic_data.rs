//! `getDiagnosticData`: what a sample of MongoDB's full-time diagnostics holds, taken when it is
//! asked for. Exporters of metrics read it in place of `serverStatus`.

use crate::clock::now_millis;
use crate::diagnostic::server_status;
use crate::process;
use crate::replication::repl_set_get_status;
use crate::request::{CommandContext, Done};
use bson::Writer;
use errors::Result;
use std::fs;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let collector = |cx: &mut CommandContext<'_, '_>, name: &str| {
        cx.w.open_doc(name).date("start", now_millis());
    };
    let ends = |cx: &mut CommandContext<'_, '_>| {
        cx.w.date("end", now_millis()).close();
    };
    collector(cx, "data");
    collector(cx, "serverStatus");
    server_status::run(cx)?;
    cx.w.f64("ok", 1.0);
    ends(cx);
    if cx.app.config.topology.set_name().is_some() {
        collector(cx, "replSetGetStatus");
        repl_set_get_status::run(cx)?;
        cx.w.f64("ok", 1.0);
        ends(cx);
    }
    collector(cx, "systemMetrics");
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    cpu(&read("/proc/stat"), process::cores(), &mut cx.w);
    sizes("memory", &read("/proc/meminfo"), &mut cx.w);
    counters("vmstat", &read("/proc/vmstat"), &mut cx.w);
    ends(cx);
    ends(cx);
    Ok(Done::Reply)
}

/// `/proc/stat`: times of all cores together, in milliseconds (its unit is a hundredth of a
/// second), and counters.
fn cpu(text: &str, cores: usize, w: &mut Writer) {
    let times = [
        "user_ms",
        "nice_ms",
        "system_ms",
        "idle_ms",
        "iowait_ms",
        "irq_ms",
        "softirq_ms",
        "steal_ms",
        "guest_ms",
        "guest_nice_ms",
    ];
    w.open_doc("cpu").int("num_logical_cores", cores as i64);
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or("");
        let mut numbers = words.map(|n| n.parse::<i64>().unwrap_or(0));
        match first {
            "cpu" => {
                for (name, n) in times.iter().zip(numbers) {
                    w.i64(name, n.saturating_mul(10));
                }
            }
            "ctxt" | "btime" | "processes" | "procs_running" | "procs_blocked" => {
                w.i64(first, numbers.next().unwrap_or(0));
            }
            _ => {}
        }
    }
    w.close();
}

/// Lines as `MemTotal:  16331712 kB`.
fn sizes(name: &str, text: &str, w: &mut Writer) {
    w.open_doc(name);
    for line in text.lines() {
        let Some((field, rest)) = line.split_once(':') else {
            continue;
        };
        let mut words = rest.split_ascii_whitespace();
        let n = words.next().and_then(|n| n.parse::<i64>().ok());
        if let (Some(n), Some("kB")) = (n, words.next()) {
            w.i64(&format!("{field}_kb"), n);
        }
    }
    w.close();
}

/// Of the lines as `pgfault 123` those that tell of paging.
fn counters(name: &str, text: &str, w: &mut Writer) {
    let wanted = [
        "pgpgin",
        "pgpgout",
        "pswpin",
        "pswpout",
        "pgfault",
        "pgmajfault",
    ];
    w.open_doc(name);
    for line in text.lines() {
        if let Some((field, n)) = line.split_once(' ')
            && wanted.contains(&field)
        {
            w.i64(field, n.trim().parse().unwrap_or(0));
        }
    }
    w.close();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells() {
        let mut w = Writer::new();
        cpu(
            "cpu  10 1 5 100 2 0 3 4 0 0\ncpu0 1 1 1\nctxt 77\nintr 1 2 3\n",
            2,
            &mut w,
        );
        sizes(
            "memory",
            "MemTotal:       100 kB\nHugePages_Total:       0\nnonsense\n",
            &mut w,
        );
        counters("vmstat", "nr_free_pages 5\npgfault 9\npgfault\n", &mut w);
        let d = w.finish();
        let at = |path: [&str; 2]| {
            let inner = d.get(path[0]).and_then(|v| v.as_doc())?;
            inner.get(path[1]).and_then(|v| v.to_i64_exact())
        };
        assert_eq!(at(["cpu", "user_ms"]), Some(100));
        assert_eq!(at(["cpu", "steal_ms"]), Some(40));
        assert_eq!(at(["cpu", "ctxt"]), Some(77));
        assert_eq!(at(["memory", "MemTotal_kb"]), Some(100));
        assert_eq!(at(["memory", "HugePages_Total_kb"]), None);
        assert_eq!(at(["vmstat", "pgfault"]), Some(9));
    }
}
