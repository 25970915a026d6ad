//! The elementary functions are as close to f64 as their table says, and right at the edges.
use chandlery_ops::core::math::{exp, ln, sigmoid, sin_cos_turns, softplus};

/// Every 4099th of all 2³² bit patterns, about a million: all exponents, both signs, subnormals,
/// NaNs.
fn sweep() -> impl Iterator<Item = f32> {
    (0..=u32::MAX).step_by(4099).map(f32::from_bits)
}

/// The distance of two neighbours at `x`, that of the smallest normal number at least.
fn ulp(x: f64) -> f64 {
    2f64.powf(x.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor() - 23.)
}

#[track_caller]
fn assert_within(name: &str, limit_ulp: f64, f: fn(f32) -> f32, truth: fn(f64) -> f64) {
    let (mut worst, mut at) = (0., 0.);
    for x in sweep() {
        let (got, want) = (f(x), truth(f64::from(x)));
        if got.is_nan() && want.is_nan() || got == want as f32 && got.is_infinite() {
            continue;
        }
        let error = (f64::from(got) - want).abs() / ulp(want);
        assert!(
            error <= limit_ulp,
            "{name}({x:e}) = {got:e}, want {want:e}: {error:.2} ulp, limit {limit_ulp}"
        );
        if error > worst {
            (worst, at) = (error, x);
        }
    }
    println!("{name}: worst {worst:.3} ulp of {limit_ulp} at {at:e}");
}

#[test]
fn functions_are_as_exact_as_the_table_says() {
    assert_within("exp", 1.1, exp, f64::exp);
    assert_within("ln", 1., ln, f64::ln);
    assert_within("sigmoid", 2.5, sigmoid, |x| 1. / (1. + (-x).exp()));
    assert_within("softplus", 2., softplus, |x| x.max(0.) + (-x.abs()).exp().ln_1p());
}

#[test]
fn sines_are_as_exact_as_the_table_says() {
    for i in (-(1 << 26)..1 << 26).step_by(67) {
        let turns = i as f32 / (1 << 24) as f32;
        let (sin, cos) = sin_cos_turns(turns);
        let angle = f64::from(turns) * std::f64::consts::TAU;
        assert!((f64::from(sin) - angle.sin()).abs() <= 1e-7, "sin of {turns} turns: {sin}");
        assert!((f64::from(cos) - angle.cos()).abs() <= 1e-7, "cos of {turns} turns: {cos}");
    }
    assert_eq!([0., 0.25, 0.5, 0.75].map(sin_cos_turns), [(0., 1.), (1., 0.), (0., -1.), (-1., 0.)]);
}

#[test]
fn edges_are_right() {
    const INF: f32 = f32::INFINITY;
    assert_eq!([0., -0., -INF, INF, -1e30, 1e30, 88.73].map(exp), [1., 1., 0., INF, 0., INF, INF]);
    assert!(exp(88.72).is_finite(), "the range ends where that of f32 does");
    assert_eq!(exp(-100.), (-100f64).exp() as f32, "subnormal results are kept and rounded once");
    assert_eq!([1., 0., -0., INF].map(ln), [0., -INF, -INF, INF]);
    assert!([-1., -INF, f32::NAN].map(ln).iter().all(|y| y.is_nan()));
    assert_eq!([0., INF, -INF, 40.].map(sigmoid), [0.5, 1., 0., 1.]);
    assert!(sigmoid(-100.) > 0., "small means stay above zero");
    assert_eq!([INF, -INF, 100.].map(softplus), [INF, 0., 100.]);
    assert!([exp, sigmoid, softplus].iter().all(|f| f(f32::NAN).is_nan()));
    let (sin, cos) = sin_cos_turns(f32::NAN);
    assert!(sin.is_nan() && cos.is_nan());
}
