//! Workloads: scenarios, property files, YCSB's own command line, sweeps, comparisons, data that is there.

use super::{Lab, run};
use crate::fake::Honesty;
use lab::request::InsertHead;
use lab::terms::WriteDurability;

#[test]
fn every_scenario_runs_and_counts() {
    let lab = Lab::new(Honesty::Honest);
    for name in ["C.S1", "C.S2", "C.S3", "C.S4", "C.S5", "A", "D", "E", "F"] {
        let ok = lab.run(&[
            "run",
            name,
            "--records",
            "500",
            "--operations",
            "400",
            "--connections",
            "1,7",
            "--client-threads",
            "2",
            "--reload",
            "--load-batch",
            "64",
        ]);
        assert!(ok, "{name}");
        let report = lab.report();
        assert_eq!(report.steps.len(), 2, "{name}");
        for s in &report.steps {
            assert_eq!(s.operations, 400, "{name}");
            assert!(s.per_second > 0.0 && s.server_cpu_us.is_some());
            let counted: u64 = s.latency.values().map(|l| l.count).sum();
            assert!(counted >= 400);
        }
    }
    let report = lab.report();
    let kinds: Vec<&str> = report.steps[0].latency.keys().map(String::as_str).collect();
    assert_eq!(kinds, ["READ", "READ-MODIFY-WRITE", "UPDATE"]);
    let l = &report.steps[0].latency;
    assert_eq!(l["READ"].count, 400);
    assert_eq!(l["UPDATE"].count, l["READ-MODIFY-WRITE"].count);
}

#[test]
fn durabilities_distributions_and_property_files() {
    let lab = Lab::new(Honesty::Honest);
    for durability in ["unack", "w1", "majority", "journaled"] {
        for workload in ["C.S1", "C.S3", "F"] {
            let records = ["--records", "300", "--operations", "300"];
            let mut args = vec!["run", workload, "--durability", durability];
            args.extend(records);
            args.extend(["--connections", "3"]);
            assert!(lab.run(&args), "{workload} {durability}");
            assert_eq!(
                lab.report().steps[0].durability.as_deref(),
                Some(durability)
            );
        }
    }
    let file = lab.dir.path().join("mine");
    std::fs::write(
        &file,
        "recordcount=200\noperationcount=300\nworkload=com.yahoo.ycsb.workloads.CoreWorkload\n\
         readproportion=0.4\nupdateproportion=0.3\ninsertproportion=0.1\n\
         readmodifywriteproportion=0.1\nscanproportion=0.1\nmaxscanlength=10\n\
         readallfields=false\nfieldcount=3\nthreadcount=2\n",
    )
    .unwrap();
    for distribution in [
        "uniform",
        "zipfian",
        "zipfian_exact",
        "latest",
        "hotspot",
        "sequential",
        "exponential",
    ] {
        for more in ["dataintegrity=true", "fieldlengthdistribution=uniform"] {
            let distribution = format!("requestdistribution={distribution}");
            let ok = lab.run(&[
                "run",
                "-P",
                file.to_str().unwrap(),
                "-p",
                &distribution,
                "-p",
                more,
            ]);
            assert!(ok, "{distribution} {more}");
            assert_eq!(lab.report().steps[0].connections, 2);
        }
    }
    let lengths = lab.dir.path().join("hist.txt");
    std::fs::write(&lengths, "BlockSize\t20\n0\t5\n1\t3\n2\t2\n").unwrap();
    let histogram = format!("fieldlengthhistogram={}", lengths.display());
    let by_histogram = [
        &["run", "-P", file.to_str().unwrap(), "-p", &histogram][..],
        &["-p", "fieldlengthdistribution=histogram", "--reload"],
    ];
    assert!(lab.run(&by_histogram.concat()));
    // A rate and a longest time, as property files have them.
    let paced = [
        "-p",
        "target=200",
        "-p",
        "maxexecutiontime=1",
        "-p",
        "operationcount=0",
    ];
    assert!(lab.run(&[&["run", "-P", file.to_str().unwrap()][..], &paced].concat()));
    let step = &lab.report().steps[0];
    assert_eq!(step.offered, Some(200.0));
    // Ended by its time, and never ahead of its rate; how far behind is the machine's affair.
    let due = 200.0 * step.seconds + 2.0;
    assert!(
        (1.0..=due).contains(&(step.operations as f64)),
        "{} of {due}",
        step.operations
    );
    let load = ["run", "-P", file.to_str().unwrap(), "--phase", "load"];
    assert!(lab.run(&load));
    assert_eq!(lab.report().steps[0].operations, 200);
}

#[test]
fn reads_of_data_that_is_there() {
    let documents = 400u64;
    for (honesty, right) in [(Honesty::Honest, true), (Honesty::MixesUp, false)] {
        let lab = Lab::new(honesty);
        let mut control = lab::connection::MongoAddress::parse(&lab.url)
            .unwrap()
            .connect()
            .unwrap();
        let (mut ids, mut message) = (String::new(), Vec::new());
        InsertHead::new("load", "things", WriteDurability::W1).write(&mut message, |out| {
            for n in 0..documents {
                let id = bson::ObjectId::generate();
                ids.push_str(&format!("{id}\n"));
                let a = (u64::MAX / documents * n) as i64;
                out.extend_from_slice(bson::doc! {"_id": id, "a": a}.as_bytes());
            }
        });
        control.exchange_bytes(message).unwrap();
        let file = lab.dir.path().join("ids");
        let args = ["reads", "--ids", file.to_str().unwrap(), "--hot", "7"];
        let times = [
            "--duration",
            "200ms",
            "--warmup",
            "10ms",
            "--connections",
            "3",
        ];
        let args = [&args[..], &times].concat();
        std::fs::write(&file, format!("{ids}{}\n", bson::ObjectId::generate())).unwrap();
        assert!(!lab.run(&args), "an id too many");
        std::fs::write(&file, &ids).unwrap();
        assert_eq!(lab.run(&args), right);
        if right {
            let steps = lab.report().steps;
            let kinds = |i: usize| steps[i].latency.keys().cloned().collect::<Vec<_>>();
            assert_eq!(kinds(0), ["read"]);
            assert_eq!(kinds(1), ["range"]);
            assert_eq!(kinds(2), ["read in memory"]);
            assert_eq!(kinds(3), ["read", "read in memory"]);
        }
    }
}

