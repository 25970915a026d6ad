//! Draws have the distribution that they are named after, and depend on their place only.
use candle::cpu::erf::erfc_f64;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{Draws, bernoulli, math, normal, normal_, uniform, uniform_};

const N: usize = 1 << 20;
const PLACE: Philox = Philox { seed: 20_260, stream: 3, offset: 77 };
/// Standard errors that a statistic may be off. 4 are exceeded once in 16,000 seeds; the seed is
/// fixed.
const SIGMAS: f64 = 4.;
/// Kolmogorov's statistic times √n: 1.95 is exceeded once in 1000 seeds.
const KS_LIMIT: f64 = 1.95;

fn draws(x: Result<Tensor>) -> Result<Vec<f64>> {
    x?.to_dtype(DType::F64)?.to_vec1()
}

fn mean(x: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = x.len() as f64;
    x.sum::<f64>() / n
}

/// The largest distance of the empirical from the given distribution function, times √n.
fn kolmogorov_smirnov(mut x: Vec<f64>, cdf: impl Fn(f64) -> f64) -> f64 {
    x.sort_unstable_by(f64::total_cmp);
    let n = x.len() as f64;
    let distance =
        |(i, &x): (usize, &f64)| (cdf(x) - i as f64 / n).abs().max((cdf(x) - (i + 1) as f64 / n).abs());
    x.iter().enumerate().map(distance).fold(0., f64::max) * n.sqrt()
}

fn normal_cdf(x: f64) -> f64 {
    0.5 * erfc_f64(-x / std::f64::consts::SQRT_2)
}

#[track_caller]
fn assert_near(what: &str, got: f64, want: f64, standard_error: f64) {
    let off = (got - want).abs() / standard_error;
    assert!(off <= SIGMAS, "{what}: got {got}, want {want}, {off:.1} standard errors off");
}

#[test]
fn uniform_is_uniform_on_the_half_open_interval() -> Result<()> {
    let u = draws(uniform(N, &Device::Cpu, PLACE))?;
    assert!(u.iter().all(|u| (0. ..1.).contains(u)));
    assert!(u.iter().all(|u| (u * 16_777_216.).fract() == 0.), "multiples of 2^-24");
    let n = N as f64;
    assert_near("mean", mean(u.iter().copied()), 0.5, (1. / 12. / n).sqrt());
    assert_near("variance", mean(u.iter().map(|u| (u - 0.5).powi(2))), 1. / 12., (1. / 180. / n).sqrt());
    assert_near("lag 1", mean(u.windows(2).map(|w| (w[0] - 0.5) * (w[1] - 0.5))), 0., 1. / 12. / n.sqrt());
    let ks = kolmogorov_smirnov(u.clone(), |x| x);
    assert!(ks < KS_LIMIT, "Kolmogorov and Smirnov: {ks}");
    let ks = kolmogorov_smirnov(u.iter().map(|u| u.powf(1.01)).collect(), |x| x);
    assert!(ks > KS_LIMIT, "the control, 1 % off, passes with {ks}");
    Ok(())
}

#[test]
fn normal_is_normal_out_to_its_tails() -> Result<()> {
    let z = draws(normal(N, &Device::Cpu, PLACE))?;
    let n = N as f64;
    // The variance of the k-th power of a normal draw: 1, 2, 15, 96.
    for (k, want, variance) in [(1, 0., 1.), (2, 1., 2.), (3, 0., 15.), (4, 3., 96.)] {
        assert_near(&format!("moment {k}"), mean(z.iter().map(|z| z.powi(k))), want, f64::sqrt(variance / n));
    }
    // The two draws of a pair share a radius; neither they nor their squares may be correlated.
    assert_near("pair", mean(z.chunks_exact(2).map(|p| p[0] * p[1])), 0., (2. / n).sqrt());
    let squares = z.chunks_exact(2).map(|p| (p[0] * p[0] - 1.) * (p[1] * p[1] - 1.));
    assert_near("pair of squares", mean(squares), 0., 2. * (2. / n).sqrt());
    for limit in [2., 3., 4.] {
        let p = 2. * normal_cdf(-limit);
        let beyond = z.iter().filter(|z| z.abs() > limit).count() as f64;
        assert_near(&format!("draws beyond {limit}"), beyond, p * n, (p * (1. - p) * n).sqrt());
    }
    let ks = kolmogorov_smirnov(z.clone(), normal_cdf);
    assert!(ks < KS_LIMIT, "Kolmogorov and Smirnov: {ks}");
    let ks = kolmogorov_smirnov(z.iter().map(|z| 1.01 * z).collect(), normal_cdf);
    assert!(ks > KS_LIMIT, "the control, 1 % too wide, passes with {ks}");
    Ok(())
}

