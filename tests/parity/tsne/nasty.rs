//! The search finds what an f64 search finds, whatever the rows are.
use super::CPU;
use candle::{Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::tsne::{Metric, knn, knn_of};
use chandlery_tests::devices;
use rayon::prelude::*;

/// Random problems; the CPU alone takes fewer.
const PROBLEMS: u64 = if cfg!(feature = "cuda") { 2000 } else { 160 };
/// Queries of a problem that are held against all distances in f64.
const CHECKED: usize = 24;
/// Rounding of f64 sums of a few hundred terms, as a share of a distance; of the cosine, as a part
/// of 1.
const ROUNDING: f64 = 1e-12;

/// What is unusual about rows.
const KINDS: [&str; 15] = [
    "plain",
    "tight clusters far apart",
    "half a dense far cluster",
    "one huge column",
    "one outlier row",
    "tiny",
    "huge",
    "duplicates",
    "whole numbers",
    "clusters in clusters",
    "a scale for each row",
    "far from the origin",
    "unit vectors and zeros",
    "directions and zeros",
    "a narrow cone",
];

/// Draws of one problem.
struct Draws(Philox);

impl Draws {
    fn next(&mut self) -> Philox {
        self.0.stream += 1;
        self.0
    }

    fn normal(&mut self, n: usize, d: usize) -> Result<Vec<f32>> {
        normal((n, d), &CPU, self.next())?.flatten_all()?.to_vec1()
    }

    fn below(&mut self, most: usize) -> Result<usize> {
        let draw = uniform(1, &CPU, self.next())?.to_vec1::<f32>()?[0];
        Ok(((draw * most as f32) as usize).min(most - 1))
    }

    fn pick(&mut self, from: &[usize]) -> Result<usize> {
        Ok(from[self.below(from.len())?])
    }
}

struct Problem {
    what: String,
    n: usize,
    d: usize,
    k: usize,
    metric: Metric,
    rows: Vec<f32>,
}

/// `a + scale · b`, entry by entry.
fn add(a: &mut [f32], scale: f32, b: &[f32]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += scale * b);
}

impl Problem {
    fn new(number: u64) -> Result<Self> {
        let mut draws = Draws(Philox::new(7_000 + number, 0));
        let d = draws.pick(&[1, 2, 5, 8, 9, 24, 50, 128, 129, 136, 200, 301])?;
        let n = draws.pick(&[3, 40, 129, 300, 700, 1100])?;
        let k = (1 + draws.below(90)?).min(n - 1);
        let metric = Metric::ALL[draws.below(Metric::ALL.len())?];
        let kind = KINDS[number as usize % KINDS.len()];
        let mut rows = draws.normal(n, d)?;
        match kind {
            "tight clusters far apart" => {
                let (count, spread) = (2 + draws.below(6)?, 10f32.powi(-(draws.below(6)? as i32)));
                let centres = draws.normal(count, d)?;
                rows.iter_mut().for_each(|x| *x *= spread);
                for (i, row) in rows.chunks_mut(d).enumerate() {
                    add(row, 1000., &centres[(i * 7 % count) * d..][..d]);
                }
            }
            "half a dense far cluster" => {
                for row in rows.chunks_mut(d).skip(n / 2) {
                    row.iter_mut().for_each(|x| *x = 1000. + 0.01 * *x);
                }
            }
            "one huge column" => rows.iter_mut().step_by(d).for_each(|x| *x *= 1e6),
            "one outlier row" => {
                let row = draws.below(n)?;
                rows[row * d..][..d].iter_mut().for_each(|x| *x *= 1e8);
            }
            "tiny" => rows.iter_mut().for_each(|x| *x *= 1e-25),
            "huge" => {
                let scale = if draws.below(2)? == 0 { 1e18 } else { 1e30 };
                rows.iter_mut().for_each(|x| *x *= scale);
            }
            "duplicates" => {
                let distinct = 1 + draws.below(n.min(20))?;
                for i in distinct..n {
                    rows.copy_within((i * 5 % distinct) * d..(i * 5 % distinct + 1) * d, i * d);
                }
            }
            "whole numbers" => rows.iter_mut().for_each(|x| *x = (*x * 2.).round()),
            "clusters in clusters" => {
                let mut scale = 1e-3;
                for level in 0..4 {
                    let centres = draws.normal(3, d)?;
                    for (i, row) in rows.chunks_mut(d).enumerate() {
                        let at = i / 3usize.pow(level) % 3;
                        if level == 0 {
                            row.iter_mut().for_each(|x| *x *= 1e-4);
                        }
                        add(row, scale, &centres[at * d..][..d]);
                    }
                    scale *= 30.;
                }
            }
            "a scale for each row" => {
                for row in rows.chunks_mut(d) {
                    let scale = 10f32.powi(draws.below(60)? as i32 - 30);
                    row.iter_mut().for_each(|x| *x *= scale);
                }
            }
            "far from the origin" => rows.iter_mut().for_each(|x| *x = *x * 0.5 + 1e4),
            "unit vectors and zeros" => {
                rows.fill(0.);
                (0..n).filter(|i| i % 7 != 0).for_each(|i| rows[i * d + i % d] = 1.);
            }
            // Of these the cosine has many neighbours beyond a half.
            "directions and zeros" => {
                rows.chunks_mut(d).step_by(6).for_each(|row| row.fill(0.));
            }
            "a narrow cone" => {
                let axis = draws.normal(1, d)?;
                rows.iter_mut().for_each(|x| *x *= 1e-4);
                rows.chunks_mut(d).for_each(|row| add(row, 3., &axis));
            }
            _ => {}
        }
        let what = format!("problem {number}: {kind}, {n} rows of {d}, k {k}, {metric:?}");
        Ok(Self { what, n, d, k, metric, rows })
    }

