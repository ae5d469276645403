//! What a backup says of itself: of when it is, and which files each set has.

use crate::ArchiveResult;
use serde_json::{Value, json};

const FORMAT: u64 = 1;

/// A place in a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    pub index: u64,
    /// BSON Timestamp: seconds << 32 | increment.
    pub ts: u64,
}

/// A file of a set: its name in the set's directory, and its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptFile {
    pub name: String,
    pub bytes: u64,
    pub sha256: [u8; 32],
}

/// A set's part of a backup; a server alone is a set without a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetBackup {
    pub name: String,
    /// `SET/host:port,…` as the cluster knows its members; empty for a server alone.
    pub members: String,
    pub line: String,
    /// All entries up to here are in the files.
    pub from: At,
    /// None behind this one is.
    pub complete: At,
    pub collections: u64,
    pub files: Vec<KeptFile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Grows with time: ids sort as the backups were made.
    pub id: String,
    /// Whether it is of a sharded cluster.
    pub cluster: bool,
    pub sets: Vec<SetBackup>,
}

impl Backup {
    /// The time of a backup: later writes are not in it.
    pub fn complete_ts(&self) -> u64 {
        self.sets.iter().map(|s| s.complete.ts).max().unwrap_or(0)
    }

    pub fn bytes(&self) -> u64 {
        let files = self.sets.iter().flat_map(|s| &s.files);
        files.map(|f| f.bytes).sum()
    }

    pub(crate) fn to_json(&self) -> Value {
        let sets = self.sets.iter().map(|s| {
            let files = s
                .files
                .iter()
                .map(|f| json!({"name": f.name, "bytes": f.bytes, "sha256": hex(&f.sha256)}));
            json!({
                "name": s.name, "members": s.members, "line": s.line,
                "from": at_json(s.from), "complete": at_json(s.complete),
                "collections": s.collections, "files": files.collect::<Vec<_>>(),
            })
        });
        json!({
            "format": FORMAT, "id": self.id, "cluster": self.cluster, "sets": sets.collect::<Vec<_>>()
        })
    }

    pub(crate) fn from_json(text: &str) -> ArchiveResult<Backup> {
        let v: Value = serde_json::from_str(text).map_err(|_| "it is no JSON".to_string())?;
        match v.get("format").and_then(Value::as_u64) {
            Some(FORMAT) => {}
            Some(other) => {
                return Err(format!(
                    "it has format {other}, which this release does not know"
                ));
            }
            None => return Err("it does not say its format".into()),
        }
        let read = || -> Option<Backup> {
            let sets = v.get("sets")?.as_array()?;
            Some(Backup {
                id: text_of(&v, "id")?,
                cluster: v.get("cluster")?.as_bool()?,
                sets: sets.iter().map(set_of).collect::<Option<_>>()?,
            })
        };
        read().ok_or_else(|| "it lacks fields".into())
    }
}

fn set_of(v: &Value) -> Option<SetBackup> {
    let files = v.get("files")?.as_array()?.iter().map(|f| {
        Some(KeptFile {
            name: text_of(f, "name").filter(|n| is_inside(n))?,
            bytes: f.get("bytes")?.as_u64()?,
            sha256: unhex(f.get("sha256")?.as_str()?)?,
        })
    });
    Some(SetBackup {
        name: text_of(v, "name").filter(|n| !n.contains(['/', '\\']) && n != ".." && n != ".")?,
        members: text_of(v, "members")?,
        line: text_of(v, "line")?,
        from: at_of(v.get("from")?)?,
        complete: at_of(v.get("complete")?)?,
        collections: v.get("collections")?.as_u64()?,
        files: files.collect::<Option<_>>()?,
    })
}

/// Whether a name leads to no other place than the directory that it is put under.
fn is_inside(name: &str) -> bool {
    !name.is_empty() && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

fn text_of(v: &Value, field: &str) -> Option<String> {
    v.get(field)?.as_str().map(String::from)
}

fn at_json(at: At) -> Value {
    json!({"index": at.index, "timestamp": [at.ts >> 32, at.ts & 0xffff_ffff]})
}

fn at_of(v: &Value) -> Option<At> {
    let ts = v.get("timestamp")?.as_array()?;
    let word = |n: usize| ts.get(n).and_then(Value::as_u64);
    Some(At {
        index: v.get("index")?.as_u64()?,
        ts: word(0)? << 32 | word(1)?,
    })
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    });
    let bytes: Vec<u8> = digits.collect::<Option<_>>()?;
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup(file: &str) -> Backup {
        Backup {
            id: "20261128T000000Z-1".into(),
            cluster: true,
            sets: vec![SetBackup {
                name: "s0".into(),
                members: "s0/a:1".into(),
                line: "l".into(),
                from: At {
                    index: 3,
                    ts: 5 << 32 | 9,
                },
                complete: At {
                    index: 4,
                    ts: 6 << 32 | 1,
                },
                collections: 2,
                files: vec![KeptFile {
                    name: file.into(),
                    bytes: 10,
                    sha256: [171; 32],
                }],
            }],
        }
    }

    #[test]
    fn a_backup_comes_back_from_its_text() {
        let one = backup("engine/1.sst");
        assert_eq!(Backup::from_json(&one.to_json().to_string()), Ok(one));
    }

    #[test]
    fn what_was_tampered_with_leads_nowhere() {
        for name in ["../x", "/etc/passwd", "engine/../../x", "", "a//b"] {
            let text = backup(name).to_json().to_string();
            assert!(Backup::from_json(&text).is_err(), "{name}");
        }
        let later = backup("x")
            .to_json()
            .to_string()
            .replace("\"format\":1", "\"format\":2");
        assert!(Backup::from_json(&later).unwrap_err().contains("format 2"));
        assert!(Backup::from_json("{}").is_err() && Backup::from_json("x").is_err());
    }
}
