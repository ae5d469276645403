//! What the properties mean, with YCSB's defaults.

use super::properties::Properties;
use crate::distribution::Chooser;
use crate::fault::{Fault, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Uniform,
    Zipfian,
    /// Ours: a zipfian over the true number of records.
    ZipfianExact,
    Latest,
    Hotspot,
    Sequential,
    Exponential,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    Constant,
    Uniform,
    Zipfian,
}

#[derive(Clone, Debug)]
pub struct Spec {
    pub table: String,
    pub records: u64,
    pub operations: u64,
    pub insert_start: u64,
    pub insert_count: u64,
    pub field_count: usize,
    pub field_length: u64,
    pub min_field_length: u64,
    pub field_length_distribution: Length,
    pub field_prefix: String,
    pub read_all_fields: bool,
    pub write_all_fields: bool,
    pub data_integrity: bool,
    pub read: f64,
    pub update: f64,
    pub insert: f64,
    pub scan: f64,
    pub read_modify_write: f64,
    pub delete: f64,
    pub request: Request,
    pub min_scan_length: u64,
    pub max_scan_length: u64,
    pub scan_length_distribution: Length,
    pub ordered_inserts: bool,
    pub zero_padding: usize,
    pub hotspot_data: f64,
    pub hotspot_operations: f64,
    pub exponential_percentile: f64,
    pub exponential_fraction: f64,
    /// Documents of one insert message (`mongodb.batchsize` of the binding, or `batchsize`).
    pub batch: u64,
    pub upsert: bool,
}

/// Properties of YCSB and its MongoDB binding that are accepted and say nothing about the load.
const WITHOUT_EFFECT: &[&str] = &[
    "workload",
    "db",
    "threadcount",
    "status.interval",
    "label",
    "measurementtype",
    "measurement.interval",
    "measurement.histogram.verbose",
    "measurement.raw.output_file",
    "histogram.buckets",
    "timeseries.granularity",
    "hdrhistogram.percentiles",
    "hdrhistogram.fileoutput",
    "hdrhistogram.output.path",
    "reportlatencyforeacherror",
    "latencytrackederrors",
    "exporter",
    "exportfile",
    "maxexecutiontime",
    "core_workload_insertion_retry_limit",
    "core_workload_insertion_retry_interval",
    "mongodb.url",
    "mongodb.database",
    "mongodb.maxconnections",
    "mongodb.threadsAllowedToBlockForConnectionMultiplier",
    "mongodb.writeConcern",
    "mongodb.readPreference",
    "readallfieldsbyname",
    "debug",
    "dotransactions",
];

/// Properties that change the load.
const KNOWN: &[&str] = &[
    "table",
    "recordcount",
    "operationcount",
    "insertstart",
    "insertcount",
    "fieldcount",
    "fieldlength",
    "minfieldlength",
    "fieldlengthdistribution",
    "fieldnameprefix",
    "readallfields",
    "writeallfields",
    "dataintegrity",
    "readproportion",
    "updateproportion",
    "insertproportion",
    "scanproportion",
    "readmodifywriteproportion",
    "deleteproportion",
    "requestdistribution",
    "minscanlength",
    "maxscanlength",
    "scanlengthdistribution",
    "insertorder",
    "zeropadding",
    "hotspotdatafraction",
    "hotspotopnfraction",
    "exponential.percentile",
    "exponential.frac",
    "batchsize",
    "mongodb.batchsize",
    "mongodb.upsert",
];

fn length(p: &Properties, key: &str) -> Result<Length> {
    match p.get(key).unwrap_or("constant") {
        "constant" => Ok(Length::Constant),
        "uniform" => Ok(Length::Uniform),
        "zipfian" => Ok(Length::Zipfian),
        other => Err(Fault::Usage(format!(
            "{key}={other} is not known (constant, uniform, zipfian)"
        ))),
    }
}

