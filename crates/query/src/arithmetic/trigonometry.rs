//! Trigonometric and hyperbolic functions of Decimal128, by series with 56 digits and one last
//! rounding to 34.

use super::decimal::{Wide, narrow, widen, working};
use bson::Decimal128;
use dec::Context;

const PI: &str = "3.14159265358979323846264338327950288419716939937510582097494459230781";

/// The working context with value-to-value operations.
struct Math(Context<Wide>);

impl Math {
    fn new() -> Math {
        Math(working())
    }

    fn number(&mut self, s: &str) -> Wide {
        self.0.parse(s).unwrap_or_default()
    }

    fn pi(&mut self) -> Wide {
        self.number(PI)
    }

    fn add(&mut self, mut a: Wide, b: Wide) -> Wide {
        self.0.add(&mut a, &b);
        a
    }

    fn sub(&mut self, mut a: Wide, b: Wide) -> Wide {
        self.0.sub(&mut a, &b);
        a
    }

    fn mul(&mut self, mut a: Wide, b: Wide) -> Wide {
        self.0.mul(&mut a, &b);
        a
    }

    fn div(&mut self, mut a: Wide, b: Wide) -> Wide {
        self.0.div(&mut a, &b);
        a
    }

    fn sqrt(&mut self, mut a: Wide) -> Wide {
        self.0.sqrt(&mut a);
        a
    }

    fn exp(&mut self, mut a: Wide) -> Wide {
        self.0.exp(&mut a);
        a
    }

    fn ln(&mut self, mut a: Wide) -> Wide {
        self.0.ln(&mut a);
        a
    }

    /// Sums `first · Π step(k)` while the terms still count. `step` turns a term into the next.
    fn series(
        &mut self,
        first: Wide,
        mut step: impl FnMut(&mut Math, Wide, i32) -> (Wide, Wide),
    ) -> Wide {
        let (mut sum, mut power) = (first, first);
        for k in 1..400 {
            let (next, term) = step(self, power, k);
            power = next;
            let before = sum;
            sum = self.add(sum, term);
            if sum == before {
                break;
            }
        }
        sum
    }

    /// Sine (`odd`) or cosine series at `x`, with the sign of x² given: -1 circular, +1 hyperbolic.
    fn power_series(&mut self, x: Wide, odd: bool, sign: i32) -> Wide {
        let square = self.mul(x, x);
        let square = self.mul(square, Wide::from(sign));
        let first = if odd { x } else { Wide::from(1) };
        let shift = i32::from(odd);
        self.series(first, move |m, t, k| {
            let n = 2 * k + shift;
            let t = m.mul(t, square);
            let t = m.div(t, Wide::from(n * (n - 1)));
            (t, t)
        })
    }

    fn atan(&mut self, x: Wide) -> Wide {
        let one = Wide::from(1);
        if x.is_infinite() || x > one || x < -one {
            let quarter = self.pi();
            let half_pi = self.div(quarter, Wide::from(2));
            let inverse = self.div(one, x);
            let small = self.atan(inverse);
            let signed = if x.is_negative() { -half_pi } else { half_pi };
            return self.sub(signed, small);
        }
        // Halve the angle three times, then atan's series converges fast.
        let mut y = x;
        for _ in 0..3 {
            let s = self.mul(y, y);
            let s = self.add(s, one);
            let s = self.sqrt(s);
            let s = self.add(s, one);
            y = self.div(y, s);
        }
        let square = self.mul(y, y);
        let series = self.series(y, move |m, p, k| {
            let p = m.mul(p, -square);
            (p, m.div(p, Wide::from(2 * k + 1)))
        });
        self.mul(series, Wide::from(8))
    }

    /// The remainder of `x` by 2π, near zero.
    fn reduce(&mut self, x: Wide) -> Wide {
        let two_pi = self.pi();
        let two_pi = self.mul(two_pi, Wide::from(2));
        let mut c = Context::<Wide>::default();
        let mut r = x;
        c.rem_near(&mut r, &two_pi);
        if r.is_nan() { Wide::zero() } else { r }
    }
}