    /// The neighbours that were found and are farther than the `k`-th nearest, or twice there, in
    /// words.
    fn missed(&self, device: &Device) -> Result<Vec<String>> {
        let &Self { n, d, k, metric, .. } = self;
        let rows = Tensor::from_slice(&self.rows, (n, d), device)?;
        let all = knn(&rows, k, metric)?;
        // Queries that are rows, as queries: each finds itself as well.
        let step = n.div_ceil(CHECKED);
        let some: Vec<u32> = (0..n).step_by(step).map(|i| i as u32).collect();
        let queries = chandlery_ops::arrays::gather_rows(&rows, &some)?;
        let of_some = knn_of(&queries, &rows, k, metric)?;
        let (all, of_some) = (all.indices.to_vec2::<u32>()?, of_some.indices.to_vec2::<u32>()?);
        let missed = some.par_iter().zip(&of_some).flat_map_iter(|(&i, with_itself)| {
            let i = i as usize;
            let distances: Vec<f64> = (0..n).map(|j| self.distance(i, j)).collect();
            let without = (0..n).filter(|&j| j != i).map(|j| distances[j]).collect();
            let mut missed = missed_of(without, k, &all[i], &distances, Some(i), metric);
            missed.extend(missed_of(distances.clone(), k, with_itself, &distances, None, metric));
            missed.into_iter().map(move |what| format!("row {i}: {what}"))
        });
        Ok(missed.collect())
    }

    fn distance(&self, i: usize, j: usize) -> f64 {
        let row = |i: usize| self.rows[i * self.d..][..self.d].iter().map(|&x| f64::from(x));
        let apart = || row(i).zip(row(j)).map(|(a, b)| (a - b).abs());
        // Rows without their means are rounded to f32, as the metric says.
        let centred = |i: usize| {
            let mean = match self.metric {
                Metric::Correlation => row(i).sum::<f64>() / self.d as f64,
                _ => 0.,
            };
            row(i).map(move |x| f64::from((x - mean) as f32))
        };
        match self.metric {
            Metric::Euclidean => apart().map(|x| x * x).sum::<f64>().sqrt(),
            Metric::Manhattan => apart().sum(),
            Metric::Chebyshev => apart().fold(0., f64::max),
            Metric::Hamming => row(i).zip(row(j)).filter(|(a, b)| a != b).count() as f64 / self.d as f64,
            Metric::Jaccard => {
                let count = |is_in: fn(bool, bool) -> bool| {
                    row(i).zip(row(j)).filter(|&(a, b)| is_in(a != 0., b != 0.)).count() as f64
                };
                count(|a, b| a != b) / count(|a, b| a | b).max(1.)
            }
            Metric::Cosine | Metric::Correlation => {
                let square = |i| centred(i).map(|x| x * x).sum::<f64>();
                let lengths = (square(i) * square(j)).sqrt();
                let product: f64 = centred(i).zip(centred(j)).map(|(a, b)| a * b).sum();
                if lengths > 0. { 1. - product / lengths } else { 1. }
            }
        }
    }
}

fn missed_of(
    mut sorted: Vec<f64>,
    k: usize,
    found: &[u32],
    distances: &[f64],
    own: Option<usize>,
    metric: Metric,
) -> Vec<String> {
    sorted.sort_by(f64::total_cmp);
    let last = sorted[k - 1];
    let most = match metric {
        Metric::Cosine | Metric::Correlation => last + ROUNDING,
        _ => last * (1. + ROUNDING),
    };
    let mut seen = std::collections::HashSet::new();
    let wrong = |&j: &u32| {
        let is_new = seen.insert(j);
        let distance = distances.get(j as usize).copied();
        let right = is_new && own != Some(j as usize) && distance.is_some_and(|distance| distance <= most);
        (!right).then(|| format!("{j} at {distance:?}, the last at {last:e}"))
    };
    found.iter().filter_map(wrong).collect()
}

#[test]
fn no_neighbour_is_missed_whatever_the_rows_are() -> Result<()> {
    for device in devices()? {
        let (mut missed, mut worst) = (0, vec![]);
        for number in 0..PROBLEMS {
            let problem = Problem::new(number)?;
            let now = problem.missed(&device)?;
            missed += now.len();
            if let Some(first) = now.first() {
                worst.push(format!("{}: {}, such as {first}", problem.what, now.len()));
            }
        }
        let shown = worst.iter().take(30).map(String::as_str).collect::<Vec<_>>().join("\n");
        assert_eq!(missed, 0, "{:?}: {} of {PROBLEMS} problems\n{shown}", device.location(), worst.len());
    }
    Ok(())
}
