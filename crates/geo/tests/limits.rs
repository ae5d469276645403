//! What would take long, or is no shape at all, is refused soon.

use bson::{Value, Writer};
use geo::Geometry;

fn ring(w: &mut Writer, corners: &[(f64, f64)]) {
    w.open_array("");
    for (x, y) in corners.iter().chain(corners.first()) {
        w.open_array("");
        w.push_value(*x).push_value(*y);
        w.close();
    }
    w.close();
}

fn polygon(rings: &[Vec<(f64, f64)>]) -> Value {
    let mut w = Writer::new();
    w.str("type", "Polygon").open_array("coordinates");
    rings.iter().for_each(|r| ring(&mut w, r));
    w.close();
    Value::from(w.finish())
}

fn square(x: f64, y: f64, size: f64) -> Vec<(f64, f64)> {
    vec![(x, y), (x + size, y), (x + size, y + size), (x, y + size)]
}

#[test]
fn many_rings() {
    let with_holes = |n: usize| {
        let hole = |i: usize| square(-80.0 + 0.07 * i as f64, 0.0, 0.05);
        let mut rings = vec![vec![
            (-85.0, -20.0),
            (85.0, -20.0),
            (85.0, 20.0),
            (-85.0, 20.0),
        ]];
        rings.extend((0..n).map(hole));
        polygon(&rings)
    };
    assert!(Geometry::of_stored(with_holes(100).as_val()).is_ok());
    let refused = Geometry::of_stored(with_holes(2_000).as_val()).unwrap_err();
    assert_eq!(refused.code.0, 2);
}

/// A line that crosses itself everywhere: the first crossing ends the check.
#[test]
fn a_ring_of_nothing_but_crossings() {
    let n = 20_000;
    let at = |i: usize| {
        let x = i as f64 / n as f64 * 10.0;
        match i % 2 {
            0 => (x, 0.0),
            _ => (10.0 - x, 10.0),
        }
    };
    let corners: Vec<(f64, f64)> = (0..n).map(at).collect();
    let refused = Geometry::of_stored(polygon(&[corners]).as_val()).unwrap_err();
    assert_eq!(refused.code.0, 2);
}

/// A large but sound polygon is read, covered and measured.
#[test]
fn a_polygon_of_many_corners() {
    let n = 20_000;
    let at = |i: usize| {
        let turn = i as f64 / n as f64 * std::f64::consts::TAU;
        (30.0 * turn.cos(), 30.0 * turn.sin())
    };
    let corners: Vec<(f64, f64)> = (0..n).map(at).collect();
    let shape = Geometry::of_stored(polygon(&[corners]).as_val()).unwrap();
    let keys = geo::sphere::keys(&shape);
    assert!(keys.len() > 4 && keys.len() <= 60, "{}", keys.len());
}

/// Each cell that a covering tries is asked for, with the edges that may be measured for it; after a
/// no nothing is measured any more.
#[test]
fn coverings_are_asked_for() {
    let corners: Vec<String> = (0..500)
        .map(|i| format!("[{}, {}]", i % 2, i / 2 % 2))
        .collect();
    let text = format!(
        r#"{{"type": "LineString", "coordinates": [{}]}}"#,
        corners.join(",")
    );
    let doc = bson::json::parse(&text).unwrap();
    let shape = geo::Geometry::of_stored(doc.as_doc().as_val()).unwrap();
    let asked = |most: usize| {
        let n = std::cell::Cell::new(0);
        let keys = geo::sphere::keys_while(&shape, &|edges| {
            assert_eq!(edges, 500);
            n.set(n.get() + 1);
            n.get() <= most
        });
        (n.get(), keys)
    };
    let (all, keys) = asked(usize::MAX);
    assert!(all > 50 && keys == geo::sphere::keys(&shape), "{all}");
    assert_eq!(asked(3).0, 4);
    assert_eq!(asked(0), (1, Vec::new()));
}
