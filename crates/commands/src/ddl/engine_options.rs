//! `storageEngine` of collections and indexes: MongoDB's options for WiredTiger are checked, kept
//! and shown, so that dumps and scripts that name them work. This engine does not heed them.

use bson::{Doc, tag};
use errors::{Result, bail};

/// What WiredTiger knows of when a table is made.
const KEYS: &[&str] = &[
    "access_pattern_hint",
    "allocation_size",
    "app_metadata",
    "assert",
    "block_allocation",
    "block_compressor",
    "cache_resident",
    "checksum",
    "colgroups",
    "collator",
    "columns",
    "dictionary",
    "encryption",
    "exclusive",
    "extractor",
    "format",
    "huffman_key",
    "huffman_value",
    "ignore_in_memory_cache_size",
    "immutable",
    "import",
    "internal_item_max",
    "internal_key_max",
    "internal_key_truncate",
    "internal_page_max",
    "key_format",
    "key_gap",
    "leaf_item_max",
    "leaf_key_max",
    "leaf_page_max",
    "leaf_value_max",
    "log",
    "lsm",
    "memory_page_image_max",
    "memory_page_max",
    "os_cache_dirty_max",
    "os_cache_max",
    "prefix_compression",
    "prefix_compression_min",
    "readonly",
    "source",
    "split_deepen_min_child",
    "split_deepen_per_child",
    "split_pct",
    "tiered_object",
    "tiered_storage",
    "type",
    "value_format",
    "verbose",
    "write_timestamp_usage",
];

pub fn check(options: Doc<'_>) -> Result<()> {
    for engine in options {
        let Some(given) = engine
            .val
            .as_doc()
            .filter(|_| engine.val.tag == tag::DOCUMENT)
        else {
            bail!(
                BadValue,
                "'storageEngine.{}' has to be an embedded document.",
                engine.name
            );
        };
        if engine.name != "wiredTiger" {
            bail!(
                InvalidOptions,
                "{} is not a registered storage engine for this server",
                engine.name
            );
        }
        for e in given {
            if e.name != "configString" {
                bail!(
                    InvalidOptions,
                    "'{}' is not a supported option in storageEngine.wiredTiger",
                    e.name
                );
            }
            let Some(config) = e.val.as_str() else {
                bail!(
                    TypeMismatch,
                    "storageEngine.wiredTiger.configString must be a string"
                );
            };
            check_config(config)?;
        }
    }
    Ok(())
}

/// `key=value,key=(nested=value),key`: only the outermost keys are looked at.
fn check_config(config: &str) -> Result<()> {
    if config.contains('\0') {
        bail!(
            FailedToParse,
            "Illegal embedded NUL in storageEngine.wiredTiger.configString"
        );
    }
    let (mut depth, mut quoted, mut start) = (0usize, false, 0);
    let mut parts = Vec::new();
    for (at, c) in config.char_indices() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                let Some(d) = depth.checked_sub(1) else {
                    bail!(BadValue, "Unbalanced brackets in '{config}'")
                };
                depth = d;
            }
            ',' if depth == 0 => {
                parts.extend(config.get(start..at));
                start = at + 1;
            }
            _ => {}
        }
    }
    if depth > 0 || quoted {
        bail!(BadValue, "Unbalanced brackets in '{config}'");
    }
    parts.extend(config.get(start..));
    for part in parts {
        let key = part.split(['=', ':']).next().unwrap_or("").trim();
        if !key.is_empty() && !KEYS.contains(&key) {
            bail!(BadValue, "unknown configuration key: '{key}'");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::json;

    #[test]
    fn accepted_and_refused() {
        for (text, code) in [
            (r#"{}"#, 0),
            (r#"{"wiredTiger": {}}"#, 0),
            (r#"{"wiredTiger": {"configString": ""}}"#, 0),
            (
                r#"{"wiredTiger": {"configString": "block_compressor=zstd, log=(enabled=true,x=[1,2]),,readonly"}}"#,
                0,
            ),
            (r#"{"wiredTiger": {"configString": "invalid=bad"}}"#, 2),
            (
                r#"{"wiredTiger": {"configString": "log=(enabled=true"}}"#,
                2,
            ),
            (r#"{"wiredTiger": {"configString": "log=true)"}}"#, 2),
            (r#"{"wiredTiger": {"configString": "a\u0000"}}"#, 9),
            (r#"{"wiredTiger": {"configString": 1}}"#, 14),
            (r#"{"wiredTiger": {"other": 1}}"#, 72),
            (r#"{"wiredTiger": []}"#, 2),
            (r#"{"rocks": {}}"#, 72),
        ] {
            let d = json::parse(text).unwrap();
            let got = check(d.as_doc()).map_or_else(|e| e.into_error().code.0, |()| 0);
            assert_eq!(got, code, "{text}");
        }
    }
}
