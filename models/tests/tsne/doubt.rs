//! Measures of rows of which bounds tell little are those of plain loops in f64: rows far from all
//! others, groups that are much tighter than they are apart, and rows that are there many times.
use super::CPU;
use super::measures::{distance, f64s, nearest};
use candle::{Result, Tensor};
use chandlery::Philox;
use chandlery::evaluation::layout::Measures;
use chandlery::tsne::Metric;
use chandlery::tsne::measure::{Estimate, TrueDistances};
use chandlery_ops::core::normal;

/// Rows of each case, and those that are looked at.
const N: usize = 3000;
const SAMPLE: usize = 40;

fn noise(n: usize, d: usize, stream: u64) -> Result<Tensor> {
    normal((n, d), &CPU, Philox::new(76, stream))
}

/// `[N, 1]`, 1 where `is_in` has the row.
fn mask(is_in: impl Fn(usize) -> bool) -> Result<Tensor> {
    Tensor::from_vec((0..N).map(|i| f32::from(u8::from(is_in(i)))).collect(), (N, 1), &CPU)
}

fn cases() -> Result<Vec<(&'static str, Tensor)>> {
    let (plain, few) = (noise(N, 7, 0)?, noise(N / 3, 7, 1)?);
    let far = |at: usize, by: f64| -> Result<Tensor> { mask(|i| i == at)?.affine(by, 0.) };
    let group = Tensor::from_vec((0..N as u32).map(|i| i % 4).collect(), N, &CPU)?;
    let centres = (noise(4, 7, 2)? * 1000.)?.index_select(&group, 0)?;
    let half = mask(|i| i % 2 == 0)?;
    let others = (1. - &half)?;
    Ok(vec![
        ("an outlier", plain.broadcast_add(&far(5, 1e15)?)?),
        ("outliers on both sides", plain.broadcast_add(&far(5, 1e30)?)?.broadcast_add(&far(77, -1e9)?)?),
        ("tight groups", (&centres + (&plain * 1e-2)?)?),
        ("tight groups far from 0", (&centres + (&plain * 0.1)?)?.affine(1., 1e5)?),
        ("each thrice", few.repeat((3, 1))?),
        ("half equal", plain.broadcast_mul(&others)?.broadcast_add(&(&half * 0.25)?)?),
        ("half zeros and an outlier", plain.broadcast_mul(&others)?.broadcast_add(&far(5, 1e15)?)?),
        ("four rows", centres),
        ("all equal but one", noise(1, 7, 3)?.repeat((N, 1))?.broadcast_add(&far(9, 1.)?)?),
        ("categories", (&plain * 0.6)?.round()?),
    ])
}

fn is_angle_of(metric: Metric) -> bool {
    matches!(metric, Metric::Cosine | Metric::Correlation)
}

#[test]
fn rows_of_which_bounds_tell_little_are_ranked_as_plain_loops_rank_them() -> Result<()> {
    let layout = noise(N, 2, 4)?;
    let points = f64s(&layout)?;
    let looked_at: Vec<usize> = (0..SAMPLE).map(|i| i * N / SAMPLE).collect();
    let near = nearest(&points, &looked_at, 12);
    for (name, rows) in cases()? {
        let wide = f64s(&rows)?;
        for metric in
            [Metric::Euclidean, Metric::Cosine, Metric::Correlation, Metric::Manhattan, Metric::Hamming]
        {
            let (mut excess, mut kept) = (0., 0.);
            for (&i, near) in looked_at.iter().zip(&near) {
                let all: Vec<f64> = wide.iter().map(|row| distance(&wide[i], row, metric)).collect();
                // What 1 less a cosine does not tell apart in f64 is equally far.
                let blunt = if is_angle_of(metric) { 4. * f64::EPSILON } else { 0. };
                for (at, &j) in near.iter().enumerate() {
                    let as_far = |d: f64| (d - all[j]).abs() <= 16. * f64::EPSILON * all[j] + blunt;
                    let others = || (0..N).filter(|&other| other != i).map(|other| all[other]);
                    let ties = others().filter(|&d| as_far(d)).count() as f64;
                    let nearer = others().filter(|&d| d < all[j] && !as_far(d)).count() as f64;
                    excess += (nearer + (ties + 1.) / 2. - 12.).max(0.);
                    if at < 10 {
                        kept += ((10. - nearer) / ties).clamp(0., 1.);
                    }
                }
            }
            let (n, m) = (N as f64, SAMPLE as f64);
            let trust = 1. - 2. * excess / (m * 12. * (2. * n - 37.));
            let of = TrueDistances::Rows(&rows, metric);
            let got = Measures::of_sample(of, None, &layout, None, SAMPLE, &mut |_| {})?;
            let what = format!("{name}, {}: {got:?}, not {trust} and {}", metric.name(), kept / (m * 10.));
            let is = |got: Option<Estimate>, want: f64, room: f64| {
                got.is_some_and(|got| (got.value - want).abs() < room)
            };
            assert!(is(got.trustworthiness, trust, 1e-9), "{what}");
            // The search takes 1 less a cosine in f64, of which small angles leave few digits.
            let room = if is_angle_of(metric) && name.starts_with("tight") { 5e-3 } else { 1e-9 };
            assert!(is(got.knn_recall, kept / (m * 10.), room), "{what}");
        }
    }
    Ok(())
}