#[test]
fn no_normal_draw_is_infinite() {
    for (word0, word1) in [(0, 0), (0, u32::MAX), (u32::MAX, 0), (u32::MAX, u32::MAX), (0, 1 << 31)] {
        let (a, b) = math::normal_of(word0, word1);
        assert!(a.abs() < 6.8 && b.abs() < 6.8, "words {word0:x} {word1:x} give {a} and {b}");
    }
    let (tail, _) = math::normal_of(0, 0);
    assert!(tail > 6.7, "the tail ends at {tail}");
}

#[test]
fn draws_are_those_of_their_elements() -> Result<()> {
    // Sizes around a block of Philox, a tile of 128 and a task of 16,384.
    for n in [1, 2, 3, 4, 5, 127, 128, 129, 16_383, 16_384, 16_385, 40_003] {
        let u = uniform(n, &Device::Cpu, PLACE)?.to_vec1::<f32>()?;
        let z = normal(n, &Device::Cpu, PLACE)?.to_vec1::<f32>()?;
        for e in 0..n {
            assert_eq!(u[e], math::uniform_of(PLACE.bits(e as u64)), "uniform {e} of {n}");
            let block = PLACE.block(e as u64 / 4);
            let pair = math::normal_of(block[e % 4 / 2 * 2], block[e % 4 / 2 * 2 + 1]);
            assert_eq!(z[e], if e % 2 == 0 { pair.0 } else { pair.1 }, "normal {e} of {n}");
        }
    }
    Ok(())
}

#[test]
fn bernoulli_has_its_probability() -> Result<()> {
    for p in [0.01f32, 0.3, 0.5, 0.97] {
        let sample = draws(bernoulli(&Tensor::full(p, N, &Device::Cpu)?, PLACE))?;
        assert!(sample.iter().all(|&s| s == 0. || s == 1.));
        let p = f64::from(p);
        assert_near(&format!("p = {p}"), mean(sample.iter().copied()), p, (p * (1. - p) / N as f64).sqrt());
    }
    let sure = Tensor::new(&[0f32, 1., f32::NAN, -1., 2.], &Device::Cpu)?.repeat(1000)?;
    assert_eq!(bernoulli(&sure, PLACE)?.to_vec1::<f32>()?, [0., 1., 0., 0., 1.].repeat(1000));
    Ok(())
}

#[test]
fn filling_in_place_touches_its_own_elements_only() -> Result<()> {
    let buffer = Tensor::full(9f32, 30, &Device::Cpu)?;
    uniform_(&buffer.narrow(0, 3, 10)?, Draws::At(PLACE))?;
    let counter = Tensor::new(&[70i64], &Device::Cpu)?;
    let philox = Philox { offset: 7, ..PLACE };
    normal_(&buffer.narrow(0, 17, 9)?, Draws::Counter { philox, counter: &counter })?;
    let mut want = vec![9f32; 30];
    want[3..13].copy_from_slice(&uniform(10, &Device::Cpu, PLACE)?.to_vec1::<f32>()?);
    want[17..26].copy_from_slice(&normal(9, &Device::Cpu, PLACE)?.to_vec1::<f32>()?);
    assert_eq!(buffer.to_vec1::<f32>()?, want);
    Ok(())
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let message =
        |r: Result<()>| r.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned());
    let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    let two = Tensor::zeros(2, DType::I64, &Device::Cpu)?;
    let cases = [
        (bernoulli(&x.to_dtype(DType::F64)?, PLACE).map(drop), "bernoulli: p must be f32, got F64"),
        (
            bernoulli(&x.t()?, PLACE).map(drop),
            "bernoulli: p must be contiguous, got shape [3, 2] with strides [1, 3]; call .contiguous() first",
        ),
        (uniform_(&x, Draws::Mode), "uniform_: draws must be At or Counter, got Mode, which draws nothing"),
        (
            normal_(&x, Draws::Counter { philox: PLACE, counter: &two }),
            "normal_: counter must be one i64, got I64 of shape [2]",
        ),
    ];
    for (result, want) in cases {
        assert_eq!(message(result).as_deref(), Some(want));
    }
    Ok(())
}
