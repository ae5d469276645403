//! A target's colour: a product's own on every page, so that all pages read alike.

use super::plot::COLORS;

/// What labels of products hold, and the place of their colour.
const PRODUCTS: [(&str, usize); 5] = [
    ("PandoDB", 0),
    ("PostgreSQL", 2),
    ("MongoDB", 4),
    ("MariaDB", 1),
    ("MySQL", 1),
];

/// The colours of series: of targets their own, of anything else one after the other.
pub(super) fn of_series(names: &[String]) -> Vec<usize> {
    let is_product = |name: &String| PRODUCTS.iter().any(|p| name.contains(p.0));
    match names.iter().any(is_product) {
        true => colors(names),
        false => (0..names.len()).collect(),
    }
}

/// The colour of each label. A second target of a product, and unknown products, take free colours.
pub(super) fn colors(labels: &[String]) -> Vec<usize> {
    let own = |label: &String| PRODUCTS.iter().find(|(name, _)| label.contains(name));
    let mut taken: Vec<Option<usize>> = vec![None; labels.len()];
    for (i, label) in labels.iter().enumerate() {
        let color = own(label).map(|(_, color)| *color);
        taken[i] = color.filter(|c| !taken.contains(&Some(*c)));
    }
    // Those of products are kept for them as long as others are left.
    let kept: Vec<usize> = PRODUCTS.iter().map(|p| p.1).collect();
    let mut order: Vec<usize> = (0..COLORS).collect();
    order.sort_by_key(|c| kept.contains(c));
    for i in 0..taken.len() {
        if taken[i].is_none() {
            let free = order.iter().find(|c| !taken.contains(&Some(**c)));
            taken[i] = Some(free.copied().unwrap_or(i % COLORS));
        }
    }
    taken.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_has_its_colour_wherever_it_stands() {
        let of =
            |labels: &[&str]| colors(&labels.iter().map(|l| l.to_string()).collect::<Vec<_>>());
        assert_eq!(of(&["PandoDB 0.1", "PostgreSQL 15"]), [0, 2]);
        assert_eq!(of(&["PostgreSQL 15", "PandoDB 0.1"]), [2, 0]);
        let two = of(&["PandoDB 0.1 at a", "PandoDB 0.1 at b", "other"]);
        assert_eq!(two[0], 0);
        assert!(two[1] != two[2] && two[1..].iter().all(|c| ![0, 1, 2, 4].contains(c)));
        // More than there are colours: all have one.
        let many: Vec<String> = (0..12).map(|i| format!("t{i}")).collect();
        assert!(colors(&many).len() == 12 && colors(&many).iter().all(|c| *c < COLORS));
    }
}