/// Zero to itself (with its sign and exponent), NaN to NaN, all else through `f`.
fn through(a: Decimal128, keeps_zero: bool, f: impl FnOnce(&mut Math, Wide) -> Wide) -> Decimal128 {
    if a.is_nan() || keeps_zero && a.is_zero() {
        return a;
    }
    let mut m = Math::new();
    let r = f(&mut m, widen(a));
    narrow(r)
}

pub fn sin(a: Decimal128) -> Decimal128 {
    through(a, true, |m, x| {
        let r = m.reduce(x);
        m.power_series(r, true, -1)
    })
}

pub fn cos(a: Decimal128) -> Decimal128 {
    through(a, false, |m, x| {
        let r = m.reduce(x);
        m.power_series(r, false, -1)
    })
}

pub fn tan(a: Decimal128) -> Decimal128 {
    through(a, true, |m, x| {
        let r = m.reduce(x);
        let (s, c) = (m.power_series(r, true, -1), m.power_series(r, false, -1));
        m.div(s, c)
    })
}

fn asin_wide(m: &mut Math, x: Wide) -> Wide {
    let one = Wide::from(1);
    if x == one || x == -one {
        let pi = m.pi();
        let half = m.div(pi, Wide::from(2));
        return if x.is_negative() { -half } else { half };
    }
    let (up, down) = (m.add(one, x), m.sub(one, x));
    let s = m.mul(up, down);
    let s = m.sqrt(s);
    let t = m.div(x, s);
    m.atan(t)
}

pub fn asin(a: Decimal128) -> Decimal128 {
    through(a, true, asin_wide)
}

pub fn acos(a: Decimal128) -> Decimal128 {
    through(a, false, |m, x| {
        if x == Wide::from(1) {
            return Wide::zero();
        }
        let (pi, s) = (m.pi(), asin_wide(m, x));
        let half = m.div(pi, Wide::from(2));
        m.sub(half, s)
    })
}

pub fn atan(a: Decimal128) -> Decimal128 {
    through(a, true, |m, x| m.atan(x))
}

pub fn atan2(y: Decimal128, x: Decimal128) -> Decimal128 {
    if y.is_nan() || x.is_nan() {
        return Decimal128::NAN;
    }
    let mut m = Math::new();
    let (wy, wx) = (widen(y), widen(x));
    let pi = m.pi();
    let (right, up) = (!x.is_negative(), !y.is_negative());
    let fraction = |m: &mut Math, n: i32, d: i32| {
        let p = m.mul(pi, Wide::from(n));
        m.div(p, Wide::from(d))
    };
    let angle = if y.is_zero() || x.is_infinite() && !y.is_infinite() {
        if right { Wide::zero() } else { pi }
    } else if y.is_infinite() && x.is_infinite() {
        fraction(&mut m, if right { 1 } else { 3 }, 4)
    } else if x.is_zero() || y.is_infinite() {
        fraction(&mut m, 1, 2)
    } else {
        let t = m.div(wy, wx);
        let t = if t.is_negative() { -t } else { t };
        let t = m.atan(t);
        if right { t } else { m.sub(pi, t) }
    };
    narrow(if up { angle } else { -angle })
}

/// Below this the differences of exponentials lose digits that the series keeps.
fn is_small(m: &mut Math, x: Wide) -> bool {
    let limit = m.number("0.5");
    x < limit && x > -limit
}

pub fn sinh(a: Decimal128) -> Decimal128 {
    through(a, true, |m, x| {
        if is_small(m, x) {
            return m.power_series(x, true, 1);
        }
        let (p, n) = (m.exp(x), m.exp(-x));
        let d = m.sub(p, n);
        m.div(d, Wide::from(2))
    })
}

pub fn cosh(a: Decimal128) -> Decimal128 {
    through(a, false, |m, x| {
        let (p, n) = (m.exp(x), m.exp(-x));
        let s = m.add(p, n);
        m.div(s, Wide::from(2))
    })
}

