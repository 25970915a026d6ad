//! Rows that are nearer are those of plain loops, and distances in f64 those of the host.
use super::CPU;
use candle::{DType, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use chandlery_ops::tsne::{
    Bound, ExactRows, Metric, RowsAboutMean, count_nearer, count_nearer_reference, exact_distances,
    row_angles, rows_about_mean,
};
use chandlery_tests::devices;

fn noise(shape: (usize, usize), stream: u64) -> Result<Tensor> {
    normal(shape, &CPU, Philox::new(93, stream))
}

/// Ascending edges of `m` queries, some of which are equal, and some about the distance of a row,
/// `[m, n]`: f64 `[m, k, 2]`.
fn edges(m: usize, k: usize, distances: &[Vec<f64>]) -> Result<Tensor> {
    let of = noise((m, k), 0)?.abs()?.to_vec2::<f32>()?;
    let mut of: Vec<Vec<f64>> = of.into_iter().map(|of| of.into_iter().map(f64::from).collect()).collect();
    of.iter_mut().zip(distances).for_each(|(ranked, distances)| {
        for e in (1..k).step_by(2) {
            ranked[e] = distances[e * 37 % distances.len()];
        }
        ranked.sort_by(f64::total_cmp);
        for e in (2..k).step_by(3) {
            ranked[e] = ranked[e - 1];
        }
    });
    let ends = of.concat().into_iter().flat_map(|d| [d - 1e-9 * d, d + 1e-9 * d]);
    Tensor::from_vec(ends.collect::<Vec<_>>(), (m, k, 2), &CPU)
}

/// Few different numbers, zeros among them, and a row of zeros and one of one number.
fn rows(n: usize, d: usize) -> Result<Tensor> {
    let mut rows = noise((n, d), 5)?.to_vec2::<f32>()?;
    rows.iter_mut().flatten().filter(|x| x.abs() < 0.3).for_each(|x| *x = 0.);
    rows.iter_mut().flatten().for_each(|x| *x = (*x * 4.).round() / 4.);
    rows[n / 2].fill(0.);
    rows[n / 3].fill(0.5);
    Tensor::new(rows, &CPU)
}

#[test]
fn rows_are_counted_as_plain_loops_do_on_every_device() -> Result<()> {
    const MOST: usize = 20;
    // Counted by bounds, within edges, in doubt, and more of these than are counted.
    let mut seen = [0; 4];
    for (at, (m, n, k)) in
        [(1, 1, 1), (3, 31, 2), (5, 257, 12), (7, 1000, 33), (2, 5000, 300)].into_iter().enumerate()
    {
        let (metric, rows) = (Metric::ALL[at % Metric::ALL.len()], rows(n, [1, 7, 33, 130, 64][at])?);
        let own: Vec<u32> = (0..m as u32).map(|i| i * 7 % n as u32).collect();
        let angles = metric.is_angle().then(|| row_angles(&rows, metric)).transpose()?;
        let exact = ExactRows { rows: &rows, angles: angles.as_ref(), metric };
        let all: Vec<u32> = own.iter().flat_map(|_| 0..n as u32).collect();
        let truth = exact_distances(exact, &own, &all)?;
        let edges = edges(m, k, &truth.to_vec2()?)?;
        let mut halves = noise((1, n), 1)?.abs()?.to_dtype(DType::F64)?.squeeze(0)?.to_vec1::<f64>()?;
        // Of which nothing is known.
        halves[n - 1] = if n > 1 { f64::INFINITY } else { halves[0] };
        let halves = Tensor::from_vec(halves, n, &CPU)?;
        let mut distances = noise((m, n), 2)?.abs()?.to_vec2::<f32>()?;
        distances[0][n / 2] = f32::INFINITY;
        distances[m - 1][n - 1] = f32::NAN;
        let distances = Tensor::new(distances, &CPU)?;
        let products = (noise((m, n), 3)? * 0.5)?;
        // Some stand for one row, which a query may be itself.
        let weights: Vec<u32> = (0..n as u32).map(|j| 1 + j * j % 5).collect();
        let weights = Tensor::from_vec(weights, n, &CPU)?;
        for (values, halves, weights) in [
            (&products, Some(&halves), None),
            (&distances, None, None),
            (&products, Some(&halves), Some(&weights)),
            (&distances, None, Some(&weights)),
        ] {
            for share in [0., 1e-3, 10.] {
                let bound = Bound { share, lost: 1e-12, unit: if halves.is_some() { 4. } else { 1. } };
                let want = count_nearer_reference(values, halves, weights, &own, &edges, &bound, &truth)?;
                for (device, most) in
                    devices()?.into_iter().flat_map(|device| [(device.clone(), n), (device, MOST)])
                {
                    let what =
                        format!("{m} of {n}, {k} ranked, share {share}, {most}, {:?}", device.location());
                    let there = |t: &Tensor| t.to_device(&device);
                    let halves = halves.map(there).transpose()?;
                    let (values, edges, rows) = (there(values)?, there(&edges)?, there(&rows)?);
                    let weights = weights.map(there).transpose()?;
                    let angles = angles.as_ref().map(there).transpose()?;
                    let exact = ExactRows { rows: &rows, angles: angles.as_ref(), metric };
                    let (halves, weights) = (halves.as_ref(), weights.as_ref());
                    let got = count_nearer(&values, halves, weights, &own, &edges, &bound, exact, most)?;
                    let between = got.between.to_vec2::<u32>()?;
                    let (as_far, counts) = (got.as_far.to_vec2::<u32>()?, got.n_doubtful.to_vec1::<u32>()?);
                    for (i, [want_between, want_as_far, list]) in want.iter().enumerate() {
                        assert_eq!(counts[i] as usize, list.len(), "{what}: query {i}");
                        if list.len() <= most {
                            assert_eq!(&between[i], want_between, "{what}: query {i}");
                            assert_eq!(&as_far[i], want_as_far, "{what}: query {i}");
                            seen[0] += between[i].iter().sum::<u32>();
                            seen[1] += as_far[i].iter().sum::<u32>();
                        }
                        seen[if list.len() <= most { 2 } else { 3 }] += list.len() as u32;
                    }
                }
            }
        }
    }
    assert!(seen.iter().all(|&rows| rows > 100), "{seen:?}");
    Ok(())
}

#[test]
fn distances_in_f64_are_those_of_the_host() -> Result<()> {
    for (n, d) in [(1, 1), (5, 3), (40, 31), (40, 32), (33, 257), (20, 1000)] {
        let rows = rows(n, d)?;
        let host = rows.to_vec2::<f32>()?;
        let own: Vec<u32> = (0..n as u32).rev().collect();
        let others: Vec<u32> = (0..3 * n as u32).map(|e| e * e % n as u32).collect();
        for metric in Metric::ALL {
            let wide: Vec<Vec<f64>> =
                host.iter().map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect();
            // By the words of `Metric`, in plain loops.
            let distance = |i: u32, j: u32| {
                let pairs: Vec<(f64, f64)> =
                    wide[i as usize].iter().copied().zip(wide[j as usize].iter().copied()).collect();
                let sum = |term: fn(f64, f64) -> f64| pairs.iter().map(|&(x, y)| term(x, y)).sum::<f64>();
                match metric {
                    Metric::Euclidean => 0.5 * sum(|x, y| (x - y).powi(2)),
                    Metric::Manhattan => sum(|x, y| (x - y).abs()),
                    Metric::Chebyshev => pairs.iter().fold(0f64, |most, (x, y)| most.max((x - y).abs())),
                    Metric::Hamming => sum(|x, y| if x == y { 0. } else { 1. }) / d as f64,
                    Metric::Jaccard => {
                        let any = sum(|x, y| if x == 0. && y == 0. { 0. } else { 1. });
                        let both = sum(|x, y| if x == 0. || y == 0. { 0. } else { 1. });
                        if any > 0. { 1. - both / any } else { 0. }
                    }
                    Metric::Cosine | Metric::Correlation => {
                        let mean = |x: fn(&(f64, f64)) -> f64| match metric {
                            Metric::Correlation => pairs.iter().map(x).sum::<f64>() / d as f64,
                            _ => 0.,
                        };
                        let (a, b) = (mean(|pair| pair.0), mean(|pair| pair.1));
                        let dot =
                            |x: &dyn Fn(f64, f64) -> f64| pairs.iter().map(|&(p, q)| x(p, q)).sum::<f64>();
                        let lengths = (dot(&|p, _| (p - a).powi(2)) * dot(&|_, q| (q - b).powi(2))).sqrt();
                        if lengths > 0. { 1. - dot(&|p, q| (p - a) * (q - b)) / lengths } else { 1. }
                    }
                }
            };
            for device in devices()? {
                let what = format!("{n}x{d}, {metric:?}, {:?}", device.location());
                let rows = rows.to_device(&device)?;
                let angles = metric.is_angle().then(|| row_angles(&rows, metric)).transpose()?;
                let exact = ExactRows { rows: &rows, angles: angles.as_ref(), metric };
                let got = exact_distances(exact, &own, &others)?.to_vec2::<f64>()?;
                for ((got, others), &own) in got.iter().zip(others.chunks(3)).zip(&own) {
                    for (got, &other) in got.iter().zip(others) {
                        let want = distance(own, other);
                        assert!((got - want).abs() <= 1e-13 * (1. + want), "{what}: {got} for {want}");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn differences_of_rows_about_their_mean_are_those_of_the_rows() -> Result<()> {
    let (n, d) = (70, 13);
    let plain = noise((n, d), 4)?;
    let column = Tensor::arange(0u32, d as u32, &CPU)?.eq(2u32)?.to_dtype(DType::F32)?.unsqueeze(0)?;
    let without = plain.broadcast_sub(&plain.broadcast_mul(&column)?)?;
    for (name, rows) in [
        ("plain", plain.clone()),
        ("an offset", (&plain + 1e6)?),
        ("times 1e38", plain.clamp(-3f32, 3.)?.affine(1e38, 0.)?),
        ("times 1e-30", (&plain * 1e-30)?),
        ("a huge column of one value", (without * 1e-3)?.broadcast_add(&(column * 1e38)?)?),
        ("equal rows", plain.narrow(0, 0, 1)?.repeat((n, 1))?),
    ] {
        for device in devices()? {
            let what = format!("{name}, {:?}", device.location());
            let RowsAboutMean { rows: about, halves, scale } = rows_about_mean(&rows.to_device(&device)?)?;
            let wide = |t: &Tensor| t.to_device(&CPU)?.to_dtype(DType::F64)?.to_vec2::<f64>();
            let (x, y) = (wide(&rows)?, wide(&about)?);
            assert_eq!(scale.log2().fract(), 0., "{what}: {scale} is no power of two");
            let largest = y.iter().flatten().fold(0f64, |most, y| most.max(y.abs()));
            let range = match name {
                "equal rows" => 0. ..=1e-6 * scale * 4.,
                // A GPU's scale, which is f32, ends at 2^-126.
                "times 1e38" => 0.25..=4.,
                _ => 0.25..=2.,
            };
            assert!(range.contains(&largest), "{what}: the largest is {largest}");
            for (i, j) in (0..n).flat_map(|i| [(i, 0), (i, (i * 31 + 7) % n)]) {
                for c in 0..d {
                    let (got, want) = (y[i][c] - y[j][c], scale * (x[i][c] - x[j][c]));
                    // Each is rounded once, by 2^-24 of itself; and what f64 loses of large numbers.
                    let room = (y[i][c].abs() + y[j][c].abs()) * (-24f64).exp2() * 1.01
                        + scale * (x[i][c].abs() + x[j][c].abs()) * (-52f64).exp2();
                    assert!((got - want).abs() <= room, "{what}: {got} for {want}, {room} off at most");
                }
            }
            for (row, half) in y.iter().zip(halves.to_vec1::<f64>()?) {
                let want = 0.5 * row.iter().map(|y| y * y).sum::<f64>();
                assert!((half - want).abs() <= 1e-13 * want, "{what}: {half} for {want}");
                assert!(row[d..].iter().all(|&y| y == 0.), "{what}: padding");
            }
        }
    }
    Ok(())
}