#[test]
fn ycsb_as_its_users_call_it() {
    let lab = Lab::new(Honesty::Honest);
    let file = lab.dir.path().join("workloada");
    std::fs::write(
        &file,
        "recordcount=200\noperationcount=300\nworkload=site.ycsb.workloads.CoreWorkload\nreadallfields=true\n\
         readproportion=0.5\nupdateproportion=0.5\nscanproportion=0\ninsertproportion=0\nrequestdistribution=zipfian\n",
    )
    .unwrap();
    let url = format!("mongodb.url={}/ycsb?w=1", lab.url);
    let text = lab.dir.path().join("text");
    let export = format!("exportfile={}", text.display());
    let options = [
        "mongodb",
        "-P",
        file.to_str().unwrap(),
        "-p",
        &url,
        "-s",
        "-threads",
        "3",
        "-p",
        &export,
    ];
    assert!(run(&[&["ycsb", "load"], &options[..]].concat()));
    let load = std::fs::read_to_string(&text).unwrap();
    assert!(
        load.contains("[INSERT], Operations, 200\n") && load.contains("[INSERT], Return=OK, 200\n"),
        "{load}"
    );
    // The same keys again are refused, as the original is.
    assert!(!run(&[&["ycsb", "load"], &options[..]].concat()));
    assert!(run(
        &[&["ycsb", "run"], &options[..], &["-target", "3000"]].concat()
    ));
    let ran = std::fs::read_to_string(&text).unwrap();
    assert!(ran.starts_with("[OVERALL], RunTime(ms), "), "{ran}");
    let count = |kind: &str| -> u64 {
        let line = ran
            .lines()
            .find(|l| l.starts_with(&format!("[{kind}], Operations, ")))
            .unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(count("READ") + count("UPDATE"), 300);
    let series = [
        "-p",
        "measurementtype=timeseries",
        "-p",
        "timeseries.granularity=2000",
    ];
    assert!(run(&[&["ycsb", "run"], &options[..], &series].concat()));
    let ran = std::fs::read_to_string(&text).unwrap();
    assert!(ran.contains("\n[READ], 0, "), "{ran}");
    assert!(!run(&["ycsb", "run", "mongodb", "-P", "/nowhere"]));
    assert!(!run(&[
        "ycsb",
        "run",
        "cassandra-cql",
        "-p",
        "recordcount=1"
    ]));
}

#[test]
fn a_sweep_is_resumed_and_a_comparison_decides() {
    let lab = Lab::new(Honesty::Honest);
    let sweep = [
        "sweep",
        "C.S3",
        "--records",
        "200",
        "--connections",
        "1,2,4",
        "--duration",
        "40ms",
        "--rounds",
        "2",
        "--latency",
        "50",
        "--poisson",
    ];
    assert!(lab.run(&sweep));
    let first = lab.report();
    assert_eq!(first.steps.len(), 4);
    assert!(first.checks.iter().any(|c| c.name.ends_with("peak")));
    assert!(lab.run(&[&sweep[..], &["--resume"]].concat()));
    assert_eq!(lab.report().steps[0].operations, first.steps[0].operations);

    let out = lab.out();
    let out = out.to_str().unwrap();
    let compare = [
        "compare",
        &lab.url,
        &lab.url,
        "--records",
        "200",
        "--connections",
        "2",
        "--pairs",
        "8",
        "--slice",
        "20ms",
        "--quiet",
        "--force",
        "--out",
        out,
    ];
    assert!(run(&compare));
    let report = lab.report();
    assert_eq!(report.comparisons.len(), 2);
    assert!(report.comparisons.iter().all(|c| !c.verdict.is_empty()));
    assert!(!run(&[&compare[..], &["--workload", "C.S1"]].concat()));
    assert!(!run(&["compare", "/nowhere/pando", &lab.url]));
}

/// Two servers of one product and version are two targets, each with steps of its own.
#[test]
fn targets_of_one_name_are_told_apart() {
    let (lab, other) = (Lab::new(Honesty::Honest), Lab::new(Honesty::Honest));
    for words in [
        &["run", "C.S5", "--operations", "100"][..],
        &["sweep", "C.S5", "--duration", "30ms", "--latency", "0"],
        &["study", "keys", "--modes", "none"],
        &[
            "study",
            "sizes",
            "--scenarios",
            "C.S5",
            "--duration",
            "30ms",
        ],
        &["short", "--duration", "30ms"],
    ] {
        let mut all = [words, &["--records", "200", "--url", &other.url]].concat();
        if words[1] != "keys" {
            all.extend(["--connections", "2"]);
        }
        assert!(lab.run(&all), "{words:?}");
        let report = lab.report();
        let of = |i: usize| {
            let label = report.targets[i].label();
            let own = report
                .steps
                .iter()
                .filter(move |s| s.target.as_ref() == Some(&label));
            own.count()
        };
        assert!(of(0) > 0 && of(0) == of(1), "{words:?}");
        assert_eq!(of(0) + of(1), report.steps.len());
        assert!(report.targets[1].label().contains(" at 127.0.0.1:"));
    }
}