impl Spec {
    /// The workload, and a warning for each property that is not known or not heeded.
    pub fn new(p: &Properties) -> Result<(Spec, Vec<String>)> {
        match p.get("workload") {
            None
            | Some("site.ycsb.workloads.CoreWorkload" | "com.yahoo.ycsb.workloads.CoreWorkload") => {
            }
            Some(other) => {
                return Err(Fault::Usage(format!(
                    "workload={other}: only the core workload is known"
                )));
            }
        }
        let mut warnings = Vec::new();
        for (key, _) in p.iter() {
            if key == "target" {
                warnings.push("property target is not heeded: the loop is closed".into());
            } else if !KNOWN.contains(&key) && !WITHOUT_EFFECT.contains(&key) {
                warnings.push(format!("property {key} is not known"));
            }
        }
        let request = match p.get("requestdistribution").unwrap_or("uniform") {
            "uniform" => Request::Uniform,
            "zipfian" => Request::Zipfian,
            "zipfian_exact" => Request::ZipfianExact,
            "latest" => Request::Latest,
            "hotspot" => Request::Hotspot,
            "sequential" => Request::Sequential,
            "exponential" => Request::Exponential,
            other => {
                return Err(Fault::Usage(format!(
                    "requestdistribution={other} is not known (uniform, zipfian, latest, hotspot, sequential, exponential, zipfian_exact)"
                )));
            }
        };
        let records: u64 = p.parse("recordcount", 0)?;
        let insert_start: u64 = p.parse("insertstart", 0)?;
        let insert_count = p.parse("insertcount", records.saturating_sub(insert_start))?;
        let spec = Spec {
            table: p.get("table").unwrap_or("usertable").to_string(),
            records,
            operations: p.parse("operationcount", 0)?,
            insert_start,
            insert_count,
            field_count: p.parse("fieldcount", 10)?,
            field_length: p.parse("fieldlength", 100)?,
            min_field_length: p.parse("minfieldlength", 1)?,
            field_length_distribution: length(p, "fieldlengthdistribution")?,
            field_prefix: p.get("fieldnameprefix").unwrap_or("field").to_string(),
            read_all_fields: p.flag("readallfields", true),
            write_all_fields: p.flag("writeallfields", false),
            data_integrity: p.flag("dataintegrity", false),
            read: p.parse("readproportion", 0.95)?,
            update: p.parse("updateproportion", 0.05)?,
            insert: p.parse("insertproportion", 0.0)?,
            scan: p.parse("scanproportion", 0.0)?,
            read_modify_write: p.parse("readmodifywriteproportion", 0.0)?,
            delete: p.parse("deleteproportion", 0.0)?,
            request,
            min_scan_length: p.parse("minscanlength", 1)?,
            max_scan_length: p.parse("maxscanlength", 1000)?,
            scan_length_distribution: match p.get("scanlengthdistribution") {
                None => Length::Uniform,
                Some(_) => length(p, "scanlengthdistribution")?,
            },
            ordered_inserts: p.get("insertorder").unwrap_or("hashed") == "ordered",
            zero_padding: p.parse("zeropadding", 1)?,
            hotspot_data: p.parse("hotspotdatafraction", 0.2)?,
            hotspot_operations: p.parse("hotspotopnfraction", 0.8)?,
            exponential_percentile: p.parse("exponential.percentile", 95.0)?,
            exponential_fraction: p.parse("exponential.frac", 0.857_142_857_1)?,
            batch: p.parse("mongodb.batchsize", p.parse("batchsize", 1)?)?,
            upsert: p.flag("mongodb.upsert", false),
        };
        spec.check()?;
        Ok((spec, warnings))
    }

