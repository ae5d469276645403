//! Compaction ranges: splits a range for a requested compaction, because the engine can be stopped
//! only between two ranges.

use rocksdb::LiveFile;

/// The approximate bytes that one part rewrites.
const PIECE_BYTES: usize = 256 << 20;

/// The split keys of `[low, high)`, in order. They are the first keys of files, so that each part
/// takes whole files.
pub(crate) fn cuts<'f>(
    files: impl Iterator<Item = &'f LiveFile>,
    low: &[u8],
    high: &[u8],
) -> Vec<Vec<u8>> {
    let inside = |key: &[u8]| key > low && (high.is_empty() || key < high);
    // The files of level 0 overlap one another.
    let mut starts: Vec<(&[u8], usize)> = files
        .filter(|f| f.level > 0)
        .filter_map(|f| Some((f.start_key.as_deref()?, f.size)))
        .filter(|(key, _)| inside(key))
        .collect();
    starts.sort_unstable();
    let (mut cuts, mut bytes) = (Vec::new(), 0);
    for (key, size) in starts {
        if bytes >= PIECE_BYTES {
            cuts.push(key.to_vec());
            bytes = 0;
        }
        bytes += size;
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_large_and_within_the_range() {
        let file = |key: u8, level, size| LiveFile {
            column_family_name: "records".into(),
            name: String::new(),
            size,
            level,
            start_key: Some(vec![key]),
            end_key: None,
            num_entries: 0,
            num_deletions: 0,
        };
        let half = PIECE_BYTES / 2;
        let files: Vec<LiveFile> = (1..=9).rev().map(|k| file(k, 6, half)).collect();
        let all = |low: &[u8], high: &[u8]| cuts(files.iter(), low, high);
        assert_eq!(all(&[], &[]), [[3], [5], [7], [9]]);
        assert_eq!(all(&[3], &[8]), [[6]]);
        assert!(all(&[9], &[]).is_empty() && all(&[], &[1]).is_empty());
        let flushed = [file(1, 0, PIECE_BYTES), file(2, 0, PIECE_BYTES)];
        assert!(cuts(flushed.iter(), &[], &[]).is_empty());
    }
}
