//! Regions of the plane, and what MongoDB takes to be inside of them.

use crate::point::Point;

/// A box between two corners, edges included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rectangle {
    pub min: Point,
    pub max: Point,
}

impl Rectangle {
    pub fn new(a: Point, b: Point) -> Rectangle {
        Rectangle {
            min: Point {
                x: a.x.min(b.x),
                y: a.y.min(b.y),
            },
            max: Point {
                x: a.x.max(b.x),
                y: a.y.max(b.y),
            },
        }
    }

    pub fn contains(&self, p: Point) -> bool {
        p.x >= self.min.x && p.x <= self.max.x && p.y >= self.min.y && p.y <= self.max.y
    }

    pub fn meets(&self, o: &Rectangle) -> bool {
        self.min.x <= o.max.x
            && o.min.x <= self.max.x
            && self.min.y <= o.max.y
            && o.min.y <= self.max.y
    }

    pub fn encloses(&self, o: &Rectangle) -> bool {
        self.contains(o.min) && self.contains(o.max)
    }

    /// The distances to its nearest and to its farthest point.
    pub fn distances(&self, p: Point) -> (f64, f64) {
        let near = |v: f64, low: f64, high: f64| (low - v).max(v - high).max(0.0);
        let far = |v: f64, low: f64, high: f64| (v - low).abs().max((high - v).abs());
        let (nx, ny) = (
            near(p.x, self.min.x, self.max.x),
            near(p.y, self.min.y, self.max.y),
        );
        let (fx, fy) = (
            far(p.x, self.min.x, self.max.x),
            far(p.y, self.min.y, self.max.y),
        );
        ((nx * nx + ny * ny).sqrt(), (fx * fx + fy * fy).sqrt())
    }
}

/// A polygon of at least three corners, which may cross itself.
#[derive(Clone, Debug)]
pub struct Outline {
    corners: Vec<Point>,
    bounds: Rectangle,
}

impl Outline {
    /// `None`: there are fewer than three corners.
    pub fn new(corners: Vec<Point>) -> Option<Outline> {
        let first = *corners.first().filter(|_| corners.len() >= 3)?;
        let mut bounds = Rectangle::new(first, first);
        for p in &corners {
            bounds.min.x = bounds.min.x.min(p.x);
            bounds.min.y = bounds.min.y.min(p.y);
            bounds.max.x = bounds.max.x.max(p.x);
            bounds.max.y = bounds.max.y.max(p.y);
        }
        Some(Outline { corners, bounds })
    }

    pub fn bounds(&self) -> &Rectangle {
        &self.bounds
    }

    fn edges(&self) -> impl Iterator<Item = (Point, Point)> {
        let next = self.corners.iter().cycle().skip(1);
        self.corners.iter().zip(next).map(|(a, b)| (*a, *b))
    }

    /// By the number of edges on one side. Corners, level and upright edges belong to it; of slanting edges only those of
    /// which it lies on the left, as in MongoDB.
    pub fn contains(&self, p: Point) -> bool {
        if !self.bounds.contains(p) {
            return false;
        }
        let mut inside = false;
        for (a, b) in self.edges() {
            if p == a || p == b {
                return true;
            }
            let (low, high) = (a.y.min(b.y), a.y.max(b.y));
            let (left, right) = (a.x.min(b.x), a.x.max(b.x));
            if a.y == b.y {
                if p.y == a.y && p.x >= left && p.x <= right {
                    return true;
                }
                continue;
            }
            if p.y <= low || p.y > high || p.x > right {
                continue;
            }
            if a.x == b.x && p.x == a.x {
                return true;
            }
            let crossing = (p.y - a.y) * (b.x - a.x) / (b.y - a.y) + a.x;
            if a.x == b.x || p.x <= crossing {
                inside = !inside;
            }
        }
        inside
    }

    /// Whether an edge may lie in a box.
    pub fn edge_meets(&self, r: &Rectangle) -> bool {
        self.edges()
            .any(|(a, b)| Rectangle::new(a, b).meets(r) && !one_side(a, b, r))
    }
}

/// Whether all corners of a box lie on one side of a line.
fn one_side(a: Point, b: Point, r: &Rectangle) -> bool {
    let side = |x: f64, y: f64| (b.x - a.x) * (y - a.y) - (b.y - a.y) * (x - a.x);
    let sides = [
        side(r.min.x, r.min.y),
        side(r.min.x, r.max.y),
        side(r.max.x, r.min.y),
        side(r.max.x, r.max.y),
    ];
    sides.iter().all(|s| *s > 0.0) || sides.iter().all(|s| *s < 0.0)
}