    fn check(&self) -> Result<()> {
        let wrong = |why: &str| Err(Fault::Usage(why.into()));
        let parts = self.proportions();
        if parts.iter().any(|p| !p.is_finite() || *p < 0.0) || parts.iter().sum::<f64>() <= 0.0 {
            return wrong("the proportions of operations must be positive in sum, none negative");
        }
        if self.records == 0 {
            return wrong("recordcount must be set (or --records given)");
        }
        if self.insert_start.saturating_add(self.insert_count) > self.records {
            return wrong("insertstart + insertcount is more than recordcount");
        }
        if self.field_count == 0 || self.field_length == 0 || self.batch == 0 {
            return wrong("fieldcount, fieldlength and batchsize must be at least 1");
        }
        if self.field_count as u64 * (self.field_length + 32) > 16_000_000 {
            return wrong("a record would exceed 16 MB");
        }
        if self.min_field_length > self.field_length || self.min_scan_length > self.max_scan_length
        {
            return wrong("a minimum length is above its maximum");
        }
        if self.data_integrity && self.field_length_distribution != Length::Constant {
            return wrong("dataintegrity needs fieldlengthdistribution=constant");
        }
        if self.zero_padding > 100 {
            return wrong("zeropadding is at most 100");
        }
        if self.upsert {
            return wrong("mongodb.upsert=true is not supported");
        }
        Ok(())
    }

    /// In the order of [`super::client::OPERATIONS`].
    pub fn proportions(&self) -> [f64; 6] {
        [
            self.read,
            self.update,
            self.insert,
            self.scan,
            self.read_modify_write,
            self.delete,
        ]
    }

    /// Whether the run phase only inserts: then it starts with an empty collection.
    pub fn only_inserts(&self) -> bool {
        let [read, update, insert, scan, rmw, delete] = self.proportions();
        insert > 0.0 && read + update + scan + rmw + delete == 0.0
    }

    /// The chooser of lane `lane` of `lanes`, over the records counted from `insert_start`.
    pub fn chooser(&self, lane: u64, lanes: u64) -> Chooser {
        let n = self.insert_count;
        match self.request {
            Request::Uniform => Chooser::uniform(n),
            Request::Zipfian => {
                // YCSB makes room for twice the inserts that it expects, and one more.
                let fresh = (self.operations as f64 * self.insert * 2.0) as u64;
                Chooser::scrambled(n + fresh + 1)
            }
            Request::ZipfianExact => Chooser::exact(n),
            Request::Latest => Chooser::latest(n),
            Request::Hotspot => Chooser::hotspot(n, self.hotspot_data, self.hotspot_operations),
            Request::Sequential => Chooser::sequential(n, lane, lanes),
            Request::Exponential => Chooser::exponential(
                self.exponential_percentile,
                self.records as f64 * self.exponential_fraction,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ycsb::scenario;

    fn spec(text: &str) -> Result<(Spec, Vec<String>)> {
        let mut p = Properties::default();
        p.add_text(text)?;
        Spec::new(&p)
    }

    #[test]
    fn every_scenario_is_sound_and_without_warnings() {
        for (name, _, text) in scenario::ALL {
            let (s, warnings) = spec(text).unwrap();
            assert!(warnings.is_empty(), "{name}: {warnings:?}");
            assert!((s.proportions().iter().sum::<f64>() - 1.0).abs() < 1e-9);
            assert_eq!(s.only_inserts(), *name == "C.S1");
            assert_eq!((s.field_count, s.field_length), (10, 100));
        }
        assert!(scenario::find("c.s3").is_some() && scenario::find("C.S9").is_none());
    }

    #[test]
    fn defaults_warnings_and_refusals() {
        let (s, warnings) = spec("recordcount=10\nnonsense=1\ntarget=5\nthreadcount=3").unwrap();
        assert_eq!((s.read, s.update), (0.95, 0.05));
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        for bad in [
            "",
            "recordcount=x",
            "recordcount=10\nworkload=my.Own",
            "recordcount=10\nrequestdistribution=pareto",
            "recordcount=10\nreadproportion=0\nupdateproportion=0",
            "recordcount=10\nreadproportion=-1",
            "recordcount=10\ninsertstart=5\ninsertcount=6",
            "recordcount=10\nfieldlengthdistribution=histogram",
            "recordcount=10\nfieldlength=20000000",
        ] {
            assert!(matches!(spec(bad), Err(Fault::Usage(_))), "{bad}");
        }
    }
}
