//! Shapes, distances and cells against formulas of the test's own: vectors and half spaces, no S2.
//!
//! Points are random, with the poles, the date line and the surroundings of regions among them. What lies within a centimetre
//! of a boundary is not asked. `PANDO_SEED` replays a run.

use bson::json;
use geo::{Cells, Geometry, Grid, Near, Predicate, Region, grid, sphere};
use std::f64::consts::PI;

/// Points this near to a boundary are left out, in radians.
const DOUBTFUL: f64 = 1e-8;

struct Random(u64);

impl Random {
    fn seeded() -> Random {
        let seed = std::env::var("PANDO_SEED")
            .ok()
            .and_then(|s| s.parse().ok());
        let seed = seed.unwrap_or(0x5EED_0006_E0A1);
        println!("PANDO_SEED={seed}");
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// In `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + self.unit() * (high - low)
    }

    /// Longitude and latitude, in degrees.
    fn place(&mut self) -> (f64, f64) {
        match self.next() % 16 {
            0 => (self.between(-180.0, 180.0), 90.0),
            1 => (self.between(-180.0, 180.0), -90.0),
            2 => (180.0, self.between(-90.0, 90.0)),
            3 => (-180.0, self.between(-90.0, 90.0)),
            4 => (0.0, 0.0),
            5 => (self.between(-1.0, 1.0), self.between(88.0, 90.0)),
            _ => (
                self.between(-180.0, 180.0),
                (2.0 * self.unit() - 1.0).asin().to_degrees(),
            ),
        }
    }

    /// Not farther from `(lng, lat)` than so many degrees, about.
    fn around(&mut self, (lng, lat): (f64, f64), degrees: f64) -> (f64, f64) {
        let turn = self.between(0.0, 2.0 * PI);
        destination((lng, lat), turn, self.between(0.0, degrees))
    }
}

type Vector = [f64; 3];

fn vector((lng, lat): (f64, f64)) -> Vector {
    let (lng, lat) = (lng.to_radians(), lat.to_radians());
    [lat.cos() * lng.cos(), lat.cos() * lng.sin(), lat.sin()]
}

fn cross(a: Vector, b: Vector) -> Vector {
    [
        a[1] * b[2] - a[2] * b[1],
        a[2] * b[0] - a[0] * b[2],
        a[0] * b[1] - a[1] * b[0],
    ]
}

fn dot(a: Vector, b: Vector) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn length(a: Vector) -> f64 {
    dot(a, a).sqrt()
}

fn angle(a: Vector, b: Vector) -> f64 {
    length(cross(a, b)).atan2(dot(a, b))
}

/// The point that many degrees from a place, in a direction.
fn destination((lng, lat): (f64, f64), turn: f64, degrees: f64) -> (f64, f64) {
    let (p, x, d) = (vector((lng, lat)), lng.to_radians(), degrees.to_radians());
    let east = [-x.sin(), x.cos(), 0.0];
    let north = cross(p, east);
    let at = |i: usize| p[i] * d.cos() + (north[i] * turn.cos() + east[i] * turn.sin()) * d.sin();
    let q = [at(0), at(1), at(2)];
    let lat = q[2].atan2(q[0].hypot(q[1])).to_degrees();
    (q[1].atan2(q[0]).to_degrees(), lat)
}

/// The least sine of the angles between a point and the planes of a convex ring that is walked against the clock: positive
/// inside.
fn inside(ring: &[(f64, f64)], p: Vector) -> f64 {
    let n = ring.len();
    (0..n)
        .map(|i| {
            let normal = cross(vector(ring[i]), vector(ring[(i + 1) % n]));
            dot(normal, p) / length(normal)
        })
        .fold(f64::INFINITY, f64::min)
}

