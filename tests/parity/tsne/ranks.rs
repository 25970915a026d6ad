//! Rows that are surely nearer, and those in doubt, are those of plain loops.
use super::CPU;
use candle::{DType, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use chandlery_ops::tsne::{Bound, RowsAboutMean, count_nearer, count_nearer_reference, rows_about_mean};
use chandlery_tests::devices;

fn noise(shape: (usize, usize), stream: u64) -> Result<Tensor> {
    normal(shape, &CPU, Philox::new(93, stream))
}

/// Ascending edges of `m` queries, some of which are equal: f64 `[m, k, 2]`.
fn edges(m: usize, k: usize) -> Result<Tensor> {
    let mut of = noise((m, k), 0)?.abs()?.to_vec2::<f32>()?;
    of.iter_mut().for_each(|ranked| {
        ranked.sort_by(f32::total_cmp);
        for e in (2..k).step_by(3) {
            ranked[e] = ranked[e - 1];
        }
    });
    let ends = of.concat().into_iter().map(f64::from).flat_map(|d| [d - 1e-9 * d, d + 1e-9 * d]);
    Tensor::from_vec(ends.collect::<Vec<_>>(), (m, k, 2), &CPU)
}

#[test]
fn rows_are_counted_as_plain_loops_do_on_every_device() -> Result<()> {
    const ROOM: usize = 20;
    // Counted, listed, and more than there is room for.
    let mut seen = [0; 3];
    for (m, n, k) in [(1, 1, 1), (3, 31, 2), (5, 257, 12), (7, 1000, 33), (2, 5000, 300)] {
        let own: Vec<u32> = (0..m as u32).map(|i| i * 7 % n as u32).collect();
        let edges = edges(m, k)?;
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
                let want = count_nearer_reference(values, halves, weights, &own, &edges, &bound)?;
                let (between, doubtful): (Vec<_>, Vec<_>) = want.into_iter().unzip();
                for device in devices()? {
                    let what = format!("{m} of {n}, {k} ranked, share {share}, {:?}", device.location());
                    let there = |t: &Tensor| t.to_device(&device);
                    let halves = halves.map(there).transpose()?;
                    let (values, edges) = (there(values)?, there(&edges)?);
                    let weights = weights.map(there).transpose()?;
                    let got =
                        count_nearer(&values, halves.as_ref(), weights.as_ref(), &own, &edges, &bound, ROOM)?;
                    assert_eq!(got.between.to_vec2::<u32>()?, between, "{what}");
                    let counts = got.n_doubtful.to_vec1::<u32>()?;
                    for (i, want) in doubtful.iter().enumerate() {
                        let listed = &got.doubtful.get(i)?.to_vec1::<u32>()?[..want.len().min(ROOM)];
                        let mut listed = listed.to_vec();
                        listed.sort_unstable();
                        assert_eq!(counts[i] as usize, want.len(), "{what}: query {i}");
                        listed.dedup();
                        assert_eq!(listed.len(), want.len().min(ROOM), "{what}: query {i} has a row twice");
                        assert!(listed.iter().all(|j| want.contains(j)), "{what}: query {i}: {listed:?}");
                        seen[0] += between[i].iter().sum::<u32>();
                        seen[if want.len() <= ROOM { 1 } else { 2 }] += want.len() as u32;
                    }
                }
            }
        }
    }
    assert!(seen.iter().all(|&rows| rows > 100), "{seen:?}");
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
