//! How far one word is from another.

/// How many characters have to be put in, taken out, replaced or swapped with their neighbour; `None` where that is more
/// than `most`.
pub(crate) fn edits(wanted: &[char], word: &str, most: usize) -> Option<usize> {
    let n = word.chars().count();
    if n.abs_diff(wanted.len()) > most || wanted.len() > 255 || n > 255 {
        return None;
    }
    let word: Vec<char> = word.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=word.len()).collect();
    for (i, a) in wanted.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, b) in word.iter().enumerate() {
            let at = |row: &[usize], j: usize| row.get(j).copied().unwrap_or(usize::MAX / 2);
            let mut best = (at(&row, j + 1) + 1).min(at(&next, j) + 1);
            best = best.min(at(&row, j) + usize::from(a != b));
            let swapped =
                i > 0 && j > 0 && wanted.get(i - 1) == Some(b) && word.get(j - 1) == Some(a);
            if swapped {
                best = best.min(at(&before, j - 1) + 1);
            }
            next.push(best);
        }
        if next.iter().min().is_some_and(|m| *m > most) {
            return None;
        }
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().filter(|d| *d <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted_in_characters() {
        let near = |a: &str, b: &str, most| edits(&a.chars().collect::<Vec<_>>(), b, most);
        assert_eq!(near("cafe", "café", 1), Some(1));
        assert_eq!(near("resume", "résumé", 2), Some(2));
        assert_eq!(near("abcd", "abdc", 1), Some(1));
        assert_eq!(near("quick", "quack", 0), None);
    }
}