fn point(p: (f64, f64)) -> Geometry {
    let text = format!(r#"{{"v": [{:?}, {:?}]}}"#, p.0, p.1);
    let d = json::parse(&text).unwrap();
    Geometry::of_stored(d.get("v").unwrap()).unwrap()
}

fn region(predicate: Predicate, text: &str) -> Region {
    let d = json::parse(text).unwrap();
    Region::parse(d.as_doc().as_val(), predicate).unwrap()
}

fn ring_text(ring: &[(f64, f64)]) -> String {
    let closed = ring.iter().chain(ring.first());
    let all: Vec<String> = closed.map(|(x, y)| format!("[{x:?},{y:?}]")).collect();
    format!("[{}]", all.join(","))
}

/// Answers that were compared with a formula's, by one test.
#[derive(Default)]
struct Compared(usize);

impl Compared {
    fn equal(&mut self, found: bool, formula: bool, what: impl FnOnce() -> String) {
        self.0 += 1;
        assert_eq!(found, formula, "{}", what());
    }

    /// All tests together compare more than 100,000.
    fn tell(self, test: &str, least: usize) {
        println!("{test}: {} answers equal to the formula's", self.0);
        assert!(self.0 >= least, "{test} compares {}", self.0);
    }
}

/// What passes has a key in the ranges that a query reads.
fn assert_covered(ranges: &[(i64, i64)], keys: &[i64], what: &str) {
    let read = |k: &i64| ranges.iter().any(|(low, high)| low <= k && k <= high);
    assert!(keys.iter().any(read), "no key of {what} is read");
}

#[test]
fn circles_on_the_sphere() {
    let (mut random, mut compared) = (Random::seeded(), Compared::default());
    for _ in 0..160 {
        let center = random.place();
        let degrees = match random.next() % 4 {
            0 => random.between(0.001, 0.1),
            1 => random.between(90.0, 179.0),
            _ => random.between(0.1, 60.0),
        };
        let radius = degrees.to_radians();
        let r = region(
            Predicate::Within,
            &format!(
                r#"{{"$centerSphere": [[{:?}, {:?}], {radius:?}]}}"#,
                center.0, center.1
            ),
        );
        let ranges = sphere::ranges(&r).unwrap();
        for i in 0..300 {
            let p = match i % 2 {
                0 => random.place(),
                _ => random.around(center, degrees * 1.5),
            };
            let far = angle(vector(center), vector(p));
            if (far - radius).abs() < DOUBTFUL {
                continue;
            }
            let shape = point(p);
            let found = r.matches(Predicate::Within, &shape);
            let what = || format!("{p:?} in {degrees} of {center:?}");
            compared.equal(found, far < radius, what);
            if found {
                assert_covered(&ranges, &sphere::keys(&shape), &format!("{p:?}"));
            }
        }
    }
    compared.tell("circles_on_the_sphere", 47_000);
}

#[test]
fn polygons_with_holes() {
    let (mut random, mut compared) = (Random::seeded(), Compared::default());
    for _ in 0..120 {
        let center = random.place();
        let degrees = random.between(0.01, 40.0);
        let n = 3 + (random.next() % 6) as usize;
        let ring = |size: f64, back: bool| -> Vec<(f64, f64)> {
            let turn = |i: usize| 2.0 * PI * i as f64 / n as f64;
            // Directions go with the clock.
            let mut r: Vec<_> = (0..n)
                .map(|i| destination(center, -turn(i), size))
                .collect();
            if back {
                r.reverse();
            }
            r
        };
        let (outer, hole) = (ring(degrees, false), ring(degrees / 4.0, false));
        let back = random.next().is_multiple_of(2);
        let text = format!(
            r#"{{"$geometry": {{"type": "Polygon", "coordinates": [{}, {}]}}}}"#,
            ring_text(&ring(degrees, back)),
            ring_text(&ring(degrees / 4.0, !back)),
        );
        for predicate in [Predicate::Within, Predicate::Intersects] {
            let r = region(predicate, &text);
            let ranges = sphere::ranges(&r).unwrap();
            for i in 0..150 {
                let p = match i % 4 {
                    0 => random.place(),
                    _ => random.around(center, degrees * 1.3),
                };
                let (a, b) = (inside(&outer, vector(p)), inside(&hole, vector(p)));
                if a.abs() < DOUBTFUL || b.abs() < DOUBTFUL {
                    continue;
                }
                // A half space has a point of the other side of the sphere too.
                let near = angle(vector(p), vector(center)) < 80f64.to_radians();
                let shape = point(p);
                let found = r.matches(predicate, &shape);
                let what = || format!("{p:?} {text}");
                compared.equal(found, near && a > 0.0 && b < 0.0, what);
                if found {
                    assert_covered(&ranges, &sphere::keys(&shape), &format!("{p:?} {text}"));
                }
            }
        }
    }
    compared.tell("polygons_with_holes", 34_000);
}

/// A polygon that a document holds, found by what meets it.
#[test]
fn stored_polygons_are_found_by_points_and_circles() {
    let (mut random, mut compared) = (Random::seeded(), Compared::default());
    for _ in 0..100 {
        let center = random.place();
        let degrees = random.between(0.01, 20.0);
        let corner = |i: usize| destination(center, -2.0 * PI * i as f64 / 5.0, degrees);
        let ring: Vec<_> = (0..5).map(corner).collect();
        let text = format!(
            r#"{{"v": {{"type": "Polygon", "coordinates": [{}]}}}}"#,
            ring_text(&ring)
        );
        let d = json::parse(&text).unwrap();
        let shape = Geometry::of_stored(d.get("v").unwrap()).unwrap();
        let keys = sphere::keys(&shape);
        assert!(!keys.is_empty() && keys.len() <= 80, "{} keys", keys.len());
        for _ in 0..60 {
            let p = random.around(center, degrees * 1.5);
            let a = inside(&ring, vector(p));
            if a.abs() < DOUBTFUL {
                continue;
            }
            let r = region(
                Predicate::Intersects,
                &format!(
                    r#"{{"$geometry": {{"type": "Point", "coordinates": [{:?}, {:?}]}}}}"#,
                    p.0, p.1
                ),
            );
            let found = r.matches(Predicate::Intersects, &shape);
            compared.equal(found, a > 0.0, || format!("{p:?} {text}"));
            if found {
                assert_covered(&sphere::ranges(&r).unwrap(), &keys, &text);
            }
        }
    }
    compared.tell("stored_polygons_are_found_by_points_and_circles", 5_500);
}

#[test]
fn distances_and_the_bounds_of_cells() {
    let mut random = Random::seeded();
    for _ in 0..200 {
        let center = random.place();
        let text = format!(
            r#"{{"$nearSphere": {{"$geometry": {{"type": "Point", "coordinates": [{:?}, {:?}]}}}}}}"#,
            center.0, center.1
        );
        let near = Near::parse(json::parse(&text).unwrap().as_doc()).unwrap();
        let cells = sphere::FromPoint(near.center.sphere.unwrap());
        let plane = grid::GridFromPoint {
            grid: Grid::DEFAULT,
            flat: near.center.flat,
            sphere: near.center.sphere,
        };
        for _ in 0..20 {
            let p = random.place();
            let far = angle(vector(center), vector(p));
            let shape = point(p);
            let metres = near.distance(&shape);
            assert!(
                (metres / 6_378_100.0 - far).abs() < 1e-9,
                "{center:?} {p:?}"
            );
            let mut cell = cells.of_key(sphere::keys(&shape)[0]).unwrap();
            for _ in 0..30 {
                let (least, most) = cells.distances(cell);
                assert!(
                    least <= far && far <= most,
                    "{center:?} {p:?} {least} {most}"
                );
                cell = cell.parent();
            }
            let v = json::parse(&format!(r#"{{"v": [{:?}, {:?}]}}"#, p.0, p.1)).unwrap();
            let key = Grid::DEFAULT.key(v.get("v").unwrap()).unwrap();
            let (least, most) = plane.distances(plane.of_key(key).unwrap());
            assert!(
                least <= far && far <= most,
                "{center:?} {p:?} {least} {most}"
            );
        }
    }
}

#[test]
fn regions_of_the_plane() {
    let (mut random, mut compared) = (Random::seeded(), Compared::default());
    let grids = [
        Grid::DEFAULT,
        Grid {
            min: -1000.0,
            max: 500.0,
            bits: 32,
        },
        Grid {
            min: -200.0,
            max: 200.0,
            bits: 5,
        },
    ];
    for round in 0..180 {
        let g = grids[round % grids.len()];
        let (x, y) = (random.between(-170.0, 170.0), random.between(-170.0, 170.0));
        let size = random.between(0.5, 60.0);
        let (text, test): (String, Box<dyn Fn(f64, f64) -> bool>) = match round % 3 {
            0 => (
                format!(
                    r#"{{"$box": [[{x:?}, {y:?}], [{:?}, {:?}]]}}"#,
                    x + size,
                    y + size
                ),
                Box::new(move |a, b| a >= x && a <= x + size && b >= y && b <= y + size),
            ),
            1 => (
                format!(r#"{{"$center": [[{x:?}, {y:?}], {size:?}]}}"#),
                Box::new(move |a, b| (a - x).hypot(b - y) <= size),
            ),
            _ => (
                format!(
                    r#"{{"$polygon": [[{x:?}, {y:?}], [{:?}, {y:?}], [{x:?}, {:?}]]}}"#,
                    x + size,
                    y + size
                ),
                Box::new(move |a, b| a >= x && b >= y && (a - x) + (b - y) <= size),
            ),
        };
        let r = region(Predicate::Within, &text);
        let ranges = g.ranges(&r).unwrap();
        for _ in 0..100 {
            let (a, b) = match random.next() % 2 {
                0 => (random.between(-180.0, 180.0), random.between(-180.0, 180.0)),
                _ => (
                    random.between(x - size, x + size).clamp(-180.0, 180.0),
                    random.between(y - size, y + size).clamp(-180.0, 180.0),
                ),
            };
            let found = r.matches(Predicate::Within, &point((a, b)));
            compared.equal(found, test(a, b), || format!("{a} {b} {text}"));
            if found {
                let v = json::parse(&format!(r#"{{"v": [{a:?}, {b:?}]}}"#)).unwrap();
                let key = g.key(v.get("v").unwrap()).unwrap();
                assert_covered(&ranges, &[key], &format!("{a} {b} {text}"));
            }
        }
    }
    compared.tell("regions_of_the_plane", 18_000);
}

/// The larger side of a ring, by strict winding.
#[test]
fn big_polygons() {
    let text = |ring: &str| {
        format!(
            r#"{{"$geometry": {{"type": "Polygon", "coordinates": [{ring}], "crs": {{"type": "name",
            "properties": {{"name": "urn:x-mongodb:crs:strictwinding:EPSG:4326"}}}}}}}}"#
        )
    };
    let against = region(
        Predicate::Within,
        &text("[[0,0],[10,0],[10,10],[0,10],[0,0]]"),
    );
    let with = region(
        Predicate::Within,
        &text("[[0,0],[0,10],[10,10],[10,0],[0,0]]"),
    );
    let (small, big) = (
        sphere::ranges(&against).unwrap(),
        sphere::ranges(&with).unwrap(),
    );
    for (p, inside) in [
        ((5.0, 5.0), true),
        ((50.0, 50.0), false),
        ((-100.0, -80.0), false),
        ((0.0, 90.0), false),
        ((180.0, 0.0), false),
    ] {
        let shape = point(p);
        assert_eq!(against.matches(Predicate::Within, &shape), inside, "{p:?}");
        assert_eq!(with.matches(Predicate::Within, &shape), !inside, "{p:?}");
        let ranges = if inside { &small } else { &big };
        assert_covered(ranges, &sphere::keys(&shape), &format!("{p:?}"));
    }
}