pub fn tanh(a: Decimal128) -> Decimal128 {
    through(a, true, |m, x| {
        if is_small(m, x) {
            let (s, c) = (m.power_series(x, true, 1), m.power_series(x, false, 1));
            return m.div(s, c);
        }
        if x.is_infinite() || x > Wide::from(100) || x < Wide::from(-100) {
            return Wide::from(if x.is_negative() { -1 } else { 1 });
        }
        let double = m.add(x, x);
        let e = m.exp(double);
        let (below, above) = (m.sub(e, Wide::from(1)), m.add(e, Wide::from(1)));
        m.div(below, above)
    })
}

pub fn asinh(a: Decimal128) -> Decimal128 {
    through(a, true, |m, x| {
        if x.is_infinite() {
            return x;
        }
        let magnitude = if x.is_negative() { -x } else { x };
        let tiny = m.number("1E-18");
        if magnitude < tiny {
            // x - x³/6
            let cube = m.mul(x, x);
            let cube = m.mul(cube, x);
            let cube = m.div(cube, Wide::from(6));
            return m.sub(x, cube);
        }
        let s = m.mul(magnitude, magnitude);
        let s = m.add(s, Wide::from(1));
        let s = m.sqrt(s);
        let s = m.add(s, magnitude);
        let l = m.ln(s);
        if x.is_negative() { -l } else { l }
    })
}

pub fn acosh(a: Decimal128) -> Decimal128 {
    through(a, false, |m, x| {
        let one = Wide::from(1);
        let (up, down) = (m.add(x, one), m.sub(x, one));
        let s = m.mul(up, down);
        let s = m.sqrt(s);
        let s = m.add(s, x);
        m.ln(s)
    })
}

pub fn atanh(a: Decimal128) -> Decimal128 {
    through(a, true, |m, x| {
        let one = Wide::from(1);
        let tiny = m.number("1E-18");
        if x < tiny && x > -tiny {
            // x + x³/3
            let cube = m.mul(x, x);
            let cube = m.mul(cube, x);
            let cube = m.div(cube, Wide::from(3));
            return m.add(x, cube);
        }
        let (up, down) = (m.add(one, x), m.sub(one, x));
        let q = m.div(up, down);
        let l = m.ln(q);
        m.div(l, Wide::from(2))
    })
}

pub fn to_radians(a: Decimal128) -> Decimal128 {
    through(a, true, |m, x| {
        let pi = m.pi();
        let f = m.div(pi, Wide::from(180));
        m.mul(x, f)
    })
}

pub fn to_degrees(a: Decimal128) -> Decimal128 {
    through(a, true, |m, x| {
        let pi = m.pi();
        let f = m.div(Wide::from(180), pi);
        m.mul(x, f)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        type Function = fn(Decimal128) -> Decimal128;
        let cases: &[(Function, &str, &str)] = &[
            (sin, "1", "0.8414709848078965066525023216302990"),
            (cos, "1", "0.5403023058681397174009366074429766"),
            (tan, "1", "1.557407724654902230506974807458360"),
            (asin, "1", "1.570796326794896619231321691639751"),
            (acos, "0.5", "1.047197551196597746154214461093168"),
            (atan, "1", "0.7853981633974483096156608458198757"),
            (atan, "Infinity", "1.570796326794896619231321691639751"),
            (sinh, "1", "1.175201193643801456882381850595601"),
            (cosh, "1", "1.543080634815243778477905620757062"),
            (tanh, "1", "0.7615941559557648881194582826047936"),
            (asinh, "1", "0.8813735870195430252326093249797923"),
            (acosh, "3", "1.762747174039086050465218649959585"),
            (atanh, "0.5", "0.5493061443340548456976226184612629"),
            (to_degrees, "1", "57.29577951308232087679815481410517"),
        ];
        for (f, x, want) in cases {
            assert_eq!(f(x.parse().unwrap()).to_string(), *want, "of {x}");
        }
    }
}
